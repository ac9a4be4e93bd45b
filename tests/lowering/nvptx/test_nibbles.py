"""4-bit floats: packed arrays, two elements to a byte, and NumPy's own of one a byte."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from astdsl import (
    GMEM,
    SMEM,
    In,
    InOut,
    Out,
    TilingTransform,
    arange,
    cdiv,
    ds,
    f4e2m1,
    f16,
    f32,
    i32,
    kernel,
    load,
    pipeline,
    sum,
    tile,
    zeros,
)
from astdsl.errors import (
    BadArgument,
    BadWindow,
    KernelError,
    ShapeMismatch,
    UnsupportedFeature,
)
from tests.lang.harness import a_trace
from tests.witnesses import agree

Array = np.ndarray[Any, np.dtype[Any]]


def elements(*shape: int) -> Array:
    generator = np.random.default_rng(4)
    return (generator.standard_normal(shape) * 2).astype(ml_dtypes.float4_e2m1fn)


def packed(x: Array) -> Array:
    codes = x.view(np.uint8)
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)


@kernel
def widened(w: In[f4e2m1, "M K"], o: Out[f32, "M K"], *, bm=32, bk=64):
    M, K = w.shape
    with pipeline(cdiv(M, bm)) as i:
        with pipeline(cdiv(K, bk), stages=2) as k:
            o[tile(i, bm), tile(k, bk)] = w[tile(i, bm), tile(k, bk)].astype(f32) * 2


@pytest.mark.parametrize("form", [packed, np.asarray], ids=["two a byte", "one a byte"])
def test_dims_and_windows_count_elements_however_they_are_stored(form: Any) -> None:
    w = elements(70, 96)
    found = agree(widened, lambda: (form(w),))
    np.testing.assert_array_equal(found, w.astype(np.float32) * 2)


@kernel
def narrowed(x: In[f32, "M K"], o: Out[f4e2m1, "M K"], *, bm=32, bk=64):
    M, K = x.shape
    with pipeline(cdiv(M, bm)) as i:
        with pipeline(cdiv(K, bk), stages=2) as k:
            o[tile(i, bm), tile(k, bk)] = x[tile(i, bm), tile(k, bk)]


def test_a_store_packs_what_it_rounds() -> None:
    x = np.random.default_rng(1).standard_normal((70, 96)).astype(np.float32) * 3
    wanted = x.astype(ml_dtypes.float4_e2m1fn)
    found = agree(narrowed, lambda: (x, np.zeros((70, 48), np.uint8)))
    np.testing.assert_array_equal(found, packed(wanted))


def test_an_omitted_output_beside_an_array_of_numpy_has_one_element_a_byte() -> None:
    x = np.full((32, 64), 2.6, np.float32)
    found = narrowed.on("reference")(x)
    assert found.dtype == ml_dtypes.float4_e2m1fn
    assert found.shape == (32, 64)


@kernel
def moved(
    w: In[f4e2m1, "M K"],
    turned: Out[f16, "K M"],
    rows: Out[f16, "32 K"],
    sums: Out[f32, "M"],
    copy: InOut[f4e2m1, "M K"],
):
    turned[...] = w.T[0:96, 0:70]
    rows[...] = w[arange(32) * 2 + 1, :]
    sums[...] = sum(w[:, 0:64].astype(f32), axis=1)
    copy[0:8, 32:64] = w[0:8, 0:32]
    copy[arange(8) * 3 + 10, 0:16] = w[0:8, 16:32]


def test_packed_memory_is_turned_gathered_scattered_and_copied_by_windows() -> None:
    w = elements(70, 96)
    before = np.random.default_rng(2).integers(0, 256, (70, 48)).astype(np.uint8)
    shapes = [((96, 70), np.float16), ((32, 96), np.float16), ((70,), np.float32)]
    found = agree(moved, lambda: (packed(w), *(np.zeros(*s) for s in shapes), before.copy()))
    wide = w.astype(np.float32)
    np.testing.assert_array_equal(found[0], wide.T)
    np.testing.assert_array_equal(found[1], wide[np.arange(32) * 2 + 1])
    np.testing.assert_array_equal(found[2], wide[:, :64].sum(1))
    before[:8, 16:32] = packed(w)[:8, :16]
    before[np.arange(8) * 3 + 10, :8] = packed(w)[:8, 8:16]
    np.testing.assert_array_equal(found[3], before)


@kernel
def groups(w: In[f4e2m1, "M K"], ends: In[i32, "G"], o: Out[f32, "M K"], *, bm=16):
    (G,) = ends.shape
    _, K = w.shape
    with pipeline(1) as _:
        with pipeline(G - 1) as g:
            group = w.at[ends[g] : ends[g + 1]]
            to = o.at[ends[g] : ends[g + 1]]
            with pipeline(cdiv(group.shape[0], bm)) as i:
                to[tile(i, bm), 0:64] = group[tile(i, bm), K - 64 : K].astype(f32) + g


def test_views_of_rows_may_have_any_extent_and_windows_end_at_the_dim() -> None:
    w, ends = elements(50, 96), np.array([0, 7, 30, 50], np.int32)
    found = agree(groups, lambda: (packed(w), ends, np.zeros((50, 96), np.float32)))
    number = np.repeat(np.arange(3), np.diff(ends))[:, None]
    np.testing.assert_array_equal(found[:, :64], w[:, 32:].astype(np.float32) + number)


@kernel
def filled(w: In[f4e2m1, "M K"], o: Out[f32, "64 64"], c: Out[f4e2m1, "4 8", 1.5]):
    o[...] = load(w.at[0:64, 0:64], fill=-3)
    c[0:2, 0:4] = w[0:2, 0:4]


def test_fill_and_initial_numbers_are_those_of_elements() -> None:
    w = elements(40, 48)
    shapes = (np.zeros((64, 64), np.float32), np.zeros((4, 4), np.uint8))
    wide, start = agree(filled, lambda: (packed(w), *(x.copy() for x in shapes)))
    wanted = np.full((64, 64), -3, np.float32)
    wanted[:40, :48] = w.astype(np.float32)
    np.testing.assert_array_equal(wide, wanted)
    initial = np.full((4, 4), 0x33, np.uint8)
    initial[:2, :2] = packed(w)[:2, :2]
    np.testing.assert_array_equal(start, initial)


@kernel
def staged(w: In[f4e2m1, "64 64"], o: Out[f32, "64 32"]):
    buffer = SMEM((64, 64), f4e2m1)
    buffer[...] = w[...]
    o[...] = buffer[:, 32:64].astype(f32)


def test_shared_memory_is_packed_too() -> None:
    w = elements(64, 64)
    found = agree(staged, lambda: (packed(w),))
    np.testing.assert_array_equal(found, w[:, 32:].astype(np.float32))


@kernel
def windows(
    w: In[f4e2m1, "M K"],
    o: Out[f4e2m1, "K M"],
    s: Out[f32, "M"],
    *,
    rows=8,
    columns=16,
    first=0,
    shift=0,
):
    M, K = w.shape
    with pipeline(cdiv(M, rows)) as i:
        total = zeros((rows,), f32)
        with pipeline(cdiv(K, columns)) as k:
            here = ds(first + k * columns, columns)
            t = w[ds(i * rows + shift, rows), here]
            total += sum(t.astype(f32), axis=1)
            o[tile(k, columns), tile(i, rows)] = t.T
        s[tile(i, rows)] = total


@settings(max_examples=25, deadline=None)
@drawn(
    st.tuples(st.integers(1, 20), st.integers(1, 24)),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(-4, 4),
    st.integers(-2, 2),
)
def test_packed_memory_reads_as_the_memory_of_one_element_a_byte(
    shape: tuple[int, int], rows: int, pairs: int, first: int, shift: int
) -> None:
    m, k = 2 * shape[0], 2 * shape[1]
    w = elements(m, k)
    sizes: dict[str, Any] = {"rows": rows, "columns": 2 * pairs, "first": 2 * first, "shift": shift}
    outputs = np.zeros((k, m), ml_dtypes.float4_e2m1fn), np.zeros(m, np.float32)
    wanted = windows.on("reference")(w, *(x.copy() for x in outputs), **sizes)
    given = packed(w), np.zeros((k, m // 2), np.uint8), outputs[1]
    if rows % 2:  # the output is packed along M
        with pytest.raises(BadWindow, match=r"element|within a byte"):
            windows.on("reference")(*given, **sizes)
        return
    found = agree(windows, lambda: tuple(x.copy() for x in given), emulate=False, **sizes)
    np.testing.assert_array_equal(found[0], packed(wanted[0]))
    np.testing.assert_array_equal(found[1], wanted[1])


@kernel
def through_scratch(x: In[f32, "M K"], o: Out[f32, "M K"], *, rounded=True):
    M, K = x.shape
    kept = GMEM((M, 2 * cdiv(K, 2) if rounded else K), f4e2m1)
    with pipeline(cdiv(M, 32), cdiv(K, 64)) as (i, k):
        kept[tile(i, 32), tile(k, 64)] = x[tile(i, 32), tile(k, 64)]
    with pipeline(cdiv(M, 32), cdiv(K, 64)) as (i, k):
        o[tile(i, 32), tile(k, 64)] = kept[tile(i, 32), tile(k, 64)]


@pytest.mark.parametrize("columns", [96, 97])
def test_scratch_between_launches_is_packed_too(columns: int) -> None:
    x = np.random.default_rng(1).standard_normal((40, columns)).astype(np.float32) * 3
    found = agree(through_scratch, lambda: (x,))
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32))


def test_scratch_of_an_extent_that_may_be_odd_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="may be odd"):
        through_scratch.on("reference")(np.zeros((4, 6), np.float32), rounded=False)


@pytest.mark.parametrize("transforms", [None, (TilingTransform((8, 64)),)])
def test_shared_memory_of_half_bytes_or_of_a_stated_layout_is_refused(transforms: Any) -> None:
    error = ShapeMismatch if transforms is None else UnsupportedFeature
    with a_trace(), pytest.raises(error, match="f4e2m1"):
        SMEM((64, 63), f4e2m1, transforms=transforms)


@kernel
def indexed(w: In[f4e2m1, "M K"], o: Out[f32, "M"], *, window):
    t = window(w)
    o[...] = sum(t.astype(f32), axis=1)


REFUSED = {
    "an odd start": (lambda w: w[0:8, 1:33], BadWindow, "may begin within a byte"),
    "an odd size": (lambda w: w[0:8, 0:33], BadWindow, "has 33 elements"),
    "a start of unknown parity": (
        lambda w: w[0:8, ds(w[0, 0:2].astype(i32)[0], 32)],
        BadWindow,
        "may begin within a byte",
    ),
    "single elements": (lambda w: w[0:8, 3], UnsupportedFeature, "single ones"),
    "steps": (lambda w: w[0:8, 0:32:2], UnsupportedFeature, "single ones"),
    "indices": (lambda w: w[0:8, arange(8)], UnsupportedFeature, "single ones"),
}


@pytest.mark.parametrize(("window", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_begins_or_ends_within_a_byte_is_refused(
    window: Any, error: type[KernelError], said: str
) -> None:
    with pytest.raises(error, match=said):
        indexed.on("reference")(packed(elements(8, 64)), np.zeros(8, np.float32), window=window)


def test_explain_counts_elements() -> None:
    given = (packed(elements(8, 64)), np.zeros((8, 64), np.float32))
    text = widened.lower(*given, target="sm_100a").explain()
    assert "  w: f4e2m1 8 64, two to a byte; axis 1 contiguous; TMA" in text


def test_an_array_without_axes_holds_no_pairs() -> None:
    with pytest.raises(BadArgument, match="no axis"):
        widened.on("reference")(np.zeros((), np.uint8))


def test_dims_of_packed_arrays_agree_with_those_of_others_in_elements() -> None:
    with pytest.raises(BadArgument, match="`K` is 128 by axis 1 of `w`, and 64 by axis 1 of `o`"):
        widened.on("reference")(np.zeros((4, 64), np.uint8), np.zeros((4, 64), np.float32))
