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
    WrittenInput,
    did_you_mean,
)
from astdsl.ir import ops
from astdsl.ir.core import IN, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import GMEM
from astdsl.lang.elementwise import converted_to_target, rounded
from astdsl.lang.indices import atom_of, form_of, index_value
from astdsl.lang.ragged import NO_EDGES, ZERO, Edges, HalfSpace
from astdsl.lang.shapes import as_extent, forget_edges
from astdsl.lang.symbolic import Atom, Form
from astdsl.lang.tracing import DimKey, NeedsConstant, emit, fault
from astdsl.lang.values import Operand, Tile, UnknownAttribute, as_operand
from astdsl.lang.windows import (
    ZERO_START,
    Span1D,
    Window,
    composed,
    index_of_form,
    last_form,
    spelled_out,
    tile,
    window_of,
)
from astdsl.records import dataclass, replace

INT32_LIMIT, INT64_LIMIT = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Memory that refs are views of. `dims` name its axes; equal names are equal extents.

    `extents` are the extents of memory that the kernel allocates.
    """

    value: Value
    name: str
    role: str
    dims: tuple[str | None, ...]
    extents: tuple[Form, ...] = ()

    def require_writable(self) -> None:
        """Refuse to write an input."""
        if self.role == IN:
            raise fault(
                WrittenInput,
                f"`{self.name}` is an `In` parameter, which is only read",
                (self.value, "it is declared here"),
                help="annotate it as `InOut[...]` to change it in place, or write an `Out`",
            )

    def extent(self, axis: int) -> Form:
        """Return the extent of an axis as a form."""
        if self.extents:
            return self.extents[axis]
        static = self.value.ref.shape[axis]
        return Form.unknown(self._atom(axis)) if static is None else Form.of(static)

    def wanted(self, axis: int) -> frozenset[DimKey]:
        """Return the dims that must be constant for this axis to be."""
        wanted = self.extent(axis).dims
        if wanted is None:
            raise fault(
                NotConstant,
                f"axis {axis} of `{self.name}` has an extent that is known only at run time",
                (self.value, "it is allocated here"),
                help=f"take windows of it: `{self.name.lower()}[tile(i, 64)]`",
            )
        return wanted

    def _atom(self, axis: int) -> Atom:
        value = self.value
        limit = INT32_LIMIT if value.ref.small else INT64_LIMIT

        def rebuild() -> Value:
            return emit(ops.Dim, ref=value, axis=axis).result

        key = ("dim", self.dims[axis] or (self.name, axis))
        atom = atom_of(key, lambda number: Atom(number, None, (0, limit), frozenset(), rebuild))
        assert atom.dims is not None, "a dim is computed from dims"
        atom.dims |= {(self.name, axis)}
        return atom


@dataclass(frozen=True, slots=True, eq=False)
class AxisView:
    """What a view shows of one axis of its root.

    `size` None is a whole axis of runtime extent. Windows of a whole axis may cross its edge, those
    of a part may not.
    """

    start: Operand
    size: int | None
    step: int
    kept: bool
    whole: bool


class Ref:
    """Memory, or a part of it: `ref[window]` reads a tile, `ref[window] = x` writes.

    `ref.at[window]` is that part as a ref. `shape`, `dtype`, `ndim`, `size`, `space` describe it;
    `T` is the view with its axes reversed.
    """

    __slots__ = ("axes", "order", "root")
    operand_help = "a ref is memory: `ref[...]` reads it as a tile"

    def __init__(self, root: Root, axes: tuple[AxisView, ...], order: tuple[int, ...]) -> None:
        self.root = root
        self.axes = axes
        self.order = order

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.root.value.ref.dtype

    @property
    def space(self) -> str:
        """Where it lies: gmem or smem."""
        return self.root.value.ref.space

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.order)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents: Python integers where known while tracing, else weak kernel integers."""
        sizes = ((self.axes[k].size, k) for k in self.order)
        return tuple(_runtime_dim(self.root, k) if n is None else n for n, k in sizes)

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
        return Ref(self.root, self.axes, self.order[::-1])

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
                f"`blocks` takes {self.ndim} extents of `{self.root.name}`, got {len(sizes)}",
                help="one constant extent an axis: `ref.blocks(bm, bn)[i, j]`",
            )
        return Blocks(self, tuple(as_extent(n, "`blocks`") for n in sizes))

    def reshape(self, *shape: object) -> NoReturn:
        """Refuse: views of another shape are not in this version."""
        del shape
        raise fault(
            UnsupportedFeature,
            "`reshape` of a ref is not in this version",
            help="read it and reshape the tile: `ref[...].reshape(...)`",
        )

    def view(self, key: object) -> Ref:
        """Return the part that `key` names, as a ref."""
        items = key if isinstance(key, tuple) else (key,)
        axes = list(self.axes)
        order = []
        for k, item in zip(self.order, spelled_out(items, self.ndim, self.root.name), strict=True):
            axes[k] = self._narrowed(k, item)
            if axes[k].kept:
                order.append(k)
        return Ref(self.root, tuple(axes), tuple(order))

    def _narrowed(self, k: int, item: object) -> AxisView:
        old = self.axes[k]
        extent = self.root.extent(k) if old.size is None else Form.of(old.size)
        window = window_of(item, extent, old.size, self.root.name)
        if window.start is ZERO_START and (window.size, window.step) == (old.size, 1):
            return replace(old, kept=window.kept)
        assert window.size is not None, "only a whole axis has no size"
        if not old.whole or self.space != GMEM:
            self._require_inside(window, window.size, extent, is_view=not old.whole)
        start = composed(window.start, old.start, old.step)
        return AxisView(start, window.size, window.step * old.step, window.kept, whole=False)

    def _require_inside(self, window: Span1D, size: int, extent: Form, *, is_view: bool) -> None:
        """Refuse a window outside on-chip memory or a view, where that is known."""
        room = extent - Form.of(1) - last_form(window.start, size, window.step)
        spare = (form_of(window.start), room)
        if size == 0 or all(form.is_nonnegative() for form in spare):
            return
        if any(form.bounds[1] < 0 for form in spare):
            raise fault(
                BadWindow,
                f"{_window_text(window, size)} lie outside an axis of `{self.root.name}` that has "
                f"extent {extent}",
                help="only windows of global arrays may cross an edge",
            )
        if is_view and self.space == GMEM:
            raise fault(
                UnsupportedFeature,
                f"a window of a view of `{self.root.name}` is not proved to lie inside the view",
                help="windows that end where a view ends are not in this version: take the window "
                "of the array itself",
            )

    def __getitem__(self, key: object) -> Tile:
        return self.view(key).read()

    def __setitem__(self, key: object, value: object) -> None:
        self.view(key).write(value)

    def read(self, fill: bool | int | float | None = None) -> Tile:
        """Return the tile of the whole view; `fill` makes the outside ordinary elements."""
        fields = self.window_fields()
        given = {} if fill is None else {"fill": rounded(fill, self.dtype)}
        value = emit(ops.Load, **fields, **given).result
        edges = NO_EDGES if fill is not None else self._edges()
        shown, permutation = self._kept_order()
        if list(permutation) != shown:
            value = emit(ops.Transpose, x=value, permutation=tuple(permutation)).result
        return Tile(value, edges=edges)

    def write(self, value: object) -> None:
        """Store a value into the whole view, broadcast and converted as `astype` does."""
        self.root.require_writable()
        fields = self.window_fields()
        shape = tuple(self._size(k) for k in self.order)
        operand = as_operand(value, "a store")
        if self.space != GMEM and isinstance(operand, Tile):
            forget_edges(operand, range(operand.ndim), f"storing into `{self.root.name}`")
        stored = converted_to_target(operand, shape, self.dtype, "a store")
        shown, permutation = self._kept_order()
        if list(permutation) != shown:
            back = tuple(permutation.index(k) for k in shown)
            stored = emit(ops.Transpose, x=stored, permutation=back).result
        emit(ops.Store, **fields, value=stored)

    def window_fields(self) -> dict[str, Any]:
        """Return the fields of an operation on this window of the root."""
        return {
            "ref": self.root.value,
            "sizes": tuple(self._size(k) for k in range(len(self.axes))),
            "starts": tuple(index_value(axis.start) for axis in self.axes),
            "steps": tuple(axis.step for axis in self.axes),
            "kept": tuple(axis.kept for axis in self.axes),
        }

    def _size(self, k: int) -> int:
        size = self.axes[k].size
        if size is None:
            raise NeedsConstant(self.root.wanted(k))
        return size

    def _kept_order(self) -> tuple[list[int], list[int]]:
        """Return 0, 1, ... and which kept axis of the root each axis of the view is."""
        kept = sorted(self.order)
        return list(range(len(kept))), [kept.index(k) for k in self.order]

    def _edges(self) -> Edges:
        if self.space != GMEM:
            return NO_EDGES
        found = {}
        for k, axis in enumerate(self.axes):
            place = self.order.index(k) if axis.kept else None
            start, size = form_of(axis.start), self._size(k)
            room = self.root.extent(k) - Form.of(1) - start
            for form, step in ((start, axis.step), (room, -axis.step)):
                h = HalfSpace(form, place, step if axis.kept else 0)
                if not h.holds_for(size):
                    found[h] = ZERO
        return Edges(found) if found else NO_EDGES

    def __repr__(self) -> str:
        sizes = (self.axes[k].size for k in self.order)
        dims = "x".join("?" if n is None else str(n) for n in sizes)
        return f"{self.root.name}: {self.space} {self.dtype}[{dims}]"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        close = did_you_mean(name, known)
        raise fault(
            UnknownAttribute,
            f"a ref has no attribute `{name}`",
            help=close or f"methods of tiles need a tile: `{self.root.name}[...].{name}`",
        )

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


