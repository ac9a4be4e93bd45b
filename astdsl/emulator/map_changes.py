"""Tensor maps in global memory that a kernel has changed, and the proxy fences that show them.

A copy reads its map through the tensormap proxy. Invariant: a map that the launch changed by
`tensormap.replace` or `tensormap.cp_fenceproxy` may be used by a block once a release has followed
the change (the copy has its own), and an acquire of its address by that block the release.
Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy.tensormap::generic".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine

__all__ = ["MapChanges"]


@dataclass(slots=True)
class _Change:
    """The latest change of one map: who made it where, which block, and who has acquired it."""

    who: str
    block: int
    is_released: bool
    acquired: set[int] = field(default_factory=set)


class MapChanges:
    """The changed maps of a machine, by their address."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self._changes: dict[int, _Change] = {}

    def change(self, lane: int, address: int, *, releases: bool) -> None:
        """Note that a lane changes the map at a global address."""
        m = self._m
        who = f"by {m.lane_text(lane)}, {m.place_text(m.pc)}"
        self._changes[address] = _Change(who, int(m.block_of[lane]), releases)

    def release(self, lanes: Lanes) -> None:
        """Run `fence.proxy.tensormap::generic.release` of lanes: for what their blocks changed."""
        blocks = set(self._m.block_of[lanes.sel].tolist())
        for change in self._changes.values():
            change.is_released |= change.block in blocks

    def acquire(self, lanes: Lanes, addresses: list[int]) -> None:
        """Run `fence.proxy.tensormap::generic.acquire` of lanes for their addresses."""
        for block, address in zip(self._m.block_of[lanes.sel].tolist(), addresses, strict=True):
            change = self._changes.get(address)
            if change is not None and change.is_released:
                change.acquired.add(block)

    def require_shown(self, lanes: Lanes, address: int) -> None:
        """Fault if lanes use a map whose change has not been shown to the copies of their block."""
        change = self._changes.get(address)
        if change is None or not self._m.launch.check:
            return
        for lane in lanes.index:
            if int(self._m.block_of[lane]) not in change.acquired:
                missing = "acquire of its address" if change.is_released else "release after that"
                raise self._m.fault(
                    "E254",
                    f"the tensor map at {address:#x} was changed ({change.who}), and is used "
                    f"without a tensormap proxy {missing}",
                    int(lane),
                    help="execute `fence.proxy.tensormap::generic.release.gpu` after the change, "
                    "and `fence.proxy.tensormap::generic.acquire.gpu [map], 128` before the use",
                )
