"""Kernels of several launches: pipelines one after the other, writes between them, scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    GMEM,
    SMEM,
    Barrier,
    In,
    InOut,
    Out,
    barrier_wait,
    cdiv,
    commit_smem,
    copy_gmem_to_smem,
    exp,
    f16,
    f32,
    full,
    i32,
    kernel,
    maximum,
    parallel,
    pipeline,
    rsqrt,
    spec,
    tile,
    where,
    zeros,
)
from astdsl.errors import (
    DeviceError,
    NotConstant,
    ShapeMismatch,
    UnsupportedFeature,
    UnwrittenRead,
)
from astdsl.ir import ops
from tests.arrays import normal
from tests.goldens import Golden
from tests.witnesses import agree

ONE = ("sm_90a",)


def launches_of(kernel: Any, *arguments: Any, **constants: Any) -> list[ops.Launch]:
    lowered = kernel.lower(*arguments, **constants)
    scheduled = lowered._program.compiled(lowered.target).scheduled
    return [op for op in scheduled.body.ops if isinstance(op, ops.Launch)]


def grids(kernel: Any, *arguments: Any, **constants: Any) -> list[int]:
    """Return the blocks of every launch."""
    lowered = kernel.lower(*arguments, **constants)
    text = lowered.explain()
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("blocks:")]


# The kernels of the issue


@kernel
def long_softmax(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=4, bn=32):
    M, N = x.shape
    top, total = GMEM(M, f32), GMEM(M, f32)
    with pipeline(cdiv(M, bm)) as i:
        m = full(bm, float("-inf"), f32)
        s = zeros(bm, f32)
        with pipeline(cdiv(N, bn)) as j:
            t = x[tile(i, bm), tile(j, bn)]
            new = maximum(m, t.max(axis=1))
            s = s * exp(m - new) + exp(t - new[:, None]).sum(axis=1)
            m = new
        top[tile(i, bm)] = m
        total[tile(i, bm)] = s
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        e = exp(x[tile(i, bm), tile(j, bn)] - top[tile(i, bm)][:, None])
        o[tile(i, bm), tile(j, bn)] = e / total[tile(i, bm)][:, None]


@pytest.mark.parametrize("shape", [(4, 32), (9, 100), (1, 1)])
def test_softmax_of_long_rows_keeps_its_statistics_in_scratch(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    found = agree(long_softmax, lambda: (x,), tolerance=1e-5)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_each_pipeline_spreads_over_its_own_blocks() -> None:
    assert grids(long_softmax, spec((9, 100), f32)) == [3, 12]


@kernel
def prefix_sum(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    sums = GMEM(cdiv(N, b), f32)
    starts = GMEM(cdiv(N, b), f32)
    with pipeline(cdiv(N, b)) as i:
        sums[i] = x[tile(i, b)].sum()
    running = 0.0
    with pipeline(cdiv(N, b), axes="sequential") as i:
        starts[i] = running
        running += sums[i]
    with pipeline(cdiv(N, b)) as i:
        total = starts[i]
        for k in range(b):
            total += where(i * b + k < N, x[tile(i * b + k, 1)].sum(), 0)
            o[tile(i * b + k, 1)] = total


@pytest.mark.parametrize("n", [1, 32, 100])
def test_a_prefix_sum_over_a_long_axis_takes_three_launches(n: int) -> None:
    x = np.random.default_rng(n).integers(-8, 8, n).astype(np.float32)
    np.testing.assert_array_equal(agree(prefix_sum, lambda: (x,), targets=ONE), np.cumsum(x))
    assert grids(prefix_sum, spec((100,), f32)) == [4, 1, 4]


@kernel
def layer_norm(x: In[f32, "M N"], w: In[f32, "N"], o: Out[f32, "M N"], *, bm=8, bn=32, eps=1e-5):
    M, N = x.shape
    stats = GMEM((M, 2), f32)
    with pipeline(cdiv(M, bm)) as i:
        total, squares = zeros(bm, f32), zeros(bm, f32)
        with pipeline(cdiv(N, bn)) as j:
            t = x[tile(i, bm), tile(j, bn)]
            total += t.sum(axis=1)
            squares += (t * t).sum(axis=1)
        mean = total / N
        stats[tile(i, bm), 0] = mean
        stats[tile(i, bm), 1] = rsqrt(squares / N - mean * mean + eps)
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        mean, scale = stats[tile(i, bm), 0], stats[tile(i, bm), 1]
        t = (x[tile(i, bm), tile(j, bn)] - mean[:, None]) * scale[:, None]
        o[tile(i, bm), tile(j, bn)] = t * w[tile(j, bn)]


def test_layer_norm_with_a_pass_for_the_statistics() -> None:
    x, w = normal(19, 70), normal(70)
    found = agree(layer_norm, lambda: (x, w), tolerance=1e-4)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@kernel
def centered(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    total = 0.0
    with pipeline(cdiv(N, b)) as i:
        total += x[tile(i, b)].sum()
    mean = total / N
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = x[tile(i, b)] - mean


def test_what_a_pipeline_carries_out_reaches_the_blocks_of_later_ones() -> None:
    x = normal(100)
    found = agree(centered, lambda: (x,), tolerance=1e-5)
    np.testing.assert_allclose(found, x - x.mean(), atol=1e-5)
    assert grids(centered, spec((100,), f32)) == [1, 4]


def test_the_schedule_of_two_launches_is_as_it_was(golden: Golden) -> None:
    golden(centered.lower(spec((100,), f32)).schedule, "stages/centered.schedule.txt")


# Writes and values outside


@kernel
def with_edges(x: In[f32, "N"], o: Out[f32, "N"], n: Out[i32, "2"], *, b=32):
    (N,) = x.shape
    scale = x[0:1].sum()
    n[0] = 1
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = x[tile(i, b)] * scale
    n[1] = N
    o[0:1] = x[0:1] + scale


def test_writes_outside_are_launches_of_one_block() -> None:
    x = normal(70)
    o, n = agree(with_edges, lambda: (x,))
    wanted = x * x[0]
    wanted[0] = x[0] + x[0]
    np.testing.assert_array_equal(o, wanted)
    assert n.tolist() == [1, 70]
    assert grids(with_edges, spec((70,), f32)) == [1, 3, 1]


@kernel
def scaled_by_its_first(x: InOut[f32, "N"], *, b=32):
    (N,) = x.shape
    first = x[0]
    with pipeline(cdiv(N, b)) as i:
        x[tile(i, b)] = x[tile(i, b)] * first


def test_a_value_that_a_pipeline_overwrites_is_read_before_it() -> None:
    x = normal(70)
    found = agree(scaled_by_its_first, lambda: (x.copy(),))
    np.testing.assert_array_equal(found, x * x[0])
    assert grids(scaled_by_its_first, spec((70,), f32)) == [1, 3]


@kernel
def rotated(x: InOut[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    old = x[0:b]
    with pipeline(cdiv(N, b)) as i:
        x[tile(i, b)] = x[tile(i, b)] + 1
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = old + x[tile(i, b)]


def test_a_tile_read_before_a_launch_that_changes_it_is_kept_for_later_ones() -> None:
    x = normal(64)
    changed, o = x + 1, np.tile(x[:32], 2) + (x + 1)
    found = agree(rotated, lambda: (x.copy(), np.zeros_like(x)))
    np.testing.assert_array_equal(found[0], o)
    np.testing.assert_array_equal(found[1], changed)


@kernel
def summed_outside(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    bias = 0.0
    for k in range(3):
        bias += x[k]
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = x[tile(i, b)] + bias


def test_a_loop_outside_that_only_reads_is_recomputed_by_every_block() -> None:
    x = normal(70)
    found = agree(summed_outside, lambda: (x,), targets=ONE)
    np.testing.assert_array_equal(found, x + (x[0] + x[1] + x[2]))
    assert grids(summed_outside, spec((70,), f32)) == [3]


@kernel
def carried_to_a_write(x: In[f32, "N"], o: Out[f32, "1"], *, b=32):
    total = 0.0
    with pipeline(cdiv(x.shape[0], b)) as i:
        total += x[tile(i, b)].sum()
    o[0] = total


def test_a_write_of_what_a_pipeline_carries_stays_in_its_block() -> None:
    assert grids(carried_to_a_write, spec((70,), f32)) == [1]


@kernel
def shared_outside(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    buffer = SMEM(b, f32)
    with pipeline(cdiv(N, b)) as i:
        buffer[...] = zeros(b, f32) + i
        o[tile(i, b)] = buffer[...]
    o[0:1] = x[0:1]


def test_shared_memory_outside_keeps_everything_in_one_block() -> None:
    x = normal(70)
    found = agree(shared_outside, lambda: (x,), targets=ONE)
    np.testing.assert_array_equal(found, [x[0], *(np.arange(1, 70) // 32)])
    assert grids(shared_outside, spec((70,), f32)) == [1]


@kernel
def by_hand(x: In[f32, "_ N"], o: Out[f32, "_ N"]):
    buffer, full = SMEM((16, 32), f32), Barrier()
    o[64:80, 0:32] = zeros((16, 32), f32)
    with parallel(4) as i:
        for j in range(2):
            copy_gmem_to_smem(x.at[tile(i, 16), tile(j, 32)], buffer, full)
            barrier_wait(full)
            o[tile(i, 16), tile(j, 32)] = buffer[...] + 1
            commit_smem()


def test_each_block_of_a_parallel_has_its_own_shared_memory_and_barriers() -> None:
    x = normal(64, 64)
    given = np.zeros((80, 64), np.float32)
    found = agree(by_hand, lambda: (x, given.copy()))
    np.testing.assert_array_equal(found[:64], x + 1)
    assert grids(by_hand, x, given) == [1, 4]


# Pipelines in branches


@kernel
def in_branches(x: In[f32, "N"], flag: i32, o: Out[f32, "N"], n: Out[i32, "1"], *, b=32):
    (N,) = x.shape
    if flag > 0:
        n[0] = 1
        if flag > 1:
            with pipeline(cdiv(N, b)) as i:
                o[tile(i, b)] = x[tile(i, b)] * flag
        else:
            with pipeline(cdiv(N, b)) as i:
                o[tile(i, b)] = x[tile(i, b)]
    else:
        with pipeline(cdiv(N, 2 * b)) as i:
            o[tile(i, 2 * b)] = zeros(2 * b, f32)
        n[0] = 2


@pytest.mark.parametrize("flag", [0, 1, 2])
def test_pipelines_in_branches_are_launches_too(flag: int) -> None:
    x = normal(70)
    given = (np.zeros(70, np.float32), np.zeros(1, np.int32))
    o, n = agree(in_branches, lambda: (x, flag, *map(np.copy, given)), targets=ONE)
    np.testing.assert_array_equal(o, x * flag)
    assert n.tolist() == [1 if flag else 2]
    found = launches_of(in_branches, x, flag)
    assert len(found) == 5


@kernel
def under_a_loaded_condition(x: In[f32, "N"], flag: In[i32, "1"], o: InOut[f32, "N"], *, b=32):
    (N,) = x.shape
    if flag[0] > 0:
        with pipeline(cdiv(N, b)) as i:
            o[tile(i, b)] = x[tile(i, b)]


@pytest.mark.parametrize("flag", [0, 1])
def test_a_condition_from_memory_is_decided_by_every_block(flag: int) -> None:
    x, given = normal(70), np.full(1, flag, np.int32)
    agree(under_a_loaded_condition, lambda: (x, given, np.zeros(70, np.float32)), targets=ONE)
    assert grids(under_a_loaded_condition, x, given, np.zeros(70, np.float32)) == [3]


@kernel
def reading_branch(x: InOut[f32, "N"], flag: i32, *, b=32):
    (N,) = x.shape
    if flag > 0:
        scale = x[0]
        with pipeline(cdiv(N, b)) as i:
            x[tile(i, b)] = x[tile(i, b)] * scale


def test_a_branch_that_reads_beside_its_pipelines_is_one_block() -> None:
    x = normal(70)
    found = agree(reading_branch, lambda: (x.copy(), 1), targets=ONE)
    np.testing.assert_array_equal(found, x * x[0])
    assert grids(reading_branch, x, 1) == [1]


# Reads of what earlier launches wrote


@kernel
def accumulated_twice(x: In[f32, "R N"], o: Out[f32, "N"], *, b=32):
    R, N = x.shape
    with pipeline(cdiv(N, b), R) as (i, r):
        if r == 0:
            o[tile(i, b)] = 0
        o[tile(i, b)] += x[r, tile(i, b)]
    with pipeline(cdiv(N, b), R) as (i, r):
        o[tile(i, b)] += x[r, tile(i, b)]


def test_a_later_launch_accumulates_onto_what_an_earlier_one_wrote() -> None:
    x = np.random.default_rng(3).integers(-8, 8, (5, 70)).astype(np.float32)
    found = agree(accumulated_twice, lambda: (x,))
    np.testing.assert_array_equal(found, 2 * x.sum(0))


@kernel
def partly_overwritten(x: In[f32, "R N"], o: Out[f32, "N"], *, b=32):
    R, N = x.shape
    o[0:1] = x[0, 0:1]
    with pipeline(cdiv(N, b), R) as (i, r):
        if r == 0:
            o[tile(i, b)] = 0
        o[tile(i, b)] += x[r, tile(i, b)]


def test_a_window_that_is_written_first_is_not_read_before() -> None:
    x = np.random.default_rng(3).integers(-8, 8, (3, 70)).astype(np.float32)
    np.testing.assert_array_equal(agree(partly_overwritten, lambda: (x,), targets=ONE), x.sum(0))


@kernel
def filled_then_added(x: In[f32, "N"], o: Out[f32, "N", 2], *, b=32):
    (N,) = x.shape
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] += x[tile(i, b)]
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = o[tile(i, b)] * 2


@pytest.mark.parametrize("passed", [False, True])
def test_an_output_with_an_initial_value_is_filled_before_the_first_launch(passed: bool) -> None:
    x = normal(70)
    given = (lambda: (x, np.full_like(x, 9))) if passed else (lambda: (x,))
    np.testing.assert_array_equal(agree(filled_then_added, given), (x + 2) * 2)


@kernel
def half_written(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    (N,) = x.shape
    kept = GMEM(N, f32)
    with pipeline(cdiv(N, 2 * b)) as i:
        kept[tile(i, b)] = x[tile(i, b)]
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = kept[tile(i, b)]


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_what_no_earlier_launch_wrote_is_found_when_it_is_read(device: str) -> None:
    kinds = {"reference": UnwrittenRead, "emulator": DeviceError}
    with pytest.raises(kinds[device]):
        half_written.on(device)(normal(128))


@kernel
def never_written(o: Out[f32, "N"], *, b=32):
    (N,) = o.shape
    kept = GMEM(N, f32)
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = kept[tile(i, b)]
    with pipeline(cdiv(N, b)) as i:
        kept[tile(i, b)] = o[tile(i, b)]


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_what_no_earlier_launch_writes_is_refused(device: str) -> None:
    with pytest.raises(UnwrittenRead, match="`GMEM` is read here before"):
        never_written.on(device)(np.zeros(64, np.float32))


# Scratch


@kernel
def through_scratch(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"], *, n=64):
    M, K = a.shape
    _, N = b.shape
    c = GMEM((M, N), f16)
    with pipeline(cdiv(M, n), cdiv(N, n)) as (i, j):
        acc = zeros((n, n), f32)
        with pipeline(cdiv(K, n)) as k:
            acc += a[tile(i, n), tile(k, n)] @ b[tile(k, n), tile(j, n)]
        c[tile(i, n), tile(j, n)] = acc
    with pipeline(cdiv(M, n), cdiv(N, n)) as (i, j):
        acc = zeros((n, n), f32)
        with pipeline(cdiv(N, n)) as k:
            acc += c[tile(i, n), tile(k, n)] @ b[tile(k, n), tile(j, n)]
        o[tile(i, n), tile(j, n)] = acc


def test_scratch_is_copied_by_tma_whatever_its_extents() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1, 2, s).astype(np.float16) for s in ((70, 72), (72, 72)))
    found = agree(through_scratch, lambda: (a, b))
    wide = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(found, wide @ b.astype(np.float32))
    text = through_scratch.lower(a, b).ptx
    assert text.count(".visible .entry") == 2
    assert "cp.async.bulk.tensor" in text.split(".visible .entry")[2]


@kernel
def sized_by_a_scalar(n: i32, o: Out[f32, "M"], *, b=16):
    kept = GMEM((n, b), f32)
    with pipeline(n) as i:
        kept[i] = zeros(b, f32) + i
    with pipeline(cdiv(o.shape[0], b)) as i:
        o[tile(i, b)] = kept[i]


@pytest.mark.parametrize("n", [2, 5])
def test_the_extents_of_scratch_may_depend_on_scalars(n: int) -> None:
    o = agree(sized_by_a_scalar, lambda: (n, np.zeros(n * 16, np.float32)), targets=ONE)
    np.testing.assert_array_equal(o, np.repeat(np.arange(n), 16))


def test_scratch_is_named_by_explain() -> None:
    text = long_softmax.lower(spec((9, 100), f32)).explain()
    assert "f32 9" in next(line for line in text.splitlines() if line.startswith("scratch GMEM"))
    text = sized_by_a_scalar.lower(2, spec((32,), f32)).explain()
    assert "f32 ? 16" in next(line for line in text.splitlines() if line.startswith("scratch GMEM"))


@kernel
def inside_a_pipeline(x: In[f32, "N"], o: Out[f32, "N"]):
    with parallel(2) as i:
        kept = GMEM(8, f32)
        kept[...] = x[tile(i, 8)]
        o[tile(i, 8)] = kept[...]


@kernel
def negative(o: Out[f32, "N"]):
    GMEM((4, -1), f32)
    o[0] = 0


@kernel
def from_memory(n: In[i32, "1"], o: Out[f32, "N"]):
    kept = GMEM(n[0], f32)
    kept[0] = 1
    o[0] = kept[0]


@kernel
def whole_of_unknown(n: i32, o: Out[f32, "N"]):
    kept = GMEM(n, f32)
    kept[...] = 1
    o[0] = 0


@kernel
def counted_by_a_result(x: In[i32, "N"], o: Out[f32, "N"]):
    total = 0
    with pipeline(x.shape[0]) as i:
        total += x[i]
    with pipeline(total) as i:
        o[i] = 1


MISTAKES = {
    "inside": (inside_a_pipeline, (np.zeros(16, np.float32),), UnsupportedFeature, "inside a bl"),
    "negative": (negative, (np.zeros(4, np.float32),), ShapeMismatch, "none negative"),
    "memory": (from_memory, (np.ones(1, np.int32), np.zeros(4, np.float32)), UnsupportedFeature,
               "must be known on the host"),
    "whole": (whole_of_unknown, (4, np.zeros(4, np.float32)), NotConstant, "only at run time"),
    "count": (counted_by_a_result, (np.ones(4, np.int32),), UnsupportedFeature,
              "number of blocks must be known on the host"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_what_launches_cannot_do_is_refused_with_a_way_out(name: str) -> None:
    refused, arguments, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        refused.on("emulator")(*arguments)
    assert caught.value.help
