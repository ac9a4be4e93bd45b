"""Schedules and code of programs that each warpgroup of a block runs for itself."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    barrier_arrive,
    barrier_wait,
    cdiv,
    f16,
    f32,
    kernel,
    parallel,
    pipeline,
    tile,
    warpgroup_id,
    zeros,
)
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.equality import structurally_equal
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from astdsl.lowering.schedule.reach import reach
from tests.witnesses import agree

X = np.random.default_rng(3).integers(-4, 5, (128, 128)).astype(np.float32)
HALVES = X.astype(np.float16)


def launches_of(kernel: Any, *arguments: Any, target: str = "sm_90a") -> list[ops.Launch]:
    lowered = kernel.lower(*arguments, target=target)
    scheduled = lowered._program.compiled(lowered.target).scheduled
    return [op for op in scheduled.body.ops if isinstance(op, ops.Launch)]


@kernel(warpgroups=2)
def both_sum(x: In[f32, "M N"], o: Out[f32, "2 N"]):
    m, _ = x.shape
    w = warpgroup_id()
    total = zeros((128,), f32)
    with pipeline(cdiv(m, 32), stages=2) as k:
        total += x[tile(2 * k + w, 16), 0:128].sum(axis=0)
    o[w, 0:128] = total


@kernel(warpgroups=2)
def one_sums(x: In[f32, "M N"], o: Out[f32, "N"]):
    m, _ = x.shape
    if warpgroup_id() == 1:
        total = zeros((128,), f32)
        with pipeline(cdiv(m, 16), stages=3) as k:
            total += x[tile(k, 16), 0:128].sum(axis=0)
        o[0:128] = total


def test_a_pipeline_of_several_warpgroups_has_a_ring_for_each() -> None:
    (launch,) = launches_of(both_sum, X)
    rings = [op for op in walk(launch.body) if isinstance(op, (ops.AllocSmem, ops.AllocBarrier))]
    assert rings
    assert {op.owners for op in rings} == {(0, 1)}
    agree(both_sum, lambda: [X])


def test_a_pipeline_of_one_warpgroup_has_one_ring() -> None:
    (launch,) = launches_of(one_sums, X)
    rings = [op for op in walk(launch.body) if isinstance(op, (ops.AllocSmem, ops.AllocBarrier))]
    assert rings
    assert {op.owners for op in rings} == {()}
    agree(one_sums, lambda: [X])


def test_a_warpgroup_that_is_known_meets_at_a_barrier_that_is_a_constant() -> None:
    ptx = one_sums.lower(X, target="sm_90a").ptx
    assert set(re.findall(r"bar\.sync \t?(\S+),", ptx)) == {"0", "2"}


def test_programs_of_warpgroups_are_printed_and_read_back() -> None:
    lowered = both_sum.lower(X, target="sm_90a")
    scheduled = lowered._program.compiled("sm_90a").scheduled
    for module in (lowered.module, scheduled):
        assert structurally_equal(parse_module(print_module(module)), module)


@kernel(warpgroups=2)
def roles(x: In[f32, "N"], o: Out[f32, "N"]):
    if warpgroup_id() == 0:
        o[0] = x[0]
    elif x[1] > 0:
        o[1] = x[1]
    for k in range(4):
        if k + warpgroup_id() == 2:
            o[k] = x[k]


def test_what_a_warpgroup_reaches_follows_from_its_number() -> None:
    (launch,) = launches_of(roles, X[0])
    first, second = (reach(launch.body, k) for k in range(2))
    stores = [[op for op in r.ops if isinstance(op, ops.Store)] for r in (first, second)]
    assert [len(found) for found in stores] == [2, 2]
    assert [op in first.certain for op in stores[0]] == [True, False]
    assert [op in second.certain for op in stores[1]] == [False, False]


@kernel(warpgroups=2)
def products(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    m, k = a.shape
    w = warpgroup_id()
    with parallel(cdiv(m, 128)) as i:
        total = zeros((64, 128), f32)
        with pipeline(cdiv(k, 64)) as j:
            total += a[tile(2 * i + w, 64), tile(j, 64)] @ b[tile(j, 64), 0:128]
        o[tile(2 * i + w, 64), 0:128] = total


def test_each_warpgroup_multiplies_for_itself() -> None:
    agree(products, lambda: [HALVES, HALVES])


@kernel(warpgroups=2)
def sums_and_hands_on(x: In[f32, "M N"], o: Out[f32, "128"]):
    m, _ = x.shape
    row, done = SMEM((128,), f32), Barrier()
    if warpgroup_id() == 0:
        total = zeros((128,), f32)
        with pipeline(cdiv(m, 16), stages=2) as k:
            total += x[tile(k, 16), 0:128].sum(axis=0)
        row[...] = total
        barrier_arrive(done)
    else:
        barrier_wait(done)
        with pipeline(2) as k:
            o[tile(k, 64)] = row[tile(k, 64)] + x[k, tile(k, 64)]


def test_pipelines_and_barriers_by_hand_stand_side_by_side() -> None:
    agree(sums_and_hands_on, lambda: [X])


def test_the_explanation_says_who_runs_the_program() -> None:
    said = both_sum.lower(X, target="sm_90a").explain()
    assert "blocks: 1 of 256 threads, each of 2 warpgroups by itself" in said
