"""The register file: one row per virtual register, one column per lane, in banks by width.

Invariant: the same bits are seen through every typed view; `undefined` has an entry only for
registers that have at least one undefined bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.scalars import SIGNED, TYPES, UNSIGNED, Array

if TYPE_CHECKING:
    from astdsl.emulator.undefined import Undefined

# A register: (bank = width in bits, row in the bank).
Place = tuple[int, int]
# A view: (bank, type name), or (bank, "wide:" + s|u) to write an extended value.
ViewKey = tuple[int, str]

# Lanes between rows, so that the same lanes of many registers do not share a set of the caches,
# which they would where the number of lanes is a power of two.
_APART_LANES = 272


class RegisterFile:
    """Banks of registers for `n_lanes` lanes; `views[(bank, type)]` is indexed [row, lanes]."""

    def __init__(self, counts: dict[int, int], n_lanes: int) -> None:
        self.banks: dict[int, Array] = {}
        self.views = _Views(self.banks)
        self.undefined: dict[Place, Undefined] = {}
        # Lists of operands of compiled code, by what they are made from, with addresses in here.
        self.placed: dict[Hashable, Array] = {}
        wide = n_lanes + (_APART_LANES if n_lanes >= _APART_LANES else 0)
        for bits, count in counts.items():
            shape = (count, wide, 2) if bits == 128 else (count, wide)
            dtype = np.dtype(np.bool_) if bits == 1 else UNSIGNED[min(bits, 64)]
            self.banks[bits] = np.zeros(shape, dtype)[:, :n_lanes]


class _Views(dict[ViewKey, Array]):
    """Typed views of the banks, made when first asked for."""

    def __init__(self, banks: dict[int, Array]) -> None:
        super().__init__()
        self._banks = banks

    def __missing__(self, key: ViewKey) -> Array:
        bits, name = key
        bank = self._banks[bits]
        if name.startswith("wide:"):
            view = bank.view(SIGNED[bits]) if name == "wide:s" else bank
        else:
            view = _typed(bank, bits, name)
        self[key] = view
        return view


def _typed(bank: Array, bits: int, name: str) -> Array:
    scalar = TYPES[name]
    if bits in (scalar.bits, 128):
        if scalar.count == 1 or bits == 128:
            return bank if bits in (1, 128) else bank.view(scalar.dtype)
        return bank.view(scalar.dtype).reshape(*bank.shape, scalar.count)
    if scalar.count > 1:
        raise AssertionError(f"no view of a {bits}-bit register as {name}")
    # The low part of a wider register (little-endian).
    parts = bits // scalar.bits
    return bank.view(scalar.dtype).reshape(*bank.shape, parts)[..., 0]
