"""Undefined values: which bits of which registers nothing has written.

They come from loads of unwritten or in-flight memory and from registers that nothing has written
(liveness.py), flow through registers (undefined_bits.py), and are reported where they matter: at an
address, a predicate that decides a branch, a store to global memory, an operand of an asynchronous
operation. Invariant: `m.undefined` has an entry only for registers with at least one undefined bit,
so that a program without any pays one test an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import any_of

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray


# Where an undefined value comes from: an instruction that read it, by its place and 1, or, from
# here on, a register of the kernel that nothing has written, by its place in `Program.unwritten`.
_UNWRITTEN = 1 << 30
_ORIGIN = np.dtype(np.uint32)
_READ = "which reads what nothing has written, or what a copy is still writing"
_ABSENT = "which takes it from a lane that takes no part"
# So many separate groups of bits are listed in a report.
_LISTED = 3


@dataclass(slots=True)
class Undefined:
    """The undefined bits of values, one a lane, and where those of each lane come from.

    `bits` has the shape of the values: unsigned integers of their width (booleans of predicates),
    with a second axis for several elements. `origins` means nothing where all bits are defined.
    """

    bits: Array
    origins: Array

    def where(self, mask: BoolArray) -> Undefined:
        """Return those of some of the values."""
        return Undefined(self.bits[mask], self.origins[mask])


# What an instruction has read: undefined bits by register, and where those of each lane come from.
Found = tuple[dict[Place, "Array"], "Array"]
# A register, and the bits of it that an instruction looks at.
Read = tuple[Place, int]
# From the undefined bits that a step reads to those of each register that it writes.
Flow = Callable[["Machine", "Lanes", "Execute", dict[Place, "Array"]], "Sequence[Array]"]


def unwritten_register(number: int, row: Array) -> Undefined:
    """Return the entry of a register that begins unwritten, by its place in `Program.unwritten`.

    `row` is the register, of all lanes.
    """
    return Undefined(every_bit(row), np.full(len(row), _UNWRITTEN + number, _ORIGIN))


def every_bit(values: Array) -> Array:
    """Return ones for all bits of values."""
    return ~np.zeros_like(values)


def wholly(bits: Array | None) -> Array | None:
    """Return all bits of each value that has an undefined one."""
    return None if bits is None else (bits != 0) * every_bit(bits)


def lanes_of(bits: Array) -> BoolArray:
    """Say which values have an undefined bit."""
    some: BoolArray = np.not_equal(bits, 0)
    return some if some.ndim == 1 else np.logical_or.reduce(some, axis=1)


def row_of(m: Machine, place: Place) -> Array:
    """Return a register of all lanes, as unsigned integers or booleans."""
    found: Array = m.registers.banks[place[0]][place[1]]
    return found


def bits_read(m: Machine, lanes: Lanes, reads: Sequence[Read]) -> Found | None:
    """Return the undefined bits that an instruction looks at, None for none."""
    found: dict[Place, Array] = {}
    origins: Any = 0
    for place, width in reads:
        entry = m.undefined.get(place)
        if entry is None:
            continue
        bits = entry.bits[lanes.sel]
        if width < place[0]:
            bits = bits & bits.dtype.type((1 << width) - 1)
        if any_of(bits):
            found[place] = bits
            origins = np.maximum(origins, np.where(lanes_of(bits), entry.origins[lanes.sel], 0))
    return (found, origins) if found else None


def mark(
    m: Machine, place: Place, lanes: Lanes, bits: Array | None, origins: Array | None = None
) -> None:
    """Say which bits of a register are undefined now in these lanes; None = none of them.

    Without origins the current instruction has read them.
    """
    entry = m.undefined.get(place)
    if bits is None or not any_of(bits):
        if entry is not None:
            entry.bits[lanes.sel] = 0
            if not any_of(entry.bits):
                del m.undefined[place]
        return
    if entry is None:
        row = row_of(m, place)
        entry = m.undefined[place] = Undefined(np.zeros_like(row), np.zeros(len(row), _ORIGIN))
    entry.bits[lanes.sel] = bits
    entry.origins[lanes.sel] = m.pc + 1 if origins is None else origins


def read_here(m: Machine, bits: Array | None) -> Undefined | None:
    """Return undefined bits that the current instruction has read, if any."""
    return None if bits is None else Undefined(bits, np.full(len(bits), m.pc + 1, _ORIGIN))


def require_defined(
    m: Machine, lanes: Lanes, places: tuple[Place, ...], use: str = "an address or a predicate"
) -> None:
    """Raise a fault if an undefined bit of a register reaches a place where it matters."""
    if not m.undefined:
        return
    for place in places:
        entry = m.undefined.get(place)
        if entry is not None and any_of(entry.bits[lanes.sel]):
            found = Undefined(entry.bits[lanes.sel], entry.origins[lanes.sel])
            raise undefined_fault(m, lanes, found, use)


def undefined_fault(m: Machine, lanes: Lanes, found: Undefined, use: str) -> DeviceFault:
    """Return the fault of undefined values that reach a use."""
    at = int(np.argmax(lanes_of(found.bits)))
    return m.fault(
        "E230",
        f"an undefined value is used as {use}: {_bits_text(found.bits[at])} from "
        f"{_origin_text(m, int(found.origins[at]))}",
        int(lanes.index[0 if len(found.bits) == 1 else at]),
        help="write it before it is read, and wait for the copy that fills it",
    )


def _bits_text(bits: Any) -> str:
    """Return which part of a value comes from somewhere: all of it, an element, or bits."""
    element = int(np.argmax(bits != 0)) if np.ndim(bits) else None
    mask, whole = int(bits if element is None else bits[element]), bits.dtype.itemsize * 8
    if bits.dtype == np.bool_ or mask == (1 << whole) - 1:
        return "it comes" if element is None else f"its element {element} comes"
    of = "its" if element is None else f"of its element {element}"
    runs = list(_runs(mask))
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    if len(texts) > _LISTED:
        texts = [*texts[:_LISTED], "others"]
    listed = ", ".join(texts[:-1]) + " and " * (len(texts) > 1) + texts[-1]
    one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"{of} bit {listed} comes" if one else f"{of} bits {listed} come"


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last bit of each group of neighbouring ones."""
    at = 0
    while mask >> at:
        first = at + ((mask >> at) & -(mask >> at)).bit_length() - 1
        ones = mask >> first
        at = first + ((ones + 1) & -(ones + 1)).bit_length() - 1
        yield first, at - 1


