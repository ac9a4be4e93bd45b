"""Refs: memory that a kernel reads and writes by windows.

Invariant: a ref is a view of one root (a parameter, or shared memory): of each of the root's axes a
window, and the order in which the view shows them. Reading makes a tile, which never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from astdsl.errors import (
    BadWindow,
    NotConstant,
    TypeMismatch,
    UnsupportedFeature,
    did_you_mean,
    in_words,
)
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import GMEM
from astdsl.lang import nibbles
from astdsl.lang.block_views import Blocks, Named
from astdsl.lang.elementwise import broadcast_shape, converted_to_target, rounded
from astdsl.lang.indices import form_of, index_value
from astdsl.lang.listed import as_index_tile, is_list
from astdsl.lang.masks import filled
from astdsl.lang.ragged import NO_EDGES, ZERO, Edges, HalfSpace
from astdsl.lang.reshaped import Fold, fold_of, folded_view, require_reshapable
from astdsl.lang.roots import Root
from astdsl.lang.shapes import as_extent, forget_edges
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import NeedsConstant, emit, fault
from astdsl.lang.values import Operand, Tile, UnknownAttribute, as_operand
from astdsl.lang.views import (
    NO_GRID,
    AxisView,
    Grid,
    index_edges,
    indexed_fields,
    require_indices,
    window_edges,
)
from astdsl.lang.windows import (
    ZERO_START,
    Span1D,
    composed,
    last_form,
    length_of,
    spelled_out,
    window_of,
)
from astdsl.records import replace


class Ref:
    """Memory, or a part of it: `ref[window]` reads a tile, `ref[window] = x` writes.

    `ref.at[window]` is that part as a ref. `shape`, `dtype`, `ndim`, `size`, `space` describe it;
    `T` is the view with its axes reversed.
    """

    __slots__ = ("axes", "fold", "grid", "order", "root")
    operand_help = "a ref is memory: `ref[...]` reads it as a tile"

    def __init__(
        self,
        root: Root,
        axes: tuple[AxisView, ...],
        order: tuple[int, ...],
        grid: Grid = NO_GRID,
        fold: Fold | None = None,
    ) -> None:
        self.root = root
        self.axes = axes
        self.order = order
        self.grid = grid
        self.fold = fold

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.root.dtype

    @property
    def space(self) -> str:
        """Where it lies: gmem or smem."""
        return self.root.value.ref.space

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.fold.shown) if self.fold else len(self.order) + len(self.grid.shape)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents: Python integers where known while tracing, else weak kernel integers."""
        if self.fold:
            return self.fold.shape
        sizes = [self.axes[k].size for k in self.order]
        known = (length_of(self.extent_of(k)) for k in self.order)
        pairs = zip(sizes, known, strict=True)
        return self.grid.with_grid([form if n is None else n for n, form in pairs])

    @property
    def size(self) -> Any:
        """Number of elements."""
        total: Any = 1
        for extent in self.shape:
            total = extent * total
        return total

    @property
    def T(self) -> Ref:  # noqa: N802  (the array API's name)
        """The view with its axes in reverse order."""
        return self.permuted(tuple(range(self.ndim))[::-1])

    def permuted(self, numbers: Sequence[int]) -> Ref:
        """Return the view whose axis k is axis `numbers[k]` of this one."""
        self._refuse_further("turned")
        if self.fold:
            return Ref(self.root, self.axes, self.order, fold=self.fold.permuted(numbers))
        return Ref(self.root, self.axes, tuple(self.order[k] for k in numbers))

    def with_root(self, root: Root) -> Ref:
        """Return the same part of the same memory, of which `root` says something else."""
        return Ref(root, self.axes, self.order, self.grid, self.fold)

    @property
    def at(self) -> At:
        """`ref.at[window]` is that part of the memory, a ref again."""
        return At(self)

    def blocks(self, *sizes: object) -> Blocks:
        """Return the view as blocks: `ref.blocks(bm, bn)[i, j]` is `ref[tile(i, bm), tile(j, bn)]`.

        One constant extent an axis.
        """
        if len(sizes) != self.ndim:
            raise fault(
                BadWindow,
                f"`blocks` takes {in_words(self.ndim, 'extent')} of `{self.root.name}`, got "
                f"{len(sizes)}",
                help="one constant extent an axis: `ref.blocks(bm, bn)[i, j]`",
            )
        return Blocks(self, tuple(as_extent(n, "`blocks`") for n in sizes))

    def reshape(self, *shape: object) -> Ref:
        """Return the view with the same elements, in row-major order, under other axes.

        One extent may be -1. Any strides will do: where windows of the view are no windows of the
        memory, each element's place is computed. Errors: ShapeMismatch, UnsupportedFeature.
        """
        self._refuse_further("reshaped")
        require_reshapable(self)
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        old = [self.extent_of(k) for k in self.order]
        return Ref(self.root, self.axes, self.order, fold=fold_of(self, old, given))

    def view(self, key: object) -> Ref:
        """Return the part that `key` names, as a ref."""
        items = list(
            spelled_out(key if isinstance(key, tuple) else (key,), self.ndim, self.root.name)
        )
        items = [as_index_tile(i, self.root.name) if is_list(i) else i for i in items]
        if self.fold:
            return folded_view(self, self.fold, items)
        if self.grid is not NO_GRID:
            if not all(isinstance(item, slice) and item == slice(None) for item in items):
                self._refuse_further("indexed again")
            return self
        if any(isinstance(item, Tile) and item.shape for item in items):
            return self._picked(items)
        axes = list(self.axes)
        for k, item in zip(self.order, items, strict=True):
            axes[k] = self._narrowed(k, item)
        return Ref(self.root, tuple(axes), tuple(k for k in self.order if axes[k].kept))

    def _picked(self, items: Sequence[object]) -> Ref:
        """Return what tiles of indices pick, by NumPy's rules: beside them integers pick too."""
        axes, tiles, picking = list(self.axes), [], []
        for place, (k, item) in enumerate(zip(self.order, items, strict=True)):
            if isinstance(item, Tile) and item.shape:
                require_indices(item, self.root.name)
                tiles.append(item)
                axes[k] = axes[k].picked(item)
            else:
                axes[k] = self._narrowed(k, item)
            if not axes[k].kept:
                picking.append(place)
        together = picking[-1] - picking[0] == len(picking) - 1
        shape = broadcast_shape(f"indices of `{self.root.name}`", *tiles)
        grid = Grid(shape, picking[0] if together else 0)
        return Ref(self.root, tuple(axes), tuple(k for k in self.order if axes[k].kept), grid)

    def _refuse_further(self, what: str) -> None:
        if self.fold and what == "reshaped":
            raise fault(
                UnsupportedFeature,
                f"`reshape` of a reshaped view of `{self.root.name}`",
                help="reshape the array itself, once",
            )
        if self.grid is not NO_GRID:
            raise fault(
                UnsupportedFeature,
                f"what tiles of indices pick of `{self.root.name}` is not {what}",
                help="name all axes at once, `ref.at[rows, columns]`; or read it, and go on with "
                "the tile",
            )

    def extent_of(self, k: int) -> Form:
        """Return the extent of what the view shows of an axis of the root."""
        axis = self.axes[k]
        if axis.size is not None:
            return Form.of(axis.size)
        return self.root.extent(k) if axis.extent is None else axis.extent

    def _narrowed(self, k: int, item: object) -> AxisView:
        old, extent = self.axes[k], self.extent_of(k)
        window = window_of(item, extent, old.size, self.root.name)
        is_all = window.start is ZERO_START and window.length is None and window.step == 1
        if is_all and window.size == old.size:
            return replace(old, kept=window.kept)
        fences = old.fences
        if not self._is_inside(window, extent):
            if self.space != GMEM:
                self._require_on_chip(window, extent)
            elif not old.whole:
                fences = (*fences, old.range)
        start = composed(window.start, old.start, old.step)
        return AxisView(
            start,
            window.size,
            window.step * old.step,
            window.kept,
            whole=False,
            extent=window.length,
            fences=fences,
        )

    def _is_inside(self, window: Span1D, extent: Form) -> bool:
        """Whether a window is proved to lie inside the view."""
        return window.size == 0 or all(form.is_nonnegative() for form in _spare(window, extent))

    def _require_on_chip(self, window: Span1D, extent: Form) -> None:
        """Refuse a window that is known to lie outside on-chip memory, or to have no extent."""
        if window.size is None:
            raise self._not_read_whole(window.length)
        if any(form.bounds[1] < 0 for form in _spare(window, extent)):
            raise fault(
                BadWindow,
                f"{_window_text(window, window.size)} lie outside an axis of `{self.root.name}` "
                f"that has extent {extent}",
                help="only windows of global arrays may cross an edge",
            )

    def _not_read_whole(self, length: Form | None) -> BaseException:
        if length is not None and length.dims:
            return NeedsConstant(length.dims)
        return fault(
            BadWindow,
            f"the extent of this window of `{self.root.name}` is not a compile-time constant",
            help="`ds(start, size)` states the size; `i * b:(i + 1) * b` has extent b; a view of "
            "runtime extent (`x.at[lo:hi]`) is read by windows: `view[tile(i, b)]`",
        )

    def __getitem__(self, key: object) -> Tile:
        return self.view(key).read()

    def __setitem__(self, key: object, value: object) -> None:
        self.view(key).write(value)

    def read(self, fill: bool | int | float | None = None, stages: int = 0) -> Tile:
        """Return the tile of the whole view; `fill` makes the outside ordinary elements.

        `stages` is the number of slots of its ring in a pipeline, 0 if that is not stated.
        """
        tile, staging = self._read(fill, stages), self.root.staging
        return filled(tile, staging.fill) if staging and staging.fill and fill is None else tile

    def _read(self, fill: bool | int | float | None, stages: int) -> Tile:
        if self.fold:
            return self.unfolded.read(fill, stages)
        self.root.require_addressable()
        fields = self.window_fields()
        given: dict[str, Any] = {"stages": stages}
        given |= {} if fill is None else {"fill": self._fill(fill)}
        if self.is_indexed:
            spaces = index_edges(self.axes, self.grid)
            more = self.indexed_fields(spaces)
            picked = self._elements(emit(ops.Gather, **fields, **more, **given).result)
            outside = {**self.edges().outside, **dict.fromkeys(spaces, ZERO)}
            if fill is not None:
                return Tile(picked)
            return Tile(picked, edges=Edges(outside), origin=None if self.grid.shape else self)
        given |= self.root.staging.of_load(fields) if self.root.staging else {}
        value = emit(ops.Load, **fields, **given).result
        if self.root.packed:
            value = nibbles.unpacked(value, len(value.tile.shape) - 1)
        edges = NO_EDGES if fill is not None else self.edges()
        shown, permutation = self._kept_order()
        if list(permutation) != shown:
            value = emit(ops.Transpose, x=value, permutation=tuple(permutation)).result
        return Tile(value, edges=edges)

    def write(self, value: object) -> None:
        """Store a value into the whole view, broadcast and converted as `astype` does."""
        self.root.require_writable()
        if self.fold:
            self.unfolded.write(value)
            return
        self.root.require_addressable()
        fields = self.window_fields()
        shape = self.static_shape
        operand = as_operand(value, "a store")
        if self.is_indexed:
            stored = converted_to_target(operand, shape, self.dtype, "a store")
            is_window = self.grid is NO_GRID or self.grid.is_computed
            more = self.indexed_fields(self.left_out(None if is_window else operand))
            emit(ops.Scatter, **fields, **more, value=self._bytes(stored))
            return
        if self.space != GMEM and isinstance(operand, Tile):
            forget_edges(operand, range(operand.ndim), f"storing into `{self.root.name}`")
        stored = converted_to_target(operand, shape, self.dtype, "a store")
        shown, permutation = self._kept_order()
        if list(permutation) != shown:
            back = tuple(permutation.index(k) for k in shown)
            stored = emit(ops.Transpose, x=stored, permutation=back).result
        if self.root.packed:
            stored = nibbles.packed(stored, len(shape) - 1)
        staged = self.root.staging.of_store(fields) if self.root.staging else {}
        emit(ops.Store, **fields, **staged, value=stored)

    def _fill(self, number: bool | int | float) -> bool | int | float:
        """Return what fills each element of the memory: of packed memory a byte."""
        value = rounded(number, self.dtype)
        return nibbles.byte_of(float(value)) if self.root.packed else value

    def _packed_place(self) -> int:
        """Return the packed axis among those of what tiles of indices pick."""
        return self.grid.place_of(self.order.index(len(self.axes) - 1))

    def _elements(self, value: Value) -> Value:
        return nibbles.unpacked(value, self._packed_place()) if self.root.packed else value

    def _bytes(self, value: Value) -> Value:
        return nibbles.packed(value, self._packed_place()) if self.root.packed else value

    def window_fields(self) -> dict[str, Any]:
        """Return the fields of an operation on this window of the root."""
        fields = {
            "ref": self.root.value,
            "sizes": tuple(self._size(k) for k in range(len(self.axes))),
            "starts": tuple(index_value(axis.start) for axis in self.axes),
            "steps": tuple(axis.step for axis in self.axes),
            "kept": tuple(axis.kept for axis in self.axes),
        }
        return self.root.bytes_of_window(fields, self.axes[-1]) if self.root.packed else fields

    def unfenced(self, axis: int) -> Ref:
        """Return the window without the ends of views, but for those along one of its axes."""
        kept = self.order[axis]
        axes = [a if k == kept else replace(a, fences=()) for k, a in enumerate(self.axes)]
        return Ref(self.root, tuple(axes), self.order)

    @property
    def unfolded(self) -> Ref:
        """The whole of a reshaped view, as what is read and written; of others, the view."""
        return self.view(Ellipsis) if self.fold else self

    def as_window(self, what: str) -> Ref:
        """Return the view, which must be one window of its root; refuse any other by name."""
        window = self.unfolded
        if window.is_indexed:
            reason = "is picked by indices" if window.grid is not NO_GRID else "ends with a view"
            raise fault(
                UnsupportedFeature,
                f"{what} takes one window, and what it is given of `{self.root.name}` {reason}",
                help=f"read it (`{self.root.name}[window]`), or take a window of the array itself",
            )
        return window

    @property
    def is_indexed(self) -> bool:
        """Whether tiles of indices pick, or a view may end before a window of it does."""
        return self.grid is not NO_GRID or any(axis.fences for axis in self.axes)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The extents of the tile that it holds; those of dims become constants."""
        return self.grid.with_grid([self._size(k) for k in self.order])

    def left_out(self, x: Operand | None) -> list[HalfSpace]:
        """Return the half spaces outside which nothing is written: of indices, and of `x`.

        Where the window itself has that edge, elements are dropped anyway. A store into a window
        writes what `x` holds everywhere, so that it has none of `x`.
        """
        spaces = dict.fromkeys(index_edges(self.axes, self.grid))
        if x is not None:
            spaces.update(dict.fromkeys(x.edges.broadcast(x.shape, self.static_shape)))
        own = self.edges().outside
        return [h for h in spaces if h not in own]

    def indexed_fields(self, spaces: Sequence[HalfSpace]) -> dict[str, Any]:
        """Return what an indexed access has beside a window's fields."""
        shape = self.static_shape
        if self.root.packed:
            place = self._packed_place()
            shape = nibbles.shape_in_bytes(shape, place, spaces, self.root.name)
        return indexed_fields(self.axes, self.order, self.grid, shape, spaces)

    def _size(self, k: int) -> int:
        size = self.axes[k].size
        if size is None and self.axes[k].whole:
            raise NeedsConstant(self.root.wanted(k))
        if size is None:
            raise self._not_read_whole(self.axes[k].extent)
        return size

    def _kept_order(self) -> tuple[list[int], list[int]]:
        """Return 0, 1, ... and which kept axis of the root each axis of the view is."""
        kept = sorted(self.order)
        return list(range(len(kept))), [kept.index(k) for k in self.order]

    def edges(self) -> Edges:
        """Return which elements of the tile that it holds may lie outside."""
        if self.space != GMEM:
            return NO_EDGES
        extents = [self.root.extent(k) for k in range(len(self.axes))]
        return window_edges(self.axes, self.order, extents, self.grid)

    def __repr__(self) -> str:
        if self.fold:
            known = "x".join(str(n) if isinstance(n, int) else "?" for n in self.shape)
            return f"{self.root.name}: {self.space} {self.dtype}[{known}]"
        sizes = self.grid.with_grid([self.axes[k].size for k in self.order])
        dims = "x".join("?" if n is None else str(n) for n in sizes)
        return f"{self.root.name}: {self.space} {self.dtype}[{dims}]"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        way_out = did_you_mean(name, known)
        if name in _JAX_UPDATES:
            way_out = "memory changes in place: `ref[window] = v`, `ref[window] += v`"
        raise fault(
            UnknownAttribute,
            f"a ref has no attribute `{name}`",
            help=way_out or f"methods of tiles need a tile: `{self.root.name}[...].{name}`",
        )

    def __copy__(self) -> Ref:
        return self

    def __deepcopy__(self, memo: object) -> Ref:
        # It names memory, which is the same for its copy.
        return self

    def __len__(self) -> int:
        extent = self.shape[0] if self.order else 0
        return extent.__index__() if isinstance(extent, Tile) else extent

    def __iter__(self) -> NoReturn:
        raise fault(
            NotConstant,
            f"the ref `{self.root.name}` cannot be iterated over",
            help="`for i in range(ref.shape[0])` is a loop in the kernel; `ref[i]` reads a row",
        )

    def __bool__(self) -> bool:  # noqa: PLE0304  (it never returns)
        _refuse_operator(self)


