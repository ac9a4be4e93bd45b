"""The rehearsal knows every operation, needs no data, and stays within its bound."""

from __future__ import annotations

import pytest

from astdsl.errors import ProtocolError
from astdsl.ir import ops
from astdsl.ir.core import IN, PURE, SCALAR, Module
from astdsl.ir.dtypes import f32
from astdsl.ir.evaluate import rehearsal
from astdsl.ir.evaluate.rehearsal import rehearse
from astdsl.ir.evaluate.table import EVALUATORS
from astdsl.ir.types import INDEX
from tests.building import Maker, gmem

# Operations whose outcome is not known without data or another order: a block ends there.
UNDECIDED = {ops.BarrierTest, ops.Launch, ops.SharedDot}
HUGE = (1 << 40, 1 << 20)


def test_every_operation_that_acts_is_rehearsed_or_ends_the_rehearsal() -> None:
    known = {*rehearsal._EXACT, *rehearsal._WITHOUT_DATA, *rehearsal._REGIONS}
    acting = {kind for kind in EVALUATORS if kind.effect != PURE}
    assert acting - known == UNDECIDED


def waiting(steps: int, *, condition: str = "") -> Module:
    """Return a kernel that waits for nothing after a loop; under a condition that data give."""
    m = Maker(("x", IN, gmem(f32, *HUGE)))
    barrier = m.make(ops.AllocBarrier, count=1, arrivals=1)
    zero, one, last = m.index(0), m.index(1), m.index(steps)
    with m.region(INDEX) as body:
        m.op(ops.BarrierArrive, barrier=barrier, index=zero)
        two = m.make(ops.Remainder, body.block.args[0], m.index(2))
        m.op(ops.BarrierWait, barrier=barrier, index=zero, parity=two)
        m.yields()
    m.op(ops.For, initial=(), low=zero, high=last, step=one, body=body.block)
    if condition:
        tile = m.load(m["x"], (0, 0), (1, 1))
        held = m.make(ops.Compare, m.make(ops.Reshape, tile, shape=()), m.full(0, f32),
                      predicate="gt")  # fmt: skip
        with m.region() as then:
            m.op(ops.BarrierWait, barrier=barrier, index=zero, parity=zero)
            m.yields()
        with m.region() as otherwise:
            m.yields()
        m.op(ops.If, condition=held, then=then.block, otherwise=otherwise.block)
    else:
        m.op(ops.BarrierWait, barrier=barrier, index=zero, parity=m.index(steps % 2))
    return m.module()


def test_a_wait_for_nothing_is_reported_whatever_the_size_of_the_arrays() -> None:
    with pytest.raises(ProtocolError, match="deadlock"):
        rehearse(waiting(4), {"x": HUGE})


def test_what_data_decide_ends_the_rehearsal() -> None:
    rehearse(waiting(4, condition="of data"), {"x": HUGE})


def test_what_comes_after_the_bound_is_left_out() -> None:
    rehearse(waiting(1000), {"x": HUGE}, 100)
    with pytest.raises(ProtocolError, match="deadlock"):
        rehearse(waiting(1000), {"x": HUGE}, 100_000)


def test_a_kernel_without_barriers_and_copies_is_not_rehearsed() -> None:
    m = Maker(("x", IN, gmem(f32, *HUGE)))
    m.load(m["x"], (0, 0), (1, 1))
    rehearse(m.module(), {})


def test_numbers_that_divide_by_zero_are_no_warning() -> None:
    m = Maker(("n", SCALAR, INDEX))
    barrier = m.make(ops.AllocBarrier, count=1, arrivals=1)
    with m.region(INDEX) as body:
        slot = m.make(ops.Remainder, body.block.args[0], m.index(0))
        m.op(ops.BarrierArrive, barrier=barrier, index=slot)
        m.yields()
    bounds = {"low": m.index(0), "high": m.index(1), "step": m.index(1)}
    m.op(ops.For, initial=(), **bounds, body=body.block)
    rehearse(m.module(), {})
