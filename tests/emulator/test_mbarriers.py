"""Tests of the mbarrier object (PTX ISA 9.7.13.15)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from astdsl.emulator.mbarriers import LIMIT, BarrierMisuse, Mbarriers


def a(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def made(count: int, blocks: int = 1) -> Mbarriers:
    barriers = Mbarriers(blocks)
    every = np.arange(blocks)
    barriers.init(every, np.full(blocks, 64), np.full(blocks, count))
    return barriers


def complete(barriers: Mbarriers, parity: int, block: int = 0) -> bool:
    return bool(barriers.is_complete(a(block), a(64), a(parity))[0])


def test_a_fresh_barrier_is_complete_for_parity_1_only() -> None:
    barriers = made(1)
    assert complete(barriers, 1)
    assert not complete(barriers, 0)


def test_a_phase_completes_at_the_last_arrival() -> None:
    barriers = made(2)
    barriers.arrive(a(0), a(64), a(1))
    assert not complete(barriers, 0)
    barriers.arrive(a(0), a(64), a(1))
    assert complete(barriers, 0)
    assert barriers.state(0, 64)[1:4] == (1, 2, 2)


def test_a_phase_waits_for_its_bytes() -> None:
    barriers = made(1)
    barriers.expect_bytes(a(0), a(64), a(48))
    barriers.arrive(a(0), a(64), a(1))
    barriers.complete_bytes(a(0), a(64), a(32))
    assert not complete(barriers, 0)
    assert "48 bytes expected and 32 arrived" in str(barriers.state(0, 64))
    barriers.complete_bytes(a(0), a(64), a(16))
    assert complete(barriers, 0)
    assert "0 bytes expected and 0 arrived" in str(barriers.state(0, 64))


def test_bytes_may_arrive_before_they_are_expected() -> None:
    barriers = made(1)
    barriers.complete_bytes(a(0), a(64), a(32))
    barriers.expect_bytes(a(0), a(64), a(32))
    assert not complete(barriers, 0)
    barriers.arrive(a(0), a(64), a(1))
    assert complete(barriers, 0)


def test_blocks_are_apart() -> None:
    barriers = made(1, blocks=3)
    barriers.arrive(a(1), a(64), a(1))
    assert [complete(barriers, 0, block) for block in range(3)] == [False, True, False]


def test_arrivals_of_one_instruction_add_up() -> None:
    barriers = made(128)
    tokens = barriers.arrive(np.zeros(128, np.int64), np.full(128, 64), np.ones(128, np.int64))
    assert complete(barriers, 0)
    assert (tokens == 0).all()


def test_a_token_passes_when_its_phase_is_over() -> None:
    barriers = made(1)
    token = barriers.arrive(a(0), a(64), a(1))
    assert barriers.has_passed(a(0), a(64), token)[0]
    assert not barriers.has_passed(a(0), a(64), token + np.uint64(1))[0]


def misuse(code: str, action: Callable[[], object]) -> BarrierMisuse:
    with pytest.raises(BarrierMisuse) as caught:
        action()
    assert caught.value.code == code
    return caught.value


def test_too_many_arrivals_are_reported_with_both_numbers() -> None:
    barriers = made(2)
    error = misuse("E244", lambda: barriers.arrive(a(0), a(64), a(3)))
    assert "3 arrivals, but the phase waits for 2 more (of 2)" in error.message


def test_repeated_arrivals_beyond_the_phase_count_for_the_next() -> None:
    barriers = made(1)
    misuse("E245", lambda: barriers.arrive(a(0, 0), a(64, 64), a(1, 1)))


def test_a_phase_that_nobody_saw_complete_may_not_be_arrived_on() -> None:
    barriers = made(1)
    barriers.arrive(a(0), a(64), a(1))
    misuse("E245", lambda: barriers.arrive(a(0), a(64), a(1)))
    assert complete(barriers, 0)
    barriers.arrive(a(0), a(64), a(1))


@pytest.mark.parametrize("count", [0, -1, LIMIT + 1])
def test_counts_out_of_range_are_refused(count: int) -> None:
    misuse("E240", lambda: made(count))
    misuse("E242", lambda: made(1).arrive(a(0), a(64), a(count)))


def test_transaction_counts_out_of_range_are_reported() -> None:
    error = misuse("E246", lambda: made(1).expect_bytes(a(0), a(64), a(LIMIT + 1)))
    assert f"{LIMIT + 1} bytes expected and 0 arrived" in error.message
    error = misuse("E246", lambda: made(1).complete_bytes(a(0), a(64), a(LIMIT + 1)))
    assert f"0 bytes expected and {LIMIT + 1} arrived" in error.message


def test_a_barrier_must_be_initialised() -> None:
    misuse("E243", lambda: Mbarriers(1).is_complete(a(0), a(64), a(0)))
    misuse("E243", lambda: made(1).is_complete(a(0), a(72), a(0)))


def test_an_invalidated_barrier_is_gone() -> None:
    barriers = made(1)
    barriers.invalidate(a(0), a(64))
    misuse("E243", lambda: complete(barriers, 1))
    barriers.init(a(0), a(64), a(5))
    assert barriers.state(0, 64).expected == 5


def test_a_live_barrier_is_not_initialised_again() -> None:
    barriers = made(1)
    misuse("E241", lambda: barriers.init(a(0), a(64), a(1)))


def test_barriers_are_aligned() -> None:
    misuse("E247", lambda: Mbarriers(1).init(a(0), a(60), a(1)))


def test_ordinary_accesses_that_touch_a_barrier_are_found() -> None:
    barriers = made(1, blocks=2)
    blocks = a(0, 0, 0, 1)
    assert barriers.overlaps(blocks, a(60, 56, 71, 64), 8).tolist() == [True, False, True, True]
    barriers.invalidate(a(1), a(64))
    assert not barriers.overlaps(a(1), a(64), 8)[0]


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "expect", "complete"]), st.integers(1, 3)), max_size=40
)


@given(st.integers(1, 4), STEPS)
def test_any_sequence_of_operations_keeps_to_the_phases(count: int, steps: Any) -> None:
    """A direct model of PTX ISA 9.7.13.15, in which somebody waits after every step."""
    barriers, pending, phase = made(count), count, 0
    due = came = 0
    for step, number in steps:
        if step == "arrive":
            arriving = min(number, pending)
            if arriving == 0:
                continue
            barriers.arrive(a(0), a(64), a(arriving))
            pending -= arriving
        elif step == "expect":
            barriers.expect_bytes(a(0), a(64), a(16 * number))
            due += 16 * number
        else:
            barriers.complete_bytes(a(0), a(64), a(16 * number))
            came += 16 * number
        if pending == 0 and due == came:
            phase, pending = phase + 1, count
            due = came = 0
        assert barriers.state(0, 64) == (64, phase, pending, count, due, came)
        assert complete(barriers, (phase + 1) & 1)
        assert not complete(barriers, phase & 1)
