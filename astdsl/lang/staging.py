"""What a `BlockSpec` states of the copies of its blocks.

Invariant: it changes no result, but for the elements outside the array, which `fill` states.
"""

from __future__ import annotations

from typing import Any

from astdsl.ir.transforms import Transform
from astdsl.records import dataclass

DERIVED = -1


@dataclass(frozen=True, slots=True)
class Staging:
    """How blocks of `shape` are kept on chip, and what stands for elements outside the array.

    `transforms` are the physical layout of their slots; parts of a block are laid out by their
    uses. A slot is held for `delay_release` steps more than the one that reads it, `DERIVED` for as
    many as its readers take.
    """

    shape: tuple[int, ...]
    transforms: tuple[Transform, ...] = ()
    delay_release: int = DERIVED
    fill: bool | int | float = 0

    def of_store(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what a store of a window states, beside its fields."""
        pairs = zip(fields["sizes"], fields["kept"], strict=True)
        is_block = tuple(size for size, kept in pairs if kept) == self.shape
        return {"transforms": self.transforms} if is_block else {}

    def of_load(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what a load of a window states, beside its fields."""
        return {"delay_release": self.delay_release, **self.of_store(fields)}
