"""The stack of each thread: `alloca`, `stacksave`, `stackrestore` (PTX ISA 9.7.17, 7.3).

Invariant: it grows down from the end of local memory; what a function has allocated is gone when
it returns, and counts as unwritten when it is allocated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.layout import STACK_BYTES
from astdsl.emulator.scalars import any_of, one_a_lane
from astdsl.emulator.syntax import Immediate

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array

__all__ = ["Stack"]

MIN_ALIGN_BYTES = 8


class Stack:
    """The stack pointer of every lane, and what it was at each call, by depth."""

    def __init__(self, m: Machine) -> None:
        self.pointers = np.full(m.n_lanes, m.program.layout.local_bytes, np.int64)
        self._at_call: dict[int, Array] = {}

    def enter(self, lanes: Lanes, depth: int) -> None:
        """Note the stack pointer of a call."""
        kept = self._at_call.setdefault(depth, np.zeros_like(self.pointers))
        kept[lanes.sel] = self.pointers[lanes.sel]

    def leave(self, lanes: Lanes, depth: int) -> None:
        """Give back what the function that returns has allocated."""
        self.pointers[lanes.sel] = self._at_call[depth][lanes.sel]


@executes("alloca")
def prepare_alloca(ops: Operands) -> Execute:
    """`alloca.type ptr, size{, align}`: an address in local memory."""
    ops.allow()
    bits = ops.last_type().name
    sizes, write = ops.source(ops.args[1], bits), ops.destination(ops.args[0], bits)
    ops.sensitive += ops.registers(ops.args[1])
    align_bytes = MIN_ALIGN_BYTES
    if len(ops.args) > 2:
        if not isinstance(ops.args[2], Immediate):
            raise ops.refuse("the alignment is an integer constant")
        align_bytes = max(align_bytes, ops.args[2].value)
    start = ops.layout.stack_start
    if start is None:
        raise AssertionError("a program with `alloca` has a stack")

    def execute(m: Machine, lanes: Lanes) -> None:
        stack, local = m.state(Stack), m.memory.local
        wanted = one_a_lane(sizes(m, lanes), lanes.n).astype(np.int64)
        tops = (stack.pointers[lanes.sel] - wanted) & -align_bytes
        full = (tops < start) | (wanted < 0)
        if any_of(full):
            size = int(wanted[np.argmax(full)])
            raise m.fault(
                "E220",
                f"alloca of {size} bytes does not fit on the stack, which has {STACK_BYTES} bytes",
                lanes.first(full),
            )
        stack.pointers[lanes.sel] = tops
        for row, top, size in zip(
            lanes.index.tolist(), tops.tolist(), wanted.tolist(), strict=True
        ):
            local.defined[row, top : top + size] = False
        write(m, lanes, tops)

    return execute


@executes("stacksave")
def prepare_stacksave(ops: Operands) -> Execute:
    """`stacksave.type d`: the stack pointer."""
    ops.allow()
    write = ops.destination(ops.args[0], ops.last_type().name)
    return lambda m, lanes: write(m, lanes, m.state(Stack).pointers[lanes.sel])


@executes("stackrestore")
def prepare_stackrestore(ops: Operands) -> Execute:
    """`stackrestore.type a`: give back what was allocated since `stacksave`."""
    ops.allow()
    read = ops.source(ops.args[0], ops.last_type().name)
    ops.sensitive += ops.registers(ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        m.state(Stack).pointers[lanes.sel] = read(m, lanes)

    return execute
