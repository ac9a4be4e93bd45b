"""Layouts whose registers are matrices of `ldmatrix` and `stmatrix`."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.lowering.layout.matrices import matrices_of
from astdsl.lowering.layout.registers import (
    Layout,
    blocked,
    splat,
    tmem_accumulator,
    wgmma_accumulator,
    wgmma_operand,
)

# A layout, which axis is contiguous, bytes of an element, matrices at once.
HELD = [
    (wgmma_accumulator((64, 64), 128), 1, 2, 4),
    (wgmma_accumulator((64, 64), 128), 0, 2, 4),
    (wgmma_accumulator((128, 24), 256), 1, 2, 2),
    (wgmma_accumulator((128, 24), 128), 0, 2, 2),
    (wgmma_operand((64, 64), 128, 4), 1, 1, 4),
    (wgmma_operand((64, 16), 128, 1), 1, 4, 4),
]


@pytest.mark.parametrize(("layout", "fast", "element_bytes", "count"), HELD)
def test_a_lane_holds_of_each_matrix_what_the_instruction_moves(
    layout: Layout, fast: int, element_bytes: int, count: int
) -> None:
    found = matrices_of(layout, fast, element_bytes)
    assert found is not None
    assert (found.count, found.each * element_bytes) == (count, 4)
    own, rows = np.array(layout.offsets), np.array(found.rows.offsets)
    for register in range(layout.register_count):
        number, place = divmod(register // found.each, count)
        for thread in range(128):
            warp, lane = divmod(thread, 32)
            row, column = lane // 4, lane % 4 * found.each + register % found.each
            if found.is_transposed:
                row, column = column, row
            giver = 32 * warp + 8 * place + row
            moved = found.rows.bases[giver] + rows[number * found.elements + column]
            assert (moved == layout.bases[thread] + own[register]).all()


@pytest.mark.parametrize(
    ("layout", "fast", "element_bytes"),
    [
        (blocked((64, 64), 128, 8), 1, 2),  # whole rows already
        (wgmma_accumulator((64, 64), 128), 1, 4),  # rows of 32 bytes
        (wgmma_accumulator((64, 64), 128), 0, 1),  # only 16 bits are transposed
        (wgmma_accumulator((64, 64), 128), 1, 8),
        (wgmma_accumulator((64, 20), 128), 1, 2),  # padding
        (tmem_accumulator((128, 64), 128), 1, 2),
        (splat((16, 16), 128), 1, 2),
    ],
)
def test_other_layouts_are_no_matrices(layout: Layout, fast: int, element_bytes: int) -> None:
    assert matrices_of(layout, fast, element_bytes) is None
