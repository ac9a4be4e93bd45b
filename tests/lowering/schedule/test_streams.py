"""Tiles too large for the registers: streamed where they are only combined elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, InOut, Out, arange, cdiv, f32, kernel, pipeline, spec, tile, where
from astdsl.errors import TileTooLarge
from tests.arrays import normal
from tests.witnesses import agree


@kernel
def whole_arrays(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"]):
    o[...] = x[...] + y[...]


def test_whole_arrays_are_added_chunk_by_chunk() -> None:
    x, y = normal(256, 256), normal(256, 256)
    np.testing.assert_array_equal(agree(whole_arrays, lambda: (x, y)), x + y)


def test_chunks_of_the_only_store_become_blocks() -> None:
    lowered = whole_arrays.lower(spec((1024, 1024), f32), spec((1024, 1024), f32))
    assert "Launch grid {\n    %c" in lowered.schedule
    assert "Constant value=128" in lowered.schedule


@pytest.mark.parametrize("shape", [(300, 300), (257, 260), (8, 4100), (4096, 20)], ids=str)
def test_whole_arrays_of_any_extents(shape: tuple[int, int]) -> None:
    x, y = normal(*shape), normal(*shape)
    np.testing.assert_array_equal(agree(whole_arrays, lambda: (x, y), targets=("sm_90a",)), x + y)


@kernel
def blocks(x: In["M N"], o: Out["M N"], *, bm=64, bn=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] * 2


EXTENTS = [(300, 4), (5, 36), (1, 300), (270, 8), (3, 1000), (520, 16), (7, 12), (33, 320)]


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64])
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_blocks_that_tma_takes_in_several_boxes_or_not_at_all(
    extents: tuple[int, int], dtype: Any
) -> None:
    bm, bn = extents
    x = (np.arange(600 * 1024) % 61).reshape(600, 1024).astype(dtype)[: 2 * bm + 3]
    found = agree(blocks, lambda: (x,), bm=bm, bn=bn, targets=("sm_90a",))
    np.testing.assert_array_equal(found, x * 2)


@kernel
def large_blocks(x: In[f32, "M N"], b: In[f32, "N"], o: Out[f32, "M N"], *, bm=256, bn=256):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        t = x[tile(i, bm), tile(j, bn)] * 2 + b[tile(j, bn)]
        o[tile(i, bm), tile(j, bn)] = where(arange(bn) % 2 == 0, t, 0)


def test_large_blocks_with_broadcasts_and_ragged_edges() -> None:
    x, b = normal(300, 260), normal(260)
    found = agree(large_blocks, lambda: (x, b), targets=("sm_90a",))
    keep = np.arange(260) % 256 % 2 == 0
    np.testing.assert_array_equal(found, np.where(keep, x * 2 + b, 0))


@kernel
def in_place(o: InOut[f32, "M N"]):
    o[...] = o[...] * 2


def test_a_window_updated_in_place_is_streamed() -> None:
    o = normal(256, 256)
    np.testing.assert_array_equal(agree(in_place, lambda: (o.copy(),), targets=("sm_90a",)), o * 2)


@kernel
def transposed_in_place(o: InOut[f32, "N N"]):
    o[...] = o[...].T * 2


def test_what_reads_elements_that_another_chunk_wrote_is_refused() -> None:
    with pytest.raises(TileTooLarge, match="takes"):
        transposed_in_place.on("emulator")(normal(512, 512))


@kernel
def reduced(x: In[f32, "M N"], o: Out[f32, "M N"]):
    t = x[...]
    o[...] = t - t.sum()


def test_what_is_also_reduced_is_refused() -> None:
    with pytest.raises(TileTooLarge, match="smaller blocks"):
        reduced.on("emulator")(normal(512, 512))
