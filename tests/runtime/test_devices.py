"""Devices: choosing one, and running a kernel on each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl.errors import DeviceError, DeviceUnavailable
from astdsl.ir import ops
from astdsl.ir.core import IN, OUT, Module
from astdsl.ir.dtypes import f32
from astdsl.ir.launch import (
    DimSlot,
    Entry,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    ScalarSlot,
    StrideSlot,
)
from astdsl.ir.types import scalar
from astdsl.runtime import devices as module
from astdsl.runtime.arrays import Where
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import geometry_of
from astdsl.runtime.devices import (
    _encode,
    device,
    devices,
    find_device,
    selected_device,
    selected_target,
    why_no_gpu,
)
from astdsl.runtime.launch import Argument, Launch, describe
from astdsl.runtime.libraries import view_of
from astdsl.source import NOWHERE
from tests.building import Maker, gmem

X, Y, A = (Where(name, NOWHERE) for name in "xya")


def test_devices_say_which_is_available_and_why_not() -> None:
    found = {d.name: d for d in devices()}
    assert set(found) == {"cuda", "emulator", "reference"}
    assert found["emulator"].available
    assert found["reference"].available
    assert found["cuda"].available != bool(found["cuda"].reason)


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRIVER_LIBRARY", "libnowhere.so.1")
    monkeypatch.setattr(module, "why_no_gpu", why_no_gpu.__wrapped__)
    found = {d.name: d for d in devices()}
    assert not found["cuda"].available
    assert "libnowhere.so.1 is not found" in str(found["cuda"])


@pytest.mark.parametrize(("reason", "chosen"), [("no GPU", "emulator"), ("", "cuda")])
def test_the_default_is_a_gpu_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, reason: str, chosen: str
) -> None:
    monkeypatch.delenv("ASTDSL_DEVICE", raising=False)
    monkeypatch.setattr(module, "why_no_gpu", lambda: reason)
    assert selected_device() == chosen


def test_the_environment_chooses_a_device_and_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTDSL_DEVICE", "reference")
    monkeypatch.setenv("ASTDSL_TARGET", "sm_100a")
    assert selected_device() == "reference"
    assert selected_target("reference") == "sm_100a"


def test_a_with_chooses_a_device_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTDSL_DEVICE", "emulator")
    with device("reference"):
        assert selected_device() == "reference"
    assert selected_device() == "emulator"


def test_a_misspelt_device_is_refused_with_the_right_name() -> None:
    with pytest.raises(DeviceUnavailable, match="did you mean `emulator`"):
        find_device("emulater")


def test_cuda_is_refused_by_name_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_no_gpu", lambda: "no GPU")
    with pytest.raises(DeviceUnavailable, match="`cuda` cannot be used: no GPU"), device("cuda"):
        pass


def scaled(rank: int = 1) -> Module:
    """y[0:4] = x[0:4] * a, for arrays of any length."""
    make = Maker(
        ("x", IN, gmem(f32, None)), ("y", OUT, gmem(f32, None)), ("a", "scalar", scalar(f32))
    )
    a = make.make(ops.Broadcast, make["a"], shape=(4,))
    product = make.make(ops.Multiply, make.load(make["x"], (0,), (4,)), a)
    make.store(make["y"], (0,), product)
    return Module(name="scaled", params=make.params, body=make.builder.finish(), span=make.span())


SCALED_PTX = """
.version 8.0
.target sm_90a
.address_size 64
.file 1 "FILE"

