"""`load(window, stages=n)`: windows of one pipeline with rings of their own lengths."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    In,
    InOut,
    Out,
    arange,
    cdiv,
    ds,
    f16,
    f32,
    i32,
    kernel,
    load,
    parallel,
    pipeline,
    spec,
    tile,
    warpgroup_id,
    zeros,
)
from astdsl.errors import BadPipeline, OutOfSharedMemory
from tests.witnesses import agree


@kernel
def weighted(x: In[f32, "M K"], w: In[f32, "M K"], o: Out[f32, "M"], *, sx=1, sw=1, stages=2):
    M, K = x.shape
    with pipeline(cdiv(M, 16)) as i:
        total = zeros(16, f32)
        with pipeline(cdiv(K, 32), stages=stages) as k:
            at = tile(i, 16), tile(k, 32)
            total += (load(x.at[at], stages=sx) * load(w.at[at], stages=sw)).sum(1)
        o[tile(i, 16)] = total


def matrices(*shape: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return tuple(random.integers(-9, 9, shape).astype(dtype) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("sx", [1, 2, 3, 4])
@pytest.mark.parametrize("sw", [1, 2, 3, 4])
def test_windows_have_rings_of_their_own(sx: int, sw: int) -> None:
    for steps in (1, sx, sx + sw + 1):
        x, w = matrices(20, 32 * steps - 4)
        found = agree(weighted, partial(tuple, (x, w)), sx=sx, sw=sw, targets=("sm_90a",))
        np.testing.assert_array_equal(found, (x * w).sum(1))


def test_slots_that_are_no_power_of_two_are_found_by_unsigned_division() -> None:
    x, w = matrices(16, 64)
    for stages, is_shift in ((2, True), (3, False), (4, True), (6, False)):
        text = str(weighted.lower(x, w, sx=None, sw=None, stages=stages).schedule)
        assert ("dtype=u64" not in text) == is_shift


def test_a_ring_has_the_slots_that_its_load_states() -> None:
    x, w = matrices(16, 64)
    schedule = weighted.lower(x, w, sx=3, sw=None, stages=2).schedule
    assert "%x_ring: smem<f32[3x16x32]>" in schedule
    assert "%w_ring: smem<f32[2x16x32]>" in schedule
    assert "barrier<3 arrivals=1>" in schedule
    assert "barrier<2 arrivals=1>" in schedule


def test_equal_stages_share_a_barrier() -> None:
    x, w = matrices(16, 64)
    schedule = weighted.lower(x, w, sx=3, sw=3).schedule
    assert schedule.count("AllocBarrier") == 1
    assert "barrier<3 arrivals=2>" in schedule


def test_automatic_stages_leave_room_for_stated_ones() -> None:
    x, w = matrices(16, 64)
    free = weighted.lower(x, w, sx=1, sw=None, stages="auto").schedule
    assert "%w_ring: smem<f32[4x" in free
    tight = weighted.lower(x, w, sx=76, sw=None, stages="auto").schedule
    assert "%w_ring: smem<f32[4x" not in tight
    assert "%x_ring: smem<f32[76x" in tight


def test_stated_stages_count_for_the_budget() -> None:
    x, w = matrices(16, 64)
    with pytest.raises(OutOfSharedMemory, match="`stages=1") as caught:
        weighted.lower(x, w, sx=200, sw=1).ptx
    assert caught.value.places


@kernel
def product(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, sa=1, sb=1, stages=2):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 64), cdiv(N, 64)) as (i, j):
        acc = zeros((64, 64), f32)
        with pipeline(cdiv(K, 32), stages=stages) as k:
            left = load(a.at[tile(i, 64), tile(k, 32)], stages=sa)
            acc += left @ load(b.at[tile(k, 32), tile(j, 64)], stages=sb)
        c[tile(i, 64), tile(j, 64)] = acc


@pytest.mark.parametrize(("sa", "sb"), [(1, 4), (2, 3), (4, 2), (3, 1)])
def test_operands_of_products_have_rings_of_their_own(sa: int, sb: int) -> None:
    a, _ = matrices(70, 260, dtype=np.float16)
    _, b = matrices(260, 64, dtype=np.float16)
    found = agree(product, lambda: (a, b), sa=sa, sb=sb)
    np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@kernel
def blocks(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm, bn, split=None):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, 64), split=split) as k:
            acc += a[tile(i, bm), tile(k, 64)] @ b[tile(k, 64), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


@pytest.mark.parametrize("split", [None, 2, "stream"])
@pytest.mark.parametrize(("bm", "bn", "stages"), [(128, 128, 4), (128, 256, 3)])
def test_automatic_stages_count_what_leaves_the_block_as_it_is(
    bm: int, bn: int, stages: int, split: Any
) -> None:
    a, b = (spec((1024, 1024), f16) for _ in range(2))
    schedule = blocks.lower(a, b, bm=bm, bn=bn, split=split).schedule
    assert f"%a_ring: smem<f16[{stages}x{bm}x64]>" in schedule


@kernel
def doubled(x: In[f32, "T 128 128"], o: Out[f32, "T 128 128"]):
    with pipeline(x.shape[0], axes="sequential", stages=1) as t:
        o[t] = x[t] * 2


def test_a_large_tile_leaves_a_loop_by_one_slot() -> None:
    x = np.random.default_rng(4).integers(-9, 9, (4, 128, 128)).astype(np.float32)
    np.testing.assert_array_equal(agree(doubled, lambda: (x,)), x * 2)
    assert "%o_out: smem<f32[1x128x128]>" in doubled.lower(x).schedule


@kernel
def with_norms(
    a: In[f16, "M K"], b: In[f16, "K 64"], s: In[f32, "T 64"], c: Out[f32, "M 64"], n: Out["_ 64"]
):
    M, K = a.shape
    with pipeline(cdiv(M, 64)) as i:
        acc, norm = zeros((64, 64), f32), zeros(64, f32)
        with pipeline(cdiv(K, 32), stages=3) as k:
            acc += a[tile(i, 64), tile(k, 32)] @ b[tile(k, 32)]
            norm += load(s.at[k], stages=1)
        c[tile(i, 64)] = acc
        n[i] = norm


def test_a_short_ring_of_a_tile_in_registers_keeps_products_in_flight() -> None:
    a, _ = matrices(64, 256, dtype=np.float16)
    _, b = matrices(256, 64, dtype=np.float16)
    s, _ = matrices(8, 64)
    arguments = lambda: (a, b, s, *(np.zeros((n, 64), np.float32) for n in (64, 1)))  # noqa: E731
    c, n = agree(with_norms, arguments)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(n, s.sum(0)[None])
    assert "ProductWait pending=1" in with_norms.lower(*arguments()).schedule


@kernel
def in_order(x: In[f32, "T R N"], o: Out[f32, "N"], p: Out[f32, "R N"], *, bn=32, fill=1.5):
    T, R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        total = zeros(bn, f32)
        with pipeline(T, R, stages=3) as (t, r):
            total += load(x.at[t, r, tile(j, bn)], stages=2)
            total += x[t, r, tile(j, bn)] * 2
        o[tile(j, bn)] = total
        with pipeline(R, stages=2) as r:
            outside = load(x.at[0, r, ds(j * bn, bn + 4)], fill=fill, stages=4)
            p[r, tile(j, bn)] = outside[:bn] + outside.sum()


def test_several_axes_and_fills_have_rings_of_their_own() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 5, 44)).astype(np.float32)
    o, p = agree(in_order, lambda: (x,))
    np.testing.assert_array_equal(o, 3 * x.sum((0, 1)))
    padded = np.pad(x[0], ((0, 0), (0, 24)), constant_values=1.5)
    sums = [padded[:, :36].sum(1), padded[:, 32:68].sum(1)]
    expected = np.concatenate([x[0, :, :32] + sums[0][:, None], x[0, :, 32:] + sums[1][:, None]], 1)
    np.testing.assert_array_equal(p, expected)


@kernel
def of_views(x: In[f32, "N 64"], ends: In[i32, "G+1"], o: Out[f32, "G 64"]):
    G, _ = o.shape
    with pipeline(G) as g:
        group = x.at[ends[g] : ends[g + 1]]
        total = zeros(64, f32)
        with pipeline(cdiv(group.shape[0], 8)) as k:
            total += load(group.at[tile(k, 8)], stages=3).sum(0)
        o[g] = total


def test_windows_of_views_have_rings_of_their_own() -> None:
    x = np.random.default_rng(2).integers(-9, 9, (50, 64)).astype(np.float32)
    ends = np.array([0, 17, 17, 50], np.int32)
    expected = np.stack([x[a:b].sum(0) for a, b in pairwise(ends)])
    arguments = lambda: (x, ends, np.zeros((3, 64), np.float32))  # noqa: E731
    np.testing.assert_array_equal(agree(of_views, arguments), expected)
    assert "%x_ring: smem<f32[3x8x64]>" in of_views.lower(*arguments()).schedule


def test_an_array_that_tma_cannot_describe_is_loaded_in_its_step() -> None:
    x, w = matrices(20, 66)
    found = agree(weighted, lambda: (x[:, ::2], w[:, ::2]), sx=3, sw=2)
    np.testing.assert_array_equal(found, (x * w)[:, ::2].sum(1))


@kernel(warpgroups=2)
def by_warpgroups(x: In[f32, "T 64"], o: Out[f32, "2 64"]):
    T, _ = x.shape
    total = zeros(64, f32)
    with pipeline(T, stages=4) as t:
        total += load(x.at[t], stages=2)
    o[warpgroup_id()] = total


def test_each_warpgroup_has_its_rings() -> None:
    x = np.random.default_rng(3).integers(-9, 9, (7, 64)).astype(np.float32)
    expected = np.stack([x.sum(0)] * 2)
    np.testing.assert_array_equal(agree(by_warpgroups, lambda: (x,)), expected)


def kernels_that_are_refused() -> list[tuple[Any, str]]:
    @kernel
    def outside(x: In[f32, "64"], o: Out[f32, "64"]):
        o[...] = load(x.at[...], stages=2)

    @kernel
    def unmoving(x: In[f32, "64"], o: Out[f32, "64"]):
        total = zeros(64, f32)
        with pipeline(4, axes="sequential"):
            total += load(x.at[...], stages=2)
        o[...] = total

    @kernel
    def in_a_loop(x: In[f32, "64"], o: Out[f32, "64"]):
        total = zeros(64, f32)
        with pipeline(2, axes="sequential") as k:
            for _ in range(2):
                total += load(x.at[tile(k, 32)], stages=2).sum()
        o[...] = total

    @kernel
    def computed(x: In[f32, "64"], o: Out[f32, "64"]):
        place = i32(0)
        with pipeline(4, axes="sequential") as k:
            place = load(x.at[ds(place + k, 32)], stages=2).sum().astype(i32)
        o[...] = place.astype(f32)

    @kernel
    def written(x: InOut[f32, "64"]):
        with pipeline(2, axes="sequential") as k:
            x[tile(k, 32)] = load(x.at[tile(k, 32)], stages=2) * 2

    @kernel
    def on_chip(x: In[f32, "64"], o: Out[f32, "64"]):
        buffer = SMEM((2, 32), f32)
        with pipeline(2, axes="sequential") as k:
            buffer[k] = x[tile(k, 32)]
            o[tile(k, 32)] = load(buffer.at[k], stages=2)

    @kernel
    def gathered(x: In[f32, "64"], o: Out[f32, "64"]):
        with parallel(2) as k:
            o[tile(k, 32)] = load(x.at[arange(32) + k], stages=2)

    @kernel
    def none_at_all(x: In[f32, "64"], o: Out[f32, "64"]):
        with pipeline(2) as k:
            o[tile(k, 32)] = load(x.at[tile(k, 32)], stages=0)

    return [
        (outside, "outside of a pipeline"),
        (unmoving, "the same in every step"),
        (in_a_loop, "in a branch or loop"),
        (computed, "that a step computes"),
        (written, "written here too"),
        (on_chip, "smem memory"),
        (gathered, "what indices pick"),
        (none_at_all, "1 or more"),
    ]


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize(("refused", "message"), kernels_that_are_refused())
def test_a_window_without_a_ring_states_no_stages(refused: Any, message: str, device: str) -> None:
    with pytest.raises(BadPipeline, match=message) as caught:
        refused.on(device)(np.zeros(64, np.float32))
    assert caught.value.places
    assert caught.value.help
