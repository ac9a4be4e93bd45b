"""Shapes and dtypes of a call's arrays against the annotations of a kernel.

Invariant: a dim's name has one extent in a call; where two arguments disagree, the error names
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from astdsl.errors import BadArgument, in_words
from astdsl.frontend.dim_expressions import solved, value_of
from astdsl.frontend.signature import Parameter
from astdsl.ir.dtypes import DType, f32, tf32
from astdsl.lang.annotations import ANYTHING, ArraySpec, Dim
from astdsl.lang.values import SUPPORTED
from astdsl.records import dataclass


class Shaped(Protocol):
    """An array as a signature sees it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each axis."""

    @property
    def dtype(self) -> DType:
        """The element type."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the arrays of a call settle, by parameter.

    `shapes` are those of omitted outputs; `static` the extents that annotations and constants fix;
    `names` the name of each axis, "" where it has none.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, DType]
    static: dict[str, tuple[int | None, ...]]
    names: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a name's extent comes from: an axis of an argument, or a constant."""

    extent: int
    words: str
    places: tuple[Any, ...] = ()


def fit(
    params: Sequence[Parameter], arrays: Mapping[str, Shaped], constants: Mapping[str, Any]
) -> Fitted:
    """Match arrays with their annotations. Raises BadArgument, naming both sides."""
    known = {n: _Origin(v, f"the constant `{n}`") for n, v in constants.items() if _is_extent(v)}
    fixed = {name: origin.extent for name, origin in known.items()}
    present = [p for p in params if p.name in arrays]
    for p in present:
        check_dtype(p, arrays[p.name].dtype)
        _unify(p, arrays[p.name].shape, known)
    _solve(present, arrays, known)
    extents = {name: origin.extent for name, origin in known.items()}
    for p in present:
        _check_expressions(p, arrays[p.name].shape, extents)
    first = arrays[present[0].name].dtype if present else None
    omitted = [p for p in params if p.spec and p.spec.role == "out" and p.name not in arrays]
    shapes = {p.name: _computed_shape(p, extents, present, arrays) for p in omitted}
    dtypes = {p.name: _typed(p, arrays[p.name].dtype) for p in present}
    dtypes |= {p.name: _computed_dtype(p, first) for p in omitted}
    ranks = {p.name: len(arrays[p.name].shape) for p in present} | {
        p.name: len(shapes[p.name]) for p in omitted
    }
    both = [p for p in params if p.name in ranks]
    return Fitted(
        shapes=shapes,
        dtypes=dtypes,
        static={p.name: _static(p, ranks[p.name], fixed) for p in both},
        names={p.name: tuple(d.name for d in dims_of(p, ranks[p.name])) for p in both},
    )


def _is_extent(value: object) -> bool:
    return type(value) is int and value >= 0


def _spec(p: Parameter) -> ArraySpec:
    assert p.spec is not None, f"`{p.name}` is a scalar"
    return p.spec


def check_dtype(p: Parameter, dtype: DType) -> None:
    """Refuse an array of a dtype that the annotation does not allow. Raises BadArgument."""
    allowed = _spec(p).dtypes or SUPPORTED
    if not any(_holds(want, dtype) for want in allowed):
        *others, last = (d.name for d in allowed)
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise BadArgument(
            f"`{p.name}` takes {wanted}, got an array of {dtype}",
            p.place,
            help="convert it, for example by `.astype`",
        )


def _holds(wanted: DType, dtype: DType) -> bool:
    """Whether an array of `dtype` is one of `wanted`: tf32 is stored as f32."""
    return wanted is dtype or (wanted is tf32 and dtype is f32)


def _typed(p: Parameter, dtype: DType) -> DType:
    """Return the dtype that the kernel sees: tf32 where the annotation says so of an f32 array."""
    allowed = _spec(p).dtypes
    return dtype if not allowed or dtype in allowed else tf32


def _computed_dtype(p: Parameter, first: DType | None) -> DType:
    """Return the dtype of an omitted output: its only one, else that of the first array."""
    allowed = _spec(p).dtypes
    if len(allowed) == 1:
        return allowed[0]
    if first is not None and (not allowed or first in allowed):
        return first
    raise BadArgument(
        f"the dtype of the omitted output `{p.name}` is not known",
        p.place,
        help=f"pass `{p.name}`, or annotate it with one dtype",
    )


def _unify(p: Parameter, shape: Sequence[int], known: dict[str, _Origin]) -> None:
    """Match the rank, the integers and the names of one array, learning new names."""
    for axis, (dim, extent) in enumerate(zip(dims_of(p, len(shape)), shape, strict=True)):
        if dim.extent is not None and dim.extent != extent:
            raise BadArgument(
                f"axis {axis} of `{p.name}` has {in_words(extent, 'element')}, and its "
                "annotation says "
                f"{dim.text}",
                p.place,
                help="an integer in an annotation must be the extent; `_` takes any",
            )
        if dim.name:
            here = _Origin(extent, f"axis {axis} of `{p.name}`", (p.place,))
            _agree(dim.name, here, known.setdefault(dim.name, here))


def _solve(
    present: Sequence[Parameter], arrays: Mapping[str, Shaped], known: dict[str, _Origin]
) -> None:
    """Learn the names that stand in expressions alone: of `G+1` the extent settles `G`."""
    dims = [(p, axis, dim) for p in present for axis, dim in _expressions(p, arrays[p.name].shape)]
    is_new = True
    while is_new:
        is_new = False
        for p, axis, dim in dims:
            extents = {name: origin.extent for name, origin in known.items()}
            found = solved(dim.text, arrays[p.name].shape[axis], extents)
            if found is not None and found[0] not in known:
                known[found[0]] = _solution(p, axis, dim, arrays[p.name].shape[axis], *found)
                is_new = True


