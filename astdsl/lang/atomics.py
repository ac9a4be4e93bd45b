"""Atomic updates of memory: each returns the values before.

Invariant: elements outside of the array, of a view, or of the tile that is given are left out.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import TypeMismatch, UnsupportedFeature, did_you_mean
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import FLOAT, DType, bf16, f16, f32, f64, i16, i32, i64, u16, u32, u64
from astdsl.lang.elementwise import converted_to_target
from astdsl.lang.ragged import ZERO, Edges
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, as_operand

UPDATED = (f64, f32, f16, bf16, i64, i32, i16, u64, u32, u16)


def atomic_add(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Add `value` to each element of a part of memory in one indivisible step; return the old ones.

    `ref` is `x.at[window]`, with tiles of indices too (`x.at[ids]`: an element named twice is
    updated twice), in global or shared memory; `value` is broadcast and converted as a store does.
    dtypes: f64 f32 f16 bf16 and integers of 16 bits and more; of those that the hardware has not,
    and of `atomic_max` and `atomic_min` of floats, a loop of compare-and-swap. Steps of a pipeline
    may update one window: it spreads over blocks all the same, so sums of floats may differ in
    their last bits from run to run, and f32 sums in global memory may flush subnormal numbers.
    `order` is relaxed, acquire, release or acq_rel among the threads of `scope`: cta, cluster, gpu
    or sys. Elements outside, and those whose indices are, are left out; their old value is 0.
    PTX: atom. Errors: TypeMismatch, ShapeMismatch, WrittenInput, UnsupportedFeature.
    """
    return _updated("add", ref, value, order, scope)


def atomic_max(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store the larger of each element and `value`, as `maximum` does; see `atomic_add`."""
    return _updated("max", ref, value, order, scope)


def atomic_min(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store the smaller of each element and `value`, as `minimum` does; see `atomic_add`."""
    return _updated("min", ref, value, order, scope)


def atomic_and(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store `old & value` of integers; see `atomic_add`."""
    return _updated("and", ref, value, order, scope)


def atomic_or(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store `old | value` of integers; see `atomic_add`."""
    return _updated("or", ref, value, order, scope)


def atomic_xor(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store `old ^ value` of integers; see `atomic_add`."""
    return _updated("xor", ref, value, order, scope)


def atomic_exchange(
    ref: object, value: object, *, order: object = "relaxed", scope: object = "gpu"
) -> Tile:
    """Store `value`, and return what was there; see `atomic_add`."""
    return _updated("exchange", ref, value, order, scope)


def atomic_cas(
    ref: object,
    compare: object,
    value: object,
    *,
    order: object = "relaxed",
    scope: object = "gpu",
) -> Tile:
    """Store `value` where the bits of an element are those of `compare`; see `atomic_add`.

    It happened where what is returned equals `compare`.
    """
    return _updated("cas", ref, value, order, scope, compare)


def _updated(
    kind: str, ref: object, value: object, order: object, scope: object, *compare: object
) -> Tile:
    name = f"`atomic_{kind}`"
    target = _require_target(name, ref)
    _require_word(name, "order", order, ops.ATOMIC_ORDERS)
    _require_word(name, "scope", scope, ops.ATOMIC_SCOPES)
    _require_dtype(name, kind, target.dtype)
    shape = target.static_shape
    operands = [as_operand(x, name) for x in (value, *compare)]
    spaces = dict.fromkeys(h for x in operands for h in target.left_out(x))
    converted = [_converted(name, x, shape, target.dtype) for x in operands]
    fields: dict[str, Any] = {**target.window_fields(), **target.indexed_fields([*spaces])}
    old = emit(
        ops.Atomic,
        **fields,
        kind=kind,
        value=converted[0],
        compare=tuple(converted[1:]),
        order=order,
        scope=scope,
    ).result
    outside = {**target.edges().outside, **dict.fromkeys(spaces, ZERO)}
    return Tile(old, edges=Edges(outside))


def _converted(name: str, x: Any, shape: tuple[int, ...], dtype: DType) -> Value:
    return converted_to_target(x, shape, dtype, name)


def _require_target(name: str, ref: object) -> Ref:
    if isinstance(ref, Ref):
        ref.root.require_writable()
        ref.root.require_addressable()
        return ref.unfolded
    places = [(ref.value, f"{ref} was read here")] if isinstance(ref, Tile) else []
    raise fault(
        TypeMismatch,
        f"{name} updates memory, got {ref!r}",
        *places,
        help=f"`{name[1:-1]}(x.at[window], value)`: `x[window]` has read it already",
    )


def _require_word(name: str, option: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        close = did_you_mean(given, known) if isinstance(given, str) else ""
        raise fault(
            TypeMismatch,
            f"`{option}` of {name} is one of {', '.join(known)}, got {given!r}",
            help=close or f"leave `{option}` out for {known[0] if option == 'order' else 'gpu'}",
        )


def _require_dtype(name: str, kind: str, dtype: DType) -> None:
    if dtype not in UPDATED:
        raise fault(
            UnsupportedFeature,
            f"{name} of {dtype} is not in this version",
            help=f"it updates {', '.join(d.name for d in UPDATED)}: use one of them",
        )
    if kind in ("and", "or", "xor") and dtype.kind == FLOAT:
        raise fault(
            TypeMismatch,
            f"{name} combines the bits of integers, got {dtype}",
            help="keep the bits in an array of u32",
        )
