"""Windows that move, overlap, step, reach over edges and end with their view, on every witness."""

from itertools import pairwise

import numpy as np
import pytest

from astdsl import (
    BlockSpec,
    In,
    InOut,
    Out,
    atomic_add,
    cdiv,
    ds,
    emit_pipeline,
    f16,
    f32,
    i32,
    kernel,
    load,
    parallel,
    pipeline,
    sum,
    tile,
    transpose_ref,
    zeros,
)
from astdsl.errors import BadWindow, ShapeMismatch
from tests.witnesses import agree

RANDOM = np.random.default_rng(0)
LINE = RANDOM.standard_normal(200).astype(np.float32)
MATRIX = RANDOM.standard_normal((90, 70)).astype(np.float32)


@kernel
def shift(s: InOut[f32, "256"]):
    s[0:255] = s[1:256]


@kernel
def shift_in_a_loop(s: InOut[f32, "256"]):
    for _ in range(3):
        s[0:255] = s[1:256]


def test_what_is_read_is_read_before_what_is_written():
    s = np.arange(256, dtype=np.float32)
    assert np.array_equal(agree(shift, lambda: (s.copy(),))[:255], s[1:])
    assert np.array_equal(agree(shift_in_a_loop, lambda: (s.copy(),))[:253], s[3:])


