"""How many threads run a block.

Invariant: a block has one warpgroup, or as many as its largest tile needs to fit the registers;
where it multiplies matrices, each warpgroup has whole 64-row parts of every accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator

from astdsl.errors import TileTooLarge, in_words
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.types import TileType
from astdsl.lowering.layout.inference import FREE_KINDS
from astdsl.lowering.layout.registers import TMEM_LANES
from astdsl.lowering.products import WGMMA_ROWS, rows_per_product
from astdsl.lowering.target import TCGEN05, Target

MOST_WARPGROUPS = 4
# Of a thread's 255 registers, what its largest tile may take; the rest holds operands, addresses.
TILE_REGISTERS = 128
COMFORTABLE_REGISTERS = 64
# Columns of tensor memory that one warpgroup moves are whole cells.
CELLS_APART = 8
_REGISTER_BITS = 32
# Functions of many instructions: LLVM keeps what goes in and what comes out of a tile side by side.
ELEMENTARY = (
    ops.Exp,
    ops.Exp2,
    ops.Log,
    ops.Log2,
    ops.Tanh,
    ops.Erf,
    ops.Sin,
    ops.Cos,
    ops.Power,
)


def choose_warpgroups(launch: ops.Launch, target: Target) -> int:
    """Return the number of warpgroups of a block; refuse a tile that no number can hold.

    Where each of them runs the program itself, the program says how many, and each holds its tiles.
    """
    body = launch.body
    dots = [op for op in walk(body) if isinstance(op, ops.Dot)]
    products = {op.result.tile.shape for op in dots}
    sizes = [(op, _registers(v.tile, products, target)) for op, v in _held(body)]
    largest, registers = max(sizes, key=lambda size: size[1], default=(None, 0))
    works = any(isinstance(op, ELEMENTARY) for op in walk(body))
    limit = TILE_REGISTERS if dots and not works else COMFORTABLE_REGISTERS
    groups, most = 1, 1 if launch.per_warpgroup else MOST_WARPGROUPS
    while registers > limit * groups and groups < most:
        if not _divides(dots, 2 * groups, target) or not _shares(body, 2 * groups):
            break
        groups *= 2
    if largest is not None and registers > TILE_REGISTERS * groups:
        raise _too_large(largest, registers, groups)
    return launch.warpgroups if launch.per_warpgroup else groups


def _held(body: Block) -> Iterator[tuple[Op, Value]]:
    """Yield the tiles that take registers, each with its operation."""
    for op in walk(body):
        if not isinstance(op, FREE_KINDS):
            yield from ((op, v) for v in op.results if isinstance(v.type, TileType))


def _registers(tile: TileType, products: set[tuple[int, ...]], target: Target) -> int:
    """Return the registers of one thread of one warpgroup for a tile.

    What has the shape of a product is laid out as its accumulator is, padding included.
    """
    words = max(1, tile.dtype.bits // _REGISTER_BITS)
    elements = tile.elements
    if tile.shape in products:
        rows = rows_per_product(target, tile.shape)
        elements = -(-tile.shape[0] // rows) * rows * tile.shape[1]
    return -(-elements // target.threads_per_warpgroup) * words


def _divides(dots: list[ops.Dot], groups: int, target: Target) -> bool:
    """Whether every accumulator can be shared by warpgroups: by rows (wgmma), by columns."""
    if target.has(TCGEN05):
        return all(op.b.tile.shape[1] % groups == 0 for op in dots)
    return all(op.a.tile.shape[0] % (WGMMA_ROWS * groups) == 0 for op in dots)


def _shares(body: Block, groups: int) -> bool:
    """Whether what the author made for one warpgroup can be shared by several.

    Accumulators in registers by their rows, 128 rows of tensor memory by their columns.
    """
    found = list(walk(body))
    made = [op for op in found if isinstance(op, ops.AllocAccumulator) and op.in_registers]
    has_parts = any(isinstance(op, ops.MatrixMultiply) and op.accumulator_window for op in found)
    moved = [op for op in found if isinstance(op, (ops.TmemLoad, ops.TmemStore))]
    by_rows = all(op.shape[0] % (WGMMA_ROWS * groups) == 0 for op in made)
    by_columns = all(
        op.sizes[0] == TMEM_LANES and op.sizes[1] % (groups * CELLS_APART) == 0 for op in moved
    )
    return by_rows and by_columns and not (made and has_parts)


def _too_large(op: Op, registers: int, groups: int) -> TileTooLarge:
    tile = op.results[0].type
    assert isinstance(tile, TileType), "found among tiles"
    fits = tile.elements * TILE_REGISTERS * groups // registers
    return TileTooLarge(
        f"the tile {tile} takes {registers // groups} registers of each thread, "
        f"{TILE_REGISTERS} is the most",
        (op.span, f"{tile} is made here"),
        help=f"a tile of at most {in_words(fits, 'element')} fits: take smaller blocks",
    )
