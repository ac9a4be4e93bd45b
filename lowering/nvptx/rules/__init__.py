"""What each operation of a scheduled kernel is in LLVM, by family; importing fills the tables."""

from astdsl.lowering.nvptx.rules import (
    arith,
    casts,
    comparisons,
    control,
    elementary,
    indexed,
    inline,
    memory,
    reductions,
    reports,
    scaled,
    scans,
    shared_dot,
    sync,
    tensor,
    tile,
    tmem,
)

FAMILIES = (
    arith, casts, comparisons, control, elementary, indexed, inline, memory, reductions, reports,
    scaled, scans, shared_dot, sync, tensor, tile, tmem,
)  # fmt: skip
