"""Every mistake of a call has a report that shows the parameters involved and the way out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from astdsl.errors import KernelError
from astdsl.runtime import devices
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.launch import Counts
from tests.goldens import Golden

KERNELS = """\
from astdsl import In, InOut, Out, cdiv, f32, i32, kernel, pipeline, tile

@kernel
def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=16):
    M, N = x.shape
    assert N % 4 == 0, "rows are whole vectors"
    with pipeline(cdiv(M, bm)) as i:
        o[tile(i, bm), 0:8] = x[tile(i, bm), 0:8] + y[tile(i, bm), 0:8]

@kernel
def scale(x: InOut[f32, "N"], count: i32):
    x[0:4] = x[0:4] * count

@kernel
def malformed(x: In[f32, "M, N"]):
    pass

@kernel
def twice(x: In[f32, "8"], o: Out[f32, "8"]):
    o[...] = x[...] * 2
"""


class OnGpu:
    """An array in memory of a GPU, which the device of these tests does not read."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (8,), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3,
    }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def matrix(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def aliasing(k: Any) -> None:
    x = matrix(16, 8)
    k.add(x, x, x)


def out_of_bounds(k: Any) -> None:
    """Take the memory away from an argument: a fault that no correct kernel has."""
    emulator = devices.DEVICES["emulator"]
    x = matrix(8)
    lowered = k.twice.lower(x)
    given = lowered._call.arguments
    artifact = Artifact(lowered.module, lowered.ptx, lowered.plan)
    launch = emulator.load(artifact, given)
    launch(Counts((1,), ()), [0, 0], [np.zeros(0, np.float32), matrix(8)])


# Name of the golden file: the mistake.
MISTAKES: dict[str, Callable[[Any], object]] = {
    "dims-disagree": lambda k: k.add(matrix(16, 8), matrix(12, 8)),
    "missing-argument": lambda k: k.add(matrix(16, 8)),
    "misspelt-constant": lambda k: k.add(matrix(16, 8), matrix(16, 8), bn=4),
    "no-array": lambda k: k.add(matrix(16, 8), [1, 2]),
    "read-only-output": lambda k: k.scale(np.broadcast_to(np.float32(0), (8,)), 1),
    "scalar-out-of-range": lambda k: k.scale(matrix(8), 2**40),
    "stride-inside-an-element": lambda k: k.scale(
        np.zeros(8, [("a", np.int8), ("x", np.float32)])["x"], 1
    ),
    "aliased-output": aliasing,
    "failed-assertion": lambda k: k.add.on("emulator")(matrix(16, 9), matrix(16, 9)),
    "failed-assertion-of-the-reference": lambda k: k.add(matrix(16, 9), matrix(16, 9)),
    "malformed-dims": lambda k: k.malformed(matrix(2, 2)),
    "unknown-device": lambda k: k.twice.on("gpu")(matrix(8)),
    "unavailable-device": lambda k: k.twice(OnGpu()),
    "unknown-target": lambda k: k.twice.on("emulator", target="sm_90")(matrix(8)),
    "fault-of-the-device": out_of_bounds,
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Import the kernels from a file of their own, so that lines stay where they are."""
    path = tmp_path_factory.mktemp("calls") / "kernels.py"
    path.write_text(KERNELS)
    module = ModuleType("kernels_of_call_reports")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(KERNELS, str(path), "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.parametrize("name", MISTAKES)
def test_the_report_of(
    name: str, kernels: ModuleType, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTDSL_DEVICE", "reference")
    with pytest.raises(KernelError) as caught:
        MISTAKES[name](kernels)
    report = caught.value.report()
    assert str(Path(kernels.__file__ or "").parent) not in report
    assert caught.value.help or caught.value.places
    golden(_without_addresses(report) + "\n", f"call/{name}.txt")


def _without_addresses(report: str) -> str:
    """Leave out what differs between runs and with LLVM: addresses, registers, PTX lines."""
    report = re.sub(r"0x[0-9a-f]+", "0x...", report)
    report = re.sub(r"PTX line \d+: [^;]*;+", "PTX line ...;", report)
    return re.sub(r"[+-]\d+ bytes from the (start|end)", "... bytes away", report)
