"""Tests of which lanes stand for others, and of sets of lanes that stay spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator.convergence import first_threads, warps_of
from astdsl.emulator.lanes import Lanes
from tests.emulator.native.machines import machine_of, program_of

PLACES = [(32, 0), (64, 1)]


def machine(n_blocks: int, n_threads: int) -> Any:
    found = machine_of(program_of([]), n_blocks * n_threads, 0)
    found.n_blocks, found.n_threads = n_blocks, n_threads
    found.block_of = np.tile(np.arange(n_blocks), n_threads)
    found.thread_of = np.repeat(np.arange(n_threads), n_blocks)
    return found


def set_uniform(m: Any) -> None:
    for bits, row in PLACES:
        bank = m.registers.banks[bits]
        bank[row] = np.tile(bank[row, : m.n_blocks], m.n_threads)


def test_one_thread_stands_for_all_that_hold_the_same() -> None:
    m = machine(3, 64)
    set_uniform(m)
    found = first_threads(m, Lanes.span(6, 60), PLACES)
    assert found is not None
    assert found.sel == slice(6, 9)


@pytest.mark.parametrize("place", PLACES)
def test_a_thread_that_differs_stands_for_itself(place: tuple[int, int]) -> None:
    m = machine(3, 64)
    set_uniform(m)
    m.registers.banks[place[0]][place[1], 20] ^= np.uint8(1)
    assert first_threads(m, Lanes.span(6, 60), PLACES) is None
    assert first_threads(m, Lanes.span(21, 60), PLACES) is not None


@pytest.mark.parametrize(
    "lanes", [Lanes.span(0, 3), Lanes.span(1, 7), Lanes.of(np.arange(0, 9, 2))]
)
def test_lanes_that_are_no_whole_threads_stand_for_themselves(lanes: Lanes) -> None:
    m = machine(3, 64)
    set_uniform(m)
    assert first_threads(m, lanes, PLACES) is None


@pytest.mark.parametrize(
    "lanes",
    [
        Lanes.span(0, 3 * 128), Lanes.span(3 * 32, 3 * 96), Lanes.span(5, 100),
        Lanes.of(np.array([1, 7, 200, 201])), Lanes.span(0, 3 * 32 + 1),
    ],
)  # fmt: skip
def test_warps_are_named_once_each_block_by_block(lanes: Lanes) -> None:
    m = machine(3, 128)
    rows, numbers = warps_of(m, lanes)
    wanted = sorted({(int(m.block_of[i]), int(m.thread_of[i]) // 32) for i in lanes.index})
    assert list(zip(rows.tolist(), numbers.tolist(), strict=True)) == wanted


@pytest.mark.parametrize(
    ("first", "second"), [((0, 4), (4, 9)), ((4, 9), (0, 4)), ((0, 4), (6, 9)), ((0, 1), (1, 2))]
)
def test_a_union_of_spans_holds_the_lanes_of_both(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    found = Lanes.span(*first).union(Lanes.span(*second))
    assert found.index.tolist() == sorted([*range(*first), *range(*second)])
    assert found.contiguous == (first[1] == second[0] or second[1] == first[0])


@pytest.mark.parametrize("part", [(2, 5), (7, 10), (4, 6), (2, 10)])
def test_a_difference_of_spans_holds_the_other_lanes(part: tuple[int, int]) -> None:
    found = Lanes.span(2, 10).minus(Lanes.span(*part))
    assert found.index.tolist() == [i for i in range(2, 10) if not part[0] <= i < part[1]]
