"""Layouts of tiles that threads read from shared memory, where what becomes of them decides.

Those that `wgmma` multiplies from registers are loaded as its fragments, by `ldmatrix`. Others are
read along one axis and written along the other. Both buffers are swizzled by 128 bytes: chunk c of
row r, 16 bytes, stands where c XOR r % 8 is. Elements of 32 bits are read by 4 and written by 2,
those of 64 bits read by 2 and written one by one; lanes are spread so that 128 bytes, which are
served at once, are in 32 banks on both sides. Elements of 16 bits are 8x8 matrices, which
`ldmatrix` reads and `stmatrix` writes transposed.

Invariant: a tile is held so only where all of its uses lead to the store, or to the product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.rewrite import count_uses
from astdsl.ir.types import SMEM, RefType, TileType
from astdsl.lowering.layout.matrices import MATRIX_ROWS, WORD_BYTES
from astdsl.lowering.layout.registers import (
    WARP_THREADS,
    WIDEST_ACCESS_BYTES,
    Digit,
    Layout,
    normalised,
    wgmma_operand,
)
from astdsl.lowering.layout.shared import SWIZZLES_BYTES

_TURN = (1, 0)
_HALF_WORD_BYTES = 2
# Neighbours that one access writes, of elements of so many bytes, and lanes beside those it reads.
_WRITTEN = {4: 2, 8: 1}


@dataclass(frozen=True, slots=True)
class _Source:
    """A load from shared memory that leads to a store; `is_turned` if by an odd number of turns."""

    load: ops.Load
    is_turned: bool


def wanted_by_uses(body: Block, threads: int) -> dict[Value, Layout]:
    """Return the layouts of loaded tiles that are stored along another axis, or multiplied."""
    program = list(walk(body))
    stores = [op for op in program if isinstance(op, ops.Store) and _is_of_two_axes(op)]
    products = [op for op in program if isinstance(op, ops.MatrixMultiply) and _is_fragment(op)]
    if not stores and not products:
        return {}
    trace = _Trace(body)
    found = {value: layout for op in stores for value, layout in trace.layouts(op, threads)}
    for op in products:
        found.update(trace.fragments(op, threads))
    return found


def _is_fragment(op: ops.MatrixMultiply) -> bool:
    """Whether `wgmma` reads A from registers, two elements in each."""
    kind = op.a.type
    return isinstance(kind, TileType) and kind.dtype.bytes == _HALF_WORD_BYTES and not op.lender


def _is_of_two_axes(op: ops.Store | ops.Load) -> bool:
    return op.ref.ref.space == SMEM and sum(op.kept) == len(_TURN)


class _Trace:
    """Where values come from, and along which axis buffers are contiguous."""

    def __init__(self, body: Block) -> None:
        self._makers = body.definitions
        self._uses: Counter[Value] = count_uses(body)
        self._orders = {
            op.buffer: _fast_of(op.ref.ref, op.kept)
            for op in walk(body)
            if isinstance(op, ops.Copy)
        }

    def layouts(self, store: ops.Store, threads: int) -> Iterator[tuple[Value, Layout]]:
        """Yield how the loads that a store writes are held, if some of them must be turned."""
        sources = list(self._sources(store.value, is_turned=False))
        loads = [source.load for source in sources if source is not None]
        if not loads or len(loads) < len(sources):
            return
        fast = self._fast(store)
        read = [self._fast(source.load) ^ source.is_turned for source in sources if source]
        if all(axis == fast for axis in read):
            return
        element_bytes = max(op.ref.ref.dtype.bytes for op in (store, *loads))
        layout = turning(store.window_type.shape, fast, element_bytes, threads)
        if layout is not None:
            for source in filter(None, sources):
                yield source.load.result, layout.permuted(_TURN) if source.is_turned else layout

    def fragments(self, op: ops.MatrixMultiply, threads: int) -> Iterator[tuple[Value, Layout]]:
        """Yield how the loads that A is computed from are held."""
        sources = list(self._sources(op.a, is_turned=False))
        rows, depth = op.a.tile.shape
        layout = wgmma_operand((rows, depth), threads, WORD_BYTES // _HALF_WORD_BYTES)
        for source in sources if None not in sources else ():
            if source is not None and source.load.ref.ref.dtype.bytes == _HALF_WORD_BYTES:
                yield source.load.result, layout.permuted(_TURN) if source.is_turned else layout

    def _sources(self, value: Value, *, is_turned: bool) -> Iterator[_Source | None]:
        """Yield the loads that a tile is computed from, None for what is held in its own way."""
        maker = self._makers.get(value)
        if isinstance(maker, _FREE):
            return
        if maker is None or self._uses[value] != 1:
            yield None
        elif isinstance(maker, ops.Load) and _is_of_two_axes(maker):
            yield _Source(maker, is_turned)
        elif isinstance(maker, ops.Transpose):
            yield from self._sources(maker.x, is_turned=not is_turned)
        elif isinstance(maker, ops.Elementwise):
            for operand in maker.operands:
                yield from self._sources(operand, is_turned=is_turned)
        else:
            yield None

    def _fast(self, op: ops.Load | ops.Store) -> int:
        return self._orders.get(op.ref, 1)


# What is made in any layout.
_FREE: tuple[type[Op], ...] = (ops.Constant, ops.Iota, ops.Broadcast)


def _fast_of(ref: RefType, kept: tuple[bool, ...]) -> int:
    """Return which of the two axes that are kept of an array is contiguous."""
    axes = [axis for axis, is_kept in enumerate(kept) if is_kept]
    contiguous = [k for k, axis in enumerate(axes) if ref.strides[axis] == 1]
    return contiguous[-1] if contiguous else len(axes) - 1


def turning(shape: tuple[int, ...], fast: int, element_bytes: int, threads: int) -> Layout | None:
    """Return the layout of a tile that is written along `fast` and read along the other axis.

    None where rows are not whole swizzles, or threads would be left over.
    """
    row = SWIZZLES_BYTES[0] // element_bytes
    if any(extent % row for extent in shape) or threads % WARP_THREADS:
        return None
    if element_bytes == _HALF_WORD_BYTES:
        word, lanes = Digit(2, 1 - fast, 1), (Digit(4, 1 - fast, 2), Digit(MATRIX_ROWS, fast, 1))
        return _spread(shape, (word,), lanes, threads)
    written = _WRITTEN.get(element_bytes)
    if written is None:
        return None
    read = WIDEST_ACCESS_BYTES // element_bytes
    down = Digit(WARP_THREADS // written, fast, written)
    held = Digit(read, 1 - fast, 1), Digit(written, fast, 1)
    return _spread(shape, held, (Digit(written, 1 - fast, read), down), threads)


def _spread(
    shape: tuple[int, ...], held: tuple[Digit, ...], lanes: tuple[Digit, ...], threads: int
) -> Layout | None:
    """Return the layout whose warps, and then registers, take what is left of both axes."""
    warps = threads // WARP_THREADS
    registers, digits = list(held), list(lanes)
    for axis in (lanes[-1].axis, 1 - lanes[-1].axis):
        covered = math.prod(d.extent for d in (*held, *lanes) if d.axis == axis)
        count = math.gcd(shape[axis] // covered, warps)
        digits.append(Digit(count, axis, covered))
        registers.append(Digit(shape[axis] // (covered * count), axis, covered * count))
        warps //= count
    return normalised(Layout(shape, tuple(registers), tuple(digits))) if warps == 1 else None