@kernel
def smooth(x: In[f32, "N"], o: Out[f32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        left, here, right = x[ds(i * b - 1, b)], x[tile(i, b)], x[ds(i * b + 1, b)]
        o[tile(i, b)] = left + 2 * here + right


def test_halo_reads_are_zero_outside():
    padded = np.pad(LINE, 1)
    expected = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    assert np.array_equal(agree(smooth, lambda: (LINE,)), expected)


@kernel
def strided(x: In[f32, "N"], o: Out[f32, "H"], p: Out[f32, "T"], *, b=32):
    with pipeline(cdiv(o.shape[0], b)) as i:
        o[tile(i, b)] = x[i * b * 2 : (i + 1) * b * 2 : 2]
        p[tile(i, b)] = x[ds(i * b * 3 - 3, b, 3)]


def test_windows_take_steps():
    o, p = np.zeros(100, np.float32), np.zeros(67, np.float32)
    o, p = agree(strided, lambda: (LINE, o.copy(), p.copy()))
    assert np.array_equal(o, LINE[::2])
    assert np.array_equal(p, np.concatenate([[0], LINE[::3]])[:67])


@kernel
def every_second(x: In[f32, "N"], o: Out[f32, "N", 0], *, b=32):
    with pipeline(cdiv(x.shape[0], 2 * b)) as i:
        o.at[:][ds(i * 2 * b + 1, b, 2)] = x[ds(i * 2 * b, b, 2)]


def test_stores_take_steps():
    expected = np.zeros(200, np.float32)
    expected[1::2] = LINE[::2]
    assert np.array_equal(agree(every_second, lambda: (LINE,)), expected)


@kernel
def from_memory(x: In[f32, "N"], starts: In[i32, "G"], o: Out[f32, "G B"], *, B=48):
    with pipeline(starts.shape[0]) as g:
        o[g] = x[ds(starts[g], B)]


def test_starts_are_loaded_from_memory():
    starts = np.array([-20, 0, 77, 180, 400], np.int32)
    padded = np.pad(LINE, (20, 300))
    expected = np.stack([padded[s + 20 : s + 68] for s in starts])
    assert np.array_equal(agree(from_memory, lambda: (LINE, starts)), expected)


# Views of runtime extent

OFFSETS = np.array([0, 20, 20, 55, 90], np.int32)


@kernel
def sum_groups(x: In[f32, "N D"], offsets: In[i32, "_"], o: Out[f32, "G D"], *, bn=16, bd=64):
    with parallel(o.shape[0], cdiv(x.shape[1], bd)) as (g, j):
        group = x.at[offsets[g] : offsets[g + 1]]
        acc = zeros((bd,), f32)
        with pipeline(cdiv(group.shape[0], bn)) as i:
            acc += sum(group[tile(i, bn), tile(j, bd)], axis=0)
        o[g, tile(j, bd)] = acc


@pytest.mark.parametrize("bn", [16, 48])
def test_windows_of_a_view_end_where_it_ends(bn):
    o = np.zeros((4, 70), np.float32)
    found = agree(sum_groups, lambda: (MATRIX, OFFSETS, o.copy()), tolerance=1e-5, bn=bn)
    bounds = pairwise(OFFSETS)
    np.testing.assert_allclose(found, [MATRIX[a:b].sum(0) for a, b in bounds], atol=1e-4)


def test_windows_of_a_view_are_copied_ahead():
    x, o = MATRIX[:, :64].copy(), np.zeros((4, 64), np.float32)
    scheduled = sum_groups.lower(x, OFFSETS, o).schedule
    assert "CopyIn" in scheduled
    assert "Gather" not in scheduled
    found = agree(sum_groups, lambda: (x, OFFSETS, o.copy()), tolerance=1e-5)
    expected = [x[a:b].sum(0) for a, b in pairwise(OFFSETS)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@kernel
def copy_groups(x: In[f32, "N D"], offsets: In[i32, "_"], o: Out[f32, "N D"], *, bn=16):
    with parallel(offsets.shape[0] - 1) as g:
        source, target = (r.at[offsets[g] : offsets[g + 1]].T for r in (x, o))
        for i in range(cdiv(source.shape[1], bn)):
            target[:, tile(i, bn)] = source[:, tile(i, bn)] + 1


def test_stores_outside_of_a_view_are_dropped():
    assert np.array_equal(agree(copy_groups, lambda: (MATRIX, OFFSETS)), MATRIX + 1)
    narrow = MATRIX[:, :64].copy()
    assert np.array_equal(agree(copy_groups, lambda: (narrow, OFFSETS)), narrow + 1)


@kernel
def nested(x: In[f32, "N"], bounds: In[i32, "4"], o: Out[f32, "64"], p: Out[f32, "64"]):
    outer = x.at[bounds[0] : bounds[1]]
    inner = outer.at[bounds[2] : bounds[3]]
    o[...] = inner[ds(-4, 64)]
    p[...] = load(inner.at[ds(-4, 64)], fill=5)


@pytest.mark.parametrize("bounds", [(10, 60, 5, 20), (10, 60, -5, 90), (-8, 300, 2, 250)])
def test_views_of_views_end_with_both(bounds):
    low, high, first, last = bounds
    o, p = agree(nested, lambda: (LINE, np.array(bounds, np.int32)))
    place = low + first - 4 + np.arange(64)
    inside = (place >= max(low, low + first, 0)) & (place < min(high, low + last, 200))
    expected = LINE[np.clip(place, 0, 199)]
    assert np.array_equal(o, np.where(inside, expected, 0))
    assert np.array_equal(p, np.where(inside, expected, 5))


@kernel
def extents(x: In[f32, "N"], ends: In[i32, "2"], o: Out[i32, "5"], p: Out[f32, "1"]):
    (N,) = x.shape
    first, last = ends[0], ends[1]
    view = x.at[first:last]
    o[0] = view.shape[0]
    o[1] = x.at[last:first].shape[0]
    o[2] = view.at[3:].shape[0]
    o[3] = x.at[N:150].size
    o[4] = x.at[first:N].shape[0]
    total = f32(0)
    for i in range(view.shape[0]):
        total += view[i]
    p[0] = total + view[tile(0, 8)].sum()


@pytest.mark.parametrize("ends", [(5, 9), (9, 5), (4, 4), (199, 250)])
def test_a_view_that_ends_before_it_starts_is_empty(ends):
    first, last = ends
    o, p = agree(extents, lambda: (LINE, np.array(ends, np.int32)), tolerance=1e-6)
    expected = [last - first, first - last, last - first - 3, -50, 200 - first]
    assert o.tolist() == np.maximum(expected, 0).tolist()
    assert np.allclose(p[0], 2 * LINE[first:last].sum(), atol=1e-5)


@kernel
def rows_of_groups(
    x: In[f32, "N D"], offsets: In[i32, "_"], ids: In[i32, "K"], o: Out[f32, "G K D"]
):
    with parallel(o.shape[0]) as g:
        o[g] = x.at[offsets[g] : offsets[g + 1]][ids[...]]


def test_indices_count_from_the_start_of_a_view():
    ids, o = np.array([0, 3, -1, 19, 34, 35], np.int32), np.zeros((4, 6, 70), np.float32)
    found = agree(rows_of_groups, lambda: (MATRIX, OFFSETS, ids, o.copy()))
    for g, (a, b) in enumerate(pairwise(OFFSETS)):
        inside = (ids >= 0) & (ids < b - a)
        rows = MATRIX[np.clip(a + ids, 0, 89)]
        assert np.array_equal(found[g], np.where(inside[:, None], rows, 0))


@kernel
def count_in_groups(offsets: In[i32, "_"], o: Out[i32, "N", 0]):
    with parallel(offsets.shape[0] - 1) as g:
        atomic_add(o.at[offsets[g] : offsets[g + 1]].at[ds(0, 64)], g + 1)


def test_updates_outside_of_a_view_are_left_out():
    found = agree(count_in_groups, lambda: (OFFSETS, np.zeros(90, np.int32)))
    assert found.tolist() == [1] * 20 + [3] * 35 + [4] * 35


@kernel
def ragged_dot(
    x: In[f16, "M K"],
    w: In[f16, "G K N"],
    offsets: In[i32, "_"],
    o: Out[f32, "M N"],
    *,
    bm=64,
    bn=64,
    bk=64,
):
    K, N = w.shape[1:]
    with parallel(w.shape[0], cdiv(N, bn)) as (g, j):
        group = slice(offsets[g], offsets[g + 1])
        rows, out = x.at[group], o.at[group]
        with pipeline(cdiv(rows.shape[0], bm)) as i:
            acc = zeros((bm, bn), f32)
            with pipeline(cdiv(K, bk)) as k:
                acc += rows[tile(i, bm), tile(k, bk)] @ w[g, tile(k, bk), tile(j, bn)]
            out[tile(i, bm), tile(j, bn)] = acc


def test_groups_of_rows_are_multiplied_by_their_own_matrices():
    x = RANDOM.standard_normal((150, 96)).astype(np.float16)
    w = RANDOM.standard_normal((3, 96, 80)).astype(np.float16)
    offsets = np.array([0, 70, 70, 150], np.int32)
    found = agree(ragged_dot, lambda: (x, w, offsets), tolerance=1e-3)
    wide, groups = w.astype(np.float32), enumerate(pairwise(offsets))
    expected = np.concatenate([x[a:b].astype(np.float32) @ wide[g] for g, (a, b) in groups])
    np.testing.assert_allclose(found, expected, atol=1e-2)
    assert "Gather" not in ragged_dot.lower(x, w, offsets).schedule, "both operands are staged"


@kernel
def contracted(x: In[f16, "M K"], y: In[f16, "K N"], ends: In[i32, "2"], o: Out[f32, "M N"]):
    low, high = ends[0], ends[1]
    acc = zeros((64, 64), f32)
    a, b = x.at[:, low:high], y.at[low:high]
    with pipeline(cdiv(a.shape[1], 32)) as k:
        acc += a[0:64, tile(k, 32)] @ b[tile(k, 32), 0:64]
    o[0:64, 0:64] = acc


def test_a_contracted_axis_ends_with_its_view():
    x = RANDOM.standard_normal((50, 100)).astype(np.float16)
    y = RANDOM.standard_normal((100, 40)).astype(np.float16)
    found = agree(contracted, lambda: (x, y, np.array([13, 70], np.int32)), tolerance=1e-3)
    expected = x[:, 13:70].astype(np.float32) @ y[13:70].astype(np.float32)
    np.testing.assert_allclose(found, expected, atol=1e-2)


def test_a_view_of_runtime_extent_is_not_read_whole():
    @kernel
    def wrong(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
        o[0:8] = x.at[0:n][...]

    with pytest.raises(BadWindow, match="not a compile-time constant"):
        wrong.on("reference")(LINE, 8)


# Views of another shape


@kernel
def heads(x: In[f32, "M K"], o: Out[f32, "H M D"], *, H=4, bm=16):
    M = x.shape[0]
    split = x.reshape(M, H, -1)
    with pipeline(H, cdiv(M, bm)) as (h, i):
        o[h, tile(i, bm)] = split[tile(i, bm), h]


def test_an_axis_is_split():
    x = RANDOM.standard_normal((45, 64)).astype(np.float32)
    o = np.zeros((4, 45, 16), np.float32)
    found = agree(heads, lambda: (x, o.copy()))
    assert np.array_equal(found, x.reshape(45, 4, 16).transpose(1, 0, 2))
    turned = np.ascontiguousarray(x.T).T
    assert np.array_equal(agree(heads, lambda: (turned, o.copy())), found)


@kernel
def padded_heads(x: In[f32, "M K"], o: Out[f32, "H M 20"], p: Out[f32, "M H"], *, H=4):
    M = x.shape[0]
    split = x.reshape(M, H, 16)
    with pipeline(H) as h:
        o[h, tile(0, 64)] = split[tile(0, 64), h, ds(-2, 20)]
    p[tile(0, 64)] = split[tile(0, 64), :, 3]


def test_windows_of_a_part_of_an_axis_end_with_the_part():
    x = RANDOM.standard_normal((45, 64)).astype(np.float32)
    o, p = np.zeros((4, 45, 20), np.float32), np.zeros((45, 4), np.float32)
    o, p = agree(padded_heads, lambda: (x, o.copy(), p.copy()))
    parts = x.reshape(45, 4, 16)
    assert np.array_equal(o, np.pad(parts.transpose(1, 0, 2), ((0, 0), (0, 0), (2, 2))))
    assert np.array_equal(p, parts[:, :, 3])


@kernel
def flat(x: In[f32, "A B C"], o: Out[f32, "R C"], p: Out[f32, "_"], *, b=16):
    rows, line = x.reshape(-1, x.shape[2]), x.reshape(-1)
    with pipeline(cdiv(rows.shape[0], b)) as i:
        o[tile(i, b)] = rows[ds(i * b, b)]
    with pipeline(cdiv(line.shape[0], b)) as i:
        p[tile(i, b)] = line[tile(i, b)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_axes_are_merged(order):
    x = np.asarray(RANDOM.standard_normal((5, 7, 12)).astype(np.float32), order=order)
    o, p = np.zeros((35, 12), np.float32), np.zeros(420, np.float32)
    o, p = agree(flat, lambda: (x, o.copy(), p.copy()))
    assert np.array_equal(o, x.reshape(35, 12))
    assert np.array_equal(p, x.reshape(-1))


@kernel
def folded_tiles(x: In[f32, "24 8"], o: Out[f32, "6 8 4"], p: Out[f32, "4 8 6"], q: Out[f32, "9"]):
    view = x.reshape(6, 8, 4)
    o[...] = view[...]
    p[...] = view.T[:, 0:8]
    q[...] = view[2, ds(-2, 9), 1]


def test_windows_of_a_reshaped_view_end_with_its_own_axes():
    x = RANDOM.standard_normal((24, 8)).astype(np.float32)
    o, p, q = agree(folded_tiles, lambda: (x,))
    view = x.reshape(6, 8, 4)
    assert np.array_equal(o, view)
    assert np.array_equal(p, view.T)
    assert np.array_equal(q, np.pad(view[2, :, 1], (2, 2))[:9])


@kernel
def put_heads(x: In[f32, "H M D"], o: Out[f32, "M K", 0], *, H=4, bm=16):
    M = o.shape[0]
    split = o.reshape(M, H, o.shape[1] // H)
    with pipeline(H, cdiv(M, bm)) as (h, i):
        split[tile(i, bm), h] = x[h, tile(i, bm)]
        atomic_add(split.at[tile(i, bm), h], 1.0)


def test_a_reshaped_view_is_written_and_updated():
    x = RANDOM.standard_normal((4, 45, 16)).astype(np.float32)
    found = agree(put_heads, lambda: (x, np.zeros((45, 64), np.float32)))
    assert np.array_equal(found, x.transpose(1, 0, 2).reshape(45, 64) + 1)


@kernel
def turned(x: In[f32, "6 5"], o: Out[f32, "5 2 3"], p: Out[f32, "3 4"]):
    o[...] = transpose_ref(x.reshape(2, 3, 5), (2, 0, 1))[...]

    def body(_, block, row):
        row[...] = block[...] + 1

    source = BlockSpec((None, 4), lambda i: (i + 2, 0), delay_release=1, oob_fill=7)
    target = BlockSpec((None, 4), lambda i: (i, 0))
    emit_pipeline(body, grid=(3,), in_specs=[source], out_specs=[target])(x.reshape(10, 3), p)


def test_a_reshaped_view_is_transposed_and_taken_by_blocks():
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    o, p = agree(turned, lambda: (x,))
    assert np.array_equal(o, x.reshape(2, 3, 5).transpose(2, 0, 1))
    assert np.array_equal(p[:, :3], x.reshape(10, 3)[2:5] + 1)
    assert np.array_equal(p[:, 3], [8, 8, 8])


def test_a_shape_of_other_elements_is_refused():
    @kernel
    def wrong(x: In[f32, "M N"], o: Out[f32, "M N"]):
        o[0] = x.reshape(4, -1)[0]

    with pytest.raises(ShapeMismatch, match="`reshape` of `x`"):
        wrong.on("reference")(np.zeros((5, 5), np.float32))


@kernel
def shifted(x: In[i32, "N"], at: In[i32, "2"], o: InOut[i32, "N"], p: InOut[i32, "N"]):
    o.at[at[0] : at[1]][ds(0, 8)] = x[ds(-1, 8)] + 7
    p.reshape(2, 4)[0:2, ds(0, 4)] = x[ds(-1, 4)] + 7


def test_a_store_into_a_view_writes_what_lies_outside_of_what_was_read():
    x, at = np.arange(1, 9, dtype=np.int32), np.array([1, 8], np.int32)
    o, p = agree(shifted, lambda: (x, at, np.zeros_like(x), np.zeros_like(x)))
    assert np.array_equal(o, [0, 7, 8, 9, 10, 11, 12, 13])
    assert np.array_equal(p, [7, 8, 9, 10] * 2)
