"""Tiles that a warp moves by `ldmatrix` and `stmatrix`: which rows of 16 bytes there are.

A matrix is 8 rows of 16 bytes; each lane holds 4 bytes of it, one register of 32 bits, and gives
the address of one row of one of up to 4 matrices (PTX ISA 9.7.14.5.15, 9.7.14.5.16).

Invariant: matrix m of an instruction is held in the m-th of its words, and lane 8 m + r gives its
row r, which is what that lane would hold first in the layout `rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from astdsl.lowering.layout.registers import REPLICATED, Digit, Layout, normalised

WORD_BYTES = 4
ROW_BYTES = 16
MATRIX_ROWS = 8
COUNTS = (4, 2, 1)


@dataclass(frozen=True, slots=True)
class Matrices:
    """How the registers of a layout are matrices, `count` of them for each instruction.

    `each` registers are a word; `elements` follow each other in a row of memory. Of a transposed
    matrix neighbours in memory are in neighbouring rows of lanes.
    """

    rows: Layout
    count: int
    each: int
    elements: int
    is_transposed: bool


@lru_cache(maxsize=1024)
def matrices_of(layout: Layout, fast: int, element_bytes: int) -> Matrices | None:
    """Return how a warp moves a tile whose axis `fast` is contiguous, None if not by matrices."""
    each, elements = WORD_BYTES // element_bytes, ROW_BYTES // element_bytes
    if not each or not layout.is_exact or any(d.axis == REPLICATED for d in layout.threads):
        return None
    word, others = _cut(layout.registers, each)
    quad, lanes = _cut(layout.threads, ROW_BYTES // WORD_BYTES)
    octet, warps = _cut(lanes, MATRIX_ROWS)
    if not (_covers(word, each) and _covers(quad, ROW_BYTES // WORD_BYTES)):
        return None
    if not _covers(octet, MATRIX_ROWS):
        return None
    across, row = (*word, *quad), (Digit(elements, fast, 1),)
    is_plain = _joined(layout, across) == row
    if not is_plain and (each, _joined(layout, octet)) != (2, row):
        return None
    count = next(n for n in COUNTS if _covers(_cut(others, n)[0], n))
    matrices, rest = _cut(others, count)
    # The addresses of the other lanes are not used.
    unused = Digit(COUNTS[0] // count, REPLICATED, 0)
    threads = (*(octet if is_plain else across), *matrices, unused, *warps)
    rows = normalised(Layout(layout.shape, (*row, *rest), threads))
    return Matrices(rows, count, each, elements, not is_plain)


def _cut(digits: Sequence[Digit], extent: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """Return the digits of a number modulo `extent`, and those of the rest.

    The first do not cover `extent` where a digit does not divide what is left of it.
    """
    taken: list[Digit] = []
    for k, digit in enumerate(digits):
        part = math.gcd(digit.extent, extent)
        taken.append(Digit(part, digit.axis, digit.stride))
        extent //= part
        left = digit.extent // part
        if left > 1 or extent == 1:
            over = (Digit(left, digit.axis, digit.stride * part),) if left > 1 else ()
            return tuple(taken), (*over, *digits[k + 1 :])
    return tuple(taken), ()


def _covers(digits: Sequence[Digit], extent: int) -> bool:
    return math.prod(d.extent for d in digits) == extent


def _joined(layout: Layout, digits: Sequence[Digit]) -> tuple[Digit, ...]:
    return normalised(Layout(layout.shape, tuple(digits), ())).registers
