"""Ranges whose bounds only the call or the running kernel knows: Python's steps, none of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import DeviceError, In, Out, i32, i64, kernel, pipeline
from astdsl.errors import BadPipeline, FailedAssertion
from tests.witnesses import TARGETS, agree


@kernel
def steps_of_a_for(low: i32, high: i32, step: i32, o: Out[i64, "2"]):
    count, last = 0, -99
    for i in range(low, high, step):
        count, last = count + 1, i
    o[0], o[1] = count, last


@kernel
def steps_of_an_axis(low: i32, high: i32, step: i32, o: Out[i64, "2"]):
    count, last = 0, -99
    with pipeline(range(low, high, step)) as i:
        count, last = count + 1, i
    o[0], o[1] = count, last


@kernel
def steps_backwards(low: i32, high: i32, step: i32, o: Out[i64, "2"]):
    count, digits = 0, 0
    for i in reversed(range(low, high, step)):
        count, digits = count + 1, digits * 10 + i
    o[0], o[1] = count, digits


@kernel
def step_from_memory(x: In[i32, "N"], o: Out[i64, "1"]):
    count = 0
    for _ in range(0, 7, x[0]):
        count += 1
    o[0] = count


@kernel
def no_step_by_arithmetic(n: i32, o: Out[i64, "1"]):
    count = 0
    for _ in range(0, 7, (n // 7) * 0):
        count += 1
    o[0] = count


KERNELS = pytest.mark.parametrize(
    "stepping", [steps_of_a_for, steps_of_an_axis], ids=lambda k: k.__name__
)
BOUNDS = [(0, 5, 1), (5, 0, -1), (0, 10, 3), (10, 0, -3), (3, 3, 1), (0, -5, 1), (-4, 4, 7)]


@KERNELS
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_range_of_scalars_has_pythons_steps(stepping: Any, bounds: tuple[int, int, int]) -> None:
    found = agree(stepping, lambda: bounds)
    steps = [-99, *range(*bounds)]
    assert found.tolist() == [len(steps) - 1, steps[-1]]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_reversed_range_is_a_loop_too(bounds: tuple[int, int, int]) -> None:
    digits = 0
    for i in reversed(range(*bounds)):
        digits = digits * 10 + i
    assert agree(steps_backwards, lambda: bounds).tolist() == [len(range(*bounds)), digits]
    assert "For" in steps_backwards.lower(*bounds).ir


@KERNELS
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_step_of_0_is_refused_before_the_launch(device: str, target: str, stepping: Any) -> None:
    with pytest.raises(FailedAssertion, match="the step of a range is not 0") as caught:
        stepping.on(device, target=target)(0, 5, 0)
    assert "range(low, high, step)" in str(caught.value)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_step_of_0_in_memory_is_reported_where_the_range_stands(device: str) -> None:
    assert agree(step_from_memory, lambda: (np.array([2], np.int32),)).tolist() == [4]
    with pytest.raises(DeviceError, match="the step of a range is not 0") as caught:
        step_from_memory.on(device)(np.array([0], np.int32))
    assert "range(0, 7, x[0])" in str(caught.value)


def test_a_step_that_is_0_by_arithmetic_is_refused_while_tracing() -> None:
    with pytest.raises(BadPipeline, match="the step of a range is not 0"):
        no_step_by_arithmetic(3)