def _origin_text(m: Machine, origin: int) -> str:
    program = m.program
    if origin >= _UNWRITTEN:
        name = program.layout.register_name(program.unwritten[origin - _UNWRITTEN])
        return f"register {name}, which nothing has written"
    opcode = program.instructions[origin - 1].opcode
    why = _ABSENT if opcode.startswith("shfl.") else _READ
    return f"{opcode} ({m.place_text(origin - 1)}), {why}"


def followed(step: Execute, reads: Sequence[Read], writes: Sequence[Place], flow: Flow) -> Execute:
    """Wrap a step so that undefined bits flow from what it reads to what it writes."""

    def execute(m: Machine, lanes: Lanes) -> None:
        found = bits_read(m, lanes, reads)
        if found is None:
            step(m, lanes)
            for place in writes:
                mark(m, place, lanes, None)
            return
        results = flow(m, lanes, step, found[0])
        step(m, lanes)
        for place, bits in zip(writes, results, strict=True):
            mark(m, place, lanes, bits, found[1])

    return execute


def checked(step: Execute, sensitive: tuple[Place, ...]) -> Execute:
    """Wrap a step so that undefined registers that matter to it are reported."""

    def execute(m: Machine, lanes: Lanes) -> None:
        require_defined(m, lanes, sensitive)
        step(m, lanes)

    return execute
