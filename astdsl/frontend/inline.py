"""A kernel called in a kernel: its parameters become refs, tiles and numbers of the caller.

Invariant: what the callee's annotations say holds of what it is given: at once where extents are
known while tracing, else by an assertion that the host checks at every launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from astdsl.errors import (
    BadArgument,
    KernelError,
    NotConstant,
    UnsupportedFeature,
    UnsupportedSyntax,
    WrittenInput,
    in_words,
)
from astdsl.frontend.binding import bind
from astdsl.frontend.dims import check_dtype, dims_of, evaluated
from astdsl.frontend.session import Session
from astdsl.frontend.signature import Parameter, Signature
from astdsl.ir import ops
from astdsl.ir.core import IN, OUT
from astdsl.lang.annotations import Dim
from astdsl.lang.branching import as_condition
from astdsl.lang.elementwise import cast
from astdsl.lang.indices import form_of
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, as_operand, constant_of
from astdsl.records import dataclass, replace
from astdsl.source import Span


def inlined(session: Session, kernel: Any) -> Callable[..., Any]:
    """Return what a call of `kernel` does in a kernel that is being traced.

    It returns the outputs that it was passed, as a launch does.
    """
    if getattr(kernel, "is_placed", False):
        raise fault(
            UnsupportedFeature,
            f"`{kernel.__name__}` is called in a kernel on a device or for a target of its own",
            help="call it without `.on(...)`: it runs where the caller does",
        )
    _require_same_runners(session, kernel)
    function, receiver = kernel, getattr(kernel, "receiver", ())
    while type(function) is not FunctionType:
        function = function.__wrapped__

    def call(*args: Any, **kwargs: Any) -> Any:
        here = session.trace.locate()
        try:
            signature: Signature = kernel.signature
            given = _given(signature, args, kwargs)
        except KernelError as error:
            if all(span != here for span, _ in error.places):
                error.places = ((here, ""), *error.places)
            raise
        _require_nothing(session.rewritten(function)(*receiver, **given), signature)
        outputs = [given[p.name] for p in signature.params if p.spec and p.spec.role == OUT]
        return (outputs[0] if len(outputs) == 1 else tuple(outputs)) if outputs else None

    return call


def _require_same_runners(session: Session, kernel: Any) -> None:
    """Refuse a kernel that is written for other warpgroups than those that would run it."""
    wanted, found = kernel.warpgroups, session.trace.warpgroups
    if wanted not in (0, found):
        raise fault(
            UnsupportedFeature,
            f"`{kernel.__name__}` is written for each of {in_words(wanted, 'warpgroup')}, and is "
            "called where " + (f"{found} run" if found else "the block runs as one"),
            help=f"write `@kernel(warpgroups={wanted})` over the caller too",
        )


def _given(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the callee's function by name."""
    bound = bind(signature, args, kwargs)
    constants = {name: _constant(name, value) for name, value in bound.constants.items()}
    extents = _Extents(constants)
    given = {p.name: _argument(signature, p, bound.given) for p in signature.params}
    arrays = [p for p in signature.params if p.spec and given[p.name] is not None]
    for p in arrays:
        extents.unify(p, given[p.name].shape)
    for p in arrays:
        extents.check_expressions(p, given[p.name].shape)
    for p in arrays:
        _initialise(p, given[p.name])
    return given | constants


def _constant(name: str, value: Any) -> Any:
    """Return a constant; a dim becomes one by itself, other kernel values do not."""
    if isinstance(value, Tile):
        return constant_of(value, f"the constant `{name}` of the kernel", "pass a number")
    if isinstance(value, Ref):
        raise fault(
            NotConstant,
            f"`{name}` is a compile-time constant of the kernel, got {value}",
            help="arrays are passed to the parameters before the `*`",
        )
    return value


def _argument(signature: Signature, p: Parameter, given: Mapping[str, Any]) -> Any:
    if p.name not in given:
        raise UnsupportedFeature(
            f"`{signature.name}` is called in a kernel without its output `{p.name}`",
            p.place,
            help=f"pass the memory that it writes: `{p.name}=o`, or a part of it, "
            f"`{p.name}=o.at[...]`",
        )
    value = given[p.name]
    return _scalar(p, value) if p.spec is None else _array(p, value)


