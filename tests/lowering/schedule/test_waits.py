"""Waits that every warp makes for itself: nobody goes on so far that another waits for ever."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import astdsl.emulator.device as emulator
from astdsl import (
    SMEM,
    TMEM,
    Barrier,
    In,
    KernelError,
    Out,
    async_load_tmem,
    barrier_arrive,
    barrier_test,
    barrier_wait,
    copy_gmem_to_smem,
    f16,
    f32,
    i32,
    kernel,
    pipeline,
    tcgen05_mma,
    warp_id,
    warpgroup_id,
    zeros,
)
from astdsl.ir import ops
from astdsl.ir.core import Op, walk
from tests.lowering.schedule.test_warpgroups import launches_of
from tests.witnesses import agree

RANDOM = np.random.default_rng(7)
A = RANDOM.integers(-2, 3, (128, 64)).astype(np.float16)
B = RANDOM.integers(-2, 3, (64, 128)).astype(np.float16)
ROWS = RANDOM.integers(-4, 5, (6, 64)).astype(np.float32)
BARRIER = re.compile(r"\bbar\.sync 0, \d+;")


@kernel
def powers(a: In[f16, "128 64"], b: In[f16, "64 128"], o: Out[f32, "128 128"], *, n=5):
    x, y = a[...], b[...]
    total = zeros((128, 128), f32)
    with pipeline(n):
        total += x @ y
    o[...] = total


@kernel
def powers_by_hand(a: In[f16, "128 64"], b: In[f16, "64 128"], o: Out[f32, "128 128"], *, n=5):
    x, y, acc = SMEM((128, 64), f16), SMEM((64, 128), f16), TMEM((128, 128))
    full, done = Barrier(2), Barrier(orders_tensor_core=True)
    copy_gmem_to_smem(a, x, full)
    copy_gmem_to_smem(b, y, full)
    barrier_wait(full)
    for k in range(n):
        tcgen05_mma(acc, x, y, done, accumulate=k > 0)
        barrier_wait(done)
    o[...] = async_load_tmem(acc)


@kernel(warpgroups=2)
def fed_by_warps(x: In[f32, "M 64"], o: Out[f32, "M 64"]):
    row, full, free = SMEM((64,), f32), Barrier(), Barrier()
    if warpgroup_id() == 0:
        feed(x, row, full, free)
    else:
        take(o, row, full, free)


@kernel(warpgroups=2)
def fed_by_a_warp(x: In[f32, "M 64"], o: Out[f32, "M 64"]):
    row, full, free = SMEM((64,), f32), Barrier(), Barrier()
    if warpgroup_id() == 0:
        if warp_id() == 0:
            feed(x, row, full, free)
    else:
        take(o, row, full, free)


def feed(x, row, full, free):
    for k in range(x.shape[0]):
        if k > 0:
            barrier_wait(free)
        copy_gmem_to_smem(x.at[k, :], row, full)


def take(o, row, full, free):
    for k in range(o.shape[0]):
        barrier_wait(full)
        o[k, :] = row[...]
        barrier_arrive(free)


def loops_with(kernel: Any, *arguments: Any, kind: Any, **options: Any) -> list[list[type[Op]]]:
    """Return the kinds of operations, in order, of the innermost loops that have one of a kind."""
    (launch,) = launches_of(kernel, *arguments, **options)
    loops = [[*walk(op.body)] for op in walk(launch.body) if isinstance(op, ops.Loop)]
    return [
        [type(op) for op in loop]
        for loop in loops
        if any(isinstance(op, kind) for op in loop)
        and not any(isinstance(op, ops.Loop) for op in loop)
    ]


@pytest.mark.parametrize("multiply", [powers, powers_by_hand])
def test_a_loop_of_products_meets_before_the_first_thread_starts_the_next(multiply: Any) -> None:
    found = agree(multiply, lambda: (A, B), targets=("sm_100a",))
    assert np.array_equal(found, 5 * (A.astype(np.float32) @ B.astype(np.float32)))
    products = (ops.MatrixMultiply, ops.TensorCommit)
    (kinds,) = loops_with(multiply, A, B, kind=products, target="sm_100a")
    assert kinds.count(ops.BlockBarrier) == 1


def test_products_that_warps_wait_for_together_need_no_barrier() -> None:
    (kinds,) = loops_with(powers, A, B, kind=ops.MatrixMultiply)
    assert ops.BlockBarrier not in kinds


@pytest.mark.parametrize("feed", [fed_by_warps, fed_by_a_warp])
def test_warps_that_feed_others_meet_before_the_next_copy(feed: Any) -> None:
    assert np.array_equal(agree(feed, lambda: [ROWS]), ROWS)
    (kinds,) = loops_with(feed, ROWS, kind=ops.CopyIn)
    assert (ops.BlockBarrier in kinds) == (feed is fed_by_warps)


@pytest.mark.parametrize("multiply", [powers, powers_by_hand])
def test_products_without_that_barrier_are_reported(multiply: Any) -> None:
    text = multiply.lower(A, B, target="sm_100a").ptx
    found = {reported(multiply, text, barrier) for barrier in BARRIER.finditer(text)}
    assert "E245" in found


def reported(multiply: Any, text: str, gone: re.Match[str]) -> str:
    """Return what the emulator reports of a product whose code has lost something."""
    run, changed = emulator.run, text[: gone.start()] + text[gone.end() :]
    # A kernel of its own, whose launchers call the `run` of now.
    fresh = type(multiply)(multiply.__wrapped__, multiply._options)
    with patch.object(emulator, "run", lambda _, *given, **how: run(changed, *given, **how)):
        try:
            fresh.on("emulator", target="sm_100a")(A, B)
        except KernelError as error:
            return str(re.findall(r"\[(E\d+)\]", str(error))[0])
    return ""


@kernel
def polled(x: In[f32, "64"], o: Out[i32, "256"]):
    row, full, polls = SMEM((64,), f32), Barrier(), 0
    copy_gmem_to_smem(x.at[...], row, full)
    while not barrier_test(full):
        polls += 1
    o[...] = zeros((256,), i32) + polls
    barrier_wait(full)


@kernel(warpgroups=2)
def polled_by_one(x: In[f32, "64"], o: Out[i32, "256"], *, by_warp):
    row, full = SMEM((64,), f32), Barrier()
    if warpgroup_id() == 0:
        copy_gmem_to_smem(x.at[...], row, full)
    elif by_warp:
        if warp_id() == 0:
            while not barrier_test(full):
                pass
        barrier_wait(full)
        o[...] = zeros((256,), i32)
    else:
        polls = 0
        while not barrier_test(full):
            polls += 1
        barrier_wait(full)
        o[...] = zeros((256,), i32) + polls


@pytest.mark.parametrize("completion", ["late", "early", *range(6)])
def test_a_test_of_a_barrier_tells_all_warps_the_same(completion: Any) -> None:
    order = completion if isinstance(completion, int) else "round-robin"
    device = {"completion": completion, "order": order}
    found = polled.on("emulator", **device)(ROWS[0])
    assert np.all(found == found[0])
    found = polled_by_one.on("emulator", **device)(ROWS[0], by_warp=False)
    assert np.all(found == found[0])
    assert not polled_by_one.on("emulator", **device)(ROWS[0], by_warp=True).any()


@kernel(warpgroups=3)
def answered_by_one(x: In[f32, "M 64"], o: Out[f32, "M 64"]):
    """Copy with one warpgroup, for two that wait, of which one says when it has."""
    row, full, free = SMEM((64,), f32), Barrier(), Barrier()
    if warpgroup_id() == 0:
        feed(x, row, full, free)
    elif warpgroup_id() == 1:
        take(o, row, full, free)
    else:
        for _ in range(x.shape[0]):
            barrier_wait(full)


def test_a_warpgroup_that_waits_and_does_not_answer_may_be_overtaken() -> None:
    with pytest.raises(KernelError, match=r"warp \d+ of block \(0, 0, 0\).*E245") as caught:
        answered_by_one.on("emulator")(ROWS)
    assert "let a warp that waits arrive" in str(caught.value)
