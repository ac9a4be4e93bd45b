"""What is said of a run: arguments, options and sizes of another kind are refused by their name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, TensorMap, VirtualBuffer, entries, run
from astdsl.emulator.arguments import Unwritten
from tests.emulator.asm import faulting
from tests.emulator.running import module

fault = faulting(run)
WORD = np.zeros(1, np.uint32)
LOW = 1 << 50


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x", "argument 0 is a str"),
        (None, "argument 0 is a NoneType"),
        ([1, 2], "argument 0 is a list"),
        (np.str_("1"), "argument 0 is a str_"),
        (np.datetime64("2020"), "argument 0 is a datetime64"),
        (TensorMap, "argument 0 is a type"),
        (0.5, "0.5 is no integer"),
        (np.float64(0.5), "0.5 is no integer"),
        (b"1234", "argument 0 has 4 bytes, the parameter 8"),
        (b"123456789", "argument 0 has 9 bytes, the parameter 8"),
        (np.array([None]), "argument 0 holds objects of Python"),
        (VirtualBuffer(1.5, {}), "a VirtualBuffer has an address"),  # type: ignore[arg-type]
        (VirtualBuffer(LOW, [WORD]), "arrays by offset"),  # type: ignore[arg-type]
        (VirtualBuffer(LOW, {0: [1]}), "are arrays of NumPy"),  # type: ignore[dict-item]
        (VirtualBuffer(LOW, {"a": WORD}), "lack an offset"),  # type: ignore[dict-item]
        (VirtualBuffer(LOW, {-4: WORD}), "overlap, or lack an offset"),
        (VirtualBuffer(LOW, {0: WORD, 2: WORD}), "overlap, or lack an offset"),
        (VirtualBuffer(-16, {0: WORD}), "from address 0 to 2**60"),
        (VirtualBuffer(1 << 60, {0: WORD}), "from address 0 to 2**60"),
    ],
)
def test_what_is_no_argument_of_a_kernel_is_refused(given: Any, said: str) -> None:
    assert said in fault("E203", module("", ["u64"]), "k", (1,), (1,), [given])


@pytest.mark.parametrize("given", [2**2000, 1e39, -1e39])
def test_a_number_that_is_too_large_for_a_float_is_no_infinity(given: Any) -> None:
    said = fault("E203", module("", ["f32"]), "k", (1,), (1,), [given])
    assert "does not fit into .f32" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("completion", "soon"), ("completion", -1), ("completion", True), ("order", "any"),
        ("order", 1.0), ("fp8_accumulate", "fast"), ("fp8_accumulate", 1), ("shared_bytes", -1),
        ("shared_bytes", 16.0), ("shared_bytes", "16"), ("shared_bytes", True), ("check", "no"),
        ("check", None), ("check", 1), ("strict", "x"), ("strict", 0), ("exclusive", "x"),
        ("crew_threads", 33), ("crew_threads", -32), ("crew_threads", None),
        ("uninitialised", None), ("uninitialised", 5),
    ],
)  # fmt: skip
def test_a_way_to_run_that_means_nothing_is_refused(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    said = fault("E203", module("", []), "k", (1,), (1,), [], **options)
    assert f"{name} is " in said
    assert f", not {value!r}\n" in said


@pytest.mark.parametrize("value", [np.zeros(2), {}])
@pytest.mark.parametrize("name", ["completion", "check", "strict", "shared_bytes"])
def test_an_object_is_no_way_to_run(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    said = fault("E203", module("", []), "k", (1,), (1,), [], **options)
    assert f", not a {type(value).__name__}\n" in said


@pytest.mark.parametrize("name", ["shared_bytes", "crew_threads"])
def test_integers_of_numpy_count(name: str) -> None:
    options: dict[str, Any] = {name: np.int64(32)}
    run(module("", []), "k", (1,), (1,), [], **options)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({0: b"x"}, "ptx is PTX as a string, not b'x'"),
        ({1: None}, "kernel is the name of a kernel, not None"),
        ({1: ["k"]}, "kernel is the name of a kernel, not a list"),
        ({4: None}, "args is a list of arguments, not None"),
        ({4: "x"}, "args is a list of arguments, not 'x'"),
        ({4: WORD}, "args is a list of arguments, not a ndarray"),
    ],
)
def test_a_run_has_a_text_a_name_and_arguments(changed: dict[int, Any], said: str) -> None:
    given = {0: module("", []), 1: "k", 2: (1,), 3: (1,), 4: [], **changed}
    assert said in fault("E203", *given.values())


@pytest.mark.parametrize("value", [1, None, np.int64(1), b"\x01", {1}, iter([1])])
@pytest.mark.parametrize("name", ["grid", "block", "cluster"])
def test_what_is_no_list_of_extents_is_refused(name: str, value: Any) -> None:
    given: dict[str, Any] = {"grid": (1,), "block": (1,), name: value}
    if name == "cluster" and value is None:
        return
    said = fault("E202", module("", []), "k", args=[], **given)
    assert "a grid, block or cluster is a list of integers, not " in said


def test_a_bool_is_no_extent() -> None:
    said = fault("E202", module("", []), "k", (True,), (1,), [])
    assert "one to three integers, not (True,)" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([5], "a list of arrays of NumPy, not 5"),
        ([[1]], "a list of arrays of NumPy, not a list"),
        ([np.zeros(3)], "is not among the arguments"),
        ([Unwritten(WORD, np.zeros(3, np.bool_))], "what an `Unwritten` keeps is not of"),
    ],
)
def test_what_counts_as_unwritten_are_arrays_of_the_launch(given: Any, said: str) -> None:
    text = module("", ["u64"])
    assert said in fault("E203", text, "k", (1,), (1,), [WORD], uninitialised=given)


def test_kernels_are_listed_of_a_text_alone() -> None:
    text: Any = b"x"
    with pytest.raises(DeviceFault, match="ptx is PTX as a string") as error:
        entries(text)
    assert error.value.code == "E203"
