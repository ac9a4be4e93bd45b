"""The shortest way to a launch: what the written check accepts, and what it leaves to others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, f32, i32, kernel
from astdsl.errors import AliasedOutput
from astdsl.runtime import native
from astdsl.runtime.arrays import Where
from astdsl.runtime.classes import Geometry
from astdsl.runtime.launch import Argument, Launch, describe
from astdsl.runtime.native import Check, native_check
from astdsl.runtime.recent import NATIVE_AFTER_CALLS, check_of, recent_of
from astdsl.source import NOWHERE

X, Y, N = (Where(name, NOWHERE) for name in "xyn")
EIGHT = Geometry((8,), (1,), f32, 16)
COPY = (
    Argument(X, 0, "in", f32, EIGHT),
    Argument(Y, 1, "out", f32, EIGHT),
    Argument(N, 2, "scalar", f32),
)


def array(n: int = 8) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.float32)


def launch_of() -> Launch:
    return Launch(COPY, (), [1], lambda *_: None, passed=3)


@pytest.fixture(params=["written", "native"])
def written_for(request: pytest.FixtureRequest) -> Callable[..., Check]:
    """Make the check for calls like one with some objects, in Python and in machine code."""

    def make(*objects: Any) -> Check:
        launch = launch_of()
        values, _ = describe(list(objects), [], [X, Y, N])
        if request.param == "native":
            check = native_check(objects, values, launch.written, tuple(launch.apart))
        else:
            check = check_of(objects, values, launch)
        assert check is not None, "NumPy's arrays and numbers have a check"
        return check

    return make


def test_arrays_of_the_same_geometry_are_accepted_with_their_addresses(
    written_for: Callable[..., Check],
) -> None:
    check, x, y = written_for(array(), array(), 3), array(), array()
    assert check([x, y, 4]) == [x.ctypes.data, y.ctypes.data, 4]


@pytest.mark.parametrize(
    "other",
    [
        array(9),
        np.zeros(16, np.float32)[::2],
        np.zeros(8, np.int32),
        np.zeros(9, np.float32)[1:],
        array().reshape(2, 4),
        np.ma.zeros(8, np.float32),
        3.0,
        None,
    ],
    ids=["shape", "strides", "dtype", "alignment", "rank", "subclass", "number", "None"],
)
@pytest.mark.parametrize("position", [0, 1])
def test_whatever_has_another_key_is_not_accepted(
    other: Any, position: int, written_for: Callable[..., Check]
) -> None:
    objects: list[Any] = [array(), array(), 3]
    check = written_for(*objects)
    objects[position] = other
    assert check(objects) is None


def test_an_output_that_is_read_only_is_not_accepted(written_for: Callable[..., Check]) -> None:
    check, y = written_for(array(), array(), 3), array()
    y.flags.writeable = False
    assert check([array(), y, 3]) is None


def test_a_number_of_another_kind_is_not_accepted(written_for: Callable[..., Check]) -> None:
    check = written_for(array(), array(), 3)
    assert check([array(), array(), 3.0]) is None
    assert check([array(), array(), True]) is None


@pytest.mark.parametrize("start", range(0, 17, 4))
def test_an_output_near_an_input_is_accepted_only_where_they_are_apart(
    start: int, written_for: Callable[..., Check]
) -> None:
    memory = np.zeros(64, np.float32)
    check, x = written_for(array(), array(), 3), memory[16:24]
    y = memory[8 + start : 16 + start]
    assert (check([x, y, 3]) is None) == np.shares_memory(x, y)


def test_an_array_that_changes_its_shape_in_place_is_seen(
    written_for: Callable[..., Check],
) -> None:
    check, x = written_for(array(), array(), 3), array()
    assert check([x, array(), 3]) is not None
    x.resize((2, 4), refcheck=False)
    assert check([x, array(), 3]) is None


def test_arrays_of_other_libraries_have_no_check() -> None:
    launch = Launch(COPY, (), [1], lambda *_: None, passed=3)
    assert check_of([object(), array(), 3], [0, 0, 3], launch) is None


def test_a_call_of_another_number_of_objects_is_not_accepted_by_machine_code() -> None:
    objects = [array(), array(), 3]
    values, _ = describe(list(objects), [], [X, Y, N])
    check = native_check(objects, values, frozenset(), ())
    assert check is not None
    assert check([*objects, 3]) is None
    assert check(objects[:2]) is None


def test_machine_code_keeps_the_dtypes_that_it_compares_by_address() -> None:
    """A dtype of a user could be freed, and another one made at its address."""
    kind = np.dtype([("a", "f4")])
    before = sys.getrefcount(kind)
    given = np.zeros(8, kind)
    check = native_check([given], [given.ctypes.data], frozenset(), ())
    del given
    assert sys.getrefcount(kind) > before
    assert check is not None


def test_machine_code_takes_over_when_a_launch_comes_often() -> None:
    objects = [array(), array(), 3]
    values, _ = describe(list(objects), [], [X, Y, N])
    recent = recent_of(objects, values, None, launch_of())
    assert recent is not None
    first = recent._check
    for _ in range(NATIVE_AFTER_CALLS - 1):
        assert recent.known(objects) == values
    assert recent._check is first
    recent.known(objects)
    assert recent._check is not first
    assert recent.known(objects) == values
    assert recent.known([objects[0], objects[0], 3]) is None


def test_without_the_layout_that_it_reads_there_is_no_machine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_works", lambda: False)
    objects = [array(), array(), 3]
    assert native_check(objects, [0, 0, 3], frozenset(), ()) is None


def add_of() -> Any:
    @kernel
    def add(x: In[f32, "N"], o: Out[f32, "N"], n: i32 = 1):
        o[...] = x[...] + n

    return add


@pytest.mark.parametrize("passed", [True, False], ids=["passed", "omitted"])
def test_calls_after_the_first_see_their_own_arrays_and_scalars(passed: bool) -> None:
    add = add_of().on("reference")
    for n in range(4):
        x, o = np.full(8, n, np.float32), np.zeros(8, np.float32)
        found = add(x, o, n) if passed else add(x)
        np.testing.assert_array_equal(found, x + (n if passed else 1))


def test_aliases_are_refused_in_every_call() -> None:
    add, x = add_of().on("reference"), np.zeros(8, np.float32)
    for _ in range(3):
        add(x, np.zeros(8, np.float32))
        with pytest.raises(AliasedOutput):
            add(x, x)


def test_another_device_does_not_get_the_launch_of_the_last() -> None:
    add, x = add_of(), np.zeros(8, np.float32)
    for device in ("reference", "reference", "emulator", "reference"):
        np.testing.assert_array_equal(add.on(device)(x), x + 1)
    assert len(add._plain.launches) == 2
