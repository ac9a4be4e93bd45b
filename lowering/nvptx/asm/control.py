"""What controls the threads that run: their registers.

Source: PTX ISA 9.7.20 (setmaxnreg).
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect


@cache
def set_max_registers(registers: int, *, increase: bool) -> AsmRow:
    """Make the row that changes a warpgroup's registers per thread: 24, 32, ..., 256."""
    if registers % 8 or not 24 <= registers <= 256:
        raise AssertionError(f"setmaxnreg takes 24, 32, ..., 256 registers, not {registers}")
    direction = "inc" if increase else "dec"
    return AsmRow(
        name=f"setmaxnreg.{direction}",
        text=f"setmaxnreg.{direction}.sync.aligned.u32 {registers};",
        effect=Effect.ACTS,
    )