def _scalar(p: Parameter, value: Any) -> Any:
    what = f"the parameter `{p.name}`"
    if isinstance(value, Ref):
        raise BadArgument(
            f"`{p.name}` takes a number, got the ref {value}",
            p.place,
            help="`ref[i]` reads an element",
        )
    operand = as_operand(value, what)
    if operand.shape:
        raise BadArgument(
            f"`{p.name}` takes a number, got the tile {operand}",
            p.place,
            help=f'annotate it `{p.name}: In["..."]` to take tiles',
        )
    if p.dtype is None:
        return value
    if operand.dtype.is_float and not p.dtype.is_float:
        raise BadArgument(
            f"`{p.name}` takes {p.dtype}, got {operand.dtype}",
            p.place,
            help=f"convert it: `.astype({p.dtype})`",
        )
    return cast(operand, p.dtype, what)


def _array(p: Parameter, value: Any) -> Any:
    assert p.spec is not None, f"`{p.name}` is an array"
    if value is None:
        return None
    is_read = p.spec.role == IN
    if not isinstance(value, Ref) and not (is_read and isinstance(value, Tile)):
        raise BadArgument(
            f"`{p.name}` takes {'a ref or a tile' if is_read else 'a ref'}, got {value!r}",
            p.place,
            help="pass a parameter of the kernel, or a part of it: `x.at[...]`",
        )
    check_dtype(p, value.dtype)
    if isinstance(value, Tile):
        return value
    if is_read:
        return value.with_root(replace(value.root, role=IN))
    if value.root.role == IN:
        raise fault(
            WrittenInput,
            f"`{p.name}` is written, and `{value.root.name}` is an `In` parameter",
            (value.root.value, "it is declared here"),
            help="annotate it as `InOut[...]` to change it in place, or pass an `Out`",
        )
    return value


def _initialise(p: Parameter, ref: Any) -> None:
    """Fill an output that starts with a number, as a launch would."""
    assert p.spec is not None, f"`{p.name}` is an array"
    if p.spec.initial is None:
        return
    if any(isinstance(extent, Tile) for extent in ref.shape):
        raise UnsupportedFeature(
            f"the output `{p.name}` starts as {p.spec.initial}, and its extents are not known "
            "while tracing",
            p.place,
            help="pass a window of constant extents, or annotate it as `InOut` and fill it before "
            "the call",
        )
    ref.write(p.spec.initial)


def _require_nothing(result: Any, signature: Signature) -> None:
    if result is not None:
        raise fault(
            UnsupportedSyntax,
            f"the kernel `{signature.name}` returns a value",
            help="write the result to an `Out` parameter; a helper without `@kernel` may return",
        )


@dataclass(frozen=True, slots=True)
class _Extent:
    """What a dim's name stands for: a number or a kernel integer, and who says so."""

    value: Any
    words: str
    places: tuple[tuple[Span, str], ...] = ()


class _Extents:
    """The extents of the names in a callee's annotations."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._known = {
            name: _Extent(value, f"the constant `{name}`")
            for name, value in constants.items()
            if type(value) is int and value >= 0
        }

    def unify(self, p: Parameter, shape: Sequence[Any]) -> None:
        """Match rank, integers and names of one array, learning new names."""
        for axis, (dim, extent) in enumerate(zip(dims_of(p, len(shape)), shape, strict=True)):
            here = _Extent(extent, f"axis {axis} of `{p.name}`", (p.place,))
            if dim.extent is not None:
                _require_equal(dim, here, _Extent(dim.extent, "its annotation"))
            elif dim.name:
                _require_equal(dim, here, self._known.setdefault(dim.name, here))

    def check_expressions(self, p: Parameter, shape: Sequence[Any]) -> None:
        """Match the dims that are expressions of names."""
        values = {name: known.value for name, known in self._known.items()}
        for axis, (dim, extent) in enumerate(zip(dims_of(p, len(shape)), shape, strict=True)):
            wanted = evaluated(p, dim, values) if dim.is_expression else None
            if wanted is not None:
                here = _Extent(extent, f"axis {axis} of `{p.name}`", (p.place,))
                _require_equal(dim, here, _Extent(wanted, f"`{dim.text}`"))


def _require_equal(dim: Dim, here: _Extent, known: _Extent) -> None:
    if here is known:
        return
    mine, other = (as_operand(x.value, "a dim") for x in (here, known))
    apart = (form_of(mine) - form_of(other)).constant
    if apart == 0:
        return
    if apart is None:
        text = f"{here.words} and {known.words} differ, and both are `{dim.text}`"
        emit(ops.Assert, condition=as_condition(here.value == known.value).value, pieces=(text,))
        return
    raise BadArgument(
        f"`{dim.text}` is {_text(known)} by {known.words}, and {_text(here)} by {here.words}",
        *here.places,
        *(place for place in known.places if place not in here.places),
        help="all uses of a dim's name must agree",
    )


def _text(extent: _Extent) -> str:
    return str(form_of(as_operand(extent.value, "a dim")))
