"""Every row of the table: importing this module fills it.

Invariant: what is not listed here is not compiled.
"""

from __future__ import annotations

from astdsl.emulator.native import floats, integers, moves
from astdsl.emulator.native.table import ROWS, Write

__all__ = ["FAMILIES", "lookup"]

FAMILIES = (floats, integers, moves)


def lookup(opcode: str) -> Write | None:
    """Return the row with the longest dotted prefix of the opcode, None when there is none."""
    key = opcode
    while key:
        row = ROWS.get(key)
        if row is not None:
            return row
        key = key.rpartition(".")[0]
    return None
