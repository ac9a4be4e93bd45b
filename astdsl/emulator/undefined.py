"""Undefined values: which lanes of which registers hold bytes that nothing has written.

They come from loads of unwritten or in-flight memory and from registers that nothing has written
(liveness.py), flow through registers, and are reported where they matter: at an address, a
predicate that decides a branch, a store to global memory, an operand of an asynchronous operation.
Invariant: `m.undefined` has an entry only for registers with at least one undefined lane, so that a
program without any pays one test an instruction. An entry says of each lane where its undefined
value comes from: 0 = it is defined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import any_of

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array


# Where an undefined value comes from: an instruction that read it, by its place and 1, or, from
# here on, a register of the kernel that nothing has written, by its place in `Program.unwritten`.
_UNWRITTEN = 1 << 30
_ORIGIN = np.dtype(np.uint32)
_READ = "which reads what nothing has written, or what a copy is still writing"
_ABSENT = "which takes it from a lane that takes no part"


def unwritten_register(number: int, n_lanes: int) -> Array:
    """Return the entry of a register that begins unwritten, by its place in `Program.unwritten`."""
    return np.full(n_lanes, _UNWRITTEN + number, _ORIGIN)


def undefined_mask(m: Machine, lanes: Lanes, places: tuple[Place, ...]) -> Array | None:
    """Return where undefined values of lanes in any of the registers come from, None for none."""
    origins: Array | None = None
    for place in places:
        found = m.undefined.get(place)
        if found is not None:
            part = found[lanes.sel]
            origins = part.copy() if origins is None else np.maximum(origins, part)
    return origins if origins is not None and any_of(origins) else None


def mark(m: Machine, place: Place, lanes: Lanes, mask: Array | None) -> None:
    """Say which of the lanes now hold an undefined value in a register; None = none of them.

    A mask says that the current instruction has read them; else it says where they come from.
    """
    current = m.undefined.get(place)
    if mask is None or not any_of(mask):
        if current is not None:
            current[lanes.sel] = 0
            if not any_of(current):
                del m.undefined[place]
        return
    if current is None:
        current = m.undefined[place] = np.zeros(m.n_lanes, _ORIGIN)
    current[lanes.sel] = origins_of(m, mask)


def origins_of(m: Machine, mask: Array) -> Array:
    """Return where undefined values come from, by a mask from the current instruction."""
    return mask * _ORIGIN.type(m.pc + 1) if mask.dtype == np.bool_ else mask


def require_defined(
    m: Machine, lanes: Lanes, places: tuple[Place, ...], use: str = "an address or a predicate"
) -> None:
    """Raise a fault if an undefined value reaches a place where it matters."""
    if not m.undefined:
        return
    mask = undefined_mask(m, lanes, places)
    if mask is not None:
        raise undefined_fault(m, lanes, mask, use)


def undefined_fault(m: Machine, lanes: Lanes, mask: Array, use: str) -> DeviceFault:
    """Return the fault of undefined values (in the lanes of the mask) that reach a use."""
    at = int(np.argmax(mask != 0))
    origin = int(np.broadcast_to(origins_of(m, mask), lanes.n)[at])
    return m.fault(
        "E230",
        f"an undefined value is used as {use}: it comes from {_origin_text(m, origin)}",
        int(lanes.index[at]),
        help="write it before it is read, and wait for the copy that fills it",
    )


def _origin_text(m: Machine, origin: int) -> str:
    program = m.program
    if origin >= _UNWRITTEN:
        name = program.layout.register_name(program.unwritten[origin - _UNWRITTEN])
        return f"register {name}, which nothing has written"
    opcode = program.instructions[origin - 1].opcode
    why = _ABSENT if opcode.startswith("shfl.") else _READ
    return f"{opcode} ({m.place_text(origin - 1)}), {why}"


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
