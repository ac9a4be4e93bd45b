"""Copies by hand of what TMA cannot describe: the same meaning, by loads and stores."""

import numpy as np
import pytest

from astdsl import (
    ACC,
    SMEM,
    Barrier,
    In,
    InOut,
    Out,
    barrier_arrive,
    barrier_wait,
    cdiv,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    ds,
    f16,
    f32,
    i32,
    kernel,
    parallel,
    pipeline,
    tile,
    wait_smem_to_gmem,
    warp_id,
    warpgroup_id,
    wgmma,
    wgmma_wait,
)
from astdsl.errors import ProtocolError, ShapeMismatch, UnsupportedFeature
from tests.witnesses import agree

LINE = np.arange(64 * 64 + 8, dtype=np.float32)


def strided(shape, strides, offset=0):
    """Return a view of numbers with these strides, in elements."""
    steps = [s * LINE.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(LINE[offset:], shape, steps)


ARRAYS = {
    "rows of 33": strided((40, 33), (33, 1)),
    "columns of 33": strided((40, 33), (1, 41)),
    "every second column": strided((40, 30), (64, 2)),
    "an unaligned base": strided((40, 32), (32, 1), 1),
    "rows from the last one back": strided((40, 32), (32, 1))[::-1],
    "one row again and again": strided((40, 32), (0, 1)),
    "no rows": strided((0, 32), (32, 1)),
    "rows that TMA copies": strided((40, 32), (32, 1)),
}


@kernel
def brought(x: In["M N"], o: Out["16 12"]):
    into, full = SMEM((16, 12), x.dtype), Barrier()
    copy_gmem_to_smem(x.at[ds(30, 16), ds(-2, 12)], into, full)
    barrier_wait(full)
    o[...] = into[...]


@kernel
def taken(x: In["16 12"], o: InOut["M N"]):
    out = SMEM((16, 12), x.dtype)
    out[...] = x[...]
    commit_smem()
    copy_smem_to_gmem(out, o.at[ds(30, 16), ds(-2, 12)])
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_window_of_any_array_is_copied_in(name):
    x = ARRAYS[name]
    expected = np.zeros((16, 12), np.float32)
    rows = x[30:46, :10]
    expected[: len(rows), 2:] = rows
    assert np.array_equal(agree(brought, lambda: (x,)), expected)


@pytest.mark.parametrize("name", [n for n in ARRAYS if "again" not in n and "no" not in n])
def test_a_window_of_any_array_is_copied_out(name):
    block = np.arange(1, 16 * 12 + 1, dtype=np.float32).reshape(16, 12)

    def arguments():
        x = ARRAYS[name]
        kept = np.zeros_like(LINE)
        offset = (x.__array_interface__["data"][0] - LINE.__array_interface__["data"][0]) // 4
        into = np.lib.stride_tricks.as_strided(kept[offset:], x.shape, x.strides)
        return block, into

    found = agree(taken, arguments)
    assert np.array_equal(found[30:, :10], block[:10, 2:])
    assert not found[:30].any()


@kernel
def windows(
    x: In[f32, "64 64"], short: Out[f32, "8 3"], steps: Out[f32, "8 8"], down: Out[f32, "8"]
):
    a, b, c = SMEM((8, 3), f32), SMEM((8, 8), f32), SMEM((8,), f32)
    full = Barrier(num_arrivals=3)
    copy_gmem_to_smem(x.at[0:8, 1:4], a, full)
    copy_gmem_to_smem(x.at[ds(0, 8, 4), ds(1, 8, 3)], b, full)
    copy_gmem_to_smem(x.at[8:16, 5], c, full)
    barrier_wait(full)
    short[...], steps[...], down[...] = a[...], b[...], c[...]


def test_windows_with_short_rows_and_steps_are_copied():
    x = strided((64, 64), (64, 1))
    short, steps, down = agree(windows, lambda: (x,))
    assert np.array_equal(short, x[:8, 1:4])
    assert np.array_equal(steps, x[:32:4, 1:25:3])
    assert np.array_equal(down, x[8:16, 5])


@kernel
def many_axes(x: In[f32, "2 2 2 2 2 8"], o: Out[f32, "2 2 2 8"]):
    into, full = SMEM((2, 2, 2, 2, 8), f32), Barrier()
    copy_gmem_to_smem(x.at[1], into, full)
    barrier_wait(full)
    o[...] = into[:, 1]


def test_an_array_of_six_axes_is_copied():
    x = LINE[:256].reshape(2, 2, 2, 2, 2, 8)
    assert np.array_equal(agree(many_axes, lambda: (x,)), x[1, :, 1])


@kernel
def chosen(x: In[f32, "M N"], n: i32, o: Out[f32, "2 8 8"]):
    into, full = SMEM((2, 8, 8), f32), Barrier(num_barriers=2)
    for k in range(2):
        into[k] = 0
    commit_smem()
    for k in range(2):
        copy_gmem_to_smem(x.at[tile(k, 8), 0:8], into.at[k], full[k], predicate=k < n)
    for k in range(2):
        barrier_wait(full[k])
        o[k] = into[k]


def test_a_predicate_leaves_the_memory_and_still_arrives():
    x = ARRAYS["rows of 33"]
    found = agree(chosen, lambda: (x, 1))
    assert np.array_equal(found[0], x[:8, :8])
    assert not found[1].any()


@kernel(warpgroups=3)
def ring(x: In[f32, "M N"], o: Out[f32, "M N"], *, stages=2):
    M, N = x.shape
    with parallel(cdiv(M, 16)) as i:
        slots, full = SMEM((stages, 16, 8), f32), Barrier(num_barriers=stages)
        empty = Barrier(num_arrivals=2, num_barriers=stages)
        if warpgroup_id() == 0:
            for k in range(cdiv(N, 8)):
                if k >= stages:
                    barrier_wait(empty[k % stages])
                window = x.at[tile(i, 16), tile(k, 8)]
                copy_gmem_to_smem(window, slots.at[k % stages], full[k % stages])
        else:
            own = (warpgroup_id() - 1) * 8
            for k in range(cdiv(N, 8)):
                barrier_wait(full[k % stages])
                part = slots[k % stages, ds(own, 8), :]
                o[ds(i * 16 + own, 8), tile(k, 8)] = part * 2
                barrier_arrive(empty[k % stages])


def test_a_ring_between_warpgroups_carries_them():
    x = ARRAYS["rows of 33"]
    assert np.array_equal(agree(ring, lambda: (x,)), x * 2)


@kernel(warpgroups=1)
def product(a: In[f16, "64 K"], b: In[f16, "K 16"], o: Out[f32, "64 16"]):
    left, right, full = SMEM((64, 32), f16), SMEM((32, 16), f16), Barrier(num_arrivals=2)
    copy_gmem_to_smem(a.at[:, 0:32], left, full)
    copy_gmem_to_smem(b.at[0:32, :], right, full)
    barrier_wait(full)
    acc = ACC((64, 16))
    wgmma(acc, left, right)
    wgmma_wait(0)
    o[...] = acc[...]


def test_products_read_what_threads_have_copied():
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (64, 33)).astype(np.float16)[:, :31]
    b = rng.integers(-4, 5, (31, 17)).astype(np.float16)[:, :16]
    found = agree(product, lambda: (a, b), targets=("sm_90a",))
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@kernel
def in_a_pipeline(x: In[f32, "M N"], o: Out[f32, "M N"]):
    with parallel(x.shape[0]) as i:
        into, full = SMEM((8,), f32), Barrier()
        with pipeline(cdiv(x.shape[1], 8)) as k:
            copy_gmem_to_smem(x.at[i, tile(k, 8)], into, full)
            barrier_wait(full)
            o[i, tile(k, 8)] = into[...] + 1


