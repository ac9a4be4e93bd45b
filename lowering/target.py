"""The GPUs we generate code for, as rows of data.

Invariant: every number that the hardware dictates stands here, with its unit in its name, and
nowhere else in the package.  Sources: CUDA programming guide, "Compute capabilities"; PTX ISA
section 9.7.16 for tensor memory.
"""

from __future__ import annotations

from dataclasses import dataclass

WGMMA = "wgmma"
TCGEN05 = "tcgen05"
TMA = "tma"
PACKED_F32 = "f32x2"
REDUX_F32 = "redux.f32"
SETMAXNREG = "setmaxnreg"


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU architecture: its limits, and the names of what it can do."""

    name: str
    """Architecture as users, LLVM (``-mcpu``) and ptxas (``-arch``) spell it."""
    compute_capability: tuple[int, int]
    multiprocessors: int
    """Default for planning when no device is present (H100 SXM: 132, B200: 148)."""
    features: frozenset[str]
    tmem_columns: int
    tmem_lanes: int
    shared_bytes_per_block: int = 232_448
    shared_bytes_per_multiprocessor: int = 233_472
    shared_reserved_bytes_per_block: int = 1_024
    registers_per_multiprocessor: int = 65_536
    registers_per_thread: int = 255
    threads_per_block: int = 1_024
    threads_per_multiprocessor: int = 2_048
    threads_per_warp: int = 32
    warps_per_warpgroup: int = 4
    blocks_per_multiprocessor: int = 32
    blocks_per_cluster: int = 8
    named_barriers: int = 16
    global_load_bytes: int = 16
    """Widest load or store of one thread."""

    def __str__(self) -> str:
        return self.name

    @property
    def cpu(self) -> str:
        """Name of the architecture for LLVM's ``cpu`` option."""
        return self.name

    @property
    def threads_per_warpgroup(self) -> int:
        """Threads that issue one ``wgmma`` together."""
        return self.threads_per_warp * self.warps_per_warpgroup

    def has(self, feature: str) -> bool:
        """Tell whether the architecture has `feature`, one of this module's constants."""
        return feature in self.features


SM_90A = Target(
    name="sm_90a",
    compute_capability=(9, 0),
    multiprocessors=132,
    features=frozenset({WGMMA, TMA, SETMAXNREG}),
    tmem_columns=0,
    tmem_lanes=0,
)

SM_100A = Target(
    name="sm_100a",
    compute_capability=(10, 0),
    multiprocessors=148,
    features=frozenset({TCGEN05, TMA, SETMAXNREG, PACKED_F32, REDUX_F32}),
    tmem_columns=512,
    tmem_lanes=128,
)

TARGETS: dict[str, Target] = {target.name: target for target in (SM_90A, SM_100A)}
