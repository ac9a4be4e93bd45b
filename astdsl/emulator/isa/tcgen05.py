"""Tensor memory and fifth-generation matrix products of sm_100a (PTX ISA 9.7.16).

Invariant: one CTA (`cta_group::1`), dense operands; block scaling, `.ws`, sparsity, shift and
two-CTA forms are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.convergence import Gathering
from astdsl.emulator.formats.descriptors import OperandShape, decode_tcgen05_descriptor
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fragments import TMEM_COLUMNS
from astdsl.emulator.formats.instruction import (
    MMA_KINDS,
    InstructionDescriptor,
    MmaKind,
    decode_instruction,
)
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Condition
from astdsl.emulator.matrix import ELEMENT_BYTES
from astdsl.emulator.syntax import Address, Immediate, Vector
from astdsl.emulator.tensor_memory import COLUMN_MASK
from astdsl.emulator.tensor_products import (
    ORDER,
    TensorProduct,
    TensorTile,
    tensor_memory,
    tile_at,
)
from astdsl.emulator.tiles import SharedTile, locate

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array, BoolArray

_WARP = 32
_ALIGNED = ("cta_group::1", "sync", "aligned", "shared::cta", "b32")
_COLLECTORS = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))


def _warp_lanes(lanes: Lanes, m: Machine) -> Iterator[int]:
    """Yield the first lane of every warp."""
    yield from (int(lane) for lane in lanes.index[m.thread_of[lanes.sel] % _WARP == 0])


def _columns(ops: Operands, operand: Any) -> int:
    if not isinstance(operand, Immediate):
        raise ops.refuse("the number of columns must be a constant")
    columns = operand.value
    if columns & (columns - 1) or not _WARP <= columns <= TMEM_COLUMNS:
        raise ops.refuse(f"columns are a power of two from 32 to 512, not {columns}")
    return columns


@controls("tcgen05.alloc")
def prepare_alloc(ops: Operands) -> Control:
    """`tcgen05.alloc.cta_group::1.sync.aligned{.shared::cta}.b32 [dst], columns`."""
    ops.allow("alloc", *_ALIGNED)
    address, columns = ops.address(ops.args[0]), _columns(ops, ops.args[1])
    gathering = Gathering(_WARP)

    def available(m: Machine, lanes: Lanes) -> BoolArray:
        memory = tensor_memory(m)
        rows = m.block_of[lanes.sel]
        free = {row: memory.find_free(row, columns) is not None for row in np.unique(rows)}
        return np.array([free[row] for row in rows], np.bool_)

    def describe(m: Machine, lanes: Lanes) -> str:
        return f"waits for {columns} free columns of tensor memory"

    condition = Condition(available, describe, again=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = gathering.complete(m, lanes)
        if not whole.n:
            return whole
        free = available(m, whole)
        if not free.all():
            m.block(whole.where(~free), condition)
        going = whole.where(free) if not free.all() else whole
        if going.n:
            _allocate(m, going, address(m, going), columns)
        return going if going.n else lane_sets.NONE

    return execute


def _allocate(m: Machine, lanes: Lanes, addresses: Any, columns: int) -> None:
    memory = tensor_memory(m)
    firsts = np.zeros(m.n_lanes, np.uint32)
    for lane in _warp_lanes(lanes, m):
        row = int(m.block_of[lane])
        first = memory.find_free(row, columns)
        if first is None:
            raise m.fault("E271", "two warps of a block allocate the last columns at once", lane)
        if not memory.may_allocate[row]:
            raise m.fault("E271", "tcgen05.alloc after tcgen05.relinquish_alloc_permit", lane)
        memory.allocate(row, first, columns)
        firsts[lane] = first
    leaders = lanes.where(m.thread_of[lanes.sel] % _WARP == 0)
    targets = np.broadcast_to(addresses, lanes.n)[m.thread_of[lanes.sel] % _WARP == 0]
    rows, offsets = m.memory.shared_place(m, leaders, targets, 4)
    # Not an ordinary store of the warp: no proxy fence is needed before the bytes are reused.
    m.memory.shared.store(rows, offsets, firsts[leaders.sel])
    if m.guard is not None and m.guard.races is not None:
        m.guard.races.made(leaders, rows, offsets, 4)


@controls("tcgen05.dealloc")
def prepare_dealloc(ops: Operands) -> Control:
    """`tcgen05.dealloc.cta_group::1.sync.aligned.b32 taddr, columns`."""
    ops.allow("dealloc", *_ALIGNED)
    address, columns = ops.source(ops.args[0], "u32"), _columns(ops, ops.args[1])
    ops.sensitive += ops.reads
    gathering = Gathering(_WARP)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = gathering.complete(m, lanes)
        if whole.n:
            firsts = np.broadcast_to(address(m, whole), whole.n)
            starts = m.thread_of[whole.sel] % _WARP == 0
            for lane, first in zip(whole.index[starts], firsts[starts], strict=True):
                one = Lanes.of(np.array([lane]))
                column = int(first) & COLUMN_MASK
                tensor_memory(m).free(int(m.block_of[lane]), column, columns, one)
            m.wake = True
        return whole

    return execute


@executes("tcgen05.relinquish_alloc_permit")
def prepare_relinquish(ops: Operands) -> Execute:
    """`tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned`."""
    ops.allow("relinquish_alloc_permit", *_ALIGNED)

    def execute(m: Machine, lanes: Lanes) -> None:
        tensor_memory(m).may_allocate[m.block_of[lanes.sel]] = False

    return execute


@executes("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def prepare_fence(ops: Operands) -> Execute:
    """`tcgen05.fence::...`: order with other threads; the emulator's order is stronger."""
    ops.allow("fence::before_thread_sync", "fence::after_thread_sync")

    def execute(m: Machine, lanes: Lanes) -> None:
        """Do nothing."""

    return execute


