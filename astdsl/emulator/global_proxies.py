"""What of global memory the async proxy may see, and what it is still writing.

Bulk copies reach global memory through the async proxy: an ordinary write before is not seen there
without a proxy fence between the two.  What they write themselves is seen by all who come after a
`wait_group` (not `.read`) of the thread that issued them.  Invariant: an access is reported only if
no fence by a warp that knows of the write covers it, or no such wait has come.
Sources: PTX ISA 9.7.9.25.2 "Async proxy", 9.7.13.4 "fence.proxy", 9.7.9.25.1 "bulk async-group".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.scalars import any_of
from astdsl.emulator.shown import Shown

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["GlobalProxies", "Past", "Written"]


# No time comes as late.
_NEVER = (1 << 31) - 1


class Written:
    """What one copy has written: which lanes issued it, and when each of them waited for that."""

    def __init__(self, lanes: Array) -> None:
        self.lanes = lanes
        self._awaited_at = np.full(len(lanes), _NEVER, np.int64)

    @property
    def is_awaited(self) -> bool:
        """Return whether all lanes have waited for their part."""
        return not any_of(self._awaited_at == _NEVER)

    def await_by(self, mine: BoolArray, time: int) -> None:
        """Note that some of the lanes wait, which they may do more than once."""
        self._awaited_at[mine] = np.minimum(self._awaited_at[mine], time)

    def not_awaited(self, time: int) -> Array:
        """Return the lanes that have not waited by a time."""
        found: Array = self.lanes[self._awaited_at > time]
        return found


class Past(NamedTuple):
    """When an operation was issued, and what was covered then."""

    time: int
    covered: Array


class GlobalProxies:
    """Fences of the blocks of one machine, and what its bulk copies have written."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._clocks = clocks
        # Ordinary writes, to the async proxy.
        self.covered = Shown(m, clocks)
        # By the time at which it was written, what may matter to an operation still to come.
        self._written: dict[int, Written] = {}
        self._asynchronous = m.asynchronous

    def write(self, time: int, written: Written) -> None:
        """Note what a copy has written at a time."""
        if not self._asynchronous.pending:
            self._written = {t: each for t, each in self._written.items() if not each.is_awaited}
        self._written[time] = written

    def unawaited(self, times: Array, past: Past | None) -> Iterator[tuple[int, Array]]:
        """Yield those of the times at which copies wrote, and whose lanes had not waited by then.

        `past` is when that counts, None for now.
        """
        by = self._clocks.now if past is None else past.time
        for time in np.unique(times).tolist():
            written = self._written.get(time)
            lanes = None if written is None else written.not_awaited(by)
            if lanes is not None and len(lanes):
                yield time, lanes

    def past(self) -> Past:
        """Return what is so now, for an operation that is issued."""
        return Past(self._clocks.now, self.covered.times)
