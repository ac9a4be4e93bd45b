"""Register budgets, dependent launches, clocks and stops.

Source: PTX ISA 9.7.20 (setmaxnreg), 9.7.13.12 (griddepcontrol), 9.7.12, 9.7.19.
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect

TRAP = AsmRow(name="trap", text="trap;", effect=Effect.ACTS)

GRID_WAIT = AsmRow(name="griddepcontrol.wait", text="griddepcontrol.wait;", effect=Effect.ACTS)

GRID_LAUNCH = AsmRow(
    name="griddepcontrol.launch_dependents",
    text="griddepcontrol.launch_dependents;",
    effect=Effect.ACTS,
)

NANOSLEEP = AsmRow(
    name="nanosleep",
    text="nanosleep.u32 $nanoseconds;",
    effect=Effect.ACTS,
    inputs={"nanoseconds": "i32"},
)

CLOCK = AsmRow(
    name="clock64", text="mov.u64 $cycles, %clock64;", effect=Effect.ACTS, outputs={"cycles": "i64"}
)

GLOBAL_TIMER = AsmRow(
    name="globaltimer",
    text="mov.u64 $nanoseconds, %globaltimer;",
    effect=Effect.ACTS,
    outputs={"nanoseconds": "i64"},
)

REMOTE_SHARED_ADDRESS = AsmRow(
    name="mapa",
    text="mapa.shared::cluster.u32 $remote, $address, $rank;",
    effect=Effect.PURE,
    outputs={"remote": "i32"},
    inputs={"address": "i32", "rank": "i32"},
)


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
