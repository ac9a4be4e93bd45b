"""What a launch may ask of a target: threads, grid, cluster, shared memory and registers.

Invariant: a launch that passes `check_launch` would be accepted by the driver.
Sources: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA 11.1, 11.7 (directives).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.lanes import WARPGROUP_THREADS
from astdsl.emulator.options import is_integer, told
from astdsl.emulator.syntax import Function

__all__ = ["Triple", "check_launch", "cluster_of", "entry_registers", "triple"]

Triple = tuple[int, int, int]
AXES = "xyz"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one multiprocessor and of a launch; sm_90 and sm_100 have the same."""

    threads: int = 1024
    block: Triple = (1024, 1024, 64)
    grid: Triple = (2**31 - 1, 65535, 65535)
    shared_bytes: int = 227 * 1024
    registers: int = 65536
    registers_a_thread: int = 256
    cluster_blocks: int = 16


LIMITS = Limits()


def triple(sizes: Sequence[int]) -> Triple:
    """Return three extents; those not given are 1."""
    if not isinstance(sizes, list | tuple | np.ndarray):
        raise _fault(f"a grid, block or cluster is a list of integers, not {told(sizes)}")
    given = tuple(sizes)
    if len(given) > len(AXES) or not all(is_integer(n) for n in given):
        raise _fault(f"a grid, block or cluster has one to three integers, not {given}")
    x, y, z = (*(int(n) for n in given), 1, 1, 1)[:3]
    return x, y, z


def cluster_of(kernel: Function, asked: Sequence[int] | None) -> Triple:
    """Return the shape of the clusters: what the kernel requires, else what is asked for."""
    required = kernel.directives.get("reqnctapercluster")
    if required:
        shape = triple(required)
        if asked is not None and triple(asked) not in ((1, 1, 1), shape):
            raise _fault(f"the kernel requires clusters of {shape}, not {triple(asked)}")
        return shape
    return triple(() if asked is None else asked)


def check_launch(
    kernel: Function, grid: Triple, block: Triple, cluster: Triple, shared_bytes: int
) -> None:
    """Raise a fault if the target does not allow a launch; `shared_bytes` of a block in all."""
    threads = block[0] * block[1] * block[2]
    if not 1 <= threads <= LIMITS.threads:
        raise _fault(f"a block has 1 to {LIMITS.threads} threads, not {threads}")
    _check_extents("grid", grid, LIMITS.grid, 0)
    _check_extents("block", block, LIMITS.block, 1)
    _check_cluster(kernel, grid, cluster)
    if shared_bytes > LIMITS.shared_bytes:
        raise _fault(
            f"a block has at most {LIMITS.shared_bytes} bytes of shared memory, not {shared_bytes}"
        )
    _check_directives(kernel, block, threads)


def _check_extents(what: str, extents: Triple, limits: Triple, least: int) -> None:
    for axis, extent, limit in zip(AXES, extents, limits, strict=True):
        if extent < 0:
            raise _fault(f"{what} {extents} has a negative extent")
        if not least <= extent <= limit:
            raise _fault(f"a {what} has {least} to {limit} along {axis}, not {extent}")


def _check_cluster(kernel: Function, grid: Triple, cluster: Triple) -> None:
    size = cluster[0] * cluster[1] * cluster[2]
    (most,) = kernel.directives.get("maxclusterrank") or (LIMITS.cluster_blocks,)
    if not 1 <= size <= min(most, LIMITS.cluster_blocks):
        raise _fault(f"a cluster has 1 to {min(most, LIMITS.cluster_blocks)} blocks, not {size}")
    if any(blocks % width for blocks, width in zip(grid, cluster, strict=True)):
        raise _fault(f"grid {grid} is not a multiple of the cluster {cluster}")


def _check_directives(kernel: Function, block: Triple, threads: int) -> None:
    directives = kernel.directives
    required = directives.get("reqntid")
    if required and triple(required) != block:
        raise _fault(f"the kernel requires blocks of {required}, not {block}")
    limit = directives.get("maxntid")
    if limit:
        x, y, z = triple(limit)
        if threads > x * y * z:
            raise _fault(f"the kernel allows {limit} threads a block, not {threads}")
    registers = entry_registers(kernel, threads)
    if registers is not None and registers * threads > LIMITS.registers:
        raise _fault(
            f"{threads} threads of {registers} registers need more than {LIMITS.registers}"
        )


def entry_registers(kernel: Function, threads: int) -> int | None:
    """Return the registers of a thread when it starts, None where only the assembler knows.

    They are given out in eights: all of a multiprocessor's, shared by the warpgroups that must fit.
    """
    directives = kernel.directives
    if directives.get("maxnreg"):
        return -(-directives["maxnreg"][0] // 8) * 8
    if not directives.get("minnctapersm"):
        return None
    whole_threads = -(-threads // WARPGROUP_THREADS) * WARPGROUP_THREADS
    share = LIMITS.registers // (whole_threads * directives["minnctapersm"][0])
    return min(share // 8 * 8, LIMITS.registers_a_thread)


def _fault(text: str) -> DeviceFault:
    return DeviceFault("E202", text)
