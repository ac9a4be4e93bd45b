"""What orders the accesses of warpgroups to one shared memory: arrivals, and waits for them.

Each warpgroup counts its releases. An arrival hands on what the warpgroup knows of the others'
counts, a wait takes it over; an access is ordered after another warpgroup's if the release behind
that one is known.

Invariant: what is reported is unordered in every run in which barriers complete as in this one.
The warps of a warpgroup count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl.errors import ProtocolError
from astdsl.ir.core import Op
from astdsl.ir.evaluate.state import Access, Barrier, Frame, Memory, Place


def arrive(barrier: Barrier, op: Op, frame: Frame) -> None:
    """Arrive, and hand on what is known."""
    clock, phase = frame.clock, barrier.phase
    clock[frame.warpgroup] += 1
    barrier.coming = _joined(barrier.coming, clock)
    barrier.arrive(op.span)
    if barrier.phase != phase:
        barrier.known = list(barrier.coming)


def acknowledge(barrier: Barrier, frame: Frame) -> None:
    """Take over what the arrivals of the completed phases handed on."""
    barrier.acknowledge()
    frame.clock[:] = _joined(frame.clock, barrier.known)


def _joined(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(a, b) for a, b in zip(one, other, strict=True)] if one and other else [*one, *other]


def note_access(op: Op, memory: Memory, place: Place, frame: Frame, *, is_write: bool) -> None:
    """Record an access to shared memory; refuse one that nothing orders after another's."""
    if frame.warpgroups < 2 or memory.private is None:
        return
    clock = frame.clock
    for access in memory.accesses.values():
        known = access.time <= clock[access.warpgroup]
        if known or not (is_write or access.is_write):
            continue
        if access.warpgroup != frame.warpgroup and _overlap(memory, place, access.place):
            raise _race(op, memory, frame, access, is_write)
    time = clock[frame.warpgroup] + 1
    key = (frame.warpgroup, is_write, op, _key(place))
    memory.accesses[key] = Access(frame.warpgroup, is_write, op.span, place, time)


def _key(place: Place) -> Any:
    return tuple(
        (x.start, x.stop, x.step) if isinstance(x, slice) else np.asarray(x).tobytes()
        for x in place
    )


def _overlap(memory: Memory, one: Place, other: Place) -> bool:
    pairs = list(zip(one, other, strict=True))
    if all(isinstance(x, slice) and x.step in (None, 1) for pair in pairs for x in pair):
        return all(a.start < b.stop and b.start < a.stop for a, b in pairs)
    mark = np.zeros(memory.data.shape, np.bool_)
    mark[one] = True
    return bool(mark[other].any())


def _race(op: Op, memory: Memory, frame: Frame, access: Access, is_write: bool) -> ProtocolError:
    did = "wrote" if access.is_write else "read"
    return ProtocolError(
        f"{memory.name} is {'written' if is_write else 'read'} by {frame.thread}, and nothing "
        f"orders that after what warpgroup {access.warpgroup} {did}",
        (op.span, "writes" if is_write else "reads"),
        (access.span, did),
        help="let the one `barrier_arrive` after its access, and the other `barrier_wait` for it",
    )
