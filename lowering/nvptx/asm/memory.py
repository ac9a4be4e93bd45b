"""Loads and stores of one element where a predicate holds; room in a log; where shared memory is.

Source: PTX ISA 9.7.9.8 (ld), 9.7.9.11 (st) and 9.7.13.5 (atom). The result of a load is tied to the
value that it has where nothing is loaded.
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.nvptx.values import GLOBAL, bits_of

# LLVM writes the name of the shared array anew in every block, and ptxas reads the block's rank in
# its cluster each time; what is in a register stays there.
SHARED_BASE = AsmRow(
    name="mov.shared",
    text="mov.b32 $base, $array;",
    effect=Effect.PURE,
    outputs={"base": "i32"},
    inputs={"array": "i32"},
)
"""Keep the address of the block's shared memory in a register."""

TAKE_WORDS = AsmRow(
    name="atom.add",
    text="atom.relaxed.gpu.global.add.u32 $first, [$log], $words;",
    effect=Effect.ACTS,
    outputs={"first": "i32"},
    inputs={"log": GLOBAL, "words": "i32"},
)

PREFETCH_L2 = AsmRow(
    name="prefetch.L2",
    text="@$ok prefetch.global.L2 [$address];",
    effect=Effect.ACTS,
    inputs={"address": GLOBAL, "ok": "i1"},
)
"""Where `$ok`, bring the line of an address into the second cache (PTX ISA 9.7.9.15)."""


@cache
def guarded_load(type: str, bits: int = 0) -> AsmRow:
    """Make the row that loads `bits` (default: all of `type`) from global memory where `$ok`."""
    return AsmRow(
        name="ld.global",
        text=f"@$ok ld.global.b{bits or bits_of(type)} $value, [$address];",
        effect=Effect.ACTS,
        outputs={"value": type},
        tied=1,
        inputs={"address": GLOBAL, "ok": "i1"},
    )


@cache
def guarded_store(type: str, bits: int = 0) -> AsmRow:
    """Make the row that stores `bits` (default: all of `type`) to global memory where `$ok`."""
    return AsmRow(
        name="st.global",
        text=f"@$ok st.global.b{bits or bits_of(type)} [$address], $value;",
        effect=Effect.ACTS,
        inputs={"address": GLOBAL, "value": type, "ok": "i1"},
    )