class At:
    """What stands between `ref.at` and its window."""

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


class Blocks:
    """A ref cut into blocks: indexed by one block number an axis."""

    __slots__ = ("ref", "sizes")

    def __init__(self, ref: Ref, sizes: tuple[int, ...]) -> None:
        self.ref = ref
        self.sizes = sizes

    def _key(self, key: object) -> tuple[Window, ...]:
        items = key if isinstance(key, tuple) else (key,)
        if len(items) != len(self.sizes):
            raise fault(
                BadWindow,
                f"blocks of `{self.ref.root.name}` take {len(self.sizes)} block numbers",
                help="one block number an axis; `ref[...]` takes other windows",
            )
        return tuple(tile(i, n) for i, n in zip(items, self.sizes, strict=True))

    def __getitem__(self, key: object) -> Tile:
        return self.ref[self._key(key)]

    def __setitem__(self, key: object, value: object) -> None:
        self.ref[self._key(key)] = value

    @property
    def at(self) -> BlocksAt:
        """`ref.blocks(bm, bn).at[i, j]` is a block as a ref."""
        return BlocksAt(self)


class BlocksAt:
    """What stands between `blocks.at` and its block numbers."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks

    def __getitem__(self, key: object) -> Ref:
        return self.blocks.ref.view(self.blocks._key(key))

    def __setitem__(self, key: object, value: object) -> None:
        raise fault(
            TypeMismatch,
            "`blocks(...).at[...]` names a part of memory, and is not assigned",
            help="`blocks(...)[i, j] = x` writes",
        )


def _runtime_dim(root: Root, axis: int) -> Tile:
    dim = index_of_form(root.extent(axis))
    assert isinstance(dim, Tile), "a runtime dim is a kernel value"
    return dim


def _window_text(window: Span1D, size: int) -> str:
    start = form_of(window.start).constant
    return f"{size} elements from {'here' if start is None else start} on"


def whole_ref(root: Root) -> Ref:
    """Return all of a root as a ref."""
    shape = root.value.ref.shape
    axes = tuple(AxisView(ZERO_START, n, 1, kept=True, whole=True) for n in shape)
    return Ref(root, axes, tuple(range(len(shape))))


def parameter_ref(value: Value, name: str, role: str, dim_names: Sequence[str | None] = ()) -> Ref:
    """Return the ref of a parameter; `dim_names` name its axes, equal names equal extents.

    Called for every parameter before the body is traced, so that a dim knows all its places.
    """
    names = tuple(dim_names) or (None,) * value.ref.rank
    root = Root(value, name, role, names)
    for axis, extent in enumerate(value.ref.shape):
        if extent is None:
            root.extent(axis)
    return whole_ref(root)
