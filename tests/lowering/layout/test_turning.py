"""Tiles that are read from shared memory along one axis and written along the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, f32, kernel, spec, tile
from astdsl.ir.dtypes import DType, f64
from astdsl.lowering.layout.banks import conflicts_of
from astdsl.lowering.layout.offsets import swizzled_offsets
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.layout.shared import buffer_layout
from astdsl.lowering.layout.turning import turning
from astdsl.stdlib.elementwise import transpose
from tests.witnesses import TARGETS, agree

SHAPES = ((64, 64), (32, 128), (128, 32), (96, 160))


def passes(layout: Layout, dtype: DType, fast: int, width: int) -> int:
    """Return in how many passes the first warp's vectors along an axis are served."""
    buffer = buffer_layout(layout.shape, dtype, (fast, 1 - fast))
    return conflicts_of(swizzled_offsets(buffer, layout.bases[:32]), width * dtype.bytes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fast", [0, 1])
@pytest.mark.parametrize(("dtype", "read", "written"), [(f32, 4, 2), (f64, 2, 1)])
def test_lanes_meet_in_no_bank_on_either_side(
    shape: tuple[int, int], fast: int, dtype: DType, read: int, written: int
) -> None:
    layout = turning(shape, fast, dtype.bytes, 128)
    assert layout is not None
    assert passes(layout, dtype, 1 - fast, read) == passes(layout, dtype, fast, written) == 1


@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize("threads", [128, 256])
def test_every_element_is_held_once(element_bytes: int, threads: int) -> None:
    layout = turning((64, 128), 0, element_bytes, threads)
    assert layout is not None
    places = layout.bases[:, None] + np.array(layout.offsets)[None]
    numbers = (places * (128, 1)).sum(axis=2).ravel()
    assert sorted(numbers.tolist()) == list(range(64 * 128))


@pytest.mark.parametrize(
    ("shape", "element_bytes"),
    [((64, 48), 2), ((16, 64), 4), ((64, 64), 1), ((32, 32), 8)],
)
def test_other_tiles_are_not_turned_so(shape: tuple[int, int], element_bytes: int) -> None:
    threads = 1024 if element_bytes == 8 else 128
    assert turning(shape, 1, element_bytes, threads) is None


DTYPES = [(np.float16, 4, 4), (np.float32, 8, 16), (np.float64, 16, 32)]


@pytest.mark.parametrize(("dtype", "loads", "stores"), DTYPES)
def test_a_transpose_meets_in_no_bank(dtype: Any, loads: int, stores: int) -> None:
    x = np.arange(64 * 128).reshape(64, 128).astype(dtype)
    assert np.array_equal(agree(transpose, lambda: (x,)), x.T)
    for target in TARGETS:
        lowered = transpose.lower(x, target=target)
        assert "bank conflicts" not in lowered.explain()
        ptx = lowered.ptx
        assert ptx.count("\tld.shared") + ptx.count("ldmatrix") == loads
        assert ptx.count("\tst.shared") + ptx.count("stmatrix") == stores


def test_a_transpose_of_bytes_is_as_before() -> None:
    x = np.arange(64 * 64).reshape(64, 64).astype(np.int8)
    assert np.array_equal(agree(transpose, lambda: (x,)), x.T)


def symmetric(x: In["64 64"], o: Out["64 64"], *, tall=64):
    o[...] = x[tile(0, tall), :] + x[tile(0, tall), :].T


def scaled(x: In["64 64"], s: In["64"], o: Out[f32, "64 64"]):
    o[...] = (x[...].astype(f32) * 2 + s[...].astype(f32)).T


def copied(x: In["64 64"], o: Out["64 64"]):
    o[...] = x[...] + 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_turned_tiles_are_computed_with_beside_others(dtype: Any, order: Any) -> None:
    x = np.asarray(np.arange(64 * 64).reshape(64, 64) % 97, dtype, order=order)
    assert np.array_equal(agree(kernel(symmetric), lambda: (x,)), x + x.T)
    assert np.array_equal(agree(kernel(scaled), lambda: (x, x[0].copy())), (x * 2 + x[0]).T)
    found = agree(kernel(copied), lambda: (x, np.zeros((64, 64), dtype)))
    assert np.array_equal(found, x + 1)


def test_a_copy_between_orders_turns_and_one_within_does_not() -> None:
    o = np.zeros((64, 64), np.float32)
    x = np.asfortranarray(o)
    turned = kernel(copied).lower(x, o, target="sm_90a")
    assert "bank conflicts" not in turned.explain()
    assert turned.ptx.count("\tst.shared.v2") == 16
    assert kernel(copied).lower(o, o, target="sm_90a").ptx.count("\tst.shared.v4") == 8


def test_a_tile_with_another_use_stays_where_that_wants_it() -> None:
    def both(x: In[f32, "64 64"], o: Out[f32, "64 64"], sums: Out[f32, "64"]):
        rows = x[...]
        sums[...] = rows.sum(axis=1)
        o[...] = rows.T

    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    agree(kernel(both), lambda: (x,))
    assert "bank conflicts" in kernel(both).lower(spec((64, 64), f32)).explain()