# What JAX writes behind `x.at[...]`, for arrays that never change.
_JAX_UPDATES = frozenset({"set", "add", "subtract", "multiply", "divide", "power"})


def _refuse_operator(ref: Ref, *others: object) -> NoReturn:
    del others
    raise fault(
        TypeMismatch,
        f"`{ref.root.name}` is a ref, memory and not a value",
        help=f"`{ref.root.name}[...]` reads it as a tile; `is None` asks whether it was passed",
    )


OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "and", "rand", "or", "ror", "xor", "rxor",
    "lshift", "rlshift", "rshift", "rrshift", "neg", "invert", "abs", "lt", "le", "gt", "ge",
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "int",
    "float", "index", "divmod", "rdivmod",
)  # fmt: skip
for _operator in OPERATORS:
    setattr(Ref, f"__{_operator}__", _refuse_operator)


class At(Named):
    """What stands between `ref.at` and its window."""

    what = "ref.at"
    way_out = "a window follows it: `ref.at[tile(i, 64)]`"

    __slots__ = ("ref",)

    def __init__(self, ref: Ref) -> None:
        self.ref = ref

    def __getitem__(self, key: object) -> Ref:
        return self.ref.view(key)

    def __setitem__(self, key: object, value: object) -> None:
        name = self.ref.root.name
        raise fault(
            TypeMismatch,
            f"`{name}.at[...]` names a part of memory, and is not assigned",
            help=f"`{name}[window] = x` writes",
        )


