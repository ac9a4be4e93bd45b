"""Simplifications that are true on every machine, and the order in which they run.

Invariant: each keeps what `evaluate` gives, bit for bit, and does nothing the second time.
"""

from astdsl.passes.eliminate_dead_code import eliminate_dead_code
from astdsl.passes.fold_constants import fold_constants
from astdsl.passes.hoist_invariants import hoist_invariants
from astdsl.passes.merge_common_subexpressions import merge_common_subexpressions
from astdsl.passes.simplify_algebra import simplify_algebra

STANDARD = (
    # First, because every other pass does more where it sees numbers.
    fold_constants,
    # Needs the numbers (x * 1), and leaves operations without users behind.
    simplify_algebra,
    # Before merging: what two loops compute meets in the block around them.
    hoist_invariants,
    # Copies of one expression, hoisted and not, become one.
    merge_common_subexpressions,
    # Last, for what the others have left without users.
    eliminate_dead_code,
)

__all__ = [
    "STANDARD",
    "eliminate_dead_code",
    "fold_constants",
    "hoist_invariants",
    "merge_common_subexpressions",
    "simplify_algebra",
]
