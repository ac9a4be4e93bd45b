"""Special registers (PTX ISA section 10): what a thread may ask about itself.

Invariant: a value is an array with one element a lane, or a number that is the same for all lanes;
clocks count instructions executed by the machine, which is monotone and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.scalars import Array, Scalar

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Launch, Machine
    from astdsl.emulator.operands import Getter, Operands

Value = Array | int
Triple = tuple[int, int, int]
AXES = "xyz"
# Clocks, and which of their bits is the lowest that they show.
CLOCKS = {
    "%clock": 0, "%clock_hi": 32, "%clock64": 0, "%globaltimer": 0, "%globaltimer_lo": 0,
    "%globaltimer_hi": 32,
}  # fmt: skip


def getter(ops: Operands, name: str, scalar: Scalar) -> Getter:
    """Return a getter of a special register, refusing a name that is neither that nor declared."""
    dtype = scalar.dtype
    if name in CLOCKS:
        shift = CLOCKS[name]
        # The machine counts straight-line code when it has been executed.
        return lambda m, lanes: np.uint64(m.clock + m.pc - m.group.pc >> shift).astype(dtype)
    if name not in _TABLE:
        raise ops.refuse(f"register {name} is not declared, and no special register known here")

    def read(m: Machine, lanes: Lanes) -> Any:
        value = m.special[name]
        if isinstance(value, np.ndarray):
            return value[lanes.sel].astype(dtype)
        return dtype.type(value)

    return read


class Specials(dict[str, Value]):
    """The special registers of a launch, each worked out when it is first asked for.

    `thread` and `block_of` hold each lane's thread and block; blocks are numbers in this launch.
    """

    def __init__(
        self, launch: Launch, thread: Array, block_of: Array, dynamic_bytes: int, total_bytes: int
    ) -> None:
        super().__init__()
        self.launch = launch
        self.thread = thread
        self.block_of = block_of
        self.dynamic_bytes = dynamic_bytes
        self.total_bytes = total_bytes

    def __missing__(self, name: str) -> Value:
        value = self[name] = _TABLE[name](self)
        return value

    @property
    def lane(self) -> Array:
        """Return the lane in its warp."""
        lane: Array = (self.thread & 31).astype(np.uint32)
        return lane

    @property
    def bit(self) -> Array:
        """Return a word with the lane's bit set."""
        bit: Array = np.uint32(1) << self.lane
        return bit


def _thread_index(axis: int, s: Specials) -> Value:
    x, y, _ = s.launch.block
    return (s.thread % x, s.thread // x % y, s.thread // (x * y))[axis]


def _block_index(axis: int, s: Specials) -> Array:
    found: Array = s.launch.index[axis][s.block_of]
    return found


def _rank(s: Specials) -> Value:
    x, y, z = (_block_index(axis, s) % s.launch.cluster[axis] for axis in range(3))
    rank: Array = x + s.launch.cluster[0] * (y + s.launch.cluster[1] * z)
    return rank


def _rows() -> dict[str, Callable[[Specials], Value]]:
    rows: dict[str, Callable[[Specials], Value]] = {
        "%laneid": lambda s: s.lane,
        "%warpid": lambda s: s.thread >> 5,
        "%nwarpid": lambda s: s.launch.n_warps,
        "%lanemask_eq": lambda s: s.bit,
        "%lanemask_lt": lambda s: s.bit - np.uint32(1),
        "%lanemask_le": lambda s: s.bit | (s.bit - np.uint32(1)),
        "%lanemask_gt": lambda s: ~(s.bit | (s.bit - np.uint32(1))),
        "%lanemask_ge": lambda s: ~(s.bit - np.uint32(1)),
        "%cluster_ctarank": _rank,
        "%cluster_nctarank": lambda s: s.launch.cluster_size,
        "%is_explicit_cluster": lambda s: int(s.launch.cluster_size > 1),
        "%gridid": lambda s: 0,
        "%smid": partial(_block_index, 0),
        "%nsmid": lambda s: int(np.prod(s.launch.grid)),
        "%dynamic_smem_size": lambda s: s.dynamic_bytes,
        "%total_smem_size": lambda s: s.total_bytes,
        "%aggr_smem_size": lambda s: s.total_bytes,
    }
    for number, axis in enumerate(AXES):
        rows |= _axis_rows(number, axis)
    return rows


def _axis_rows(number: int, axis: str) -> dict[str, Callable[[Specials], Value]]:
    return {
        f"%tid.{axis}": partial(_thread_index, number),
        f"%ntid.{axis}": lambda s: s.launch.block[number],
        f"%ctaid.{axis}": partial(_block_index, number),
        f"%nctaid.{axis}": lambda s: s.launch.grid[number],
        f"%clusterid.{axis}": lambda s: _block_index(number, s) // s.launch.cluster[number],
        f"%cluster_ctaid.{axis}": lambda s: _block_index(number, s) % s.launch.cluster[number],
        f"%nclusterid.{axis}": lambda s: s.launch.grid[number] // s.launch.cluster[number],
        f"%cluster_nctaid.{axis}": lambda s: s.launch.cluster[number],
    }


_TABLE = _rows()
