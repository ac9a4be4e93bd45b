"""The whole program of a kernel that is written for each warpgroup: its grid, its warp context.

Invariant: such a program is one block's, or begins with values and allocations of every block and
goes on with grids, outermost `parallel`s, whose steps are blocks.
"""

from __future__ import annotations

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, walk
from astdsl.ir.effects import changes_memory
from astdsl.ir.ops import SPREAD
from astdsl.lang.warp_context import form_warp_regions

# What stands before the grids, for every block.
_OF_EVERY_BLOCK = (
    ops.AllocSmem, ops.AllocBarrier, ops.AllocGmem, ops.AllocTmem, ops.Overlap, ops.StateLayout,
    ops.Counter, ops.Assert,
)  # fmt: skip


def finished(program: Block, warpgroups: int) -> Block:
    """Return the program of a kernel as it is evaluated and scheduled.

    Errors: BadPipeline where it is written for warpgroups and blocks are not one grid's steps;
    those of warp context.
    """
    if not warpgroups:
        return program
    _require_grids(program)
    return form_warp_regions(program)


def is_grid(op: Op) -> bool:
    """Whether the steps of an operation are blocks."""
    return isinstance(op, ops.Pipeline) and SPREAD in op.axes


def _require_grids(program: Block) -> None:
    grids = [op for op in walk(program) if is_grid(op)]
    for grid in grids:
        assert isinstance(grid, ops.Pipeline), "only pipelines are grids"
        if grid not in program.ops:
            raise BadPipeline(
                "a `parallel` that stands in a branch is no grid of a kernel with `warpgroups=`",
                (grid.span, ""),
                help="put the `if` into its body",
            )
        if set(grid.axes) != {SPREAD}:
            raise BadPipeline(
                "every step of a grid is a block of the kernel with `warpgroups=`, and an axis of "
                "this runs in order",
                (grid.span, ""),
                help="nest a `for` or a `pipeline` in a `parallel` instead",
            )
    if not grids:
        return
    for op in program.ops:
        if op not in grids and changes_memory(op) and not isinstance(op, _OF_EVERY_BLOCK):
            raise BadPipeline(
                "this stands beside the grid of a kernel with `warpgroups=`, where no block runs",
                (op.span, ""),
                (grids[0].span, "the grid"),
                help="move it into the grid's body, or into a kernel of its own",
            )
