"""Scratch of a call: padded rows, aligned, and never without memory."""

from __future__ import annotations

import pytest

from astdsl.ir.dtypes import DType, f16, f32, i64, u8
from astdsl.ir.launch import Scratch
from astdsl.ir.types import TMA_ALIGN_BYTES
from astdsl.runtime.classes import classify
from astdsl.runtime.scratch import scratch_argument, scratch_array
from astdsl.source import NOWHERE


def scratch(dtype: DType) -> Scratch:
    return Scratch("GMEM", (), dtype, NOWHERE)


@pytest.mark.parametrize("dtype", [u8, f16, f32, i64], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 1), (1, 1), (4, 8)])
def test_tma_can_describe_scratch_of_any_extents(shape: tuple[int, ...], dtype: DType) -> None:
    argument = scratch_argument(scratch(dtype), shape)
    assert argument.geometry is not None
    assert classify(argument.geometry).tma
    array = scratch_array(argument)
    assert array.shape == shape
    assert array.strides == tuple(s * dtype.bytes for s in argument.geometry.strides)
    assert array.__array_interface__["data"][0] % TMA_ALIGN_BYTES == 0


def test_rows_are_padded_and_planes_follow_each_other() -> None:
    geometry = scratch_argument(scratch(f32), (2, 3, 5)).geometry
    assert geometry is not None
    assert geometry.strides == (24, 8, 1)


def test_an_axis_without_elements_still_has_memory() -> None:
    argument = scratch_argument(scratch(f32), (0, 5))
    assert argument.geometry is not None
    assert argument.geometry.shape == (0, 5)
    assert scratch_array(argument).shape == (1, 5)
