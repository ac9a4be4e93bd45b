"""Refuses instructions that no `ptxas` takes: unknown forms, wrong operands, wrong targets.

Invariant: an instruction passes if one form of the tables fits its words, its operands and the
module's target; what is refused is refused by name and line before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from astdsl.emulator.forms import Form, Operand, fitting, forms_of
from astdsl.emulator.scalars import TYPES, Scalar
from astdsl.emulator.syntax import (
    Address,
    Group,
    Immediate,
    Negated,
    Pair,
    Register,
    Symbol,
    Vector,
)
from astdsl.emulator.syntax import Operand as Argument

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands

_SHOWN_FORMS = 4
_LINE_BYTES = 128
# Types of registers besides those of the same kind: integers of both signs are alike.
_KINDS = {"u": "i", "s": "i", "f": "f", "bf": "bf", "tf": "tf", "pred": "pred", "b": "b"}
_NUMBER = re.compile(r"sm_(\d+)([af]?)$")
# Opcodes whose addresses are generic or global unless they name another space.
_GENERIC = (
    "ld.",
    "ldu.",
    "st.",
    "atom.",
    "red.",
    "mbarrier.",
    "prefetch",
    "discard",
    "applypriority",
)
_WINDOWS = ("shared", "local", "param", "const")
# What targets before sm_90 do not have.
_LEAST = {
    "cp.async.bulk": "sm_90", "cp.reduce": "sm_90", "cp.async": "sm_80",
    "mbarrier.try_wait": "sm_90", "mbarrier.": "sm_80", "barrier.cluster": "sm_90",
    "fence.proxy": "sm_90", "fence.mbarrier_init": "sm_90", "mapa": "sm_90",
    "getctarank": "sm_90", "ldmatrix": "sm_75", "stmatrix": "sm_90", "st.async": "sm_90",
    "red.async": "sm_90", "griddepcontrol": "sm_90", "elect": "sm_90", "redux": "sm_80",
    "tensormap": "sm_90",
}  # fmt: skip
# Where variables of the spaces that an access names are held.
_HELD = {
    "global": ("global",), "const": ("global",), "shared": ("shared",),
    "shared::cta": ("shared",), "local": ("local",), "param": ("param", "local"),
    "param::entry": ("param",),
}  # fmt: skip
_NEEDS = {"family": "sm_100a or sm_100f", "own": "sm_90a or sm_100a"}
# The targets that have what is of Blackwell alone.
FAMILY = frozenset(f"sm_{number}{letter}" for number in (100, 101, 103, 110) for letter in "af")


def check_form(ops: Operands, target: str, passed: set[Hashable]) -> None:
    """Refuse an instruction of which there is no such form, or not for the target.

    `passed` are the opcodes with the kinds of their operands that the program has so far.
    """
    kinds = ops.instruction.opcode, *(_kind(ops, arg) for arg in ops.args)
    if kinds not in passed:
        _require_form(ops, target)
        passed.add(kinds)


def _kind(ops: Operands, arg: Argument) -> Hashable:
    """Return all of an operand that its form depends on."""
    return type(arg), _KINDS_OF.get(type(arg), _nothing)(ops, arg)


def _require_form(ops: Operands, target: str) -> None:
    opcode, args = ops.instruction.opcode, ops.args
    base = opcode.partition(".")[0]
    forms = fitting(opcode)
    if not forms:
        known = forms_of(base)
        if known:
            raise ops.refuse("PTX 9.0 has no such form; " + _listed(ops, known))
        return
    needed = next((need for start, need in _LEAST.items() if opcode.startswith(start)), "")
    if needed and not has(target, needed):
        raise ops.refuse(f"it needs .target {needed} or higher, not {target}")
    here = [form for form in forms if all(has(target, need) for need in form.needs)]
    if not here:
        needs = forms[0].needs[0]
        needs = _NEEDS.get(needs, needs)
        raise ops.refuse(f"it needs .target {needs}, not {target}")
    counted = [form for form in here if form.takes(len(args))]
    if not counted:
        raise ops.refuse(f"it has no form with {len(args)} operands; " + _listed(ops, here))
    wrong = [_wrong(ops, form) for form in counted]
    if all(wrong):
        raise ops.refuse(str(wrong[-1]))


def _listed(ops: Operands, forms: tuple[Form, ...] | list[Form]) -> str:
    """Return what forms there are, those that share most words first."""
    words = set(ops.modifiers)

    def shared(form: Form) -> int:
        return sum(bool(slot.names & words) for slot in form.slots)

    chosen = sorted(forms, key=shared, reverse=True)[:_SHOWN_FORMS]
    return "there are " + "; ".join(map(_shown, chosen))


def _shown(form: Form) -> str:
    return f"{form.syntax} {', '.join('|'.join(each.kinds) for each in form.operands)}".strip()


def has(target: str, need: str) -> bool:
    """Say whether a target has what a form needs: `sm_100` and up, `sm_90a` alone, a family."""
    have = _NUMBER.match(target)
    if have is None:
        return False
    if need == "family":
        return target in FAMILY
    if need == "own":
        return bool(have[2])
    if need.endswith("a"):
        return target == need
    return int(have[1]) >= int(need.removeprefix("sm_"))


def _wrong(ops: Operands, form: Form) -> str:
    """Return what is wrong with the operands for a form, "" if nothing is."""
    for number, (operand, arg) in enumerate(zip(form.operands, ops.args, strict=False), 1):
        what = _mismatch(ops, operand, arg)
        if what:
            return f"operand {number} {what}"
    return ""


def _mismatch(ops: Operands, operand: Operand, arg: Argument) -> str:
    if operand.is_vector and isinstance(arg, Vector):
        if operand.count not in (0, len(arg.elements)):
            return f"has {operand.count} elements, not {len(arg.elements)}"
        kind = operand.kinds[0]
        return next((w for each in arg.elements if (w := _one(ops, operand, kind, each))), "")
    if isinstance(arg, Vector) and len(arg.elements) == 1:
        # Triton loads one register as a vector of one.
        return _mismatch(ops, operand, arg.elements[0])
    if operand.count:
        return f"is a vector of {operand.count}"
    if len(operand.kinds) == 1:
        return _one(ops, operand, operand.kinds[0], arg)
    if not isinstance(arg, Pair):
        return "is a pair, written a|b"
    parts = zip(operand.kinds, (arg.first, arg.second), strict=True)
    return next((w for kind, each in parts if (w := _one(ops, operand, kind, each))), "")


def _one(ops: Operands, operand: Operand, kind: str, arg: Argument) -> str:
    check = _CHECKS.get(kind)
    if check is not None:
        return check(arg) or _narrow_address(ops, arg) or _other_space(ops, arg)
    return _VALUES.get(type(arg), _no_value)(ops, operand, _type(ops, kind), arg)


def _type(ops: Operands, kind: str) -> Scalar:
    """Return the type that an operand's kind names in an opcode."""
    if kind in TYPES:
        return TYPES[kind]
    named = [word for word in ops.modifiers if word in TYPES]
    if not named:
        raise AssertionError(f"{ops.instruction.opcode} names no type")
    return TYPES[named[-1] if kind == "t" else named[int(kind) - 1]]


