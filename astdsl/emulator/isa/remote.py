"""`st.async` and `red.async`: words written in another block of the cluster, and counted there.

Sources: PTX ISA 9.7.9.12, 9.7.13.7. Invariant: the write happens between its issue and the
completion of its bytes at the mbarrier, which lies in the block that is written to; until then the
words count as unwritten. Who sees that phase complete knows of the write.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.clocks import SCOPES
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.isa.memory import strongly
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.reductions import BULK_TYPES, OPERATIONS, combiner
from astdsl.emulator.scalars import UNSIGNED, one_a_lane
from astdsl.emulator.syntax import Vector
from astdsl.emulator.undefined import wholly

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array

_WORDS = ("async", "shared::cluster", "mbarrier::complete_tx::bytes")


class _Write:
    """The operands of one instruction: where, what, and the barrier that counts the bytes."""

    def __init__(self, ops: Operands, what: str, reads: list[Getter], size: int) -> None:
        if len(ops.args) != 3 or not ops.has("mbarrier::complete_tx::bytes"):
            raise ops.refuse("only the form that completes bytes at an mbarrier is modelled")
        self.what, self.reads, self.size = what, reads, size
        self.address = ops.address(ops.args[0])
        self.barrier = barrier_place(ops, ops.args[2])
        ops.sensitive += ops.reads

    def places(self, m: Machine, lanes: Lanes) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return row and offset of what is written, and of the barrier of the same block."""
        address = self.address(m, lanes)
        target = m.memory.shared_place(m, lanes, address, self.size, aligned=True)
        barrier = self.barrier(m, lanes)
        apart = target[0] != barrier[0]
        if apart.any() or m.launch.cluster_size == 1:
            text = "the mbarrier and the memory that it tells of lie in one block"
            if not apart.any():
                apart, text = ~apart, "it needs a cluster of more than one block"
            raise m.fault("E257", f"{self.what}: {text}", lanes.first(apart))
        copies = [np.array(part) for part in (*target, *barrier)]
        return (copies[0], copies[1]), (copies[2], copies[3])

    def issue(self, m: Machine, lanes: Lanes, write: Any, *, strong: bool) -> None:
        """Issue the writes of lanes; `write(rows, offsets, values)` is what happens later."""
        lanes = Lanes.of(np.array(lanes.index))
        (rows, offsets), (barrier_rows, barriers) = self.places(m, lanes)
        values = np.stack([np.array(one_a_lane(get(m, lanes), lanes.n)) for get in self.reads], 1)
        pc = m.pc
        if m.guard is not None:
            with strongly(m, SCOPES.index("cluster")) if strong else nullcontext():
                m.guard.write(lanes, rows, offsets, self.size)
        if not strong:
            m.memory.shared.forget(rows, offsets, self.size)

        def perform() -> None:
            sizes = np.full(lanes.n, self.size, np.int64)
            with m.at(pc):
                write(rows, offsets, values)
                if m.guard is not None:
                    m.guard.tell_write(lanes, (rows, offsets), self.size, barriers, strong=strong)
                use(m, lanes, lambda b: b.complete_bytes(barrier_rows, barriers, sizes))
            m.wake = True

        issue = Issue.of(m, self.what, lanes, rows, offsets)
        operation = Operation(perform, issue, blocks=rows, signals=True)
        operation.offsets = frozenset(barriers.tolist())
        m.asynchronous.issue(operation)


@executes("st.async")
def prepare_store(ops: Operands) -> Execute:
    """`st.async{.weak}{.cluster}{.shared::cluster}.mbarrier...{.vec}.type [a], b, [mbar]`."""
    ops.allow(*_WORDS, "weak", "cluster", "v2", "v4")
    scalar, value = ops.last_type(), ops.args[1]
    elements = value.elements if isinstance(value, Vector) else (value,)
    reads = [ops.source(each, f"b{scalar.bits}") for each in elements]
    operands = _Write(ops, "st.async", reads, scalar.bytes * len(elements))

    def execute(m: Machine, lanes: Lanes) -> None:
        def write(rows: Array, offsets: Array, values: Array) -> None:
            m.memory.shared.store(rows, offsets, values.astype(UNSIGNED[scalar.bits]))

        operands.issue(m, lanes, write, strong=False)

    return execute


@executes("red.async")
def prepare_reduction(ops: Operands) -> Execute:
    """`red.async.relaxed.cluster{.shared::cluster}.mbarrier....op.type [a], b, [mbar]`."""
    ops.allow(*_WORDS, "relaxed", "cluster", *OPERATIONS)
    operation = next((word for word in OPERATIONS if ops.has(word)), "")
    dtype = BULK_TYPES.get(ops.modifiers[-1])
    if dtype is None or not operation or dtype.kind not in "iu":
        raise ops.refuse("a reduction of integers ends in an operation and a type")
    combine, raw = combiner(operation, dtype), UNSIGNED[8 * dtype.itemsize]
    reads = [ops.source(ops.args[1], f"b{8 * dtype.itemsize}")]
    operands = _Write(ops, "red.async", reads, dtype.itemsize)

    def execute(m: Machine, lanes: Lanes) -> None:
        def write(rows: Array, offsets: Array, values: Array) -> None:
            # Lanes that meet at one word take their turns.
            for k in range(len(rows)):
                one = rows[k : k + 1], offsets[k : k + 1]
                old, missing = m.memory.shared.load(*one, raw, 1)
                new = combine(old.view(dtype), values[k].astype(raw).view(dtype))
                m.memory.shared.store(*one, new.astype(dtype).view(raw), wholly(missing))

        operands.issue(m, lanes, write, strong=True)

    return execute
