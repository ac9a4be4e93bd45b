"""Offsets past 2**31 are exact: arrays that are not there, but for the window that is touched."""

from __future__ import annotations

# Annotations of kernels are arrays, which a type checker takes for no types.
from typing import Any

import numpy as np
import pytest

from astdsl import GMEM, In, Out, ds, f32, i8, i64, kernel, parallel, pipeline
from astdsl.emulator.arguments import VirtualBuffer
from astdsl.emulator.device import run
from astdsl.errors import DeviceError
from astdsl.ir.dtypes import DType
from astdsl.ir.launch import DimSlot, PointerSlot, ScalarSlot, StrideSlot
from astdsl.runtime.arrays import ArrayView

BASE = 1 << 44


@kernel
def pick(x: In["M N"], o: Out["4 16"], i: i64 = 0, j: i64 = 0):
    o[...] = x[ds(i, 4), ds(j, 16)]


def picked(shape: tuple[int, int], strides: tuple[int, int], dtype: DType, i: int, j: int) -> Any:
    """Run `pick` on an array of which only the window at (i, j) has memory."""
    x = ArrayView(BASE, shape, strides, dtype, False, None)
    o = np.zeros((4, 16), dtype.numpy)
    lowered = pick.lower(x, o)
    plan = lowered.plan
    size = dtype.bytes
    wanted = np.arange(64).reshape(4, 16).astype(dtype.numpy)
    rows = {((i + r) * strides[0] + j * strides[1]) * size: wanted[r] for r in range(4)}
    encode = {
        PointerSlot: lambda s: VirtualBuffer(BASE, rows) if s.param == 0 else o,
        DimSlot: lambda s: (shape if s.param == 0 else o.shape)[s.axis],
        StrideSlot: lambda s: (strides if s.param == 0 else (16, 1))[s.axis],
        ScalarSlot: lambda s: (i, j)[s.param - 2],
    }
    given = [encode[type(slot)](slot) for slot in plan.entries[0].slots]
    entry = plan.entries[0]
    run(lowered.ptx, entry.name, (1, 1, 1), (entry.threads, 1, 1), given)
    return o, wanted, lowered


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "i", "j"),
    [
        ((70_000, 70_000), (70_001, 1), f32, 69_990, 69_980),
        ((2**33, 32), (33, 1), i8, 2**33 - 4, 16),
        ((8, 16), (2**31 + 1, 1), f32, 4, 0),
        ((8, 16), (2**29 + 1, 1), f32, 4, 0),
        ((16, 2**32 + 1), (2**32 + 1, 1), i8, 8, 2**32 - 15),
    ],
    ids=["many elements", "many rows", "long stride", "long stride in bytes", "long row"],
)
def test_offsets_past_32_bits_are_exact(
    shape: tuple[int, int], strides: tuple[int, int], dtype: DType, i: int, j: int
) -> None:
    o, wanted, lowered = picked(shape, strides, dtype, i, j)
    np.testing.assert_array_equal(o, wanted)
    assert "64-bit offsets" in lowered.explain()


def test_offsets_that_fit_32_bits_are_exact_up_to_the_last_byte() -> None:
    o, wanted, lowered = picked((2**16, 2**15 - 1), (2**15 - 1, 1), i8, 2**16 - 4, 2**15 - 17)
    np.testing.assert_array_equal(o, wanted)
    assert "32-bit offsets" in lowered.explain()


@kernel
def in_vast_scratch(x: In[f32, "4"], o: Out[f32, "4"], *, n):
    scratch = GMEM((n, n), f32)
    with pipeline(1):
        scratch[0, 0:4] = x[...]
    with pipeline(1):
        o[...] = scratch[0, 0:4]


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("n", [1 << 28, 1 << 31])
def test_scratch_that_no_machine_has_memory_for_is_refused(device: str, n: int) -> None:
    with pytest.raises(DeviceError, match="no memory for `GMEM`") as caught:
        in_vast_scratch.on(device)(np.ones(4, np.float32), n=n)
    assert caught.value.places
    assert caught.value.help


@kernel
def outer(x: In[f32, "M"], o: Out[f32, "M M"]):
    with parallel(x.shape[0]) as i:
        o[i, 0:4] = x[0:4]


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_output_that_no_machine_has_memory_for_is_refused(device: str) -> None:
    x = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (1 << 28,), (0,))
    with pytest.raises(DeviceError, match=r"no memory for the omitted output `o`") as caught:
        outer.on(device)(x)
    assert caught.value.places
    assert "pass `o`" in caught.value.help


@kernel
def touched(x: In[f32, "4"], o: Out[f32, "M 4"]):
    o[0] = x[...]


def test_an_output_that_spans_more_than_can_be_noted_is_refused() -> None:
    memory = np.ones(8, np.float32)  # what is read lies before the output, not among its rows
    far = np.lib.stride_tricks.as_strided(memory[4:], (2, 4), (1 << 47, 4))
    with pytest.raises(DeviceError, match="spans 140737488355344 bytes") as caught:
        touched.on("emulator")(memory[:4], far)
    assert "closer together" in caught.value.help