def _narrow_address(ops: Operands, arg: Argument) -> str:
    """Say what is wrong with an address in 32 bits, which only windows of 32 bits have."""
    base = arg.base if isinstance(arg, Address) else None
    declared = ops.function.register_type(base.name) if isinstance(base, Register) else None
    if declared is None:
        return ""
    opcode = ops.instruction.opcode
    wide = opcode.startswith(_GENERIC) and not ops.has("async")
    narrow = any(word.startswith(_WINDOWS) for word in ops.modifiers)
    if wide and not narrow and TYPES[declared].bits < 64:
        return f"is an address of 64 bits, but its register has {TYPES[declared].bits}"
    return ""


def _other_space(ops: Operands, arg: Argument) -> str:
    """Say what is wrong with a variable of another space than the one that an access names."""
    base = arg.base if isinstance(arg, Address) else None
    found = ops.symbols(base.name) if isinstance(base, Symbol) else None
    named = [_HELD[word] for word in ops.modifiers if word in _HELD]
    if found is None or len(named) != 1 or found[0] in named[0] or found[0] == "function":
        return ""
    return f"names a variable of .{found[0]} memory"


_CHECKS: dict[str, Callable[[Argument], str]] = {
    "sink": lambda arg: "" if getattr(arg, "name", "") == "_" else "is `_`",
    "any": lambda arg: "",
    "mem": lambda arg: "" if isinstance(arg, Address) else "is an address, written [a]",
    "line": lambda arg: "" if isinstance(arg, Immediate) and arg.value == _LINE_BYTES else "is 128",
    "imm": lambda arg: "" if isinstance(arg, Immediate) else "is a constant",
}


