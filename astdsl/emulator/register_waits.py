"""Loads of tensor memory that an instruction which reads one of their registers waits for.

Invariant: only loads are watched whose registers may be read before any `tcgen05.wait::ld`; what
they load counts as read from there on, and no sooner, where the wait may be left to the assembler.
Source: PTX ISA 9.7.16.6.4.5: register dependencies of `tcgen05.ld` are respected, and order nothing
else; that nothing else is needed where the register is there is what NVVM and ptxas assume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from astdsl.emulator.convergence import warps_of
from astdsl.emulator.liveness import successors
from astdsl.emulator.tensor_products import tensor_memory

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.program import Program
    from astdsl.emulator.syntax import Function

__all__ = ["watch_loads"]

_LOAD, _WAIT = "tcgen05.ld", "tcgen05.wait::ld"


def watch_loads(program: Program, prepared: Sequence[Operands]) -> frozenset[int]:
    """Let the first readers of the registers of loads wait for these; return those readers."""
    opcodes = [instruction.opcode for instruction in program.instructions]
    loads: dict[int, list[int]] = {}
    for load, reader in _readings(program, prepared, opcodes):
        loads.setdefault(reader, []).append(load)
    for pc, of in loads.items():
        for steps in (program.steps, program.tracked, program.controls):
            steps[pc] = _waiting(steps[pc], tuple(of))
    program.waits_by_registers = bool(loads)
    return frozenset(loads)


def _readings(
    program: Program, prepared: Sequence[Operands], opcodes: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yield every load with each of the instructions that may be the first to read of it."""
    for function in program.layout.functions:
        start = program.layout.starts[function.name]
        places = range(len(function.instructions))
        for load in (at for at in places if opcodes[start + at].startswith(_LOAD)):
            for reader in _first_readers(prepared, function, start, load):
                yield start + load, reader


def _first_readers(
    prepared: Sequence[Operands], function: Function, start: int, load: int
) -> Iterator[int]:
    """Yield what first reads a register of a load, on each path from there without a wait."""
    places = set(prepared[start + load].writes)
    seen: set[int] = set()
    left = list(successors(function, load))
    while left:
        at = left.pop()
        ended = at in seen or at >= len(function.instructions)
        if ended or function.instructions[at].opcode.startswith(_WAIT):
            continue
        seen.add(at)
        ops = prepared[start + at]
        if places.isdisjoint((*ops.reads, *ops.sensitive, *ops.holds)):
            left += successors(function, at)
        else:
            yield start + at


def _waiting(step: Any, loads: tuple[int, ...]) -> Any:
    """Return a step that waits for loads first; a warp does so with all of its lanes."""
    if step is None:
        return None

    def execute(m: Machine, lanes: Lanes) -> Any:
        if not m.launch.fences.loads:
            tensor_memory(m).wait_registers(*warps_of(m, lanes), loads)
        return step(m, lanes)

    return execute
