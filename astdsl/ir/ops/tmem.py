"""Tensor memory of sm_100a by hand: its buffers, moving tiles in and out, products into it.

Invariant: what is started here is asynchronous: a product is done when a barrier that it was
committed to completes, loads and stores when the thread has waited for its own.
"""

from __future__ import annotations

from astdsl.ir.core import ACTS, Op, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.ops.memory import Window
from astdsl.ir.ops.tensor import Window2D, scale_image_shape
from astdsl.ir.types import TMEM, RefType, Type


class AllocTmem(Op):
    """Tensor memory of a block, unwritten: rows are lanes, cells of 32 bits are its columns.

    With `packed`, neighbouring elements share a cell; else each has one. With `scales` it holds
    (rows, count) scales as products of scaled operands read them, four to a cell.
    """

    effect = ACTS
    shape: tuple[int, ...]
    dtype: DType
    packed: bool = False
    scales: bool = False
    label: str = ""

    def result_types(self) -> tuple[Type, ...]:
        return (RefType(shape=self.shape, dtype=self.dtype, space=TMEM),)

    def result_hint(self) -> str:
        return self.label


class TmemLoad(Window):
    """Start reading columns of all rows; the tile may be used at once."""

    effect = ACTS

    def result_types(self) -> tuple[Type, ...]:
        return (self.window_type,)


class TmemStore(Window):
    """Start writing columns of all rows; readers need a `TmemCommit` before."""

    effect = ACTS
    value: Value

    def verify(self) -> None:
        super().verify()
        expected = self.window_type
        assert self.value.type == expected, f"TmemStore: {self.value.type} into {expected}"


class TmemWaitLoad(Op):
    """Wait until the loads of every thread are done: what they read may be overwritten."""

    effect = ACTS


class TmemCommit(Op):
    """Wait until the stores of every thread are done, and let products and loads see them."""

    effect = ACTS


class TensorMultiply(Op):
    """Start `accumulator += a @ b` (`=` where `accumulate` is false), in tensor memory.

    The accumulator is `columns` columns of a buffer, from `column` on; `a` is such columns, from
    `a_column` on, or as `b` a slot of shared memory: see `MatrixMultiply`.
    """

    effect = ACTS
    accumulator: Value
    column: Value
    columns: int
    a: Value
    b: Value
    a_column: tuple[Value, ...] = ()
    a_slot: tuple[Value, ...] = ()
    b_slot: tuple[Value, ...] = ()
    a_transposed: bool = False
    b_transposed: bool = False
    accumulate: Value
    a_window: Window2D = ()
    b_window: Window2D = ()

    def verify(self) -> None:
        in_tensor_memory = self.a.ref.space == TMEM
        assert in_tensor_memory == bool(self.a_column), "TensorMultiply: `a_column` is of tmem"


class CopyScales(Op):
    """Start copying the image of scales in a slot of shared memory to tensor memory.

    Products that are started afterwards read what was copied (PTX ISA 9.7.16.6.2).
    """

    effect = ACTS
    source: Value
    slot: tuple[Value, ...] = ()
    target: Value

    def verify(self) -> None:
        image = scale_image_shape(*map(_static, self.target.ref.shape))
        assert self.source.ref.shape[len(self.slot) :] == image, f"CopyScales: {self.source}"


def _static(extent: int | None) -> int:
    assert extent is not None, "tensor memory has static extents"
    return extent


class ScaledTensorMultiply(TensorMultiply):
    """A product of block-scaled operands of shared memory: see `ScaledDot`, `TensorMultiply`.

    The scales are in tensor memory, (m, k/block) and (n, k/block).
    """

    a_scale: Value
    b_scale: Value
    block: int
    packed: bool = False


class TensorCommit(Op):
    """One arrival on `barrier[index]` when the products that the block started are done."""

    effect = ACTS
    barrier: Value
    index: Value
