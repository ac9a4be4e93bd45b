"""Ordinary loads and stores of shared memory in machine code of the host, neighbours together.

Invariant: accesses are done only where nothing watches them and nothing can go wrong: in a launch
without checks and clusters, by whole threads of all blocks, all of whose addresses are aligned and
in bounds, and written before they are read. Else the steps do them all, once more if need be: what
is loaded or stored twice is the same, since no load changes a register that gave an address before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from astdsl.emulator.native.accesses import ENTRIES, MOST_REGISTERS, AccessForm
from astdsl.emulator.native.host import Host, started

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array

__all__ = ["Access", "SharedMove", "plain_access"]

# Neighbouring blocks whose lanes of a register fill a line of the cache.
_GROUP_BLOCKS = 16
_WIDTH = 8
_MOST_OFFSET = 1 << 62
# Bits and numbers of registers that have a form.
_SHAPES = {(32, 1), (32, 2), (32, 4), (64, 1), (64, 2)}


@dataclass(frozen=True, slots=True)
class Access:
    """An access of neighbouring elements, each a whole register, at base + offset."""

    loads: bool
    places: tuple[Place, ...]
    base: Place | None
    offset: int

    @property
    def form(self) -> AccessForm:
        """Return what its code depends on."""
        return AccessForm(
            self.loads, self.places[0][0], len(self.places), self.base[0] if self.base else 0
        )

    @property
    def touched(self) -> tuple[Place, ...]:
        """Return its registers."""
        return (*self.places, self.base) if self.base else self.places

    def may_follow(self, others: Sequence[Access]) -> bool:
        """Say whether the access and those before it can be done twice."""
        if others and others[0].loads != self.loads:
            return False
        bases = {each.base for each in (*others, self)}
        return not self.loads or bases.isdisjoint(self.places)


def plain_access(
    places: Sequence[Place | None], bits: int, base: tuple[Place | None, int], *, loads: bool
) -> Access | None:
    """Return the access between elements of so many bits and registers, None if it has no form.

    `base` is a register, or none, and what is added to it.
    """
    known = tuple(place for place in places if place is not None and place[0] == bits)
    if len(known) != len(places) or (bits, len(known)) not in _SHAPES:
        return None
    access = Access(loads, known, *base)
    return access if access.may_follow(()) and abs(access.offset) < _MOST_OFFSET else None


class SharedMove:
    """Neighbouring accesses, all loads or all stores."""

    def __init__(self, accesses: Sequence[Access]) -> None:
        self._accesses = tuple(accesses)
        self._stores = not accesses[0].loads
        self._touched = frozenset(place for each in accesses for place in each.touched)

    def execute(self, m: Machine, lanes: Lanes) -> bool:
        """Execute the accesses on lanes; return whether that could be done."""
        on = started()
        if on is None or not self._may(m, lanes):
            return False
        first, blocks = cast(slice, lanes.sel).start, m.n_blocks
        if first % blocks or lanes.n % blocks:
            return False
        group = math.gcd(blocks, _GROUP_BLOCKS)
        table = self._placed(on, m, 1 if group % _WIDTH else _WIDTH)
        memory, bad = m.memory.shared, np.zeros(1, np.int64)
        on.function("go_through")(
            table.ctypes.data, len(table), blocks // group, memory.data.ctypes.data,
            memory.defined.ctypes.data, memory.row_bytes, memory.size_bytes, first,
            lanes.n // blocks, group, blocks, bad.ctypes.data,
        )  # fmt: skip
        if bad[0]:
            return False
        m.memory.version += self._stores
        return True

    def _may(self, m: Machine, lanes: Lanes) -> bool:
        """Say whether nothing watches the accesses."""
        if not lanes.contiguous or m.guard is not None or m.launch.cluster_size > 1:
            return False
        undefined, uses = m.undefined, m.in_flight.uses
        if undefined and not undefined.keys().isdisjoint(self._touched):
            return False
        return not uses or uses.keys().isdisjoint(self._touched)

    def _placed(self, on: Host, m: Machine, width: int) -> Array:
        """Return the list of accesses for one register file: [accesses, entries]."""
        found = m.registers.placed.get((self, width))
        if found is None:
            rows = [self._entries(on, m, each, width) for each in self._accesses]
            found = m.registers.placed[self, width] = np.array(rows, np.int64)
        return found

    def _entries(self, on: Host, m: Machine, access: Access, width: int) -> list[int]:
        def at(place: Place) -> int:
            bank = m.registers.banks[place[0]]
            return int(bank.ctypes.data) + place[1] * bank.strides[0]

        base = at(access.base) if access.base else 0
        function, places = on.access(access.form, width), [at(each) for each in access.places]
        unused = [0] * (MOST_REGISTERS - len(places))
        row = [function, base, access.offset, *places, *unused]
        if len(row) != ENTRIES:
            raise AssertionError("a descriptor of another length")
        return row
