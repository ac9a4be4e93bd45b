"""`call` and `ret` of device functions (PTX ISA 9.7.12.5, 9.7.12.6, 7.1).

Invariant: parameters and results live in local memory (`.param`) or registers (`.reg`) of the
function that declares them; a call copies arguments in, its frame copies results out on return.
A function has its variables once for each lane; a call that may come back to its caller saves the
caller's, and its frame restores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.isa.runtime import RUNTIME, Provided, undefined_argument
from astdsl.emulator.isa.stack import Stack
from astdsl.emulator.layout import size_bytes
from astdsl.emulator.scalars import UNSIGNED, all_of
from astdsl.emulator.syntax import Function, Group, Immediate, Operand, Register, Symbol, Variable

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array

Copy = Callable[["Machine", "Lanes"], None]
Read = Callable[["Machine", "Lanes"], Any]
Write = Callable[["Machine", "Lanes", Any], None]


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """Where a call returns to, its results, and whose variables it restores (None = nobody's).

    With `allocates`, functions of the program allocate on the stack.
    """

    pc: int
    results: tuple[tuple[Read, Write], ...]
    saves: Function | None
    allocates: bool

    def leave(self, m: Machine, lanes: Lanes, depth: int) -> None:
        """Bring results to the caller, whose variables come back first."""
        values = [np.array(read(m, lanes)) for read, _ in self.results]
        if self.saves is not None:
            m.state(_Saved).restore(m, lanes, self.saves, depth)
        if self.allocates:
            m.state(Stack).leave(lanes, depth)
        for value, (_, write) in zip(values, self.results, strict=True):
            write(m, lanes, value)


class _Saved:
    """The variables of functions that were called again before they returned, by depth."""

    def __init__(self, m: Machine) -> None:
        self.rows: dict[tuple[int, object], Array] = {}

    def save(self, m: Machine, lanes: Lanes, function: Function, depth: int) -> None:
        """Keep a function's registers and local variables."""
        for key, row in _variables(m, function):
            kept = self.rows.get((depth, key))
            if kept is None:
                kept = self.rows[depth, key] = np.zeros_like(row)
            kept[lanes.sel] = row[lanes.sel]

    def restore(self, m: Machine, lanes: Lanes, function: Function, depth: int) -> None:
        """Put them back."""
        for key, row in _variables(m, function):
            row[lanes.sel] = self.rows[depth, key][lanes.sel]


def _variables(m: Machine, function: Function) -> Iterator[tuple[object, Array]]:
    """Give every register and local variable of a function, with one entry a lane."""
    layout, local = m.program.layout, m.memory.local
    for bits, row in layout.own_registers(function):
        yield (bits, row), m.registers.banks[bits][row]
    for offset, size in layout.own_locals(function):
        yield ("data", offset), local.data[:, offset : offset + size]
        yield ("defined", offset), local.defined[:, offset : offset + size]


@controls("ret")
def prepare_ret(ops: Operands) -> Control:
    """`ret`: go back to the caller; in the kernel itself, end."""
    ops.allow("uni")

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        stack = m.group.stack
        if stack:
            frame = stack[-1]
            if not isinstance(frame, Frame):
                raise AssertionError("a call stack holds frames")
            frame.leave(m, lanes, len(stack))
            m.jump(lanes, frame.pc, stack[:-1])
        else:
            m.end(lanes)
        return lane_sets.NONE

    return execute


@controls("call")
def prepare_call(ops: Operands) -> Control:
    """`call{.uni} {(results),} function {, (arguments)} {, prototype}`."""
    ops.allow("uni")
    args = list(ops.args)
    results = args.pop(0) if isinstance(args[0], Group) else Group(())
    target = args.pop(0)
    arguments = args[0] if args and isinstance(args[0], Group) else Group(())
    if not isinstance(results, Group):
        raise AssertionError("results of a call are a group")
    if isinstance(target, Symbol):
        provided = RUNTIME.get(target.name)
        if provided is not None and target.name not in ops.layout.starts:
            return _provided(ops, provided, results, arguments)
        function = _named(ops, target.name)
        return _direct(_Site(ops, function, results, arguments))
    by_start = {
        ops.layout.starts[each.name]: each for each in ops.layout.functions if not each.is_entry
    }
    sites = {
        start: _Site(ops, function, results, arguments)
        for start, function in by_start.items()
        if len(function.parameters) == len(arguments.elements)
        and len(function.results) == len(results.elements)
    }
    address = ops.source(target, "u64")
    ops.sensitive += ops.registers(target)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        targets = np.broadcast_to(address(m, lanes), lanes.n)
        for start in np.unique(targets):
            some = lanes.where(targets == start)
            site = sites.get(int(start))
            if site is None:
                text = f"call of {int(start):#x}, which is no function of this signature"
                raise m.fault("E211", text, int(some.index[0]))
            site.enter(m, some)
        return lane_sets.NONE

    return execute


def _direct(site: _Site) -> Control:
    def execute(m: Machine, lanes: Lanes) -> Lanes:
        site.enter(m, lanes)
        return lane_sets.NONE

    return execute


def _provided(ops: Operands, called: Provided, results: Group, arguments: Group) -> Control:
    """Call a function of the device runtime, which the emulator itself provides."""
    given = (len(arguments.elements), len(results.elements))
    if given != (len(called.argument_bytes), len(called.result_bytes)):
        raise ops.refuse("it does not take and give as many values as the runtime's function")
    reads = [
        _argument(ops, actual, size)
        for actual, size in zip(arguments.elements, called.argument_bytes, strict=True)
    ]
    writes: list[Write] = []
    for actual, size in zip(results.elements, called.result_bytes, strict=True):
        slot, bits = _slot(ops, actual), f"b{8 * size}"
        writes.append(ops.destination(actual, bits) if slot is None else _put(slot, bits))

    def execute(m: Machine, lanes: Lanes) -> None:
        values = [read(m, lanes) for read in reads]
        result = called.execute(m, lanes, *values)
        for write in writes:
            write(m, lanes, result)

    return execute


def _argument(ops: Operands, actual: Operand, size: int) -> Read:
    """Read an argument of a function of the runtime, which must be defined."""
    slot, bits = _slot(ops, actual), f"b{8 * size}"
    if slot is None:
        read = ops.source(actual, bits)
        ops.sensitive += ops.registers(actual)
        return lambda m, lanes: np.broadcast_to(read(m, lanes), lanes.n)
    load = _load(slot, bits)

    def defined(m: Machine, lanes: Lanes) -> Any:
        known = np.asarray(m.memory.local.defined[lanes.sel, slot : slot + size].all(axis=1))
        if not all_of(known):
            raise undefined_argument(m, lanes, np.logical_not(known))
        return load(m, lanes)

    return defined


def _named(ops: Operands, name: str) -> Function:
    for function in ops.layout.functions:
        if function.name == name and function.is_entry:
            raise ops.refuse(f"`{name}` is a kernel, which cannot be called")
        if function.name == name:
            return function
    raise ops.refuse(f"function `{name}` is not declared")


class _Site:
    """A call of one function from one place: copies in, entry, frame with the copies out."""

    def __init__(self, ops: Operands, function: Function, results: Group, arguments: Group) -> None:
        if len(function.parameters) != len(arguments.elements):
            raise ops.refuse(f"`{function.name}` takes {len(function.parameters)} arguments")
        if len(function.results) != len(results.elements):
            raise ops.refuse(f"`{function.name}` gives {len(function.results)} results")
        formals = (*function.parameters, *function.results)
        for formal, actual in zip(formals, (*arguments.elements, *results.elements), strict=True):
            _require_size(ops, formal, actual)
        self.start = ops.layout.starts[function.name]
        self.copies = [
            _copy_in(ops, function, formal, actual)
            for formal, actual in zip(function.parameters, arguments.elements, strict=True)
        ]
        pairs = zip(function.results, results.elements, strict=True)
        moves = tuple(_result(ops, function, formal, actual) for formal, actual in pairs)
        again = (ops.function.name, function.name) in ops.layout.recursive_calls
        self.saves = ops.function if again else None
        self.allocates = ops.layout.stack_start is not None
        self.frame = Frame(ops.site.pc + 1, moves, self.saves, self.allocates)

    def enter(self, m: Machine, lanes: Lanes) -> None:
        """Copy the arguments and jump."""
        if self.saves is not None:
            m.state(_Saved).save(m, lanes, self.saves, len(m.group.stack) + 1)
        if self.allocates:
            m.state(Stack).enter(lanes, len(m.group.stack) + 1)
        for copy in self.copies:
            copy(m, lanes)
        m.jump(lanes, self.start, (*m.group.stack, self.frame))


def _require_size(ops: Operands, formal: Variable, actual: Operand) -> None:
    """Refuse an argument or result of another size than what is declared."""
    needed = 1 if formal.type == "pred" else 8 * size_bytes(formal)
    have = needed
    if isinstance(actual, Register):
        have = ops.place(actual)[0]
    elif isinstance(actual, Symbol):
        own = (*ops.function.variables, *ops.function.parameters, *ops.function.results)
        have = next((8 * size_bytes(v) for v in own if v.name == actual.name), needed)
    if have != needed:
        raise ops.refuse(f"`{formal.name}` has {needed} bits, but its argument {have}")


def _copy_in(ops: Operands, function: Function, formal: Variable, actual: Operand) -> Copy:
    source = _slot(ops, actual)
    target = ops.layout.symbol(function, formal.name)
    size = size_bytes(formal)
    if source is not None and target is not None:
        return _copy(_octets(source, size), _put_octets(target[1], size))
    bits = f"b{8 * size}"
    read = ops.source(actual, bits) if source is None else _load(source, bits)
    if target is not None:
        return _copy(read, _put(target[1], bits))
    place = ops.layout.place(function, formal.name)
    if place is None:
        raise ops.refuse(f"parameter {formal.name} of `{function.name}` has no place")
    return lambda m, lanes: _assign(m, lanes, place, read(m, lanes))


def _copy(read: Read, write: Write) -> Copy:
    return lambda m, lanes: write(m, lanes, read(m, lanes))


def _result(
    ops: Operands, function: Function, formal: Variable, actual: Operand
) -> tuple[Read, Write]:
    """Return what reads a result in the function that gives it, and what writes it here."""
    source = ops.layout.symbol(function, formal.name)
    target = _slot(ops, actual)
    size = size_bytes(formal)
    if source is not None and target is not None:
        return _octets(source[1], size), _put_octets(target, size)
    bits = f"b{8 * size}"
    if source is not None:
        read = _load(source[1], bits)
    else:
        read = _register(ops.layout.place(function, formal.name), formal)
    if target is not None:
        return read, _put(target, bits)
    return read, ops.destination(actual, bits)


def _register(place: Place | None, formal: Variable) -> Read:
    if place is None:
        raise AssertionError(f"parameter {formal.name} has no place")
    return lambda m, lanes: m.views[place[0], f"u{place[0]}"][place[1], lanes.sel]


def _assign(m: Machine, lanes: Lanes, place: tuple[int, int], value: Any) -> None:
    m.views[place[0], f"u{place[0]}"][place[1], lanes.sel] = value


def _slot(ops: Operands, operand: Operand) -> int | None:
    """Return the place in local memory of a `.param` variable, None for a value."""
    if isinstance(operand, Immediate) or not isinstance(operand, Symbol):
        return None
    found = ops.site.symbol(operand.name)
    if found is None or found[0] != "local":
        raise ops.refuse(f"`{operand.name}` is not a parameter")
    return found[1]


def _octets(offset: int, size: int) -> Read:
    return lambda m, lanes: m.memory.local.data[lanes.sel, offset : offset + size]


def _put_octets(offset: int, size: int) -> Write:
    def write(m: Machine, lanes: Lanes, value: Any) -> None:
        m.memory.local.data[lanes.sel, offset : offset + size] = value
        m.memory.local.defined[lanes.sel, offset : offset + size] = True

    return write


def _load(offset: int, bits: str) -> Read:
    dtype = UNSIGNED[int(bits[1:])]
    octets = _octets(offset, dtype.itemsize)
    return lambda m, lanes: np.ascontiguousarray(octets(m, lanes)).view(dtype)[:, 0]


def _put(offset: int, bits: str) -> Write:
    dtype = UNSIGNED[int(bits[1:])]
    write = _put_octets(offset, dtype.itemsize)

    def put(m: Machine, lanes: Lanes, value: Any) -> None:
        whole = np.array(np.broadcast_to(value, lanes.n), dtype)
        write(m, lanes, whole.view(np.uint8).reshape(lanes.n, dtype.itemsize))

    return put
