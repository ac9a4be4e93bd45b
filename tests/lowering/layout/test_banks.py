"""Bank conflicts, counted from addresses."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.lowering.layout.banks import conflicts_of, row_major_conflicts
from astdsl.lowering.layout.registers import blocked, wgmma_accumulator

LANES = np.arange(32, dtype=np.int64)


@pytest.mark.parametrize(
    ("addresses", "width", "passes"),
    [
        (LANES * 4, 4, 1),  # neighbouring words
        (LANES * 8, 4, 2),  # every other word
        (LANES * 128, 4, 32),  # one bank
        (LANES * 0, 4, 1),  # one word, read by all
        (LANES * 16, 16, 1),  # neighbouring vectors, in four parts
        (LANES * 128, 16, 8),
        (LANES * 1, 1, 1),  # bytes of the same words
        (LANES * 132, 4, 1),  # padded rows
    ],
)
def test_lanes_that_meet_in_a_bank_wait_for_each_other(
    addresses: np.ndarray[tuple[int], np.dtype[np.int64]], width: int, passes: int
) -> None:
    assert conflicts_of(addresses, width) == passes


def test_a_coalesced_tile_has_none_and_an_accumulator_has_some() -> None:
    shape = (64, 64)
    assert row_major_conflicts(blocked(shape, 128, 4), shape, 4) == 1
    assert row_major_conflicts(wgmma_accumulator(shape, 128), shape, 4) == 4