def test_the_steps_of_a_pipeline_copy_one_after_the_other():
    x = ARRAYS["an unaligned base"][:5]
    assert np.array_equal(agree(in_a_pipeline, lambda: (x,)), x + 1)


def test_one_warp_does_not_copy_without_tma():
    @kernel(warpgroups=1)
    def alone(x: In[f32, "M N"], o: Out[f32, "8 8"]):
        into, full = SMEM((8, 8), f32), Barrier()
        if warp_id() == 0:
            copy_gmem_to_smem(x.at[0:8, 0:8], into, full)
        barrier_wait(full)
        o[...] = into[...]

    with pytest.raises(UnsupportedFeature, match="one warp cannot copy a window of `x`") as caught:
        alone.on("emulator")(ARRAYS["rows of 33"])
    assert "take it out of the `if`" in caught.value.help
    expected = ARRAYS["rows that TMA copies"]
    assert np.array_equal(alone.on("emulator")(expected), expected[:8, :8])


def test_shared_memory_without_axes_is_refused():
    @kernel
    def wrong(x: In[f32, "4"], o: Out[f32, "4"]):
        buf = SMEM((), f32)
        buf[...] = x[0]
        o[...] = x[...] + buf[...]

    with pytest.raises(ShapeMismatch, match="one axis at least"):
        wrong.on("reference")(LINE[:4])


def test_a_wait_that_is_missing_is_found_here_too():
    @kernel
    def early(x: In[f32, "M N"], o: Out[f32, "8 8"]):
        into, full = SMEM((8, 8), f32), Barrier()
        copy_gmem_to_smem(x.at[0:8, 0:8], into, full)
        o[...] = into[...]

    with pytest.raises(ProtocolError):
        early.on("emulator")(ARRAYS["rows of 33"])