.visible .entry scaled(
    .param .u64 x, .param .u64 y, .param .f32 a, .param .u64 n, .param .u64 sx, .param .u64 sy
)
{
    .reg .b64 %rd<12>;
    .reg .b32 %r<2>;
    .reg .f32 %f<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd3, [n];
    ld.param.u64 %rd4, [sx];
    ld.param.u64 %rd5, [sy];
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %rd6, %r1;
    setp.ge.u64 %p1, %rd6, %rd3;
    @%p1 bra DONE;
    mul.lo.s64 %rd7, %rd6, %rd4;
    shl.b64 %rd7, %rd7, 2;
    add.s64 %rd8, %rd1, %rd7;
    mul.lo.s64 %rd9, %rd6, %rd5;
    shl.b64 %rd9, %rd9, 2;
    add.s64 %rd10, %rd2, %rd9;
    .loc 1 2 5
    ld.global.f32 %f2, [%rd8OFFSET];
    mul.rn.f32 %f3, %f2, %f1;
    st.global.f32 [%rd10], %f3;
DONE:
    ret;
}
"""
SLOTS = (
    PointerSlot(0), PointerSlot(1), ScalarSlot(2, f32), DimSlot(0, 0), StrideSlot(0, 0),
    StrideSlot(1, 0),
)  # fmt: skip


def arguments(x: Any, y: Any) -> tuple[Argument, ...]:
    return (
        Argument(X, 0, "in", f32, geometry_of(view_of(x, X))),
        Argument(Y, 1, "out", f32, geometry_of(view_of(y, Y))),
        Argument(A, 2, "scalar", f32, convert=float),
    )


def launch(name: str, x: Any, y: Any, a: float, ptx: str = SCALED_PTX) -> Any:
    plan = LaunchPlan("sm_90a", (Entry("scaled", SLOTS, 1, 32, 0),))
    artifact = Artifact(scaled(), ptx.replace("OFFSET", ""), plan)
    bound = arguments(x, y)
    loaded = find_device(name).load(artifact, bound)
    prepared = Launch(bound, (), [1], loaded, passed=3, plan=plan)
    objects = [x, y, a]
    values, arrays = describe(objects, [], [X, Y, A])
    return prepared(objects, arrays, values)


@pytest.mark.parametrize("name", ["reference", "emulator"])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_a_kernel_runs_on_arrays_of_any_stride(name: str, step: int) -> None:
    x = np.arange(4, dtype=np.float32)
    base = np.full(20, -1, np.float32)
    y = base[10:][::step][:4] if step > 0 else base[:10][::step][:4]
    assert launch(name, x, y, 2.0) is y
    np.testing.assert_array_equal(y, 2 * x)
    assert (base == -1).sum() == 16


@pytest.mark.parametrize("name", ["reference", "emulator"])
def test_a_kernel_reads_a_stride_of_0(name: str) -> None:
    y = launch(name, np.broadcast_to(np.float32(3), (4,)), np.zeros(4, np.float32), 2.0)
    assert y.tolist() == [6, 6, 6, 6]


def test_a_fault_of_the_emulator_names_the_kernel_line_and_the_ptx_line(tmp_path: Path) -> None:
    file = tmp_path / "scaled_kernel.py"
    file.write_text("def scaled(x, y, a):\n    y[...] = x[...] * a\n")
    ptx = SCALED_PTX.replace("FILE", str(file)).replace("OFFSET", "+1024")
    with pytest.raises(DeviceError) as caught:
        launch("emulator", np.zeros(4, np.float32), np.zeros(4, np.float32), 2.0, ptx)
    report = caught.value.report()
    assert "scaled_kernel.py:2:5" in report
    assert "y[...] = x[...] * a" in report
    assert "ld.global.f32 %f2, [%rd8+1024];" in report
    assert "outside of every allocation" in report


def test_a_kernel_that_reads_its_plain_output_is_a_fault() -> None:
    ptx = SCALED_PTX.replace("ld.global.f32 %f2, [%rd8OFFSET]", "ld.global.f32 %f2, [%rd10]")
    with pytest.raises(DeviceError, match=r"(?i)unwritten|uninitialised|undefined"):
        launch("emulator", np.zeros(4, np.float32), np.zeros(4, np.float32), 2.0, ptx)


def test_an_output_beside_an_input_in_one_buffer_is_no_fault() -> None:
    both = np.arange(8, dtype=np.float32)
    y = launch("emulator", both[::2], both[1::2], 2.0)
    assert y.tolist() == [0, 4, 8, 12]


def test_a_tensor_map_describes_the_array_fastest_axis_first() -> None:
    x = np.zeros((8, 32), np.float32)
    bound = (Argument(X, 0, "in", f32, geometry_of(view_of(x, X))),)
    address = x.__array_interface__["data"][0]
    slot = MapSlot(0, (1, 0), (16, 4), 64)
    made = _encode(slot, bound, [address], [x])
    assert (made.address, made.dims, made.strides_bytes) == (address, (32, 8), (128,))
    assert (made.box, made.swizzle.name) == ((16, 4), "B64")
    assert made.arrays[0] is x
