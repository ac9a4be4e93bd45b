"""Products of the tensor core written by hand, with accumulators in registers: `wgmma`.

Invariant: a product that was started is waited for before its accumulator is read: `acc[...]` and
`wgmma_accumulator_load` wait. Operands in shared memory are not: `wgmma_wait` does that.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import (
    BadWindow,
    ShapeMismatch,
    TypeMismatch,
    UnsupportedFeature,
    did_you_mean,
    in_words,
)
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType, bf16, boolean, f8e4m3, f8e5m2, f16, f32, i8, i32, tf32, u8
from astdsl.ir.types import SMEM, AccumulatorType, scalar
from astdsl.lang.elementwise import settle, sources
from astdsl.lang.indices import form_of, index_value
from astdsl.lang.refs import Ref
from astdsl.lang.shapes import as_shape, forget_edges, index, zeros
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Literal, Tile, UnknownAttribute, as_operand, require_dtype
from astdsl.lang.views import AxisView
from astdsl.lang.windows import Span1D, spelled_out, window_of

# Of operands that meet: what the products are summed in. PTX ISA 9.7.15.5, 9.7.16.
KINDS = {
    (f16, f16): (f32, f16),
    (bf16, bf16): (f32,),
    (f32, f32): (f32,),
    (tf32, tf32): (f32,),
    **{(a, b): (f32, f16) for a in (f8e4m3, f8e5m2) for b in (f8e4m3, f8e5m2)},
    **{(a, b): (i32,) for a in (i8, u8) for b in (i8, u8)},
}
K_BYTES = 32
ROWS, COLUMNS = 64, 8


class Accumulator:
    """An accumulator in the registers of a warpgroup (sm_90a), zero at first: (m, n) of `dtype`.

    `acc[...]` waits for every product and reads it, `acc[rows, columns]` a part. `acc.at[rows,
    columns]` is a part that products add to. m is a multiple of 64, n of 8. `ACC.init(tile)` makes
    one that starts as the tile. Errors: ShapeMismatch, TypeMismatch.
    """

    __slots__ = ("_window", "value")
    __iter__ = None
    operand_help = "an accumulator is no value: `acc[...]` waits for its products and reads it"

    def __init__(self, shape: object, dtype: object = f32) -> None:
        extents, kind = as_shape(shape, "`ACC`"), require_dtype(dtype, "`ACC`")
        self.value = _allocated(extents, kind)
        self._window: ops.Window2D = ()
        emit(ops.AccumulatorWrite, accumulator=self.value, value=zeros(extents, kind).value)

    @classmethod
    def init(cls, tile: object) -> Accumulator:
        """Return an accumulator that holds a tile."""
        first = settle(tile, "`ACC.init`")
        forget_edges(first, range(first.ndim), "keeping it in an accumulator")
        made = cls._part(_allocated(first.shape, first.dtype), ())
        emit(ops.AccumulatorWrite, accumulator=made.value, value=first.value)
        return made

    @classmethod
    def _part(cls, value: Value, window: ops.Window2D) -> Accumulator:
        made = cls.__new__(cls)
        made.value, made._window = value, window
        return made

    @property
    def _type(self) -> AccumulatorType:
        kind = self.value.type
        assert isinstance(kind, AccumulatorType), f"expected an accumulator, got {kind}"
        return kind

    @property
    def dtype(self) -> DType:
        """What products are summed in."""
        return self._type.dtype

    @property
    def window(self) -> ops.Window2D:
        """(first, extent) of its rows and columns in the whole; empty for the whole."""
        return self._window

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return tuple(n for _, n in self._window) if self._window else self._type.shape

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def at(self) -> _At:
        """`acc.at[rows, columns]` is a part of it, to which products add."""
        return _At(self)

    def __getitem__(self, key: object) -> Tile:
        return index(wgmma_accumulator_load(self), key)

    def __setitem__(self, key: object, value: object) -> None:
        raise fault(
            TypeMismatch,
            "an accumulator is not assigned: products add to it",
            help="`ACC.init(tile)` makes one that starts as a tile",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        close = did_you_mean(name, ["at", "dtype", "init", "ndim", "shape"])
        raise fault(
            UnknownAttribute,
            f"an accumulator has no attribute `{name}`",
            help=close or f"methods of tiles need a tile: `acc[...].{name}`",
        )

    def __copy__(self) -> Accumulator:
        return self

    def __deepcopy__(self, memo: object) -> Accumulator:
        # It names registers, which are the same for its copy.
        return self

    def __repr__(self) -> str:
        return f"accumulator {self.dtype}{list(self.shape)}"


ACC = WGMMAAccumulatorRef = Accumulator


class _At:
    """What stands between `acc.at` and its window."""

    __slots__ = ("_accumulator",)
    __iter__ = None
    operand_help = "a window follows it: `acc.at[0:64, 0:8]`"

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator

    def __getitem__(self, key: object) -> Accumulator:
        whole = self._accumulator
        items = key if isinstance(key, tuple) else (key,)
        old = whole.window or tuple((0, n) for n in whole.shape)
        parts = tuple(
            _constant_part(item, first, extent)
            for item, (first, extent) in zip(spelled_out(items, 2, "acc"), old, strict=True)
        )
        _require_multiples("a part of an accumulator begins", *(first for first, _ in parts))
        _require_multiples("a part of an accumulator has", *(extent for _, extent in parts))
        return Accumulator._part(whole.value, parts)


def _constant_part(item: object, first: int, extent: int) -> tuple[int, int]:
    part: Span1D = window_of(item, Form.of(extent), extent, "acc")
    start = form_of(part.start).constant
    if start is None or part.step != 1 or not part.kept or part.size is None:
        raise fault(
            BadWindow,
            "a part of an accumulator is known while tracing: constant ends and no steps",
            help="registers have no addresses: `unroll(range(n))` makes an index constant",
        )
    if start < 0 or start + part.size > extent:
        raise fault(
            BadWindow,
            f"{in_words(part.size, 'element')} from {start} on lie outside an accumulator's axis "
            f"of {extent}",
            help="parts lie inside",
        )
    return first + start, part.size


def _allocated(shape: tuple[int, ...], dtype: DType) -> Value:
    if len(shape) != 2 or 0 in shape:
        raise fault(
            ShapeMismatch,
            f"an accumulator has two axes, rows and columns, got {shape}",
            help="`ACC((64, 128), f32)`",
        )
    _require_multiples("an accumulator has", *shape)
    summed = tuple(dict.fromkeys(d for kinds in KINDS.values() for d in kinds))
    if dtype not in summed:
        raise fault(
            TypeMismatch,
            f"an accumulator is of {_names(summed)}, got {dtype}",
            help="convert when it is read: `acc[...].astype(f16)`",
        )
    return emit(ops.AllocAccumulator, shape=shape, dtype=dtype, in_registers=True).result


def _names(dtypes: tuple[DType, ...]) -> str:
    return " or ".join(d.name for d in dtypes)


def _require_multiples(what: str, rows: int, columns: int) -> None:
    if rows % ROWS or columns % COLUMNS:
        raise fault(
            ShapeMismatch,
            f"{what} a multiple of {ROWS} rows and of {COLUMNS} columns, got {rows} and {columns}",
            help="`a @ b` multiplies any extents",
        )


def wgmma(acc: object, a: object, b: object) -> None:
    """Start `acc += a @ b` asynchronously, one group of products; sm_90a.

    `a` (m, k) is in shared memory or a tile, `b` (k, n) in shared memory; `ref.T` transposes.
    f16, bf16, f8 (mixed too) and f32, which is multiplied as tf32, are summed in f32, f16 and f8 in
    f16 too; i8 and u8 (mixed too) in i32. Operands of 16 bits may be contiguous along any axis,
    others along k. k is a multiple of 32 bytes. What was stored to the operands before must be
    followed by `commit_smem()`; they are read until `wgmma_wait` says that they are not.
    PTX: wgmma.mma_async. Errors: TypeMismatch, ShapeMismatch, UnsupportedFeature.
    """
    target = _require_accumulator("wgmma", acc)
    left = a if isinstance(a, Ref) else settle(a, "`a` of `wgmma`")
    right = require_operand("wgmma", "b", b)
    if isinstance(left, Ref):
        left = require_operand("wgmma", "a", left)
    else:
        forget_edges(left, range(left.ndim), "multiplying it")
    check_product("wgmma", target, left, right)
    fields = {**operand_fields("wgmma", "a", left), **operand_fields("wgmma", "b", right)}
    emit(
        ops.MatrixMultiply,
        accumulator=target.value,
        accumulator_window=target.window,
        accumulate=emit(ops.Constant, type=scalar(boolean), value=True).result,
        **fields,
    )


def check_product(function: str, acc: Any, a: Ref | Tile, b: Ref) -> None:
    """Refuse extents and dtypes that do not belong together."""
    if (a.dtype, b.dtype) not in KINDS:
        pairs = ", ".join(f"{x} @ {y}" for x, y in KINDS)
        raise fault(
            UnsupportedFeature,
            f"`{function}` of {a.dtype} @ {b.dtype} is not in this version",
            help=f"it multiplies {pairs}; `a @ b` multiplies others",
        )
    summed = KINDS[a.dtype, b.dtype]
    if acc.dtype not in summed:
        raise fault(
            TypeMismatch,
            f"`{function}` sums {a.dtype} @ {b.dtype} in {_names(summed)}, and `acc` is of "
            f"{acc.dtype}",
            help="give the accumulator that dtype",
        )
    shapes = (tuple(acc.shape), tuple(a.shape), tuple(b.shape))
    if len(a.shape) != 2 or shapes[0] != (a.shape[0], b.shape[1]) or a.shape[1] != b.shape[0]:
        raise fault(
            ShapeMismatch,
            f"`{function}` adds (m, k) @ (k, n) to (m, n), got {shapes[1]} @ {shapes[2]} to "
            f"{shapes[0]}",
            *(sources(a) if isinstance(a, Tile) else []),
            help="`ref.T` transposes an operand; `acc.at[rows, columns]` is a part",
        )
    depth = K_BYTES * 8 // b.dtype.bits
    if a.shape[1] % depth or not a.shape[1]:
        raise fault(
            ShapeMismatch,
            f"`{function}` of {b.dtype} contracts a multiple of {depth} elements, got {a.shape[1]}",
            help="allocate the operands deeper, and fill the rest with zeros",
        )


def require_operand(function: str, argument: str, x: object) -> Ref:
    """Return a matrix in shared memory: a buffer of two axes, a slot, or a part of one."""
    if not isinstance(x, Ref) or x.space != SMEM:
        got = f"{x.space} memory" if isinstance(x, Ref) else repr(x)
        help = "copy it to `SMEM` first: `copy_gmem_to_smem(src, dst, barrier)`"
        raise fault(
            TypeMismatch, f"`{argument}` of `{function}` is in shared memory, got {got}", help=help
        )
    x = x.as_window(f"`{function}`")
    if x.ndim != 2:
        raise fault(
            ShapeMismatch,
            f"`{argument}` of `{function}` has two axes, got {x}",
            (x.root.value, "the buffer"),
            help="`buf.at[slot]` is one slot of a buffer",
        )
    return x


def operand_fields(function: str, name: str, x: Ref | Tile) -> dict[str, Any]:
    """Return the fields `name`, `name`_slot, ... of a product for an operand."""
    if isinstance(x, Tile):
        return {name: x.value}
    slots, matrix = x.axes[:-2], x.axes[-2:]
    if any(axis.kept for axis in slots) or not all(axis.kept for axis in matrix):
        raise fault(
            UnsupportedFeature,
            f"`{name}` of `{function}` is in the last two axes of its buffer, got {x}",
            (x.root.value, "the buffer"),
            help="make slots the first axes: `SMEM((2, 64, 64), f16)`, `buf.at[slot]`",
        )
    window = () if all(axis.whole for axis in matrix) else tuple(_part_of(a, x) for a in matrix)
    return {
        name: x.root.value,
        f"{name}_slot": tuple(index_value(axis.start) for axis in slots),
        f"{name}_transposed": list(x.order) != sorted(x.order),
        f"{name}_window": window,
    }


def _part_of(axis: AxisView, ref: Ref) -> tuple[int, int]:
    first = form_of(axis.start).constant
    if first is None or axis.step != 1 or axis.size is None:
        raise fault(
            UnsupportedFeature,
            f"a part of an operand of a product begins at a constant, without steps: {ref}",
            (ref.root.value, "the buffer"),
            help="make what is chosen at run time the first axis: `buf.at[slot]`",
        )
    return first, axis.size


def _require_accumulator(function: str, acc: object) -> Accumulator:
    if isinstance(acc, Accumulator):
        return acc
    raise fault(
        TypeMismatch,
        f"`acc` of `{function}` is an accumulator, got {acc!r}",
        help="`acc = ACC((64, 128), f32)` makes one; `acc += a @ b` adds to a tile",
    )


def wgmma_wait(n: object) -> None:
    """Wait until at most the `n` newest products are in flight; sm_90a.

    The operands of the others may be overwritten then. PTX: wgmma.wait_group.
    """
    emit(ops.ProductWait, pending=_pending("wgmma_wait", n))


def wgmma_accumulator_load(acc: object, wait_n: object = 0) -> Tile:
    """Wait until at most the `wait_n` newest products are in flight, and read an accumulator.

    None of those in flight may add to it. Errors: TypeMismatch.
    """
    target = _require_accumulator("wgmma_accumulator_load", acc)
    pending = _pending("wgmma_accumulator_load", wait_n)
    emit(ops.ProductWait, pending=pending)
    whole = Tile(emit(ops.AccumulatorRead, accumulator=target.value).result)
    if not target.window:
        return whole
    return index(whole, tuple(slice(first, first + n) for first, n in target.window))


def _pending(function: str, n: object) -> int:
    given = as_operand(n, f"`{function}`")
    if isinstance(given, Literal) and type(given.number) is int and given.number >= 0:
        return given.number
    raise fault(
        TypeMismatch,
        f"`{function}` takes a constant number of products from 0 on, got {given}",
        help="0 waits for all of them",
    )
