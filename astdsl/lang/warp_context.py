"""Warp context: what an `if` on `warp_id()` becomes, and what may stand in it.

Before
    %w: i64 = WarpId
    If %first   (%first computed from %w)
    If %second  (%second computed from %w)
After
    Warps { %w: i64 = WarpId; If %first; If %second }

Invariant: a value that differs among the warps of a warpgroup is made and used in `Warps` only.
"""

from __future__ import annotations

from collections.abc import Iterable

from astdsl.errors import KernelError, OutOfScope, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import PURE, Block, Op, Value, walk
from astdsl.ir.rewrite import clone_op, free_values, map_regions, with_ops
from astdsl.ir.types import TileType

_WAY_OUT = "assign it where warps run side by side: in the body of `if warp_id() == 0:`"
# What the four warps of a warpgroup do together.
_TOGETHER: dict[type[Op], str] = {
    ops.Pipeline: "a pipeline is run by a whole warpgroup",
    ops.ProxyFence: "`commit_smem` joins the four warps",
    ops.BlockBarrier: "`commit_smem` joins the four warps",
    ops.AllocSmem: "shared memory is allocated for the block",
    ops.AllocTmem: "tensor memory is allocated for the block",
    ops.Overlap: "shared memory is allocated for the block",
    ops.AllocBarrier: "barriers are allocated for the block",
    ops.SetMaxRegisters: "registers are given to a whole warpgroup",
}


def form_warp_regions(program: Block) -> Block:
    """Return the program with its branches on the warp's number in `Warps`.

    Errors: OutOfScope where a value that differs among warps is used elsewhere; TypeMismatch for
    what a single warp does not do.
    """
    if not any(isinstance(op, ops.WarpId) for op in walk(program)):
        return program
    return _Forming().block(program)


class _Forming:
    """One walk; it keeps what makes each value that differs among warps, for regions to repeat."""

    def __init__(self) -> None:
        self.makers: dict[Value, Op] = {}

    def block(self, block: Block) -> Block:
        made: list[Op] = []
        for op in block.ops:
            self._op(op, made)
        return with_ops(block, made)

    def _op(self, op: Op, made: list[Op]) -> None:
        if isinstance(op, ops.WarpId) or (op.effect == PURE and self._differs(op.operands)):
            self.makers[op.result] = op
        elif isinstance(op, ops.If) and op.condition in self.makers:
            self._branch(op, made)
        else:
            self._require_same(op)
            made.append(map_regions(op, self.block))

    def _differs(self, values: Iterable[Value]) -> bool:
        return any(v in self.makers for v in values)

    def _require_same(self, op: Op) -> None:
        for value in op.operands:
            if value in self.makers:
                raise OutOfScope(
                    "a value that differs among the warps of a warpgroup is used where they run as "
                    "one",
                    (op.span, "used here"),
                    (self.makers[value].span, "differs among warps"),
                    help=f"only an `if` may depend on `warp_id()`; {_WAY_OUT}",
                )

    def _branch(self, op: ops.If, made: list[Op]) -> None:
        """Write a branch into a region of its own, or into the one right before it."""
        if op.results:
            raise OutOfScope(
                "a name assigned under `warp_id()` is used after it, where the warps run as one",
                (op.span, "assigned in this branch"),
                (self.makers[op.condition].span, "differs among warps"),
                help="use it inside; or hand it on through shared memory: `flags[0] = x`",
            )
        for inner in walk(Block(ops=(op,))):
            _require_of_one_warp(inner)
        region = [*self._made_again(op), op]
        # What lies between two neighbours only computes, and is computed before both.
        between: list[Op] = []
        while made and (made[-1].effect == PURE or isinstance(made[-1], ops.WarpgroupId)):
            between.append(made.pop())
        if made and isinstance(made[-1], ops.Warps):
            before = made.pop()
            assert isinstance(before, ops.Warps), "just seen"
            made += [*reversed(between), _warps(before, [*before.body.ops[:-1], *region])]
            return
        made += [*reversed(between), _warps(op, region)]

    def _made_again(self, op: ops.If) -> list[Op]:
        """Return copies of what makes the values that differ, for one region; `op` follows them."""
        wanted = [op.condition, *(v for r in op.regions for v in free_values(r))]
        needed: dict[Value, Op] = {}
        while wanted:
            value = wanted.pop()
            if value in self.makers and value not in needed:
                needed[value] = self.makers[value]
                wanted += self.makers[value].operands
        return [self.makers[v] for v in self.makers if v in needed]


def _warps(op: Op, body: list[Op]) -> ops.Warps:
    """Return a region of copies: what makes its values may be in several."""
    values: dict[Value, Value] = {}
    copies = tuple(clone_op(each, values) for each in body)
    end = ops.Yield(span=op.span, values=())
    return ops.Warps(span=op.span, body=Block(ops=(*copies, end)))


def _require_of_one_warp(op: Op) -> None:
    """Refuse what takes a whole warpgroup."""
    said = _TOGETHER.get(type(op))
    if said:
        raise _not_of_one_warp(op, said)
    for value in (*op.operands, *op.results):
        if isinstance(value.type, TileType) and value.type.shape:
            raise _not_of_one_warp(op, f"a tile, {value.type}, belongs to a whole warpgroup")


def _not_of_one_warp(op: Op, said: str) -> KernelError:
    return TypeMismatch(
        f"{said}, and this is run by one warp",
        (op.span, "under `warp_id()`"),
        help="one warp works on scalars, and issues and awaits asynchronous operations",
    )
