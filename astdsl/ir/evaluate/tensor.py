"""What matrix products mean.

Invariant: products of floats are exact and summed in the result's dtype, in BLAS's order; products
of f32 on the tensor core ignore the low 13 bits of their operands. Products started asynchronously
take effect at once, and hold their sources and accumulator until waited for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from astdsl.errors import ProtocolError, UnwrittenRead
from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import DType, f32, tf32
from astdsl.ir.evaluate.memory import read, require_visible, slot_place
from astdsl.ir.evaluate.state import Accumulator, Frame, Memory, Place, Reading
from astdsl.ir.evaluate.table import Array, evaluates
from astdsl.ir.evaluate.tile import unpacked
from astdsl.ir.types import AccumulatorType, TileType


def matrix_product(a: Array, b: Array, source: DType, target: DType, precision: str = "") -> Array:
    """Return `a @ b` in `target`: exact products, summed there (integers wrap)."""
    if target.is_float:
        return _float_product(a, b, source, target, precision)
    if source.bits <= 16:  # exact in float64 for any K under 2**21
        exact = a.astype(np.float64) @ b.astype(np.float64)
        return np.asarray(exact.astype(np.int64).astype(target.numpy))
    return np.asarray(a.astype(target.numpy) @ b.astype(target.numpy))


def _float_product(a: Array, b: Array, source: DType, target: DType, precision: str) -> Array:
    if precision == "tf32x3":
        (a, a_rest), (b, b_rest) = _cut(a), _cut(b)
        rests = _float_product(_cut(a_rest)[0], b, source, target, "tf32")
        rests = rests + _float_product(a, _cut(b_rest)[0], source, target, "tf32")
        return np.asarray(rests + _float_product(a, b, source, target, "tf32"))
    if precision == "tf32":
        a, b = _cut(a)[0], _cut(b)[0]
    # Products of narrower floats are exact in float32; those of float32 need float64.
    is_exact = source.bits < f32.bits or precision == "tf32"
    kind = np.float32 if is_exact and target.bits <= f32.bits else np.float64
    return np.asarray((a.astype(kind) @ b.astype(kind)).astype(target.numpy))


def _cut(x: Array) -> tuple[Array, Array]:
    """Return float32 without its low 13 bits, which is what a tf32 product reads, and the rest."""
    kept = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return kept, x - kept


def tensor_core_product(a: Array, b: Array, source: DType, target: DType) -> Array:
    """Return what the tensor core makes of `a @ b`: of f32 it reads the bits of tf32."""
    precision = "tf32" if source in (f32, tf32) else ""
    return matrix_product(a, b, source, target, precision)


@evaluates(ops.Dot)
def _dot(op: ops.Dot, a: Array, b: Array) -> Array:
    return matrix_product(a, b, op.a.tile.dtype, op.dtype, op.precision)


@evaluates(ops.ScaledDot)
def _scaled_dot(op: ops.ScaledDot, a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    return scaled_product(op, a, b, (a_scale, b_scale))


def scaled_product(
    op: ops.ScaledDot | ops.ScaledMultiply | ops.ScaledTensorMultiply,
    a: Array,
    b: Array,
    scales: tuple[Array, Array],
) -> Array:
    """Return the product of operands scaled by blocks along k, exact and summed in float32."""
    if op.packed:
        a, b = unpacked(a, 1), unpacked(b, 0)
    rows, columns, count = a.shape[0], b.shape[1], a.shape[1] // op.block
    left = np.repeat(scales_of(scales[0], rows, count), op.block, axis=1)
    right = np.repeat(scales_of(scales[1], columns, count), op.block, axis=1)
    exact = (a.astype(np.float64) * left) @ (b.astype(np.float64) * right.T)
    return np.asarray(exact.astype(np.float32))


def scales_of(scales: Array, rows: int, count: int) -> Array:
    """Return scales (rows, count), given so or as their image, as float64 without their sign."""
    table = scales if scales.ndim == 2 else scale_table(scales)[:rows, :count]
    return np.abs(table.astype(np.float64))


def scale_table(image: Array) -> Array:
    """Return the scales of an image in order, (rows, count), padding included."""
    atoms = image.reshape(*image.shape[:2], ops.SCALE_LANES, -1, ops.SCALE_COLUMNS)
    rows, count = image.shape[0] * ops.SCALE_ROWS, image.shape[1] * ops.SCALE_COLUMNS
    return atoms.transpose(0, 3, 2, 1, 4).reshape(rows, count)


@evaluates(ops.AllocAccumulator)
def _alloc_accumulator(op: ops.AllocAccumulator, frame: Frame) -> Accumulator:
    del frame
    return Accumulator(np.zeros(op.shape, op.dtype.numpy), op.span)


def _require_idle(op: Op, accumulator: Accumulator) -> None:
    if accumulator.in_flight:
        raise ProtocolError(
            "an accumulator is used while a product into it is in flight",
            (op.span, "uses it"),
            (accumulator.in_flight[-1], "the product"),
            help="`wgmma_wait(0)` first",
        )


def _require_written(op: Op, accumulator: Accumulator) -> None:
    if not accumulator.is_written:
        raise UnwrittenRead(
            "an accumulator is read before it is written",
            (op.span, "reads"),
            (accumulator.span, "the accumulator"),
            help="write it first, or start with a product that does not accumulate",
        )


@evaluates(ops.AccumulatorWrite)
def _accumulator_write(op: ops.AccumulatorWrite, frame: Frame) -> None:
    accumulator: Accumulator = frame[op.accumulator]
    _require_idle(op, accumulator)
    accumulator.data, accumulator.is_written = np.array(frame[op.value]), True


@evaluates(ops.AccumulatorRead)
def _accumulator_read(op: ops.AccumulatorRead, frame: Frame) -> Array:
    accumulator: Accumulator = frame[op.accumulator]
    _require_idle(op, accumulator)
    _require_written(op, accumulator)
    return accumulator.data


def _operand_sides(
    op: ops.MatrixMultiply | ops.SharedDot,
) -> list[tuple[Value, tuple[Value, ...], bool]]:
    return [(op.a, op.a_slot, op.a_transposed), (op.b, op.b_slot, op.b_transposed)]


@evaluates(ops.SharedDot)
def _shared_dot(op: ops.SharedDot, frame: Frame) -> Array:
    tiles = []
    for ref, slot, is_transposed in _operand_sides(op):
        memory: Memory = frame[ref]
        tile = read(op, memory, slot_place(op, memory, frame.numbers(slot)), frame)
        tile = tile.reshape(tile.shape[len(slot) :])
        tiles.append(tile.T if is_transposed else tile)
    return matrix_product(tiles[0], tiles[1], op.a.ref.dtype, op.dtype)


@evaluates(ops.MatrixMultiply)
def _matrix_multiply(op: ops.MatrixMultiply, frame: Frame) -> None:
    def product(a: Array, b: Array) -> Array:
        return tensor_core_product(a, b, element_type(op.a), _dtype_of(op))

    _start_multiply(op, frame, product, [])


@evaluates(ops.ScaledMultiply)
def _scaled_multiply(op: ops.ScaledMultiply, frame: Frame) -> None:
    images, sources = scale_images(op, frame)

    def product(a: Array, b: Array) -> Array:
        return scaled_product(op, a, b, (images[0], images[1]))

    _start_multiply(op, frame, product, sources)


def scale_images(
    op: ops.ScaledMultiply, frame: Frame
) -> tuple[list[Array], list[tuple[Memory, Place]]]:
    """Return the images of both operands' scales, and where they are."""
    images, sources = [], []
    for ref, slot in ((op.a_scale, op.a_scale_slot), (op.b_scale, op.b_scale_slot)):
        memory: Memory = frame[ref]
        place = slot_place(op, memory, frame.numbers(slot))
        image = read(op, memory, place, frame)
        require_visible(op, memory, place)
        images.append(image.reshape(image.shape[len(slot) :]))
        sources.append((memory, place))
    return images, sources


