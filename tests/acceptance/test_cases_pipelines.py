"""Faults that users reported, cases 1 to 9 and 22: trip counts, order, conditions, exits."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from astdsl import (
    GMEM,
    SMEM,
    In,
    InOut,
    Out,
    argmin,
    async_prefetch,
    atomic_add,
    atomic_cas,
    bitcast,
    broadcast_to,
    cdiv,
    ceil,
    clip,
    concat,
    cos,
    cumsum,
    ds,
    exp,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i32,
    iota,
    isinf,
    isnan,
    kernel,
    load,
    log2,
    maximum,
    minimum,
    num_sms,
    pipeline,
    random_bits,
    reduce,
    scan,
    sigmoid,
    sin,
    split,
    stack,
    take,
    tile,
    where,
    zeros,
)
from astdsl.ir import ops
from astdsl.ir.core import walk
from tests.acceptance.test_cases import OPERATIONS, under_a_condition
from tests.arrays import Array, whole
from tests.test_complete import CONCRETE
from tests.witnesses import TARGETS, agree

ONE = ("sm_90a",)
STAGES = range(1, 9)


def trips(stages: int) -> list[int]:
    return sorted({-3, 0, 1, stages - 1, stages, stages + 1, 2 * stages, 2 * stages + 1})


# 1. every trip count of every number of stages, each by a block of its own


@kernel
def prefixes(
    counts: In[i32, "G"], x: In[f32, "R N"], o: InOut[f32, "G R N"], p: Out[f32, "G N"], *, S=2
):
    (G,) = counts.shape
    with pipeline(G) as g:
        total = zeros((64,), f32)
        with pipeline(counts[g], stages=S) as r:
            total += x[r, 0:64] * (r + 1)
            o[g, r, 0:64] = x[r, 0:64] * 2
        p[g, 0:64] = total


@kernel
def product_prefixes(
    counts: In[i32, "G"], a: In[f16, "64 K"], b: In[f16, "K 16"], o: Out[f32, "G 64 16"], *, S=2
):
    (G,) = counts.shape
    with pipeline(G) as g:
        total = zeros((64, 16), f32)
        with pipeline(counts[g], stages=S) as k:
            total += a[0:64, tile(k, 16)] @ b[tile(k, 16), 0:16]
        o[g] = total


@kernel
def static_prefix(x: In[f32, "R N"], o: Out[f32, "N"], *, S=2, steps=0):
    total = zeros((64,), f32)
    with pipeline(1):
        with pipeline(steps, stages=S) as r:
            total += x[r, 0:64] * (r + 1)
        o[0:64] = total


@kernel
def counted_by_a_scalar(x: In[f32, "R N"], steps: i32, o: Out[f32, "N"], *, S=2):
    total = zeros((64,), f32)
    with pipeline(1):
        with pipeline(range(1, steps), stages=S) as r:
            total += x[r, 0:64]
        o[0:64] = total


@pytest.mark.parametrize("stages", STAGES)
def test_1_memory_decides_the_trip_count_of_each_block(stages: int) -> None:
    counts = np.array(trips(stages), np.int32)
    x = whole(2 * stages + 1, 64)
    start = np.full((len(counts), *x.shape), 7, np.float32)
    copied, sums = start.copy(), np.zeros((len(counts), 64), np.float32)
    for g, n in enumerate(counts):
        copied[g, : max(n, 0)] = x[: max(n, 0)] * 2
        sums[g] = (x[: max(n, 0)] * np.arange(1, max(n, 0) + 1)[:, None]).sum(0)
    target = TARGETS[stages % 2 :][:1]
    p, o = agree(prefixes, lambda: (counts, x, start.copy()), targets=target, S=stages)
    np.testing.assert_array_equal(o, copied)
    np.testing.assert_array_equal(p, sums)


@pytest.mark.parametrize("stages", STAGES)
def test_1_products_of_every_trip_count(stages: int) -> None:
    counts = np.array(trips(stages), np.int32)
    depth = 16 * (2 * stages + 1)
    a = whole(64, depth, dtype=np.float16)
    b = whole(depth, 16, dtype=np.float16)
    wide = a.astype(np.float32), b.astype(np.float32)
    expected = [wide[0][:, : 16 * max(n, 0)] @ wide[1][: 16 * max(n, 0)] for n in counts]
    placed = product_prefixes.on("emulator", target=TARGETS[stages % 2])
    np.testing.assert_array_equal(placed(counts, a, b, S=stages), expected)


@pytest.mark.parametrize("stages", STAGES)
def test_1_constants_and_scalars_decide_the_trip_count(stages: int) -> None:
    x = whole(2 * stages + 2, 64)
    emulate = stages == 3
    for steps in (0, 1, stages):
        expected = (x[:steps] * np.arange(1, steps + 1)[:, None]).sum(0)
        found = agree(
            static_prefix, lambda: (x,), targets=ONE, emulate=emulate, S=stages, steps=steps
        )
        np.testing.assert_array_equal(found, expected)
    for steps in (-1, 1, stages + 1):
        arguments = partial(tuple, (x, steps, np.zeros(64, np.float32)))
        found = agree(counted_by_a_scalar, arguments, targets=ONE, emulate=emulate, S=stages)
        np.testing.assert_array_equal(found, x[1 : max(steps, 1)].sum(0))


# 3. independent statements in every order


@kernel
def in_any_order(
    a: In[f16, "64 K"],
    b: In[f16, "K 16"],
    x: In[f32, "R N"],
    o: Out[f32, "64 16"],
    p: Out[f32, "R N"],
    q: Out[f32, "N"],
    r: Out[f32, "R"],
    *,
    order=(0, 1, 2, 3),
):
    R, _ = x.shape
    product, total = zeros((64, 16), f32), zeros((48,), f32)
    with pipeline(1):
        with pipeline(R, stages=3) as k:
            for statement in order:
                if statement == 0:
                    product += a[0:64, tile(k, 16)] @ b[tile(k, 16), 0:16]
                elif statement == 1:
                    p[k, 0:48] = exp(x[k, 0:48]) / 3
                elif statement == 2:
                    total = total * 0.5 + x[k, 0:48]
                else:
                    r[k] = x[k, 0:48].sum()
        o[...] = product
        q[0:48] = total


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_3_every_order_of_independent_statements_gives_the_same_bits(target: str) -> None:
    random = np.random.default_rng(5)
    a = random.standard_normal((64, 80)).astype(np.float16)
    b = random.standard_normal((80, 16)).astype(np.float16)
    x = random.standard_normal((5, 48)).astype(np.float32)
    for device in ("reference", "emulator"):
        placed = in_any_order.on(device, target=target)
        first = placed(a, b, x)
        for order in list(permutations(range(4)))[11::6]:
            for one, other in zip(first, placed(a, b, x, order=order), strict=True):
                np.testing.assert_array_equal(one, other)


# 5. every operation under a condition that memory decides, in a pipeline


def moved(t, x, y, n, r):
    y[...] += t
    y[iota((64,), 0) ^ 1] = y[...] * 2
    old = atomic_add(n.at[...], t.astype(i32)) + atomic_cas(n.at[0], 0, r)
    async_prefetch(x.at[0, 0:64])
    halo = x[ds(r - 1, 1), 0:64].sum(0) + load(x.at[r, 32:96], fill=3)
    return x[r, abs(t).astype(i32)] + old.astype(f32) + halo + y[...]


@kernel
def incremented(p: In[f32, "A"], q: Out[f32, "A"]):
    q[0:64] = p[0:64] + 1


def controlled(t, x, y, n, r):
    with pipeline(r + 1, stages=2) as k:
        t = t + x[k, 0:64]
    k = 0
    while t[0] < 100 and k < 3:
        t = t * 2 if t[1] > 0 else t + 1
        k += 1
    for k in range(r):
        if k == 2:
            continue
        t = t + k
    buffer = SMEM((64,), f32)
    buffer[...] = t.filled(0)
    assert t[2] < 1e6, "never"
    print("it begins with", t[0])  # noqa: T201
    incremented(buffer[...], y)
    return y[...]


def rearranged(t, x, y, n, r):
    parts = concat([t[:32], t[32:] * 2]) + stack([t, t]).sum(0) + split(t, 2)[0].sum()
    taken = take(t, r, 0) + take(t, abs(t).astype(i32), 0)
    scanned = cumsum(t) + scan(t, 0, lambda a, b: a + b) + reduce(t, 0, maximum)
    bits = bitcast(bitcast(t, i32) ^ 1, f32) + (random_bits(r, iota((64,), 0)) >> 20)
    return parts + taken + scanned + bits + argmin(t, axis=0) + t[:4].prod() - t.min() - t.mean()


def computed(t, x, y, n, r):
    small = (
        t.astype(f8e4m3).astype(f32) + t.astype(f8e5m2).astype(f32) + t.astype(f4e2m1).astype(f32)
    )
    whole = (~t.astype(i32) & 7 | 8 >> 1).astype(f32) + t // 2 + t % 3
    wide = (t.astype(f64) * 3).astype(f32) + maximum(minimum(t, 3), -3) + clip(t, -2, 2)
    curved = sin(t) + cos(t) + sigmoid(t) + log2(abs(t) + 1) + abs(t) ** 1.5
    return (
        small + whole + wide + curved + where(isnan(t / t) | isinf(t), 5, ceil(t / 3)) + num_sms()
    )


def multiplied(t, x, y, n, r):
    square = t.reshape(8, 8)
    rows = broadcast_to(t[None], (64, 64)).astype(f16)
    columns = broadcast_to(t[:, None], (64, 64)).astype(f16)
    return (square @ square).reshape(64) + (rows @ columns)[0]


@kernel
def under_what_memory_says(
    x: In[f32, "R N"], y: InOut[f32, "64"], n: InOut[i32, "64"], o: Out[f32, "R N"], *, operation
):
    R, N = x.shape
    with pipeline(1):
        with pipeline(R, stages=3) as r:
            t = x[r, 0:64]
            if x[r, 0] > 0:
                t = operation(t, x, y, n, r)
            o[r, 0:64] = t


OF_MEMORY = [moved, controlled, rearranged, computed, multiplied]


def rows_of_both_kinds() -> tuple[Array, ...]:
    x = whole(5, 64)
    x[:, 0] = [3, -1, 2, -4, 5]
    return x, whole(64), np.zeros(64, np.int32), np.zeros_like(x)


@pytest.mark.parametrize("operation", OF_MEMORY)
def test_5_every_operation_may_stand_under_a_condition_of_memory(operation: Any) -> None:
    found = agree(
        under_what_memory_says, rows_of_both_kinds, tolerance=1e-5, targets=ONE, operation=operation
    )
    o = found[0] if isinstance(found, tuple) else found
    x = rows_of_both_kinds()[0]
    np.testing.assert_array_equal(o[1::2], x[1::2])
    assert (o[::2] != x[::2]).any(1).all()


# What schedules consist of, or only kernels of explicit names: its tests stand elsewhere.
BY_HAND = {
    ops.Launch, ops.Phase, ops.Counter, ops.CounterRead, ops.CounterAdd, ops.WarpgroupId,
    ops.WarpId, ops.Warps, ops.Overlap, ops.StateLayout, ops.SetMaxRegisters, ops.BlockBarrier,
    ops.ProxyFence, ops.CopyIn, ops.CopyOut, ops.CommitGroup, ops.WaitGroup, ops.SharedDot,
    ops.AllocAccumulator, ops.AccumulatorWrite, ops.AccumulatorRead, ops.MatrixMultiply,
    ops.ScaledMultiply, ops.ProductWait, ops.AllocBarrier, ops.BarrierArrive, ops.BarrierWait,
    ops.BarrierTest, ops.LayoutCast, ops.PrintLayout, ops.InlinePtx,
}  # fmt: skip
# Made where a kernel begins, or known to its host.
OUTSIDE = {ops.AllocGmem, ops.AllocSmem, ops.Assert, ops.Dim}
# Packed bytes, and scales of blocks: `lowering/nvptx/test_nibbles.py`, `test_scaled_products.py`.
PACKED = {ops.PackNibbles, ops.UnpackNibbles, ops.ScaledDot}


def test_5_no_operation_is_left_out() -> None:
    x = rows_of_both_kinds()
    lowered = [under_a_condition.lower(x[0], operation=each) for each in OPERATIONS.values()]
    lowered += [under_what_memory_says.lower(*x, operation=each) for each in OF_MEMORY]
    branches = [op for each in lowered for op in walk(each.module.body) if isinstance(op, ops.If)]
    found = {type(op) for each in branches for region in each.regions for op in walk(region)}
    by_hand = {kind for kind in CONCRETE if kind.__module__.endswith("tmem")} | BY_HAND
    assert set(CONCRETE) - found - by_hand - OUTSIDE - PACKED == set()


# 6. windows of three dims, one of them of extent 1, of views in every order


@kernel
def turned_windows(x: In["A B C"], o: Out["A B C"], *, axis=0, S=3):
    extents = x.shape
    with pipeline(1):
        with pipeline(extents[axis], stages=S) as i:
            window = tuple(ds(i, 1) if a == axis else slice(0, 16) for a in range(3))
            o[window] = x[window] + 1


@kernel
def batched(a: In[f16, "B M K"], b: In[f16, "B K N"], o: Out[f32, "B M N"], *, bk=16, S=3):
    B, M, K = a.shape
    with pipeline(B) as i:
        total = zeros((1, 64, 16), f32)
        with pipeline(cdiv(K, bk), stages=S) as k:
            total += a[ds(i, 1), 0:64, tile(k, bk)] @ b[ds(i, 1), tile(k, bk), 0:16]
        o[ds(i, 1), 0:64, 0:16] = total


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_6_permuted_arguments_are_read_and_written_along_each_axis(
    order: tuple[int, int, int],
) -> None:
    x = whole(12, 16, 8).transpose(order)
    for axis in range(3):
        out = np.zeros((12, 16, 8), np.float32).transpose(order)
        for device in ("reference", "emulator"):
            out[...] = 0
            turned_windows.on(device)(x, out, axis=axis)
            np.testing.assert_array_equal(out, x + 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)], ids=str)
def test_6_products_of_permuted_batches(order: tuple[int, int, int]) -> None:
    a = np.ascontiguousarray(whole(3, 64, 40, dtype=np.float16).transpose(order))
    b = np.ascontiguousarray(whole(3, 40, 16, dtype=np.float16).transpose(order))
    back = np.argsort(order)
    a, b = a.transpose(back), b.transpose(back)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for target in TARGETS:
        found = batched.on("emulator", target=target)(a, b)
        np.testing.assert_array_equal(found, expected)


# 8. blocks that leave early


@kernel
def until_enough(limits: In[f32, "G"], x: In[f32, "T R N"], o: Out[f32, "G N"], *, S=3):
    G, (T, R, _) = limits.shape[0], x.shape
    with pipeline(G) as g:
        total = zeros((64,), f32)
        for t in range(T):
            with pipeline(R, stages=S) as r:
                total += x[t, r, 0:64]
            if total.max() > limits[g]:
                break
        o[g, 0:64] = total


@kernel
def nothing_to_do(limits: In[f32, "G"], x: In[f32, "R N"], o: InOut[f32, "N"], *, S=3):
    if limits[0] < 0:
        return
    R, _ = x.shape
    total = zeros((64,), f32)
    t = 0
    while True:
        with pipeline(R, stages=S) as r:
            if x[r, 0] > limits[1]:
                total += x[r, 0:64]
        t += 1
        if total.sum() > limits[0] or t > 3:
            break
    o[0:64] = total


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_8_a_block_that_leaves_early_leaves_no_copy_in_flight(stages: int) -> None:
    x = whole(4, 3, 64, low=0)
    limits = np.array([-1, 20, 40, 1000], np.float32)
    sums = np.cumsum(x.sum(1), 0)
    stops = [next((t for t in range(4) if sums[t].max() > limit), 3) for limit in limits]
    found = agree(until_enough, lambda: (limits, x), S=stages)
    np.testing.assert_array_equal(found, sums[stops])
    for first in (-1, 600, 5000):
        given, o = np.array([first, 2], np.float32), whole(64)
        total, t = np.zeros(64, np.float32), 0
        while t <= 3 and not total.sum() > first:
            total, t = total + x[0][x[0][:, 0] > 2].sum(0), t + 1
        for device in ("reference", "emulator"):
            out = o.copy()
            nothing_to_do.on(device)(given, x[0], out, S=stages)
            np.testing.assert_array_equal(out, o if first < 0 else total)


# 22. what a step stores, the same and later steps load transposed


@kernel
def turned_each_step(x: In[f32, "T 32 32"], o: Out[f32, "T 32 32"], *, S=2):
    scratch = GMEM((32, 32), f32)
    with pipeline(1):
        scratch[...] = x[0]
        with pipeline(x.shape[0], stages=S, axes="sequential") as t:
            scratch[...] = scratch.T[...] + x[t]
            o[t] = scratch.T[...] * 2


@pytest.mark.parametrize("stages", [1, 3])
def test_22_what_a_step_stores_is_loaded_transposed(stages: int) -> None:
    x = whole(4, 32, 32)
    s, expected = x[0], []
    for t in range(4):
        s = s.T + x[t]
        expected.append(s.T * 2)
    np.testing.assert_array_equal(agree(turned_each_step, lambda: (x,), S=stages), expected)
