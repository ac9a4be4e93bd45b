"""Registers that warps hand to each other (PTX ISA 9.7.19.5, `setmaxnreg`).

Invariant: the registers of a block's warps never exceed those it started with; who asks for more
waits until others have released them. Where only the assembler knows how many a thread starts with
(no `.maxnreg`, no `.minnctapersm`), ptxas drops the instruction, and nothing is counted.  No
thread starts with more than the most that an `inc` asks for, which ptxas takes for the most that
any needs.  Each warp counts alone: compilers let the warps of a warpgroup execute equal
instructions in several places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.convergence import Gathering, together
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.limits import entry_registers
from astdsl.emulator.machine import Condition
from astdsl.emulator.syntax import Immediate

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.program import Program
    from astdsl.emulator.scalars import Array, BoolArray

MIN_REGISTERS, MAX_REGISTERS = 24, 256


class RegisterPool:
    """Registers a thread of every warp, [blocks, warps], and those left over of each block."""

    def __init__(self, m: Machine) -> None:
        entry = entry_registers(m.program.kernel, m.n_threads)
        self.is_known = entry is not None
        self.held = np.full((m.n_blocks, m.n_warps), min(entry or 0, _most_asked(m.program)))
        self.left = np.zeros(m.n_blocks, np.int64)

    def need(self, m: Machine, lanes: Lanes, count: int) -> tuple[Array, Array, Array]:
        """Return block, warp and additional registers a thread, by lane."""
        rows, warps = m.block_of[lanes.sel], m.thread_of[lanes.sel] // WARP_THREADS
        return rows, warps, count - self.held[rows, warps]

    def give(self, m: Machine, lanes: Lanes, count: int) -> None:
        """Let each warp of the lanes have `count` registers a thread."""
        rows, warps, more = self.need(m, lanes, count)
        first = m.thread_of[lanes.sel] % WARP_THREADS == 0
        np.subtract.at(self.left, rows[first], more[first])
        self.held[rows[first], warps[first]] = count


def _most_asked(program: Program) -> int:
    """Return the most registers that a `setmaxnreg.inc` of the program asks for."""
    asked = [
        argument.value
        for instruction in program.instructions
        if instruction.opcode.startswith("setmaxnreg.inc")
        for argument in instruction.operands
        if isinstance(argument, Immediate)
    ]
    return max(asked, default=MAX_REGISTERS)


@controls("setmaxnreg")
def prepare_setmaxnreg(ops: Operands) -> Control:
    """`setmaxnreg.{inc,dec}.sync.aligned.u32 n`: `inc` waits for registers that others release."""
    ops.allow("inc", "dec", "sync", "aligned")
    count, grows = ops.immediate(ops.args[0]), ops.has("inc")
    if count % 8 or not MIN_REGISTERS <= count <= MAX_REGISTERS:
        raise ops.refuse(f"{count} is not a multiple of 8 from {MIN_REGISTERS} to {MAX_REGISTERS}")

    def available(m: Machine, lanes: Lanes) -> BoolArray:
        pool = m.state(RegisterPool)
        rows, _, more = pool.need(m, lanes, count)
        ready: BoolArray = more <= pool.left[rows]
        return ready

    def describe(m: Machine, lanes: Lanes) -> str:
        left = int(m.state(RegisterPool).left[m.block_of[lanes.index[0]]])
        return f"waits for {count} registers a thread; {left} a thread of one warp are left over"

    condition = Condition(available, describe, again=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        pool = m.state(RegisterPool)
        if not pool.is_known:
            return lanes
        _check_direction(m, lanes, pool.need(m, lanes, count)[2], count, grows)
        going = lane_sets.NONE
        warps = m.thread_of[lanes.sel] // WARP_THREADS
        # One warp after the other: each takes from what the one before has left.
        for warp in np.unique(warps):
            some = lanes.where(warps == warp)
            ready = available(m, some)
            if not ready.all():
                m.block(some.where(~ready), condition)
                some = some.where(ready)
            if some.n:
                pool.give(m, some, count)
                going = going.union(some)
        m.wake = True
        return going

    return together(execute, Gathering(WARP_THREADS))


def _check_direction(m: Machine, lanes: Lanes, more: Array, count: int, grows: bool) -> None:
    wrong = more < 0 if grows else more > 0
    if wrong.any():
        at = int(np.argmax(wrong))
        verb = "inc" if grows else "dec"
        text = f"setmaxnreg.{verb} {count} of a warp that has {count - int(more[at])} registers"
        raise m.fault("E216", f"{text} a thread", int(lanes.index[at]))
