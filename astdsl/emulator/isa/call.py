"""`call` and `ret` of device functions (PTX ISA 9.7.12.5, 9.7.12.6, 7.1).

Invariant: parameters and results live in local memory (`.param`) or registers (`.reg`) of the
function that declares them; a call copies arguments in, its frame copies results out on return.
There is no recursion, so each function has its variables once for each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.layout import size_bytes
from astdsl.emulator.scalars import UNSIGNED
from astdsl.emulator.syntax import Function, Group, Immediate, Operand, Symbol, Variable

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

Copy = Callable[["Machine", "Lanes"], None]


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """Where a call returns to, and what brings its results along."""

    pc: int
    finish: tuple[Copy, ...]


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
            for copy in frame.finish:
                copy(m, lanes)
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


def _named(ops: Operands, name: str) -> Function:
    for function in ops.layout.functions:
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
        self.start = ops.layout.starts[function.name]
        self.copies = [
            _copy_in(ops, function, formal, actual)
            for formal, actual in zip(function.parameters, arguments.elements, strict=True)
        ]
        finish = tuple(
            _copy_out(ops, function, formal, actual)
            for formal, actual in zip(function.results, results.elements, strict=True)
        )
        self.frame = Frame(ops.site.pc + 1, finish)

    def enter(self, m: Machine, lanes: Lanes) -> None:
        """Copy the arguments and jump."""
        for copy in self.copies:
            copy(m, lanes)
        m.jump(lanes, self.start, (*m.group.stack, self.frame))


def _copy_in(ops: Operands, function: Function, formal: Variable, actual: Operand) -> Copy:
    source = _slot(ops, actual)
    target = ops.layout.symbol(function, formal.name)
    if source is not None and target is not None:
        return _move(source, target[1], size_bytes(formal))
    bits = f"b{8 * size_bytes(formal)}"
    read = ops.source(actual, bits) if source is None else _load(source, bits)
    if target is not None:
        return _store(target[1], bits, read)
    place = ops.layout.place(function, formal.name)
    if place is None:
        raise ops.refuse(f"parameter {formal.name} of `{function.name}` has no place")
    return lambda m, lanes: _assign(m, lanes, place, read(m, lanes))


def _copy_out(ops: Operands, function: Function, formal: Variable, actual: Operand) -> Copy:
    source = ops.layout.symbol(function, formal.name)
    target = _slot(ops, actual)
    if source is not None and target is not None:
        return _move(source[1], target, size_bytes(formal))
    bits = f"b{8 * size_bytes(formal)}"
    if source is not None:
        read: Any = _load(source[1], bits)
    else:
        place = ops.layout.place(function, formal.name)
        if place is None:
            raise ops.refuse(f"result {formal.name} of `{function.name}` has no place")
        read = lambda m, lanes: m.views[place[0], f"u{place[0]}"][place[1], lanes.sel]  # noqa: E731
    if target is not None:
        return _store(target, bits, read)
    write = ops.destination(actual, bits)
    return lambda m, lanes: write(m, lanes, read(m, lanes))


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


def _move(source: int, target: int, size: int) -> Copy:
    def copy(m: Machine, lanes: Lanes) -> None:
        local = m.memory.local
        for rows in (local.data, local.defined):
            rows[lanes.sel, target : target + size] = rows[lanes.sel, source : source + size]

    return copy


def _load(offset: int, bits: str) -> Any:
    dtype = UNSIGNED[int(bits[1:])]

    def read(m: Machine, lanes: Lanes) -> Any:
        raw = m.memory.local.data[lanes.sel, offset : offset + dtype.itemsize]
        return np.ascontiguousarray(raw).view(dtype)[:, 0]

    return read


def _store(offset: int, bits: str, read: Any) -> Copy:
    dtype = UNSIGNED[int(bits[1:])]

    def copy(m: Machine, lanes: Lanes) -> None:
        value = np.array(np.broadcast_to(read(m, lanes), lanes.n), dtype)
        octets = value.view(np.uint8).reshape(lanes.n, dtype.itemsize)
        m.memory.local.data[lanes.sel, offset : offset + dtype.itemsize] = octets
        m.memory.local.defined[lanes.sel, offset : offset + dtype.itemsize] = True

    return copy
