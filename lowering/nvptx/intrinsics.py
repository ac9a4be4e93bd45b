"""LLVM intrinsics known to lower on NVPTX, with the types they are known for.

Invariant: LLVM ends the Python process on an intrinsic it cannot lower, so the builder refuses,
with an AssertionError, whatever is not in this table.  A test lowers every entry on every target
in a child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astdsl.lowering.nvptx.values import element_of, lanes_of


class Intrinsic(NamedTuple):
    """One family of intrinsics.

    In `operands` and `result`, ``T`` stands for the overloaded type; `types` lists what it may be.
    A family without `types` is one function.  `immediates` are the operands that must be constants.
    A family with `results` is overloaded by its result as well.
    """

    name: str
    result: str
    operands: tuple[str, ...]
    types: tuple[str, ...] = ()
    immediates: tuple[int, ...] = ()
    results: tuple[str, ...] = ()


class Signature(NamedTuple):
    """One concrete intrinsic: how it is called and declared."""

    name: str
    result: str
    operands: tuple[str, ...]
    immediates: tuple[int, ...]

    @property
    def declaration(self) -> str:
        """Spell the ``declare`` line."""
        operands = ", ".join(
            f"{type} immarg" if number in self.immediates else type
            for number, type in enumerate(self.operands)
        )
        return f"declare {self.result} @{self.name}({operands})"


_FLOATS = ("half", "bfloat", "float", "double")
_FLOAT_VECTORS = tuple(
    f"<{lanes} x {type}>" for type in ("half", "bfloat", "float") for lanes in (2, 4, 8)
)
_INTEGERS = ("i8", "i16", "i32", "i64")
_UNARY, _BINARY, _TERNARY = ("T",), ("T", "T"), ("T", "T", "T")


def _float_family(name: str, operands: tuple[str, ...], types: tuple[str, ...]) -> Intrinsic:
    return Intrinsic(f"llvm.{name}", "T", operands, types)


_FLOAT_FAMILIES = (
    *(
        _float_family(name, _UNARY, _FLOATS)
        for name in ("floor", "ceil", "trunc", "rint", "roundeven", "round")
    ),
    _float_family("sqrt", _UNARY, _FLOATS),
    _float_family("fabs", _UNARY, _FLOATS + _FLOAT_VECTORS),
    *(_float_family(name, _BINARY, _FLOATS + _FLOAT_VECTORS) for name in ("minimum", "maximum")),
    *(_float_family(name, _BINARY, _FLOATS) for name in ("minnum", "maxnum", "copysign")),
    _float_family("fma", _TERNARY, _FLOATS + _FLOAT_VECTORS),
    _float_family("exp2", _UNARY, ("half", "bfloat", "float")),
)

_INTEGER_FAMILIES = (
    *(
        Intrinsic(f"llvm.{name}", "T", _BINARY, _INTEGERS)
        for name in ("smin", "smax", "umin", "umax")
    ),
    Intrinsic("llvm.abs", "T", ("T", "i1"), _INTEGERS, immediates=(1,)),
    Intrinsic("llvm.ctpop", "T", _UNARY, ("i32", "i64")),
    Intrinsic("llvm.ctlz", "T", ("T", "i1"), ("i32", "i64"), immediates=(1,)),
    Intrinsic("llvm.cttz", "T", ("T", "i1"), ("i32", "i64"), immediates=(1,)),
    Intrinsic("llvm.bitreverse", "T", _UNARY, ("i32", "i64")),
    Intrinsic("llvm.fshl", "T", _TERNARY, ("i32",)),
    Intrinsic("llvm.fshr", "T", _TERNARY, ("i32",)),
)

# Towards zero, the nearest bound if out of range, 0 for NaN.  The PTX instruction alone gives
# another number for NaN where either side has 64 bits (PTX ISA 9.7.9.21).
_CONVERSIONS = tuple(
    Intrinsic(f"llvm.{name}.sat", "R", _UNARY, _FLOATS, results=_INTEGERS)
    for name in ("fptosi", "fptoui")
)

_SPECIAL_REGISTERS = (
    *(
        Intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}.{axis}", "i32", ())
        for register in ("tid", "ntid", "ctaid", "nctaid")
        for axis in "xyz"
    ),
    Intrinsic("llvm.nvvm.read.ptx.sreg.laneid", "i32", ()),
    Intrinsic("llvm.nvvm.read.ptx.sreg.cluster.ctarank", "i32", ()),
    Intrinsic("llvm.nvvm.read.ptx.sreg.cluster.nctarank", "i32", ()),
)

_NVVM = (
    Intrinsic("llvm.nvvm.ex2.approx.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.ex2.approx.ftz.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.lg2.approx.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.rcp.approx.ftz.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.rsqrt.approx.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.sqrt.rn.f", "float", ("float",)),
    Intrinsic("llvm.nvvm.mulhi.i", "i32", ("i32", "i32")),
    Intrinsic("llvm.nvvm.mulhi.ui", "i32", ("i32", "i32")),
    Intrinsic("llvm.nvvm.prmt", "i32", ("i32", "i32", "i32")),
)

INTRINSICS: dict[str, Intrinsic] = {
    family.name: family
    for group in (_FLOAT_FAMILIES, _INTEGER_FAMILIES, _CONVERSIONS, _SPECIAL_REGISTERS, _NVVM)
    for family in group
}

_SUFFIXES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def signature(name: str, type: str | None = None, result: str | None = None) -> Signature:
    """Give the concrete intrinsic `name` for the overloaded `type`, and `result` where that varies.

    Raises AssertionError for what is not known to lower.
    """
    family = INTRINSICS.get(name)
    if family is None:
        raise AssertionError(f"intrinsic {name} is not known to lower on NVPTX")
    if not family.types:
        return Signature(name, family.result, family.operands, family.immediates)
    if type not in family.types:
        raise AssertionError(f"intrinsic {name} is not known to lower for {type}")
    operands = tuple(type if operand == "T" else operand for operand in family.operands)
    if not family.results:
        return Signature(f"{name}.{_mangled(type)}", type, operands, family.immediates)
    if result not in family.results:
        raise AssertionError(f"intrinsic {name} is not known to lower from {type} to {result}")
    mangled = f"{name}.{_mangled(result)}.{_mangled(type)}"
    return Signature(mangled, result, operands, family.immediates)


def every_signature() -> list[Signature]:
    """List all concrete intrinsics of the table."""
    return [
        signature(family.name, type, result)
        for family in INTRINSICS.values()
        for type in family.types or (None,)
        for result in family.results or (None,)
    ]


def check_operands(found: Signature, types: Sequence[str]) -> None:
    """Refuse operands whose types are not those of the intrinsic."""
    if tuple(types) != found.operands:
        raise AssertionError(
            f"{found.name} takes ({', '.join(found.operands)}), got ({', '.join(types)})"
        )


def _mangled(type: str) -> str:
    element = element_of(type)
    suffix = _SUFFIXES.get(element, element)
    return suffix if element == type else f"v{lanes_of(type)}{suffix}"