def _register(ops: Operands, operand: Operand, scalar: Scalar, arg: Argument) -> str:
    if not isinstance(arg, Register):
        raise AssertionError("a register has a name")
    declared = ops.function.register_type(arg.name)
    if declared is None:
        # A special register or an unknown one, which the families look up.
        return ""
    have = TYPES[declared]
    fits = have.bits > scalar.bits if operand.wider else False
    if (have.bits != scalar.bits and not fits) or (have.bits == 1) != (scalar.bits == 1):
        return f"is a register of {scalar.bits} bits, but {arg.name} has {have.bits}"
    kinds = {_KINDS[have.kind], _KINDS[scalar.kind]}
    if have.count > 1 or scalar.count > 1 or "b" in kinds or len(kinds) == 1:
        return ""
    return f"is a .{scalar.name}, but {arg.name} is a .{declared}"


def _literal(ops: Operands, operand: Operand, scalar: Scalar, arg: Argument) -> str:
    if not isinstance(arg, Immediate):
        raise AssertionError("a literal has a value")
    if scalar.is_float and (scalar.count > 1 or scalar.kind != "f" or scalar.bits == 16):
        return f"is a register: there are no constants of .{scalar.name}"
    if scalar.is_float and arg.kind == "int":
        return f"is a .{scalar.name}, but its constant is an integer"
    if scalar.kind in "us" and arg.kind != "int":
        return f"is a .{scalar.name}, but its constant is a float"
    return ""


def _negated(ops: Operands, operand: Operand, scalar: Scalar, arg: Argument) -> str:
    if not isinstance(arg, Negated):
        raise AssertionError("what is negated is an operand")
    if scalar.kind != "pred":
        return "is no predicate that could be negated"
    return _register(ops, operand, scalar, arg.operand)


def _symbol(ops: Operands, operand: Operand, scalar: Scalar, arg: Argument) -> str:
    if not isinstance(arg, Symbol):
        raise AssertionError("a symbol has a name")
    return (
        "" if arg.name in ("_", "WARP_SZ") else "is a value; `mov` takes the address of a variable"
    )


def _no_value(ops: Operands, operand: Operand, scalar: Scalar, arg: Argument) -> str:
    return f"is one .{scalar.name}"


def _nothing(ops: Operands, arg: Argument) -> Hashable:
    return None


def _of_register(ops: Operands, arg: Any) -> Hashable:
    return ops.function.register_type(arg.name) or arg.name


def _of_address(ops: Operands, arg: Any) -> Hashable:
    if isinstance(arg.base, Symbol):
        found = ops.symbols(arg.base.name)
        return found[0] if found else None
    return _kind(ops, arg.base)


_KINDS_OF: dict[type, Callable[[Operands, Any], Hashable]] = {
    Register: _of_register,
    Immediate: lambda ops, arg: (arg.kind, arg.value == _LINE_BYTES),
    Symbol: lambda ops, arg: arg.name,
    Negated: lambda ops, arg: _kind(ops, arg.operand),
    Address: _of_address,
    Vector: lambda ops, arg: tuple(_kind(ops, each) for each in arg.elements),
    Pair: lambda ops, arg: (_kind(ops, arg.first), _kind(ops, arg.second)),
}
_VALUES: dict[type, Callable[[Operands, Operand, Scalar, Argument], str]] = {
    Register: _register,
    Immediate: _literal,
    Negated: _negated,
    Symbol: _symbol,
    Vector: _no_value,
    Address: _no_value,
    Pair: _no_value,
    Group: _no_value,
}
