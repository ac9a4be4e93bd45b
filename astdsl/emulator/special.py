"""Special registers (PTX ISA section 10): what a thread may ask about itself.

Invariant: a value is an array with one element a lane, or a number that is the same for all lanes;
clocks count instructions executed by the machine, which is monotone and nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.scalars import Array, Scalar

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands

Value = Array | int
Triple = tuple[int, int, int]
AXES = "xyz"


def getter(ops: Operands, name: str, scalar: Scalar) -> Getter:
    """Return a getter of a special register, refusing a name that is neither that nor declared."""
    dtype = scalar.dtype
    if name in CLOCKS:
        return lambda m, lanes: np.uint64(m.clock).astype(dtype)
    if name not in NAMES:
        raise ops.refuse(f"register {name} is not declared, and no special register known here")

    def read(m: Machine, lanes: Lanes) -> Any:
        value = m.special[name]
        if isinstance(value, np.ndarray):
            return value[lanes.sel].astype(dtype)
        return dtype.type(value)

    return read


CLOCKS = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo"})


def thread_values(thread: Array, block: Triple) -> dict[str, Value]:
    """Return what depends on the thread's number in its block alone."""
    lane = thread & 31
    bit = np.uint32(1) << lane
    values: dict[str, Value] = {
        "%tid.x": thread % block[0],
        "%tid.y": thread // block[0] % block[1],
        "%tid.z": thread // (block[0] * block[1]),
        "%laneid": lane,
        "%warpid": thread >> 5,
        "%nwarpid": (block[0] * block[1] * block[2] + 31) // 32,
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - np.uint32(1),
        "%lanemask_le": bit | (bit - np.uint32(1)),
        "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
        "%lanemask_ge": ~(bit - np.uint32(1)),
    }
    values |= {f"%ntid.{axis}": n for axis, n in zip(AXES, block, strict=True)}
    return values


def block_values(
    index: tuple[Array, Array, Array], grid: Triple, cluster: Triple
) -> dict[str, Value]:
    """Return what depends on the block: `index` holds each lane's block index by axis."""
    values: dict[str, Value] = {}
    for axis, at, blocks, width in zip(AXES, index, grid, cluster, strict=True):
        values[f"%ctaid.{axis}"] = at
        values[f"%nctaid.{axis}"] = blocks
        values[f"%clusterid.{axis}"] = at // width
        values[f"%cluster_ctaid.{axis}"] = at % width
        values[f"%nclusterid.{axis}"] = blocks // width
        values[f"%cluster_nctaid.{axis}"] = width
    x, y, z = (at % width for at, width in zip(index, cluster, strict=True))
    values["%cluster_ctarank"] = x + cluster[0] * (y + cluster[1] * z)
    values["%cluster_nctarank"] = cluster[0] * cluster[1] * cluster[2]
    values["%is_explicit_cluster"] = int(values["%cluster_nctarank"] > 1)
    values["%gridid"] = 0
    values["%nsmid"] = grid[0] * grid[1] * grid[2]
    return values


_PROBE = np.zeros(1, np.uint32)
NAMES = (
    frozenset(thread_values(_PROBE, (1, 1, 1)))
    | frozenset(block_values((_PROBE, _PROBE, _PROBE), (1, 1, 1), (1, 1, 1)))
    | {"%smid", "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"}
)
