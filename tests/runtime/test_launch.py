"""Prepared launches: keys, allocation, aliases, checks, grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from astdsl.errors import AliasedOutput, FailedAssertion
from astdsl.ir.dtypes import f32, i32
from astdsl.ir.launch import Check, Entry, LaunchPlan
from astdsl.runtime.arrays import Where
from astdsl.runtime.classes import Geometry
from astdsl.runtime.launch import Allocation, Argument, Counts, Launch, describe
from astdsl.source import NOWHERE

X, Y, N = (Where(name, NOWHERE) for name in "xyn")
EIGHT = Geometry((8,), (1,), f32, 16)


class Recorder:
    """A device's launcher that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[Any], list[Any]]] = []

    def __call__(self, counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        self.calls.append((counts.grids[0], list(values), list(arrays)))


def plan(grid: Any, *checks: Check) -> LaunchPlan:
    return LaunchPlan("sm_90a", (Entry("k", (), grid, 128, 0),), checks=checks)


def run(launch: Launch, *objects: Any) -> Any:
    given = list(objects)
    values, arrays = describe(given, [], [X, Y, N][: len(given)])
    return launch(given, arrays, values)


def array(n: int = 8) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.float32)


COPY = (Argument(X, 0, "in", f32, EIGHT), Argument(Y, 1, "out", f32, EIGHT))


def key_of(*objects: Any) -> list[Any]:
    key: list[Any] = []
    describe(list(objects), key, [X, Y, N])
    return key


def test_arrays_of_one_geometry_have_one_key() -> None:
    assert key_of(array(), 3) == key_of(array(), 4)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(9, np.float32),
        np.zeros(16, np.float32)[::2],
        np.zeros(8, np.int32),
        np.zeros(9, np.float32)[1:],
        np.broadcast_to(np.float32(0), (8,)),
        3.0,
        None,
    ],
    ids=["shape", "strides", "dtype", "alignment", "read-only", "number", "None"],
)
def test_what_a_launch_depends_on_is_in_the_key(other: Any) -> None:
    assert key_of(array()) != key_of(other)


def test_the_address_is_the_arrays_own() -> None:
    given = array(9)[1:][::-1]
    values, _ = describe([given], [], [X])
    assert values == [given.__array_interface__["data"][0]]


def test_an_output_that_is_passed_is_returned() -> None:
    launch, y = Launch(COPY, (), [1], Recorder(), passed=2, plan=plan(1)), array()
    assert run(launch, array(), y) is y


def test_an_omitted_output_is_allocated_and_returned() -> None:
    recorder = Recorder()
    made = (Allocation(Y, (8,), f32, 0),)
    y = run(Launch(COPY, made, [1], recorder, passed=1, plan=plan(1)), array())
    assert (y.shape, y.dtype) == ((8,), np.float32)
    assert recorder.calls[0][1][1] == y.__array_interface__["data"][0]


def test_several_outputs_are_a_tuple() -> None:
    both = (Argument(X, 0, "out", f32, EIGHT), Argument(Y, 1, "out", f32, EIGHT))
    x, y = array(), array()
    result = run(Launch(both, (), [0, 1], Recorder(), passed=2, plan=plan(1)), x, y)
    assert [id(o) for o in result] == [id(x), id(y)]


def test_no_output_returns_none() -> None:
    launch = Launch(COPY[:1], (), [], Recorder(), passed=1, plan=plan(1))
    assert run(launch, array()) is None


def test_arguments_reach_the_device_in_the_order_of_the_parameters() -> None:
    recorder, x, y = Recorder(), array(), array()
    swapped = (Argument(X, 1, "in", f32, EIGHT), Argument(Y, 0, "out", f32, EIGHT))
    run(Launch(swapped, (), [0], recorder, passed=2, plan=plan(1)), y, x)
    (call,) = recorder.calls
    assert call[2][0] is x
    assert call[2][1] is y


def test_defaults_come_after_what_is_passed() -> None:
    recorder = Recorder()
    arguments = (COPY[0], Argument(N, 1, "scalar", i32, convert=int))
    run(Launch(arguments, (), [], recorder, passed=1, defaults=[7], plan=plan(1)), array())
    assert recorder.calls[0][1][1] == 7


def test_an_output_that_shares_memory_is_refused_at_every_launch() -> None:
    launch, x = Launch(COPY, (), [1], Recorder(), passed=2, plan=plan(1)), array(16)
    run(launch, x[:8], x[8:])
    with pytest.raises(AliasedOutput):
        run(launch, x[:8], x[4:12])


def test_an_initial_value_fills_the_output_before_the_launch() -> None:
    filled = (Argument(Y, 0, "out", f32, EIGHT, initial=3.0),)
    y = run(Launch(filled, (), [0], Recorder(), passed=1, plan=plan(1)), array())
    assert (y == 3).all()


def test_a_grid_of_dims_is_counted_once_and_of_scalars_at_each_launch() -> None:
    recorder = Recorder()
    arguments = (COPY[0], Argument(N, 1, "scalar", i32, convert=int))
    grid = ("multiply", ("dim", 0, 0), ("scalar", 1))
    launch = Launch(arguments, (), [], recorder, passed=2, plan=plan(grid))
    for n in (2, 3):
        run(launch, array(), n)
    assert [grid for grid, _, _ in recorder.calls] == [16, 24]


def test_a_grid_without_blocks_launches_nothing() -> None:
    recorder = Recorder()
    y = array()
    result = run(Launch(COPY, (), [1], recorder, passed=2, plan=plan(0)), array(), y)
    assert recorder.calls == []
    assert result is y


def test_a_check_of_shapes_is_made_when_the_launch_is_prepared() -> None:
    check = Check(("eq", ("dim", 0, 0), 9), ("x has 9 elements",), NOWHERE)
    with pytest.raises(FailedAssertion, match="x has 9 elements"):
        Launch(COPY, (), [1], Recorder(), passed=2, plan=plan(1, check))


def test_a_check_of_scalars_is_made_at_each_launch() -> None:
    arguments = (COPY[0], Argument(N, 1, "scalar", i32, convert=int))
    check = Check(("gt", ("scalar", 1), 0), ("n is positive",), NOWHERE)
    launch = Launch(arguments, (), [], Recorder(), passed=2, plan=plan(1, check))
    run(launch, array(), 1)
    with pytest.raises(FailedAssertion, match="n is positive"):
        run(launch, array(), 0)