def _spare(window: Span1D, extent: Form) -> tuple[Form, Form]:
    """Return what lies before and behind a window of an axis; negative where it crosses."""
    if window.size is None:
        assert window.length is not None, "a window has an extent"
        return form_of(window.start), extent - window.length - form_of(window.start)
    last = last_form(window.start, window.size, window.step)
    return form_of(window.start), extent - Form.of(1) - last


def _window_text(window: Span1D, size: int) -> str:
    start = form_of(window.start).constant
    return f"{in_words(size, 'element')} from {'here' if start is None else start} on"


def whole_ref(root: Root) -> Ref:
    """Return all of a root as a ref."""
    shape = root.shape
    axes = tuple(AxisView(ZERO_START, n, 1, kept=True, whole=True) for n in shape)
    return Ref(root, axes, tuple(range(len(shape))))


def parameter_ref(
    value: Value,
    name: str,
    role: str,
    dim_names: Sequence[str | None] = (),
    *,
    packed: bool = False,
) -> Ref:
    """Return the ref of a parameter; `dim_names` name its axes, equal names equal extents.

    Called for every parameter before the body is traced, so that a dim knows all its places.
    """
    names = tuple(dim_names) or (None,) * value.ref.rank
    root = Root(value, name, role, names, packed=packed)
    for axis, extent in enumerate(value.ref.shape):
        if extent is None:
            root.extent(axis)
    return whole_ref(root)
