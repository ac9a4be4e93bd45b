"""Ordinary accesses of registers that a product uses later without `wgmma.fence` between the two.

Invariant: only instructions from which some path without a fence leads to a product are watched, so
that programs which fence as they should pay nothing; what is reported has been executed so.
Source: PTX ISA 9.7.15.7.1 "wgmma.fence": it orders accesses of registers by a warpgroup before
those by the products after it.  NVVM puts writes of zeros that nobody reads between the two, where
an accumulator is set to zero before a loop whose first product does not read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.liveness import successors

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.program import Program
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array, BoolArray
    from astdsl.emulator.syntax import Function

__all__ = ["Touches", "watch"]

_PRODUCT, _FENCE = "wgmma.mma_async", "wgmma.fence"


class Touches:
    """Which warps of a machine have executed which of the watched instructions since a fence."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self._by: dict[int, BoolArray] = {}

    def note(self, lanes: Lanes) -> None:
        """Note that lanes execute the current instruction."""
        m = self._m
        active = m.program.active(m, m.pc, lanes)
        warps = m.block_of[active.sel] * m.n_warps + m.thread_of[active.sel] // WARP_THREADS
        if m.pc not in self._by:
            self._by[m.pc] = np.zeros(m.n_blocks * m.n_warps, np.bool_)
        self._by[m.pc][warps] = True

    def fence(self, warps: Array) -> None:
        """Note that warps, numbered over all blocks, execute `wgmma.fence`."""
        for touched in self._by.values():
            touched[warps] = False

    def before(self, pc: int, warps: Array, *, reads: bool) -> int | None:
        """Return an instruction that some of the warps have executed since a fence before `pc`.

        Where the product at `pc` does not read its accumulator, writes of that are passed over.
        """
        program = self._m.program
        passed = () if reads else program.overwritten.get(pc, ())
        for at in program.touches.get(pc, ()):
            if at in self._by and at not in passed and self._by[at][warps].any():
                return at
        return None


def watch(program: Program, prepared: Sequence[Operands]) -> frozenset[int]:
    """Let what may touch the registers of products after the last fence note that it is executed.

    Returns these instructions.
    """
    registers = {
        pc: frozenset(ops.holds)
        for pc, ops in enumerate(prepared)
        if ops.instruction.opcode.startswith(_PRODUCT)
    }
    if not registers:
        return frozenset()
    for function in program.layout.functions:
        start = program.layout.starts[function.name]
        before = _predecessors(function, start)
        for pc in range(start, start + len(function.instructions)):
            if pc in registers:
                program.touches[pc] = tuple(_unfenced(program, pc, registers[pc], before))
                only_writing = _only_writing(prepared, pc, program.touches[pc])
                program.overwritten[pc] = frozenset(only_writing)
    watched = frozenset(at for each in program.touches.values() for at in each)
    for pc in watched:
        for steps in (program.steps, program.tracked, program.controls):
            steps[pc] = _noting(steps[pc])
    return watched


def _noting(step: Any) -> Any:
    """Return a step that notes who executes it."""
    if step is None:
        return None

    def execute(m: Machine, lanes: Lanes) -> Any:
        m.state(Touches).note(lanes)
        return step(m, lanes)

    return execute


def _only_writing(prepared: Sequence[Operands], pc: int, touching: Sequence[int]) -> Iterator[int]:
    """Yield the moves to registers of the accumulator of the product at `pc`, also among them."""
    product = prepared[pc]
    accumulator = {product.place(each) for each in product.elements(product.args[0])}
    for at in touching:
        ops = prepared[at]
        if ops.instruction.opcode.startswith("mov.") and accumulator.issuperset(ops.writes):
            yield at


def _predecessors(function: Function, start: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for at in range(len(function.instructions)):
        for after in successors(function, at):
            found.setdefault(start + after, []).append(start + at)
    return found


def _unfenced(
    program: Program, pc: int, places: frozenset[Place], before: dict[int, list[int]]
) -> Iterator[int]:
    """Yield what touches registers on some path to `pc` with no fence after it."""
    seen, left = {pc}, list(before.get(pc, ()))
    while left:
        at = left.pop()
        if at in seen or program.instructions[at].opcode.startswith(_FENCE):
            continue
        seen.add(at)
        if not places.isdisjoint(program.touched[at]):
            yield at
        left += before.get(at, ())