def _expressions(p: Parameter, shape: Sequence[int]) -> list[tuple[int, Dim]]:
    dims = enumerate(dims_of(p, len(shape)))
    return [(axis, dim) for axis, dim in dims if dim.is_expression]


def _solution(
    p: Parameter, axis: int, dim: Dim, extent: int, name: str, value: int | None
) -> _Origin:
    if value is None or value < 0:
        raise BadArgument(
            f"axis {axis} of `{p.name}` has {in_words(extent, 'element')}, and no `{name}` makes "
            f"`{dim.text}` "
            "that",
            p.place,
            help=f"pass an array with as many elements as `{dim.text}` can be",
        )
    return _Origin(value, f"axis {axis} of `{p.name}`, which is `{dim.text}`", (p.place,))


def _agree(name: str, here: _Origin, found: _Origin) -> None:
    if found.extent != here.extent:
        others = [place for place in found.places if place not in here.places]
        raise BadArgument(
            f"`{name}` is {found.extent} by {found.words}, and {here.extent} by {here.words}",
            *here.places,
            *others,
            help="all uses of a dim's name must agree",
        )


def _check_rank(p: Parameter, rank: int) -> None:
    spec = _spec(p)
    if spec.dims is None:
        return
    wanted = len(spec.dims)
    if rank < wanted or (rank > wanted and not spec.any_rank):
        least = "at least " if spec.any_rank else ""
        raise BadArgument(
            f"`{p.name}` takes {least}{in_words(wanted, 'axis')}, got an array of {rank}",
            p.place,
            help="add axes by `x[None, :]` or `.reshape`, or change the annotation",
        )


def _check_expressions(p: Parameter, shape: Sequence[int], extents: Mapping[str, int]) -> None:
    for axis, (dim, extent) in enumerate(zip(dims_of(p, len(shape)), shape, strict=True)):
        wanted = evaluated(p, dim, extents)
        if dim.is_expression and wanted is not None and wanted != extent:
            raise BadArgument(
                f"axis {axis} of `{p.name}` has {in_words(extent, 'element')}, and `{dim.text}` "
                f"is {wanted}",
                p.place,
                help=f"pass an array with {in_words(wanted, 'element')} along axis {axis}",
            )


def _computed_shape(
    p: Parameter,
    extents: Mapping[str, int],
    present: Sequence[Parameter],
    arrays: Mapping[str, Shaped],
) -> tuple[int, ...]:
    """Return the shape of an omitted output. Raises BadArgument for a dim that nothing settles."""
    spec = _spec(p)
    if spec.dims is None:
        raise BadArgument(
            f"the shape of the omitted output `{p.name}` is not known",
            p.place,
            help=f"pass `{p.name}`, or name its dims in the annotation",
        )
    shape = [*_rest(p, present, arrays)] if spec.any_rank else []
    for dim in spec.dims:
        extent = evaluated(p, dim, extents)
        if extent is None or extent < 0:
            why = "no argument settles it" if extent is None else f"it is {extent}"
            raise BadArgument(
                f"the dim `{dim.text}` of the omitted output `{p.name}` is not known: {why}",
                p.place,
                help=f"pass `{p.name}`",
            )
        shape.append(extent)
    return tuple(shape)


def _rest(
    p: Parameter, present: Sequence[Parameter], arrays: Mapping[str, Shaped]
) -> tuple[int, ...]:
    """Return what `...` of an omitted output stands for: what it does in all arguments."""
    found: dict[tuple[int, ...], Parameter] = {}
    for other in present:
        spec, shape = _spec(other), arrays[other.name].shape
        if spec.any_rank:
            found.setdefault(tuple(shape[: len(shape) - len(spec.dims or ())]), other)
    if len(found) == 1:
        return next(iter(found))
    said = [f"{shape} in `{other.name}`" for shape, other in found.items()]
    why = f"it is {' and '.join(said)}" if said else "no argument has one"
    raise BadArgument(
        f"what `...` stands for in the omitted output `{p.name}` is not known: {why}",
        p.place,
        *(other.place for other in found.values()),
        help=f"pass `{p.name}`",
    )


def _static(p: Parameter, rank: int, fixed: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return the extents that the annotation and constants alone fix."""
    return tuple(evaluated(p, dim, fixed) for dim in dims_of(p, rank))


def dims_of(p: Parameter, rank: int) -> tuple[Dim, ...]:
    """Return a dim for each axis; axes that the annotation says nothing of may be anything.

    Raises BadArgument for a rank that the annotation does not allow.
    """
    _check_rank(p, rank)
    dims = _spec(p).dims or ()
    return (Dim(ANYTHING),) * (rank - len(dims)) + dims


def evaluated(p: Parameter, dim: Dim, extents: Mapping[str, Any]) -> Any:
    """Return what a dim must be, None where `extents` (numbers, kernel integers) settle it not."""
    if dim.extent is not None:
        return dim.extent
    if dim.is_anything or any(name not in extents for name in dim.names):
        return None
    if dim.name:
        return extents[dim.name]
    try:
        return value_of(dim.text, extents)
    except ZeroDivisionError:
        raise BadArgument(
            f"the dim `{dim.text}` of `{p.name}` divides by 0",
            p.place,
            help="a constant or an extent in it is 0",
        ) from None
