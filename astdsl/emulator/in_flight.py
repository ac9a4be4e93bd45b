"""Registers that an asynchronous instruction still reads or writes.

Invariant: `uses` holds a register as long as some operation has it; a program without such
operations pays one test an instruction.  Source: PTX ISA 9.7.15.5: accessing the registers of a
wgmma before `wgmma.wait_group` is undefined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.scalars import any_of

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import BoolArray

__all__ = ["RegistersInFlight", "Use"]


@dataclass(slots=True, eq=False)
class Use:
    """One instruction's registers in flight: which, of which lanes, and what it is."""

    places: frozenset[Place]
    lanes: Lanes
    what: str
    pc: int
    remedy: str

    def holds(self, n_lanes: int) -> BoolArray:
        """Return the mask of the lanes whose registers are in flight."""
        mask = np.zeros(n_lanes, np.bool_)
        mask[self.lanes.sel] = True
        return mask


class RegistersInFlight:
    """All registers of a machine that are in flight."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self.uses: dict[Place, list[Use]] = {}

    def begin(self, use: Use) -> Use:
        """Put registers in flight."""
        for place in use.places:
            self.uses.setdefault(place, []).append(use)
        return use

    def leave(self, use: Use, lanes: Lanes) -> None:
        """Give registers back, but for those of some lanes."""
        use.lanes = lanes
        for place in () if lanes.n else use.places:
            uses = self.uses[place]
            uses.remove(use)
            if not uses:
                del self.uses[place]

    def check(self, pc: int, lanes: Lanes) -> None:
        """Fault if the instruction at `pc` touches a register in flight in one of its lanes."""
        touched = self._m.program.touched[pc]
        if self.uses.keys().isdisjoint(touched):
            return
        active = self._m.program.active(self._m, pc, lanes)
        self.require_free(touched, active)

    def require_free(self, places: Iterable[Place], lanes: Lanes) -> None:
        """Fault if one of the registers is in flight in one of the lanes."""
        for place in places:
            for use in self.uses.get(place, ()):
                taken = use.holds(self._m.n_lanes)[lanes.index]
                if any_of(taken):
                    lane, begun = int(lanes.index[np.argmax(taken)]), self._m.place_text(use.pc)
                    raise self._m.fault(
                        "E260",
                        f"a register of the {use.what} (of {self._m.lane_text(lane)}, {begun}) is "
                        "touched while it is in flight",
                        lane,
                        help=f"execute `{use.remedy}` first",
                    )
