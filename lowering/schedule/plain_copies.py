"""Copies by hand of windows that TMA cannot describe, or not write: threads load and store them.

Before
    CopyIn x[window] -> buffer[slot], barrier
After
    t = Load x[window]
    Store buffer[slot] = t
    ProxyFence; BlockBarrier
    BarrierArrive barrier

Invariant: what the barrier tells is there, for whoever reads the buffer; one copy is one arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.rewrite import replace_body, rewrite_block
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.signs import Signs
from astdsl.lowering.tensor_maps import why_no_map
from astdsl.lowering.windows import Forms

Emit = Callable[[Op], Op]
Write = Callable[[Maker], None]


def spell_out_copies(module: Module) -> Module:
    """Return the module with loads and stores in place of copies by hand that TMA does not do.

    Errors: UnsupportedFeature where a single warp would have to do them.
    """
    alone = _copies_of_one_warp(module.body)
    _require_maps(alone)
    signs = Signs(module.body, Forms(module.body))

    def spelled(op: ops.Copy, emit: Emit) -> tuple[Value, ...] | None:
        if op in alone:
            return None
        if why_no_map(op):
            return _SPELLED[type(op)](op, emit)
        outside = [v for v in op.starts if not signs.is_nonnegative(v)]
        if not isinstance(op, ops.CopyOut) or not outside:
            return None
        return _copied_from_0_on(op, outside, emit)

    return replace_body(module, rewrite_block(module.body, dict.fromkeys(_SPELLED, spelled)))


def _copies_of_one_warp(body: Block) -> frozenset[ops.Copy]:
    regions = (op.body for op in walk(body) if isinstance(op, ops.Warps))
    return frozenset(op for region in regions for op in walk(region) if isinstance(op, ops.Copy))


def _require_maps(copies: Iterable[ops.Copy]) -> None:
    for op in copies:
        # Loops over the tiles of an array without elements copy nothing.
        if not op.ref.ref.empty and (reason := why_no_map(op)):
            raise UnsupportedFeature(
                f"one warp cannot copy a window of `{op.ref.hint}` without TMA: {reason}",
                (op.span, "the copy"),
                help="take it out of the `if` on `warp_id()`: the warpgroup copies it together",
            )


def _copied_in(op: ops.CopyIn, emit: Emit) -> tuple[Value, ...]:
    def fill(maker: Maker) -> None:
        tile = maker.add_op(ops.Load(span=op.span, **_window(op))).result
        maker.add_op(ops.Store(span=op.span, **_slot(op, maker), value=tile))
        # Readers may be products, and all threads have written a part.
        maker.add_op(ops.ProxyFence(span=op.span))
        maker.add_op(ops.BlockBarrier(span=op.span))

    def arrive(maker: Maker) -> None:
        maker.add_op(ops.BarrierArrive(span=op.span, barrier=op.barrier, index=op.index))

    return _written(op, fill, arrive, emit)


def _copied_out(op: ops.CopyOut, emit: Emit) -> tuple[Value, ...]:
    def empty(maker: Maker) -> None:
        tile = maker.add_op(ops.Load(span=op.span, **_slot(op, maker))).result
        maker.add_op(ops.Store(span=op.span, **_window(op), value=tile))

    return _written(op, empty, lambda _: None, emit)


def _copied_from_0_on(op: ops.Copy, starts: Sequence[Value], emit: Emit) -> tuple[Value, ...]:
    """Emit a copy to global memory where its window begins in the array, else what threads do."""
    maker, other = Maker(op.span), Maker(op.span)
    _SPELLED[type(op)](op, other.add_op)
    inside = maker.none_is_negative(starts)
    maker.when(inside, lambda m: m.add_op(op), lambda m: m.ops.extend(other.ops))
    for made in maker.ops:
        emit(made)
    return ()


def _written(op: ops.Copy, move: Write, finish: Write, emit: Emit) -> tuple[Value, ...]:
    """Emit what moves the elements, under the copy's predicate, and what follows it."""
    maker = Maker(op.span)
    if op.predicate:
        maker.when(op.predicate[0], move)
    else:
        move(maker)
    finish(maker)
    for made in maker.ops:
        emit(made)
    return ()


_SPELLED: dict[type[Op], Callable[[Any, Emit], tuple[Value, ...]]] = {
    ops.CopyIn: _copied_in,
    ops.CopyOut: _copied_out,
}


def _window(op: ops.Copy) -> dict[str, Any]:
    return {name: getattr(op, name) for name in ("ref", "starts", "sizes", "steps", "kept")}


def _slot(op: ops.Copy, maker: Maker) -> dict[str, Any]:
    """Return the fields of a window of the buffer that is the slot."""
    shape, leading = op.buffer.ref.shape, len(op.slot)
    rest = [n for n in shape[leading:] if n is not None]
    zeros = tuple(maker.number(0) for _ in rest)
    return {
        "ref": op.buffer,
        "starts": (*op.slot, *zeros),
        "sizes": (*[1] * leading, *rest),
        "steps": (1,) * len(shape),
        "kept": (*[False] * leading, *[True] * len(rest)),
    }
