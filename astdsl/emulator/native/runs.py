"""Straight-line code as pieces: runs of instructions that have forms, and single steps.

Invariant: a run is executed in machine code only where that cannot be told from its steps: the
lanes are contiguous and none of its registers is undefined or in flight; else its steps are
executed, which track or report. A segment is compiled when it has been executed for as long as
compiling it may take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from astdsl.emulator.native.host import ENTRIES, Host, host
from astdsl.emulator.native.shared import SharedMove

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.native.shared import Access
    from astdsl.emulator.native.writer import Form
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.registers import Place, RegisterFile
    from astdsl.emulator.scalars import Array

__all__ = ["Budget", "NativeCode", "Piece"]

WIDTH = 8
# Shorter ones are not worth the call.
LEAST_INSTRUCTIONS = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """When to compile, in nanoseconds spent on steps, which are guessed and not measured."""

    step: int = 8_000
    lane: int = 4
    # What compiling costs: for each instruction, and to begin at all (LLVM is loaded).
    instruction: int = 40_000
    start: int = 30_000_000


class _Table:
    """A list of forms with their operands, before it is known where the registers lie."""

    def __init__(self, forms: Sequence[Form], instructions: Sequence[Operands], on: Host) -> None:
        shape = (len(forms), ENTRIES)
        self.values = np.zeros(shape, np.uint64)
        self.banks = np.zeros(shape, np.intp)
        self.rows = np.zeros(shape, np.uint64)
        self.values[:, 0] = on.addresses(forms)
        for at, (form, ops) in enumerate(zip(forms, instructions, strict=True)):
            for entry, operand in enumerate(form.bind(ops), 1):
                if isinstance(operand, tuple):
                    self.banks[at, entry], self.rows[at, entry] = operand
                else:
                    self.values[at, entry] = operand

    def placed(self, registers: RegisterFile) -> Array:
        """Return the list for one register file: [instructions, entries]."""
        width = int(self.banks.max()) + 1
        base, stride = np.zeros(width, np.uint64), np.zeros(width, np.uint64)
        for bits, bank in registers.banks.items():
            if bits < width:
                base[bits], stride[bits] = bank.ctypes.data, bank.strides[0]
        return self.values + base[self.banks] + self.rows * stride[self.banks]


class Run:
    """Neighbouring instructions that have forms."""

    def __init__(self, on: Host, instructions: Sequence[Operands], forms: Sequence[Form]) -> None:
        self._host = on
        self._instructions = instructions
        self._tables = {WIDTH: _Table(forms, instructions, on)}
        self.touched = frozenset(place for ops in instructions for place in _touched(ops))

    def execute(self, m: Machine, lanes: Lanes) -> bool:
        """Execute the run on lanes; return whether that could be done."""
        if not lanes.contiguous:
            return False
        touched = self.touched
        if m.undefined and not m.undefined.keys().isdisjoint(touched):
            return False
        if m.in_flight.uses and not m.in_flight.uses.keys().isdisjoint(touched):
            return False
        span = cast(slice, lanes.sel)
        middle = span.stop - (span.stop - span.start) % WIDTH
        if middle > span.start:
            self._call(m, WIDTH, span.start, middle)
        if middle < span.stop:
            self._call(m, 1, middle, span.stop)
        return True

    def _call(self, m: Machine, width: int, start: int, stop: int) -> None:
        placed = m.registers.placed.get((self, width))
        if placed is None:
            placed = self._table(width).placed(m.registers)
            m.registers.placed[self, width] = placed
        self._host.run(placed.ctypes.data, len(placed), start, stop)

    def _table(self, width: int) -> _Table:
        found = self._tables.get(width)
        if found is None:
            forms = [self._host.form(ops, width) for ops in self._instructions]
            known = [form for form in forms if form is not None]
            found = self._tables[width] = _Table(known, self._instructions, self._host)
        return found


def _touched(ops: Operands) -> set[Place]:
    found = {*ops.reads, *ops.writes, *ops.sensitive}
    if ops.instruction.predicate is not None:
        found.add(ops.register_place(ops.instruction.predicate))
    return found


@dataclass(frozen=True, slots=True)
class Piece:
    """Instructions `start` to `stop`, excluded, and what executes them together, if anything."""

    start: int
    stop: int
    run: Run | SharedMove | None


class NativeCode:
    """What is compiled of one program, by the place where a segment is entered."""

    def __init__(
        self, instructions: Sequence[Operands], budget: Budget, watched: Set[int] = frozenset()
    ) -> None:
        """Make it; the `watched` instructions are left to their steps."""
        self.instructions = instructions
        self._watched = watched
        self._budget = budget
        self._pieces: dict[int, list[Piece]] = {}
        self._spent: dict[int, int] = {}
        self._runs: dict[tuple[int, int], Run] = {}
        self._total = 0

    def pieces(self, start: int, stop: int, n_lanes: int) -> list[Piece] | None:
        """Return the pieces of a segment that is executed, None if it is executed by steps."""
        found = self._pieces.get(start)
        if found is not None or start == stop:
            return found
        budget = self._budget
        once = budget.step + budget.lane * n_lanes
        self._total += once * (stop - start)
        spent = self._spent[start] = self._spent.get(start, 0) + once
        if spent < budget.instruction or self._total < budget.start:
            return None
        on = host()
        found = [Piece(start, stop, None)] if on is None else self._cut(on, start, stop)
        self._pieces[start] = found
        return found

    def _cut(self, on: Host, start: int, stop: int) -> list[Piece]:
        pieces, at = [], start
        while at < stop:
            end = self._end(at, stop, lambda pc: self._has_form(on, pc))
            if end - at >= LEAST_INSTRUCTIONS:
                pieces.append(Piece(at, end, self._run(on, at, end)))
            elif end > at:
                pieces.append(Piece(at, end, None))
            else:
                accesses = self._accesses(at, stop)
                end = at + max(len(accesses), 1)
                pieces.append(Piece(at, end, SharedMove(accesses) if len(accesses) > 1 else None))
            at = end
        return pieces

    def _has_form(self, on: Host, pc: int) -> bool:
        return pc not in self._watched and on.form(self.instructions[pc], WIDTH) is not None

    def _end(self, at: int, stop: int, has_form: Callable[[int], bool]) -> int:
        while at < stop and has_form(at):
            at += 1
        return at

    def _accesses(self, start: int, stop: int) -> list[Access]:
        """Return the accesses of shared memory from `start` on that can be done together."""
        found: list[Access] = []
        for pc, ops in enumerate(self.instructions[start:stop], start):
            access = ops.access if ops.instruction.predicate is None else None
            if access is None or pc in self._watched or not access.may_follow(found):
                break
            found.append(access)
        return found

    def _run(self, on: Host, start: int, stop: int) -> Run:
        found = self._runs.get((start, stop))
        if found is None:
            instructions = self.instructions[start:stop]
            forms = [on.form(ops, WIDTH) for ops in instructions]
            known = [form for form in forms if form is not None]
            found = self._runs[start, stop] = Run(on, instructions, known)
        return found
