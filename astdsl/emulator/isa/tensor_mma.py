"""Fifth-generation matrix products of sm_100a, plain and block-scaled (PTX ISA 9.7.16.10).

Invariant: dense operands of one block or of a pair; a product waits in tensor memory's queue, and
instructions that only lengthen its K are performed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.formats.descriptors import OperandShape, decode_tcgen05_descriptor
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.instruction import (
    MMA_KINDS,
    SCALED_KINDS,
    InstructionDescriptor,
    MmaKind,
    decode_instruction,
    decode_scaled_instruction,
)
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.tcgen05 import GROUPS
from astdsl.emulator.matrix import PACKED
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.spread import own, pairs
from astdsl.emulator.syntax import Address, Immediate, Vector
from astdsl.emulator.tensor_memory import COLUMN_MASK
from astdsl.emulator.tensor_products import (
    OpenProduct,
    ScaleTile,
    Step,
    TensorProduct,
    TensorTile,
    pair_tile_at,
    tile_at,
)
from astdsl.emulator.tiles import SharedTile, locate

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array, BoolArray

_COLLECTORS = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
# Scales for each step of K, by kind and by the words that name the size of a block.
_SCALE_COUNTS = {
    "mxf8f6f4": {"block32": 1, "scale_vec::1X": 1},
    "mxf4": {"block32": 2, "scale_vec::2X": 2},
    "mxf4nvf4": {"block32": 2, "scale_vec::2X": 2, "block16": 4, "scale_vec::4X": 4},
}
# What a block is when the instruction does not say.
_DEFAULT_COUNTS = {"mxf8f6f4": 1, "mxf4": 2}


class _Mma:
    """The operands of one `tcgen05.mma`, resolved."""

    def __init__(self, ops: Operands, kind: MmaKind) -> None:
        self.kind = kind
        self.n_blocks = 2 if ops.has("cta_group::2") else 1
        d, a, b, descriptor, *rest = ops.args
        self._d = ops.address(d)
        self._a_in_tensor_memory = isinstance(a, Address)
        self._a = ops.address(a) if self._a_in_tensor_memory else ops.source(a, "b64")
        self._b = ops.source(b, "b64")
        self._descriptor = ops.source(descriptor, "b32")
        rest = self._scale_operands(ops, rest)
        self._disabled: list[Getter] = []
        if rest and isinstance(rest[0], Vector):
            self._disabled = ops.sources(rest[0], "b32")
            if len(self._disabled) != 4 * self.n_blocks:
                raise ops.refuse(f"the mask of disabled lanes has {4 * self.n_blocks} registers")
            rest = rest[1:]
        if not 1 <= len(rest) <= 2:
            raise ops.refuse("enable-input-d must follow the instruction descriptor")
        self._keeps = ops.source(rest[0], "pred")
        self.shift = _shift(ops, rest[1:], self.kind)
        ops.sensitive += ops.reads

    def _scale_operands(self, ops: Operands, rest: list[Any]) -> list[Any]:
        """Take the operands that only block-scaled products have; return the others."""
        return rest

    def _decode(self, m: Machine, lanes: Lanes, bits: int) -> tuple[InstructionDescriptor, Any]:
        """Return the descriptor and the scales of A and B."""
        return decode_instruction(bits, self.kind, self.n_blocks), None

    def execute(self, m: Machine, lanes: Lanes) -> None:
        """Issue one product for each thread, those of all blocks that agree together."""
        d = one_a_lane(self._d(m, lanes), lanes.n)
        bits = one_a_lane(self._descriptor(m, lanes), lanes.n)
        threads, rest = m.thread_of[lanes.sel], lanes
        while rest.n:
            same = (d == d[0]) & (bits == bits[0]) & (threads == threads[0])
            if all_of(same):
                self._issue(m, rest, int(d[0]), int(bits[0]))
                return
            self._issue(m, rest.where(same), int(d[0]), int(bits[0]))
            others = ~same
            rest, d, bits, threads = rest.where(others), d[others], bits[others], threads[others]

    def _issue(self, m: Machine, issuers: Lanes, d_address: int, bits: int) -> None:
        state, keeps = m.state(OpenProduct), self._keeps(m, issuers)
        spread = own(m, issuers) if self.n_blocks == 1 else pairs(m, issuers)
        lanes, rows = spread.lanes, spread.rows
        keeps = spread.of(one_a_lane(keeps, issuers.n))
        try:
            descriptor, scales = self._decode(m, lanes, bits)
            step = Step(*self._operands(m, lanes, descriptor), scales)
            product = state.product
            if (
                product is not None
                and not self._disabled
                and all_of(keeps)
                and self._continues(product, rows, descriptor, d_address, step)
            ):
                product.add(step)
                return
            product = TensorProduct(
                m, lanes, rows, descriptor, d_address, keeps.copy(), self.shift, self.n_blocks,
                self._mask(m, issuers),
            )  # fmt: skip
            product.begin()
            product.add(step)
        except FormatError as error:
            raise m.fault("E281", str(error), int(lanes.index[0])) from None
        state.product = product
        m.asynchronous.issue(product.operation)

    def _mask(self, m: Machine, issuers: Lanes) -> BoolArray | None:
        """Return which lanes of D each block keeps as they are, [blocks, 128]; None for none."""
        if not self._disabled:
            return None
        words = [one_a_lane(get(m, issuers), issuers.n) for get in self._disabled]
        raw = np.ascontiguousarray(np.stack(words, axis=1), np.uint32).view(np.uint8)
        bits = np.unpackbits(raw, axis=1, bitorder="little")
        return bits.reshape(issuers.n * self.n_blocks, 128).astype(np.bool_)

    def _operands(
        self, m: Machine, lanes: Lanes, d: InstructionDescriptor
    ) -> tuple[SharedTile | TensorTile, SharedTile]:
        for name, transposed in ((d.a_type, d.transpose_a), (d.b_type, d.transpose_b)):
            if transposed and name in PACKED:
                raise FormatError(f"operands of type {name} are K-major")
        size, depth = self.kind.element_bytes, self.kind.depth
        # Each block of a pair holds half of the rows of A and half of the columns of B.
        a_rows, b_rows = d.m // self.n_blocks, d.n // self.n_blocks
        b_bits = one_a_lane(self._b(m, lanes), lanes.n)
        b_shape = OperandShape(b_rows, depth, size, d.transpose_b)
        b = locate(m, b_bits, decode_tcgen05_descriptor, b_shape)
        a_bits = one_a_lane(self._a(m, lanes), lanes.n)
        if not self._a_in_tensor_memory:
            a_shape = OperandShape(a_rows, depth, size, d.transpose_a)
            return locate(m, a_bits, decode_tcgen05_descriptor, a_shape), b
        if any_of(a_bits != a_bits[0]):
            raise FormatError("blocks with A at different addresses of tensor memory")
        address, columns = int(a_bits[0]), depth * size // 4
        if self.n_blocks == 2:
            # 64 rows lie there twice: each half of the lanes multiplies half of the columns.
            return pair_tile_at(address, 128, columns), b
        return tile_at(address, a_rows, columns), b

    def _continues(
        self, product: TensorProduct, rows: Array, d: InstructionDescriptor, d_address: int,
        step: Step,
    ) -> bool:  # fmt: skip
        """Say whether this instruction only lengthens the K of the product before it."""
        return (
            not product.done
            and product.descriptor == d
            and product.d_address == d_address
            and type(product.steps[0].a) is type(step.a)
            and product.shift == self.shift == 0
            and np.array_equal(product.rows, rows)
        )


class _ScaledMma(_Mma):
    """The operands of one block-scaled `tcgen05.mma`."""

    def __init__(self, ops: Operands, kind: MmaKind) -> None:
        counts = _SCALE_COUNTS[kind.name]
        words = [word for word in ops.modifiers if word in counts]
        if not words and kind.name not in _DEFAULT_COUNTS:
            raise ops.refuse("the size of a block must be named: " + ", ".join(counts))
        self._count = counts[words[0]] if words else _DEFAULT_COUNTS[kind.name]
        super().__init__(ops, kind)

    def _scale_operands(self, ops: Operands, rest: list[Any]) -> list[Any]:
        if len(rest) < 3 or not all(isinstance(operand, Address) for operand in rest[:2]):
            raise ops.refuse("the addresses of both scale factors must follow the descriptor")
        self._scales = ops.address(rest[0]), ops.address(rest[1])
        return rest[2:]

    def _decode(self, m: Machine, lanes: Lanes, bits: int) -> tuple[InstructionDescriptor, Any]:
        descriptor, ids = decode_scaled_instruction(bits, self.kind, self.n_blocks)
        addresses = [one_a_lane(get(m, lanes), lanes.n) for get in self._scales]
        if any(any_of(each != each[0]) for each in addresses):
            raise FormatError("blocks with scale factors at different addresses")
        for first in (ids.a, ids.b):
            if first + self._count > 4:
                raise FormatError(f"{self._count} scales do not lie from byte {first} of a cell on")
        a, b = (int(each[0]) & COLUMN_MASK for each in addresses)
        halves = 2 if self.n_blocks == 2 and descriptor.m == 128 else 1
        return descriptor, (
            ScaleTile(descriptor.m // self.n_blocks, a, ids.a, self._count),
            ScaleTile(descriptor.n, b, ids.b, self._count, halves),
        )


def _kind(ops: Operands, kinds: dict[str, MmaKind], words: tuple[str, ...]) -> MmaKind:
    names = [w.removeprefix("kind::") for w in ops.modifiers if w.startswith("kind::")]
    kind = kinds.get(names[0]) if names else None
    if kind is None:
        raise ops.refuse("supported kinds are " + ", ".join({**MMA_KINDS, **SCALED_KINDS}))
    ops.allow("mma", *GROUPS, f"kind::{kind.name}", *_COLLECTORS, *words)
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
    """`tcgen05.mma.cta_group.kind::K [d], a, b, idesc, enable-input-d{, scale-input-d}`."""
    return _Mma(ops, _kind(ops, MMA_KINDS, ())).execute


@executes(*(f"tcgen05.mma.{group}.kind::{name}" for group in GROUPS for name in SCALED_KINDS))
def prepare_scaled_mma(ops: Operands) -> Execute:
    """`tcgen05.mma.cta_group.kind::K.block_scale{.block} [d], a, b, idesc, [sfa], [sfb], en`."""
    names = {word for counts in _SCALE_COUNTS.values() for word in counts}
    kind = _kind(ops, SCALED_KINDS, ("block_scale", *names))
    return _ScaledMma(ops, kind).execute
