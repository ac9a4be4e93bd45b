"""Bytes of global memory that a launch both writes and reads by `ld.global.nc`.

Invariant: a report is exact. The accesses of a launch are kept as intervals with their addresses,
as many as fit into `BUDGET_BYTES`; what is older is forgotten, and then missed.
Source: PTX ISA 9.7.9.9 "ld.global.nc": the memory is read-only for the whole kernel.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Launch, Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Constancy"]

BUDGET_BYTES = 1 << 26
# What an access takes, in units of its addresses: they and who made it, at most.
_KEPT = 2


class _Access(NamedTuple):
    low: int
    high: int
    addresses: Array
    width: int
    place: int
    lanes: Lanes
    launch: Launch

    def who(self, element: int, width: int) -> str:
        """Return which warp of which block reached an element of some width."""
        at = int(np.argmax(np.broadcast_to(self.addresses // width == element, self.lanes.n)))
        thread, row = divmod(int(self.lanes.index[at]), len(self.launch.index[0]))
        return f"warp {thread // WARP_THREADS} of block {self.launch.block_index(row)}"


class Constancy:
    """The accesses of a launch by allocation: constant loads and stores."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], deque[_Access]] = {}
        self._bytes = 0

    def note(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int,
        *, stores: bool,
    ) -> None:  # fmt: skip
        """Keep an access; fault if one of the other kind met any of its bytes."""
        low, high = int(addresses.min()), int(addresses.max()) + width
        for other in self._kept.get((allocation.low, not stores), ()):
            if other.low < high and low < other.high:
                self._check(m, lanes, addresses, width, other, stores=stores)
        kept = self._kept.setdefault((allocation.low, stores), deque())
        kept.append(_Access(low, high, addresses, width, m.pc, lanes, m.launch))
        self._bytes += _KEPT * addresses.nbytes
        while self._bytes > BUDGET_BYTES and len(kept) > 1:
            self._bytes -= _KEPT * kept.popleft().addresses.nbytes

    def _check(
        self, m: Machine, lanes: Lanes, addresses: Array, width: int, other: _Access,
        *, stores: bool,
    ) -> None:  # fmt: skip
        # Accesses are aligned to their width, so that two that meet agree in the wider one's.
        wide = max(width, other.width)
        met = np.isin(addresses // wide, other.addresses // wide)
        if met.any():
            at = int(np.broadcast_to(addresses, lanes.n)[np.argmax(met)])
            first, second = ("reads", "written") if stores else ("writes", "read by ld.global.nc")
            raise m.fault(
                "E223",
                f"global memory at {at:#x} is {second}, and {other.who(at // wide, wide)} {first} "
                f"it{' by ld.global.nc' if stores else ''} ({m.place_text(other.place)})",
                lanes.first(met),
            )
