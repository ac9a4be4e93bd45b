"""Matrix products: of tiles, and those that the tensor core runs asynchronously.

Invariant: `Dot` is a value; an `Accumulator` is written by products in flight and read only after
they are waited for.
"""

from __future__ import annotations

from typing import TypeAlias

from astdsl.ir.core import ACTS, READS, Op, Value
from astdsl.ir.dtypes import DType, u8
from astdsl.ir.types import AccumulatorType, TileType, Type

# A part of two axes: (first, extent) of each; empty for the whole.
Window2D: TypeAlias = tuple[tuple[int, int], ...]


class Dot(Op):
    """`a @ b` (m, k) x (k, n), products exact and summed in `dtype`; the order is unspecified.

    `precision` is "" (f32 operands multiply exactly), "tf32" (their low 13 bits are ignored), or
    "tf32x3": the sum of three such products, of the operands and of what is left of each.
    """

    a: Value
    b: Value
    dtype: DType
    precision: str = ""

    def result_types(self) -> tuple[Type, ...]:
        return (TileType((self.a.tile.shape[0], self.b.tile.shape[1]), self.dtype),)

    def verify(self) -> None:
        a, b = self.a.tile, self.b.tile
        assert len(a.shape) == len(b.shape) == 2, f"Dot: {a} @ {b}"
        assert a.shape[1] == b.shape[0], f"Dot: {a} @ {b}"


class ScaledDot(Dot):
    """`(a * a_scale) @ (b * b_scale)` (m, k) x (k, n), a scale for each `block` elements along k.

    `a_scale` is (m, k/block), `b_scale` (n, k/block); or each is its image of rank 4, padded to
    whole atoms: (rows/128, k/block/4, 32, 16) holds scale k of a row at
    [row // 128, k // 4, row % 32, row % 128 // 32 * 4 + k % 4]. Scaled operands and their products
    are exact and summed in `dtype` (f32); the order is unspecified. The sign of a scale is ignored.
    `packed` operands are bytes of two f4e2m1 along k.
    """

    a_scale: Value
    b_scale: Value
    block: int
    packed: bool = False

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K, in elements."""
        rows, depth = self.a.tile.shape
        return rows, self.b.tile.shape[1], depth * (2 if self.packed else 1)

    def verify(self) -> None:
        super().verify()
        rows, columns, depth = self.extents
        operands = f"{self.a.tile} @ {self.b.tile}"
        assert depth % self.block == 0, f"ScaledDot: blocks of {self.block} of {operands}"
        assert not self.packed or self.a.tile.dtype is self.b.tile.dtype is u8, operands
        count = depth // self.block
        for scale, extent in ((self.a_scale, rows), (self.b_scale, columns)):
            allowed = ((extent, count), scale_image_shape(extent, count))
            assert scale.tile.shape in allowed, f"ScaledDot: scales {scale.tile} of {operands}"


# Scales of 128 rows and of 4 blocks along k lie together, as `tcgen05.cp` moves them.
SCALE_ROWS, SCALE_COLUMNS, SCALE_LANES = 128, 4, 32


def scale_image_shape(rows: int, count: int) -> tuple[int, int, int, int]:
    """Return the shape of the image of `count` scales of each row (PTX ISA 9.7.16.10.7)."""
    atoms = -(-rows // SCALE_ROWS), -(-count // SCALE_COLUMNS)
    return (*atoms, SCALE_LANES, SCALE_ROWS // SCALE_LANES * SCALE_COLUMNS)


class SharedDot(Op):
    """The value of `a @ b` of two slots of shared memory, read by the threads themselves.

    `a_slot` and `b_slot` are the leading starts; a transposed slot holds its operand transposed.
    Products are exact and summed in `dtype`; the order is unspecified.
    """

    effect = READS
    a: Value
    b: Value
    a_slot: tuple[Value, ...] = ()
    b_slot: tuple[Value, ...] = ()
    a_transposed: bool = False
    b_transposed: bool = False
    dtype: DType

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K."""
        a = _slot_shape(self.a, self.a_slot, transposed=self.a_transposed)
        b = _slot_shape(self.b, self.b_slot, transposed=self.b_transposed)
        return a[0], b[1], a[1]

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.extents[:2], self.dtype),)


def _slot_shape(buffer: Value, slot: tuple[Value, ...], *, transposed: bool) -> tuple[int, int]:
    rows, columns = buffer.ref.shape[len(slot) :]
    assert rows is not None, "shared memory has static extents"
    assert columns is not None, "shared memory has static extents"
    return (columns, rows) if transposed else (rows, columns)


class AllocAccumulator(Op):
    """An accumulator of the tensor core: registers of a warpgroup (wgmma), or TMEM (tcgen05).

    `in_registers` says that the kernel's author means registers. With `owners`, each of these
    warpgroups has its own columns of TMEM; registers are its own anyway.
    """

    effect = ACTS
    shape: tuple[int, ...]
    dtype: DType
    in_registers: bool = False
    owners: tuple[int, ...] = ()

    def result_types(self) -> tuple[Type, ...]:
        return (AccumulatorType(self.shape, self.dtype),)


class AccumulatorWrite(Op):
    """Set the accumulator to a tile; no product may be in flight."""

    effect = ACTS
    accumulator: Value
    value: Value


class AccumulatorRead(Op):
    """The accumulator as a tile; no product may be in flight."""

    effect = ACTS
    accumulator: Value

    def result_types(self) -> tuple[Type, ...]:
        kind = self.accumulator.type
        assert isinstance(kind, AccumulatorType), f"expected an accumulator, got {kind}"
        return (TileType(kind.shape, kind.dtype),)


class MatrixMultiply(Op):
    """Start `accumulator += a @ b` (`=` where `accumulate` is false), asynchronously.

    The dtypes of the operands say which product it is; of f32 it ignores the low 13 bits.

    `a` (m, k) and `b` (k, n) are slots of shared memory: `a_slot`, `b_slot` are the leading
    starts; `a_transposed` says that the slot holds a as (k, m), `b_transposed` b as (n, k). `a` may
    be a tile instead; `lender` is the accumulator, whatever it held, in whose columns of tensor
    memory it stands then. Windows are parts of a slot or of the accumulator: (first, extent) of
    both axes, as they are in memory; none is the whole.
    """

    effect = ACTS
    accumulator: Value
    a: Value
    b: Value
    lender: tuple[Value, ...] = ()
    a_slot: tuple[Value, ...] = ()
    b_slot: tuple[Value, ...] = ()
    a_transposed: bool = False
    b_transposed: bool = False
    accumulate: Value
    accumulator_window: Window2D = ()
    a_window: Window2D = ()
    b_window: Window2D = ()


class ScaledMultiply(MatrixMultiply):
    """A product of block-scaled operands, asynchronous: see `ScaledDot`, `MatrixMultiply`.

    The scales are images of rank 4 in slots of shared memory.
    """

    a_scale: Value
    b_scale: Value
    a_scale_slot: tuple[Value, ...] = ()
    b_scale_slot: tuple[Value, ...] = ()
    block: int
    packed: bool = False


class ProductWait(Op):
    """Wait until at most `pending` of the products started by the block are in flight."""

    effect = ACTS
    pending: int
