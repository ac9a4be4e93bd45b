"""Undefined values: which lanes of which registers hold bytes that nothing has written.

They come from loads of unwritten or in-flight memory and from registers that nothing has written
(liveness.py), flow through registers, and are reported where they matter: at an address, a
predicate that decides a branch, a store to global memory, an operand of an asynchronous operation.
Invariant: `m.undefined` has a mask only for registers with at least one undefined lane, so that a
program without any pays one test an instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import BoolArray, any_of

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine


def undefined_mask(m: Machine, lanes: Lanes, places: tuple[Place, ...]) -> BoolArray | None:
    """Return which of the lanes have an undefined value in any of the registers, None for none."""
    mask: BoolArray | None = None
    for place in places:
        found = m.undefined.get(place)
        if found is not None:
            part = found[lanes.sel]
            mask = part.copy() if mask is None else mask | part
    return mask if mask is not None and any_of(mask) else None


def mark(m: Machine, place: Place, lanes: Lanes, mask: BoolArray | None) -> None:
    """Say which of the lanes now hold an undefined value in a register; None = none of them."""
    current = m.undefined.get(place)
    if mask is None or not any_of(mask):
        if current is not None:
            current[lanes.sel] = False
            if not any_of(current):
                del m.undefined[place]
        return
    if current is None:
        current = m.undefined[place] = np.zeros(m.n_lanes, np.bool_)
    current[lanes.sel] = mask


def require_defined(
    m: Machine, lanes: Lanes, places: tuple[Place, ...], use: str = "an address or a predicate"
) -> None:
    """Raise a fault if an undefined value reaches a place where it matters."""
    if not m.undefined:
        return
    mask = undefined_mask(m, lanes, places)
    if mask is not None:
        raise undefined_fault(m, lanes, mask, use)


def undefined_fault(m: Machine, lanes: Lanes, mask: BoolArray, use: str) -> DeviceFault:
    """Return the fault of undefined values (in the lanes of the mask) that reach a use."""
    return m.fault(
        "E230",
        "an undefined value (of a register or of memory that was never written, or that an"
        f" asynchronous copy is still writing) is used as {use}",
        int(lanes.index[np.argmax(mask)]),
        help="write it before it is read, and wait for the copy that fills it",
    )


def tracked(
    step: Execute,
    reads: tuple[Place, ...],
    writes: tuple[Place, ...],
    sensitive: tuple[Place, ...],
    *,
    own: bool,
) -> Execute:
    """Wrap a step so that undefined values flow from what it reads to what it writes.

    With `own` the step marks its destinations itself, and only `sensitive` registers are checked.
    """

    def check_only(m: Machine, lanes: Lanes) -> None:
        require_defined(m, lanes, sensitive)
        step(m, lanes)

    def execute(m: Machine, lanes: Lanes) -> None:
        require_defined(m, lanes, sensitive)
        mask = undefined_mask(m, lanes, reads)
        step(m, lanes)
        for place in writes:
            mark(m, place, lanes, mask)

    return check_only if own else execute