def _start_multiply(
    op: ops.MatrixMultiply,
    frame: Frame,
    multiply: Callable[[Array, Array], Array],
    sources: list[tuple[Memory, Place]],
) -> None:
    """Start a product: `multiply` gives it of its operands; `sources` are what else it reads."""
    accumulator: Accumulator = frame[op.accumulator]
    tiles: list[Array] = []
    sources = list(sources)
    windows = (op.a_window, op.b_window)
    for (value, slot, is_transposed), part in zip(_operand_sides(op), windows, strict=True):
        if isinstance(value.type, TileType):
            tiles.append(frame[value])
            continue
        memory: Memory = frame[value]
        place = operand_place(op, memory, frame.numbers(slot), part)
        tiles.append(operand(op, memory, place, frame, is_transposed=is_transposed))
        sources.append((memory, place))
    for lender in op.lender:
        _require_idle(op, frame[lender])
        frame[lender].is_written = False
    place = _part(op.accumulator_window, accumulator.data)
    product = multiply(tiles[0], tiles[1])
    if frame[op.accumulate]:
        _require_written(op, accumulator)
        product = accumulator.data[place] + product
    data = np.array(accumulator.data)
    data[place] = product
    accumulator.data, accumulator.is_written = data, True
    start_product(op, accumulator, sources, frame)


def start_product(
    op: Op, accumulator: Accumulator, sources: list[tuple[Memory, Place]], frame: Frame
) -> None:
    """Let a product hold its sources and its accumulator until it is waited for."""
    accumulator.in_flight.append(op.span)
    way_out = "`wgmma_wait(n)` waits until at most n later products are in flight: wait"
    reading = Reading(op.span, sources, accumulator, way_out=way_out)
    reading.begin()
    frame.issuer.products.append(reading)


def _part(window: ops.Window2D, data: Array) -> Place:
    whole = tuple((0, extent) for extent in data.shape)
    return tuple(slice(first, first + extent) for first, extent in window or whole)


def element_type(value: Value) -> DType:
    """Return the dtype of an operand: a tile or memory."""
    kind = value.type
    return kind.dtype if isinstance(kind, TileType) else value.ref.dtype


def operand_place(op: Op, memory: Memory, slot: tuple[int, ...], part: ops.Window2D) -> Place:
    """Return the place of an operand of a product: of a slot, the part that it is."""
    place = slot_place(op, memory, slot)
    last = memory.data[place]
    return (*place[: len(slot)], *_part(part, last.reshape(last.shape[len(slot) :])))


def operand(op: Op, memory: Memory, place: Place, frame: Frame, *, is_transposed: bool) -> Array:
    """Return what the tensor core reads of shared memory, which it must be able to see."""
    tile = read(op, memory, place, frame)
    require_visible(op, memory, place)
    tile = tile.reshape(tile.shape[-2:])
    return tile.T if is_transposed else tile


def _dtype_of(op: ops.MatrixMultiply) -> DType:
    kind = op.accumulator.type
    assert isinstance(kind, AccumulatorType), f"expected an accumulator, got {kind}"
    return kind.dtype


@evaluates(ops.ProductWait)
def _product_wait(op: ops.ProductWait, frame: Frame) -> None:
    while len(frame.issuer.products) > op.pending:
        frame.issuer.products.popleft().end()
