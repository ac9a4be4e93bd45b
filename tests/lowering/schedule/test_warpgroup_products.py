"""Products of programs that each warpgroup of a block runs for itself, on both targets."""

from __future__ import annotations

import re

import numpy as np
import pytest

from astdsl import (
    SMEM,
    TMEM,
    Barrier,
    In,
    Out,
    async_load_tmem,
    async_store_tmem,
    barrier_arrive,
    barrier_wait,
    cdiv,
    commit_smem,
    commit_tmem,
    f16,
    f32,
    kernel,
    parallel,
    pipeline,
    tcgen05_mma,
    tile,
    wait_load_tmem,
    warpgroup_id,
    zeros,
)
from astdsl.errors import OutOfSharedMemory, TileTooLarge
from astdsl.ir import ops
from astdsl.ir.core import walk
from tests.lowering.schedule.test_warpgroups import launches_of
from tests.witnesses import TARGETS, agree

RANDOM = np.random.default_rng(11)
A = RANDOM.integers(-4, 5, (256, 128)).astype(np.float16)
B = RANDOM.integers(-4, 5, (128, 256)).astype(np.float16)


@kernel(warpgroups=2)
def alternating(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    m, k = a.shape
    _, n = b.shape
    with parallel(cdiv(n, 64)) as column:
        for turn in range(cdiv(m, 128)):
            row = 2 * turn + warpgroup_id()
            total = zeros((64, 64), f32)
            with pipeline(cdiv(k, 32), stages=2) as step:
                total += a[tile(row, 64), tile(step, 32)] @ b[tile(step, 32), tile(column, 64)]
            o[tile(row, 64), tile(column, 64)] = total


def test_two_warpgroups_take_blocks_in_turn() -> None:
    agree(alternating, lambda: [A, B[:, :128]])
    agree(alternating, lambda: [A[:200], B[:, :100]])


@kernel(warpgroups=4)
def four(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    _, k = a.shape
    total = zeros((64, 64), f32)
    with pipeline(cdiv(k, 32), stages=2) as step:
        total += a[tile(warpgroup_id(), 64), tile(step, 32)] @ b[tile(step, 32), 0:64]
    o[tile(warpgroup_id(), 64), 0:64] = total


def test_each_of_four_warpgroups_has_its_own_columns() -> None:
    agree(four, lambda: [A, B[:, :64]])
    lowered = four.lower(A, B[:, :64], target="sm_100a")
    assert re.findall(r"tcgen05\.alloc.*, (\d+);", lowered.ptx) == ["256"]
    assert "tensor memory: 256 columns" in lowered.explain()
    assert "tensor memory" not in four.lower(A, B[:, :64], target="sm_90a").explain()
    (launch,) = launches_of(four, A, B[:, :64], target="sm_100a")
    (made,) = (op for op in walk(launch.body) if isinstance(op, ops.AllocAccumulator))
    assert made.owners == (0, 1, 2, 3)


@kernel(warpgroups=2)
def apart(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "2 128 64"]):
    _, k = a.shape
    if warpgroup_id() == 0:
        first = zeros((128, 64), f32)
        with pipeline(cdiv(k, 32), stages=3) as step:
            first += a[0:128, tile(step, 32)] @ b[tile(step, 32), 0:64]
        o[0] = first
    else:
        second = zeros((128, 64), f32)
        with pipeline(cdiv(k, 64), stages=2) as step:
            second += a[128:256, tile(step, 64)] @ b[tile(step, 64), 64:128]
        o[1] = second


def test_warpgroups_with_pipelines_of_their_own_count_their_own_products() -> None:
    agree(apart, lambda: [A, B[:, :128]])
    (launch,) = launches_of(apart, A, B[:, :128], target="sm_100a")
    made = [op for op in walk(launch.body) if isinstance(op, ops.AllocAccumulator)]
    assert [op.owners for op in made] == [(), ()]


@kernel(warpgroups=2)
def unequal(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    m, k = a.shape
    for turn in range(m // 64):
        if turn % 3 == warpgroup_id() or turn % 3 == 2 * warpgroup_id():
            total = zeros((64, 32), f32)
            with pipeline(cdiv(k, 32), stages=2) as step:
                total += a[tile(turn, 64), tile(step, 32)] @ b[tile(step, 32), 0:32]
            o[tile(turn, 64), 0:32] = total


def test_one_warpgroup_may_multiply_more_often_than_the_other() -> None:
    agree(unequal, lambda: [A, B[:, :32]])


@kernel(warpgroups=2)
def one_product(a: In[f16, "128 64"], b: In[f16, "64 64"], o: Out[f32, "128 64"]):
    w = warpgroup_id()
    o[tile(w, 64), 0:64] = a[tile(w, 64), 0:64] @ b[0:64, 0:64] + a[tile(w, 64), 0:1]


def test_a_product_without_a_pipeline_is_of_each_warpgroup_too() -> None:
    agree(one_product, lambda: [A[:128, :64], B[:64, :64]])


@kernel(warpgroups=2)
def by_hand_too(a: In[f16, "128 64"], b: In[f16, "64 64"], o: Out[f32, "3 128 64"]):
    w = warpgroup_id()
    left, right = SMEM((128, 64), f16), SMEM((64, 64), f16)
    mine, done = TMEM((128, 64), f32), Barrier(orders_tensor_core=True)
    moved = Barrier(orders_tensor_core=True)
    if w == 0:
        left[...] = a[0:128, 0:64]
        right[...] = b[0:64, 0:64]
        commit_smem()
        tcgen05_mma(mine, left, right, done, accumulate=False)
    total = zeros((64, 64), f32)
    with pipeline(2, stages=2) as step:
        total += a[tile(w, 64), tile(step, 32)] @ b[tile(step, 32), 0:64]
    o[1, tile(w, 64), 0:64] = total
    if w == 0:
        barrier_wait(done)
        found = async_load_tmem(mine)
        o[0] = found
        wait_load_tmem()
        async_store_tmem(mine, found * 2)
        commit_tmem()
        barrier_arrive(moved)
    else:
        barrier_wait(moved)
        o[2] = async_load_tmem(mine)


def test_pipelines_of_warpgroups_and_tensor_memory_by_hand_stand_side_by_side() -> None:
    agree(by_hand_too, lambda: [A[:128, :64], B[:64, :64]], targets=["sm_100a"])


@kernel(warpgroups=2)
def too_many(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    w, total = warpgroup_id(), zeros((128, 128), f32)
    mine = TMEM((128, 272), f32)
    with pipeline(4, stages=1) as step:
        total += a[tile(w, 128), tile(step, 16)] @ b[tile(step, 16), 0:128]
    o[tile(w, 128), 0:128] = total
    if w == 0:
        async_store_tmem(mine.at[:, 0:32], zeros((128, 32), f32))
        commit_tmem()


def test_columns_that_a_block_has_not_are_refused_with_their_number() -> None:
    with pytest.raises(TileTooLarge, match="take 528 columns") as caught:
        too_many.lower(A, B[:, :128], target="sm_100a").ptx
    said = str(caught.value)
    assert "2 x 128 columns" in said
    assert "let the warpgroups take smaller blocks" in said


@kernel(warpgroups=3)
def specialised(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"], p: Out[f32, "M"]):
    m, k = a.shape
    if warpgroup_id() == 0:
        rows = zeros((128,), f32)
        with pipeline(cdiv(k, 32), stages=2) as step:
            rows += a[0:128, tile(step, 32)].astype(f32).sum(axis=1)
        p[0:128] = rows
    else:
        own = warpgroup_id() - 1
        total = zeros((64, 64), f32)
        with pipeline(cdiv(k, 32), stages=2) as step:
            total += a[tile(own, 64), tile(step, 32)] @ b[tile(step, 32), 0:64]
        o[tile(own, 64), 0:64] = total


def test_only_the_warpgroups_that_enter_a_pipeline_have_its_rings_and_columns() -> None:
    agree(specialised, lambda: [A[:128], B[:, :64]])
    for target in TARGETS:
        (launch,) = launches_of(specialised, A[:128], B[:, :64], target=target)
        made = [op for op in walk(launch.body) if isinstance(op, ops.AllocSmem)]
        assert {op.owners for op in made} == {(), (1, 2)}
    said = specialised.lower(A[:128], B[:, :64], target="sm_100a").explain()
    assert "tensor memory: 128 columns" in said


@kernel(warpgroups=2)
def too_large(x: In[f32, "M N"], o: Out[f32, "2 N"]):
    w, total = warpgroup_id(), zeros((256,), f32)
    with pipeline(4, stages=4) as k:
        total += x[tile(2 * k + w, 32), 0:256].sum(axis=0)
    o[w, 0:256] = total


def test_buffers_of_each_warpgroup_are_counted_for_each() -> None:
    x = np.zeros((256, 256), np.float32)
    with pytest.raises(OutOfSharedMemory, match="for each of 2 warpgroups") as caught:
        too_large.lower(x, target="sm_90a").schedule
    assert "`stages=3` fits" in (caught.value.help or "")
