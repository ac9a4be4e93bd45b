"""What the tensor core asks of the shared-memory operands of a product.

Invariant: the rows of a product come 64 (`wgmma`) or 128 (`tcgen05.mma`) at a time; an operand
with fewer is laid out with room for them, and what stands there never reaches an element of the
result.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.core import Block, Value, walk
from astdsl.lowering.target import WGMMA, Target

WGMMA_ROWS = 64
TCGEN05_ROWS = 128


def rows_per_product(target: Target) -> int:
    """Return how many rows of A one instruction multiplies."""
    return WGMMA_ROWS if target.has(WGMMA) else TCGEN05_ROWS


def padded_operand(
    buffer: Value, shape: tuple[int, ...], body: Block, target: Target
) -> tuple[int, ...]:
    """Return the extents to allocate for a slot: M is rounded up to what a product covers."""
    allocated, rows = list(shape), rows_per_product(target)
    for op in walk(body):
        if isinstance(op, ops.MatrixMultiply) and op.a is buffer:
            axis = 1 if op.a_transposed else 0
            allocated[axis] = -(-shape[axis] // rows) * rows
    return tuple(allocated)


def product_barriers(body: Block) -> int:
    """Return how many mbarriers tell the products of `tcgen05` apart: a power of two.

    A wait names a product by its number modulo this; no more than that many are between the
    oldest one waited for and the newest one issued.
    """
    pending = [op.pending for op in walk(body) if isinstance(op, ops.ProductWait)]
    products = sum(isinstance(op, ops.MatrixMultiply) for op in walk(body))
    return 1 << (max(pending, default=0) + products).bit_length()
