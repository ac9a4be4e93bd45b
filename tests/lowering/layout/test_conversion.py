"""Plans between register layouts: every element arrives, by moves, shuffles or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.lowering.layout.conversion import (
    MOST_SHUFFLES,
    Exchange,
    Moves,
    Plan,
    element_numbers,
    register_moves,
)
from astdsl.lowering.layout.registers import (
    REPLICATED,
    Digit,
    Layout,
    blocked,
    normalised,
    wgmma_accumulator,
)

THREADS = 128
LANES = 32
Register = tuple[int, ...]


class SimulatedLanes:
    """A register is what all threads hold in it; tables repeat in every warp."""

    def picked(self, choices: Sequence[Register], numbers: Sequence[int]) -> Register:
        return tuple(choices[numbers[t % LANES]][t] for t in range(THREADS))

    def heard(self, value: Register, lanes: Sequence[int]) -> Register:
        return tuple(value[t - t % LANES + lanes[t % LANES]] for t in range(THREADS))


def arrives(plan: Plan, source: Layout, target: Layout) -> bool:
    held = [tuple(column) for column in element_numbers(source).T.tolist()]
    found = np.array(plan.applied(held, (-1,) * THREADS, SimulatedLanes())).T
    wanted = element_numbers(target)
    return bool(((found == wanted) | (wanted < 0)).all())


def neighbours(columns: int, count: int) -> Layout:
    """Return the rows of an accumulator with `count` neighbouring columns in a thread."""
    registers = (Digit(count, 1, 1), Digit(2, 0, 8), Digit(columns // (4 * count), 1, 4 * count))
    lanes = (Digit(4, 1, count), Digit(8, 0, 1), Digit(4, 0, 16))
    return normalised(Layout((64, columns), registers, lanes))


@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (1, 4), (4, 1), (1, 2)])
def test_what_stays_in_a_quad_is_shuffled(counts: tuple[int, int]) -> None:
    source, target = (neighbours(16, count) for count in counts)
    plan = register_moves(source, target)
    assert isinstance(plan, Exchange)
    assert arrives(plan, source, target)


def test_an_accumulator_of_few_columns_takes_few_shuffles() -> None:
    plan = register_moves(wgmma_accumulator((64, 16), THREADS), neighbours(16, 4))
    assert isinstance(plan, Exchange)
    assert len(plan.sends) <= 8
    assert str(plan) == f"{len(plan.sends)} shuffles"


def test_what_a_thread_holds_already_is_moved() -> None:
    source = Layout((4,), (Digit(4, 0, 1),), (Digit(THREADS, REPLICATED, 0),))
    plan = register_moves(source, blocked((4,), THREADS))
    assert isinstance(plan, Exchange | Moves)
    assert arrives(plan, source, blocked((4,), THREADS))


def test_what_crosses_warps_has_no_plan() -> None:
    assert register_moves(blocked((64, 64), THREADS), wgmma_accumulator((64, 64), THREADS)) is None


@st.composite
def layouts_of_a_warp(draw: st.DrawFn) -> Layout:
    """Draw where bits of a number of 7 bits stand: 5 in the lane, 2 in the register."""
    order = draw(st.permutations(range(7)))
    digits = [Digit(2, 0, 1 << k) for k in order]
    threads = (*digits[2:], Digit(4, 0, 128))
    return normalised(Layout((512,), tuple(digits[:2]), threads))


@settings(max_examples=60, deadline=None)
@given(source=layouts_of_a_warp(), target=layouts_of_a_warp())
def test_any_permutation_in_a_warp_arrives(source: Layout, target: Layout) -> None:
    plan = register_moves(source, target)
    assert plan is not None
    assert arrives(plan, source, target)
    assert not isinstance(plan, Exchange) or len(plan.sends) <= MOST_SHUFFLES
