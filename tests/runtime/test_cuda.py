"""Launching on a GPU, up to the calls of the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from astdsl.errors import DeviceError, WrongTarget
from astdsl.ir.core import Block, Module
from astdsl.ir.dtypes import bf16, f32
from astdsl.ir.launch import (
    DimSlot,
    Entry,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    Report,
    ScalarSlot,
    Scratch,
    StrideSlot,
)
from astdsl.runtime import cuda
from astdsl.runtime.arrays import Where
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import Geometry
from astdsl.runtime.driver import Driver
from astdsl.runtime.launch import Argument, Counts
from astdsl.source import NOWHERE
from tests.runtime.drivers import INVALID_VALUE, NO_DEVICE, StubApi

X, Y, A = (Where(name, NOWHERE) for name in "xya")
MODULE = Module(name="k", params=(), body=Block(), span=NOWHERE)
ROWS = Geometry((5, 8), (16, 1), f32, 16)


def plan(*slots: Any, target: str = "sm_90a", **more: Any) -> LaunchPlan:
    return LaunchPlan(target, (Entry("k", slots, 3, 128, 4096),), **more)


def loaded(
    api: StubApi, wanted: LaunchPlan, *arguments: Argument, cubin: bytes = b"cubin"
) -> cuda.CudaLauncher:
    return cuda.load(Driver(api), Artifact(MODULE, "ptx", wanted, cubin), arguments)


def on_gpu(where: Where, number: int = 0, geometry: Geometry = ROWS) -> Argument:
    return Argument(where, 0, "inout", f32, geometry, device=number)


def test_the_driver_says_which_gpus_there_are() -> None:
    gpus = Driver(StubApi()).gpus
    assert [(g.ordinal, g.name, g.target) for g in gpus] == [
        (0, "Stub GPU", "sm_90a"), (1, "Stub GPU", "sm_90a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "gpus", "failing", "reason"),
    [
        ((9, 0), 1, {}, ""),
        ((8, 0), 1, {}, "Stub GPU has compute capability 8.0; 9.0 and 10.0 are supported"),
        ((9, 0), 0, {}, "the driver finds no GPU"),
        ((9, 0), 1, {"cuInit": NO_DEVICE}, "no CUDA-capable device is detected"),
    ],
)
def test_the_driver_says_why_no_gpu_can_be_used(
    capability: tuple[int, int], gpus: int, failing: dict[str, int], reason: str
) -> None:
    api = StubApi(capability=capability)
    api.gpus, api.failing = gpus, failing
    said = Driver(api).why_not()
    assert reason in said
    assert bool(said) == bool(reason)


def test_an_error_of_the_driver_has_its_name_and_number() -> None:
    api = StubApi()
    api.failing["cuLaunchKernel"] = INVALID_VALUE
    launch = loaded(api, plan(PointerSlot(0)), on_gpu(X))
    with pytest.raises(DeviceError, match=r"invalid argument \[CUDA_ERROR_INVALID_VALUE, 1\]"):
        launch(Counts((3,), ()), [4096], [None])
    assert api.contexts == []


def test_every_kind_of_parameter_is_where_the_driver_reads_it() -> None:
    seen: list[Any] = []

    def run(name: str, grid: int, at: Sequence[int]) -> None:
        seen.append((name, grid, ctypes.c_uint64.from_address(at[0]).value))
        seen.append([ctypes.c_int64.from_address(at[k]).value for k in (1, 2)])
        seen.append(ctypes.c_uint16.from_address(at[3]).value)
        seen.append(ctypes.string_at(at[4]).decode())
        assert at[4] % 64 == 0

    slots = (
        PointerSlot(0), DimSlot(0, 0), StrideSlot(0, 0), ScalarSlot(1, bf16),
        MapSlot(0, (1, 0), (8, 4), 128),
    )  # fmt: skip
    api = StubApi(run, parameters=len(slots))
    scalar = Argument(A, 1, "scalar", bf16)
    launch = loaded(api, plan(*slots), on_gpu(X), scalar)
    launch(Counts((3,), ()), [4096, 1.5], [None, 1.5])
    one_and_a_half = 0x3FC0
    assert seen == [
        ("k", 3, 4096), [5, 16], one_and_a_half, "2 4096 (8, 5) (64,) (8, 4)",
    ]  # fmt: skip
    (call,) = api.named("cuLaunchKernel")
    assert call[1:9] == (3, 1, 1, 128, 1, 1, 4096, 0)


def test_numbers_that_compare_equal_are_told_apart() -> None:
    seen: list[int] = []

    def run(name: str, grid: int, at: Sequence[int]) -> None:
        seen.append(ctypes.c_uint32.from_address(at[0]).value)

    scalar = Argument(A, 1, "scalar", f32)
    launch = loaded(StubApi(run, parameters=1), plan(ScalarSlot(1, f32)), on_gpu(X), scalar)
    for number in (0.0, -0.0, 0.0):
        launch(Counts((3,), ()), [4096, number], [None, number])
    assert seen == [0, 1 << 31, 0]


def test_a_launch_for_other_arrays_passes_their_addresses() -> None:
    seen: list[int] = []

    def run(name: str, grid: int, at: Sequence[int]) -> None:
        seen.append(ctypes.c_uint64.from_address(at[0]).value)

    launch = loaded(StubApi(run, parameters=1), plan(PointerSlot(0)), on_gpu(X))
    for address in (4096, 4096, 8192, 4096):
        launch(Counts((3,), ()), [address], [None])
    assert seen == [4096, 4096, 8192, 4096]


def test_a_tensor_map_is_encoded_once_for_each_address() -> None:
    api = StubApi(parameters=1)
    launch = loaded(api, plan(MapSlot(0, (1, 0), (8, 4), 0)), on_gpu(X))
    for address in (4096, 8192, 4096, 4096):
        launch(Counts((3,), ()), [address], [None])
    assert [call[2] for call in api.named("cuTensorMapEncodeTiled")] == [4096, 8192]


def test_a_launch_of_no_blocks_calls_nothing() -> None:
    api = StubApi(parameters=1)
    loaded(api, plan(PointerSlot(0)), on_gpu(X))(Counts((0,), ()), [4096], [None])
    assert api.named("cuLaunchKernel") == []


def test_the_gpu_is_that_of_the_arrays_and_the_callers_context_comes_back() -> None:
    api = StubApi(lambda *_: pushed.append(list(api.contexts)), parameters=1)
    pushed: list[Any] = []
    api.contexts.append("the caller's")
    loaded(api, plan(PointerSlot(0)), on_gpu(X, 1))(Counts((3,), ()), [4096], [None])
    assert pushed == [["the caller's", "context 1"]]
    assert api.contexts == ["the caller's"]


def test_arrays_on_two_gpus_are_refused() -> None:
    with pytest.raises(DeviceError, match="on different GPUs"):
        loaded(StubApi(), plan(PointerSlot(0)), on_gpu(X, 0), on_gpu(Y, 1))


def test_code_for_another_gpu_is_refused() -> None:
    with pytest.raises(WrongTarget, match="compiled for sm_100a, and GPU 0"):
        loaded(StubApi(), plan(PointerSlot(0), target="sm_100a"), on_gpu(X))


@pytest.mark.parametrize(("cubin", "image"), [(b"cubin", b"cubin"), (b"", b"ptx\0")])
def test_the_driver_loads_the_cubin_or_else_the_ptx(cubin: bytes, image: bytes) -> None:
    api = StubApi()
    loaded(api, plan(PointerSlot(0)), on_gpu(X), cubin=cubin)
    assert api.named("cuModuleLoadData") == [(image,)]


def test_arrays_of_the_host_are_copied_there_and_back() -> None:
    def run(name: str, grid: int, at: Sequence[int]) -> None:
        x, y = (ctypes.c_uint64.from_address(place).value for place in at)
        assert x % 16 == memory.ctypes.data % 16
        rows = np.ctypeslib.as_array(ctypes.cast(x, ctypes.POINTER(ctypes.c_float)), (5, 16))
        made = np.ctypeslib.as_array(ctypes.cast(y, ctypes.POINTER(ctypes.c_float)), (5, 8))
        made[...] = rows[:, :8] + 1

    memory = np.arange(80, dtype=np.float32).reshape(5, 16)
    x, y = memory[:, :8], np.zeros((5, 8), np.float32)
    api = StubApi(run, parameters=2)
    launch = loaded(
        api,
        plan(PointerSlot(0), PointerSlot(1)),
        Argument(X, 0, "in", f32, ROWS),
        Argument(Y, 1, "out", f32, Geometry((5, 8), (8, 1), f32, 16)),
    )
    launch(Counts((3,), ()), [x.ctypes.data, y.ctypes.data], [x, y])
    np.testing.assert_array_equal(y, x + 1)
    assert api.memory == {}


def test_scratch_is_taken_and_given_back() -> None:
    api = StubApi(parameters=1)
    scratch = Scratch("s", (7, 3), f32, NOWHERE)
    launch = loaded(api, plan(PointerSlot(1), scratch=(scratch,)), on_gpu(X))
    launch(Counts((3,), ((7, 3),)), [4096], [None])
    assert api.named("cuMemAllocAsync") == [((6 * 4 + 3) * 4, 0)]
    assert api.memory == {}


def test_what_blocks_say_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def run(name: str, grid: int, at: Sequence[int]) -> None:
        log = ctypes.c_uint64.from_address(at[0]).value
        words = np.ctypeslib.as_array(ctypes.cast(log, ctypes.POINTER(ctypes.c_uint32)), (11,))
        assert words[:2].tolist() == [2, 4 << 20]
        words[2:] = [9, 0, 0, 5, 0, 0, 0, 0x3F800000, 0]
        words[0] = 11

    api = StubApi(run, parameters=1)
    said = Report(("x is ", "\n"), (((), f32),), NOWHERE)
    launch = loaded(api, plan(PointerSlot(1), reports=(said,)), on_gpu(X))
    launch(Counts((3,), ()), [4096], [None])
    assert capsys.readouterr().out == "x is 1.0\n"
    assert api.memory == {}