class _Mma:
    """The operands of one `tcgen05.mma`, resolved."""

    def __init__(self, ops: Operands) -> None:
        self.kind = _kind(ops)
        d, a, b, descriptor, *rest = ops.args
        self._d = ops.address(d)
        self._a_in_tensor_memory = isinstance(a, Address)
        self._a = ops.address(a) if self._a_in_tensor_memory else ops.source(a, "b64")
        self._b = ops.source(b, "b64")
        self._descriptor = ops.source(descriptor, "b32")
        if rest and isinstance(rest[0], Vector):
            raise ops.refuse("the mask of disabled output lanes is not supported")
        if not 1 <= len(rest) <= 2:
            raise ops.refuse("enable-input-d must follow the instruction descriptor")
        self._keeps = ops.source(rest[0], "pred")
        self.shift = _shift(ops, rest[1:], self.kind)
        ops.sensitive += ops.reads

    def execute(self, m: Machine, lanes: Lanes) -> None:
        """Issue one product for each thread, those of all blocks that agree together."""
        d = np.broadcast_to(self._d(m, lanes), lanes.n).astype(np.int64)
        bits = np.broadcast_to(self._descriptor(m, lanes), lanes.n).astype(np.int64)
        keys = (m.thread_of[lanes.sel] << 32 | bits) * (1 << 20) ^ d
        if (keys == keys[0]).all():
            self._issue(m, lanes, int(d[0]), int(bits[0]))
            return
        for key in np.unique(keys):
            some = lanes.where(keys == key)
            at = int(np.argmax(keys == key))
            self._issue(m, some, int(d[at]), int(bits[at]))

    def _issue(self, m: Machine, lanes: Lanes, d_address: int, bits: int) -> None:
        state, rows = m.state(_Open), m.block_of[lanes.sel]
        keeps = np.broadcast_to(self._keeps(m, lanes), lanes.n)
        try:
            descriptor = decode_instruction(bits, self.kind)
            a, b = self._operands(m, lanes, descriptor)
            product = state.product
            if product is None or not self._continues(product, rows, descriptor, d_address, a, b):
                product = None
            if product is None or not keeps.all():
                product = TensorProduct(
                    m, lanes, rows, descriptor, d_address, keeps.copy(), self.shift
                )
                product.begin()
                product.add(a, b)
                state.product = product
                m.asynchronous.issue(product.operation)
            else:
                product.add(a, b)
        except FormatError as error:
            raise m.fault("E281", str(error), int(lanes.index[0])) from None

    def _operands(
        self, m: Machine, lanes: Lanes, d: InstructionDescriptor
    ) -> tuple[SharedTile | TensorTile, SharedTile]:
        for name in (d.a_type, d.b_type):
            if name not in ELEMENT_BYTES:
                raise FormatError(f"operands of type {name} are not supported")
        size, depth = self.kind.element_bytes, self.kind.depth
        b_bits = np.broadcast_to(self._b(m, lanes), lanes.n)
        b_shape = OperandShape(d.n, depth, size, d.transpose_b)
        b = locate(m, b_bits, decode_tcgen05_descriptor, b_shape)
        a_bits = np.broadcast_to(self._a(m, lanes), lanes.n)
        if not self._a_in_tensor_memory:
            a_shape = OperandShape(d.m, depth, size, d.transpose_a)
            return locate(m, a_bits, decode_tcgen05_descriptor, a_shape), b
        if (a_bits != a_bits[0]).any():
            raise FormatError("blocks with A at different addresses of tensor memory")
        return tile_at(int(a_bits[0]), d.m, depth * size // 4), b

    def _continues(
        self, product: TensorProduct, rows: Array, d: InstructionDescriptor, d_address: int,
        a: SharedTile | TensorTile, b: SharedTile,
    ) -> bool:  # fmt: skip
        """Say whether this instruction only lengthens the K of the product before it."""
        return (
            not product.done
            and product.descriptor == d
            and product.d_address == d_address
            and type(product.a_steps[0]) is type(a)
            and product.shift == self.shift == 0
            and np.array_equal(product.rows, rows)
        )


class _Open:
    """The product that the next instruction may lengthen; a commit closes it."""

    def __init__(self, m: Machine) -> None:
        self.product: TensorProduct | None = None


def _kind(ops: Operands) -> MmaKind:
    names = [w.removeprefix("kind::") for w in ops.modifiers if w.startswith("kind::")]
    kind = MMA_KINDS.get(names[0]) if names else None
    if kind is None:
        raise ops.refuse("supported kinds are " + ", ".join(MMA_KINDS))
    ops.allow("mma", "cta_group::1", f"kind::{kind.name}", *_COLLECTORS)
    return kind


def _shift(ops: Operands, operands: list[Any], kind: MmaKind) -> int:
    if not operands:
        return 0
    if not isinstance(operands[0], Immediate) or kind.name not in ("f16", "tf32"):
        raise ops.refuse("scale-input-d is a constant, for kind::f16 and kind::tf32")
    if not 0 <= operands[0].value <= 15:
        raise ops.refuse("scale-input-d is 0 to 15")
    return operands[0].value


@executes("tcgen05.mma")
def prepare_mma(ops: Operands) -> Execute:
    """`tcgen05.mma.cta_group::1.kind::K [d], a, b, idesc, enable-input-d{, scale-input-d}`."""
    return _Mma(ops).execute


@executes("tcgen05.commit")
def prepare_commit(ops: Operands) -> Execute:
    """`tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}.b64 [mbar]`."""
    ops.allow("commit", "cta_group::1", "mbarrier::arrive::one", "shared::cluster")
    place = barrier_place(ops, ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        ones, pc = np.ones(lanes.n, np.int64), m.pc
        m.state(_Open).product = None

        def perform() -> None:
            m.pc = pc
            use(m, lanes, lambda b: b.arrive(rows, offsets, ones))
            if m.guard is not None:
                m.guard.complete_mbarrier(rows, offsets)

        place_text = m.place_text(pc)
        m.asynchronous.issue(
            Operation(perform, "tcgen05.commit", place_text, ORDER, signals=True)
        )

    return execute
