"""What the rules write is PTX that NVIDIA's assembler takes, for every target and dtype."""

import pytest

from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import DType, boolean
from astdsl.ir.ops.tile import REDUCTIONS
from astdsl.ir.types import TileType
from astdsl.lowering.nvptx.assemble import assemble
from astdsl.lowering.nvptx.rules.arith import PLAIN
from astdsl.lowering.nvptx.rules.elementary import FUNCTIONS
from astdsl.lowering.target import TARGETS, Target
from tests.dtypes import EVERY
from tests.lowering.nvptx.tiles import Tiles, ptx_of

ELEMENTWISE: tuple[type[Op], ...] = (*PLAIN, *FUNCTIONS, ops.Sqrt, ops.Power)
ONLY_FLOATS: tuple[type[Op], ...] = (ops.Divide, ops.Sqrt, *FUNCTIONS)
ONLY_BITS: tuple[type[Op], ...] = (
    ops.BitAnd,
    ops.BitOr,
    ops.BitXor,
    ops.ShiftLeft,
    ops.ShiftRight,
    ops.Invert,
)
NOT_OF_BOOLS: tuple[type[Op], ...] = (
    *(ops.FloorDivide, ops.Remainder, ops.Power, ops.ShiftLeft, ops.ShiftRight, ops.Negate),
    *(ops.Absolute, ops.Subtract),
)


def _applies(kind: type[Op], dtype: DType) -> bool:
    if dtype is boolean and kind in NOT_OF_BOOLS:
        return False
    return kind not in (ONLY_BITS if dtype.is_float else ONLY_FLOATS)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_every_rule_assembles(dtype: DType, target: Target) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for kind in ELEMENTWISE:
            if _applies(kind, dtype):
                count = sum(role == "operand" for role in kind.fields.values())
                tiles.give(tiles.make(kind, *values[:count]))
        for other in EVERY:
            tiles.give(tiles.make(ops.Cast, values[0], dtype=other))
        for reduction in REDUCTIONS:
            tiles.give(tiles.make(ops.Reduce, values[0], axes=(0, 1), kind=reduction))
        tiles.give(tiles.make(ops.ArgReduce, values[1], axis=0, kind="max"))

    ptx, _ = ptx_of(build, *[TileType((16, 9), dtype)] * 3, target=target)
    assert assemble(ptx, target).spill_bytes == 0
