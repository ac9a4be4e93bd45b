"""What running an operation does beside giving results, regions included.

Invariant: an operation with regions has the effects of what is inside, and its own if it acts.
"""

from __future__ import annotations

from astdsl.ir.core import ACTS, PURE, READS, WRITES, Op

# In order of what they forbid: reads move freely among reads, nothing moves across the others.
_RANK = {PURE: 0, READS: 1, WRITES: 2, ACTS: 3}


def effect_of(op: Op) -> str:
    """Return the strongest effect of an operation: pure, reads, writes or acts."""
    if not op.regions or op.effect == ACTS:
        return op.effect
    inside = (effect_of(inner) for region in op.regions for inner in region.ops)
    return max(inside, key=_RANK.__getitem__, default=PURE)


def changes_memory(op: Op) -> bool:
    """Return whether memory, barriers or asynchronous work may differ afterwards."""
    return _RANK[effect_of(op)] > _RANK[READS]


def is_movable(op: Op) -> bool:
    """Return whether an operation only computes its results from its operands, and has some."""
    return op.effect == PURE and bool(op.results) and not op.regions
