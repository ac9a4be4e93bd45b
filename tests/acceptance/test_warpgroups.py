"""Kernels that are written for each warpgroup: roles by hand, with TMA, barriers and registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    ACC,
    GMEM,
    SMEM,
    TMEM,
    Barrier,
    In,
    Out,
    async_load_tmem,
    axis_index,
    axis_size,
    barrier_arrive,
    barrier_test,
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
    num_programs,
    parallel,
    pipeline,
    program_id,
    set_max_registers,
    tcgen05_commit_arrive,
    tcgen05_mma,
    tile,
    unroll,
    wait_smem_to_gmem,
    warp_id,
    warpgroup_id,
    wgmma,
    wgmma_wait,
    when,
    zeros,
)
from astdsl.errors import KernelError
from tests.witnesses import agree

RNG = np.random.default_rng(7)
HALVES = RNG.normal(size=(512, 512)).astype(np.float16)
X, Y = RNG.normal(size=(2, 256, 256)).astype(np.float32)


@kernel(warpgroups=3)
def copied(x: In[f16, "M N"], o: Out[f16, "M N"], *, bm=64, bn=32, stages=2, repeats=10):
    m, n = x.shape
    with parallel(cdiv(m, bm), names=("m",)) as i:
        ring = SMEM((stages, bm, bn), f16)
        full = Barrier(num_barriers=stages)
        empty = Barrier(num_arrivals=2, num_barriers=stages)
        columns = cdiv(n, bn)
        steps = columns * repeats
        if warpgroup_id() == 0:
            set_max_registers(40, action="decrease")
            if warp_id() == 0:
                for k in range(steps):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    window = x.at[tile(i, bm), tile(k % columns, bn)]
                    copy_gmem_to_smem(window, ring.at[slot], full[slot])
        else:
            set_max_registers(232, action="increase")
            half = bm // 2
            own = (warpgroup_id() - 1) * half
            for k in range(steps):
                slot = k % stages
                barrier_wait(full[slot])
                o[ds(i * bm + own, half), tile(k % columns, bn)] = ring[slot, ds(own, half), :]
                barrier_arrive(empty[slot])


@pytest.mark.parametrize("stages", [2, 3])
def test_a_memory_warpgroup_feeds_two_that_copy(stages: int) -> None:
    x = HALVES[:128, :128]
    assert np.array_equal(agree(copied, lambda: [x], stages=stages, repeats=2), x)


TRIPS = [(s, t) for s in (1, 2, 3) for t in sorted({0, 1, s - 1, s, s + 1, 2 * s, 2 * s + 1})]


@pytest.mark.parametrize(("stages", "trips"), TRIPS)
def test_a_ring_has_any_number_of_steps(stages: int, trips: int) -> None:
    x = HALVES[:64, : 16 * trips]
    found = agree(copied, lambda: [x], emulate=stages == 2, stages=stages, repeats=1, bn=16)
    assert np.array_equal(found, x)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_ring_goes_round_ten_times(stages: int) -> None:
    given = copied.on("emulator")(HALVES, stages=stages)
    assert np.array_equal(given, HALVES)


@kernel(warpgroups=3)
def added(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=64, bn=32, stages=2):
    m, n = x.shape
    with parallel(cdiv(m, bm)) as i:
        xs, ys = SMEM((stages, bm, bn), f32), SMEM((stages, bm, bn), f32)
        sums = SMEM((2, bm // 2, bn), f32)
        full = Barrier(num_arrivals=2, num_barriers=stages)
        empty = Barrier(num_arrivals=2, num_barriers=stages)
        w, steps, half = warpgroup_id(), cdiv(n, bn), bm // 2
        if w == 2:
            for k in range(steps):
                slot = k % stages
                if k >= stages:
                    barrier_wait(empty[slot])
                copy_gmem_to_smem(x.at[tile(i, bm), tile(k, bn)], xs.at[slot], full[slot])
                copy_gmem_to_smem(y.at[tile(i, bm), tile(k, bn)], ys.at[slot], full[slot])
        else:
            own = ds(w * half, half)
            for k in range(steps):
                slot = k % stages
                barrier_wait(full[slot])
                total = xs[slot, own, :] + ys[slot, own, :]
                barrier_arrive(empty[slot])
                wait_smem_to_gmem(0, wait_read_only=True)
                sums[w] = total
                commit_smem()
                copy_smem_to_gmem(sums.at[w], o.at[ds(i * bm + w * half, half), tile(k, bn)])
            wait_smem_to_gmem(0)


@pytest.mark.parametrize("stages", [2, 3])
def test_two_compute_warpgroups_add_and_store_by_tma(stages: int) -> None:
    x, y = X[:128], Y[:128]
    assert np.array_equal(agree(added, lambda: [x, y], stages=stages), x + y)


def test_the_addition_of_256_by_256() -> None:
    assert np.array_equal(added.on("emulator")(X, Y), X + Y)


@kernel(warpgroups=3)
def summed(x: In[f32, "M N"], o: Out[f32, "64 64"], *, stages=2):
    m, n = x.shape
    ring, full = SMEM((stages, 64, 64), f32), Barrier(num_barriers=stages)
    empty = Barrier(num_arrivals=2, num_barriers=stages)
    columns = cdiv(n, 64)
    steps, w = cdiv(m, 64) * columns, warpgroup_id()
    if w == 2:
        for k in range(steps):
            if k >= stages:
                barrier_wait(empty[k % stages])
            window = x.at[tile(k // columns, 64), tile(k % columns, 64)]
            copy_gmem_to_smem(window, ring.at[k % stages], full[k % stages])
    else:
        total = zeros((32, 64), f32)
        for k in range(steps):
            barrier_wait(full[k % stages])
            total += ring[k % stages, tile(w, 32), :]
            barrier_arrive(empty[k % stages])
        o[tile(w, 32), :] = total


@pytest.mark.parametrize("stages", [2, 3])
def test_two_compute_warpgroups_carry_sums(stages: int) -> None:
    x = X.round()
    expected = x.reshape(4, 64, 4, 64).sum(axis=(0, 2))
    assert np.array_equal(agree(summed, lambda: [x], stages=stages), expected)


@kernel(warpgroups=2)
def left_out(x: In[f32, "64 64"], o: Out[f32, "64 64"], *, out=""):
    ring, sums = SMEM((2, 16, 64), f32), SMEM((16, 64), f32)
    full, empty = Barrier(num_barriers=2), Barrier(num_barriers=2)
    if warpgroup_id() == 0:
        for k in range(4):
            if k >= 2 and out != "wait for empty":
                barrier_wait(empty[k % 2])
            copy_gmem_to_smem(x.at[tile(k, 16), :], ring.at[k % 2], full[k % 2])
    else:
        for k in range(4):
            if out != "wait for full":
                barrier_wait(full[k % 2])
            sums[...] = ring[k % 2] + 1
            if out != "arrival":
                barrier_arrive(empty[k % 2])
            if out != "commit_smem":
                commit_smem()
            copy_smem_to_gmem(sums, o.at[tile(k, 16), :])
            if out != "wait_smem_to_gmem":
                wait_smem_to_gmem(0)


def test_nothing_is_left_out() -> None:
    assert np.array_equal(agree(left_out, lambda: [X[:64, :64]]), X[:64, :64] + 1)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    "out", ["wait for empty", "wait for full", "arrival", "commit_smem", "wait_smem_to_gmem"]
)
def test_what_is_left_out_is_reported(out: str, target: str) -> None:
    with pytest.raises(KernelError, match=r"A501|A601"):
        left_out.on("emulator", target=target)(X[:64, :64], out=out)


@kernel(warpgroups=2)
def reduced(x: In[f32, "M N"], o: Out[f32, "2 N"], *, b=16):
    m, n = x.shape
    w = warpgroup_id()
    with parallel(cdiv(n, 128), names=("n",)):
        total = zeros((128,), f32)
        with pipeline(cdiv(m, 2 * b)) as k:
            total += x[tile(2 * k + w, b), tile(program_id(0), 128)].sum(axis=0)
        o[w, tile(axis_index("n"), 128)] = total


def test_each_warpgroup_runs_a_pipeline_with_a_ring_of_its_own() -> None:
    x = X[:96].round()
    halves = x.reshape(3, 2, 16, 256).sum(axis=(0, 2))
    assert np.array_equal(agree(reduced, lambda: [x]), halves)


@kernel(warpgroups=2)
def turned(x: In[f32, "64 64"], o: Out[f32, "2 64 64"]):
    w = warpgroup_id()
    mine = x[...] + w.astype(f32)
    o[w, :, :] = mine.T + mine.max(axis=1)[:, None] - mine.sum(axis=0)[None, :]


def test_conversions_and_reductions_of_two_warpgroups_do_not_meet() -> None:
    x = X[:64, :64].round()
    mine = np.stack([x, x + 1])
    expected = mine.transpose(0, 2, 1) + mine.max(axis=2)[:, :, None] - mine.sum(axis=1)[:, None, :]
    assert np.array_equal(agree(turned, lambda: [x]), expected)


@kernel(warpgroups=2)
def warps_side_by_side(x: In[f32, "4 32"], o: Out[f32, "4 32"]):
    rows, full, counts = SMEM((4, 32), f32), Barrier(num_barriers=4), SMEM((4,), i32)
    if warpgroup_id() == 0:
        mine = warp_id()
        if mine < 2:
            copy_gmem_to_smem(x.at[mine, :], rows.at[mine], full[mine])
            counts[mine] = mine + 10
        if mine >= 2:
            copy_gmem_to_smem(x.at[mine, :], rows.at[mine], full[mine])
            counts[mine] = mine + 20
    else:
        for k in range(4):
            barrier_wait(full[k])
            o[k, :] = rows[k, :]


def test_the_warps_of_a_warpgroup_run_side_by_side() -> None:
    x = X[:4, :32]
    assert np.array_equal(agree(warps_side_by_side, lambda: [x]), x)


@kernel(warpgroups=2)
def ping_pong(x: In[f32, "S 64"], o: Out[f32, "S 64"], *, slots=2):
    """Two warpgroups take turns with the slots of one ring, each names what it waits for."""
    s, _ = x.shape
    ring = SMEM((slots, 64), f32)
    full, empty = Barrier(num_barriers=slots), Barrier(num_barriers=slots)
    w = warpgroup_id()
    for k in range(s):
        slot, round_ = k % slots, k // slots
        if w == 0:
            if warp_id() == 0:
                if k >= slots:
                    barrier_wait(empty[slot], completion=round_ - 1)
                copy_gmem_to_smem(x.at[k, :], ring.at[slot], full[slot])
        else:
            barrier_wait(full[slot], completion=round_)
            o[k, :] = ring[slot, :] * 2
            barrier_arrive(empty[slot])


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_wait_names_the_completion(steps: int) -> None:
    assert np.array_equal(agree(ping_pong, lambda: [X[:steps, :64]]), X[:steps, :64] * 2)


@kernel(warpgroups=2)
def spun(x: In[f32, "64"], o: Out[f32, "64"]):
    row, full = SMEM((64,), f32), Barrier()
    if warpgroup_id() == 0:
        copy_gmem_to_smem(x.at[...], row, full)
    else:
        while not barrier_test(full):
            pass
        barrier_wait(full)
        o[...] = row[...]


def test_a_test_of_a_barrier_does_not_wait() -> None:
    assert np.array_equal(agree(spun, lambda: [X[0, :64]]), X[0, :64])


@kernel(warpgroups=2)
def told_by_a_warp(o: Out[i32, "2 64"]):
    done, group = Barrier(num_barriers=2), warpgroup_id()
    if warp_id() == 0:
        if group == 1:
            barrier_arrive(done[0])
        else:
            barrier_arrive(done[1])
    barrier_wait(done[group])
    o[group, :] = zeros((64,), i32) + group


def test_a_warp_that_knows_its_warpgroup_meets_nobody_else() -> None:
    assert (agree(told_by_a_warp, list) == [[0], [1]]).all()


@kernel(warpgroups=2)
def placed(o: Out[i32, "3 2 8"]):
    with parallel(range(2, 8, 2), 2, names=("a", "b")):
        a, b = program_id(0), axis_index("b")
        if axis_index("wg") == 1:
            o[a, b, 0:2] = zeros((2,), i32) + a * 10 + b
        else:
            o[a, b, 2:4] = zeros((2,), i32) + num_programs(0)
            o[a, b, 4:8] = zeros((4,), i32) + axis_size("b") * axis_size("wg")


def test_axes_are_known_by_number_and_by_name() -> None:
    found = agree(placed, list)
    assert found[:, :, 0].tolist() == [[0, 1], [10, 11], [20, 21]]
    assert found[0, 0].tolist() == [0, 0, 3, 3, 4, 4, 4, 4]


@kernel
def guarded(x: In[f32, "N"], yes: i32, o: Out[f32, "N"]):
    with parallel(cdiv(x.shape[0], 64)) as i:
        value = x[tile(i, 64)]

        @when(yes > 0)
        def sometimes():
            nonlocal value
            value = value + 1

        @when(True)
        def always():
            o[tile(i, 64)] = value


@pytest.mark.parametrize("yes", [0, 1])
def test_when_is_an_if(yes: int) -> None:
    assert np.array_equal(agree(guarded, lambda: [X[0], yes]), X[0] + yes)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_registers_are_traded(target: str) -> None:
    lowered: Any = copied.lower(HALVES, target=target)
    assert "setmaxnreg.dec.sync.aligned.u32 40" in lowered.ptx
    assert "setmaxnreg.inc.sync.aligned.u32 232" in lowered.ptx
    assert ".minnctapersm 1" in lowered.ptx


@kernel(warpgroups=3)
def multiplied(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"], *, flight=1, early=False):
    stages, lag = 3, 0 if early else flight
    m, depth = a.shape
    _, n = b.shape
    with parallel(cdiv(m, 128), cdiv(n, 128)) as (i, j):
        a_ring, b_ring = SMEM((2 * stages, 64, 64), f16), SMEM((stages, 64, 128), f16)
        full = Barrier(num_arrivals=3, num_barriers=stages)
        empty = Barrier(num_arrivals=2, num_barriers=stages)
        w, steps = warpgroup_id(), cdiv(depth, 64)
        if w == 2:
            set_max_registers(40, action="decrease")
            if warp_id() == 0:
                for k in range(steps):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    for half in unroll(range(2)):
                        rows = a.at[tile(2 * i + half, 64), tile(k, 64)]
                        copy_gmem_to_smem(rows, a_ring.at[2 * slot + half], full[slot])
                    copy_gmem_to_smem(b.at[tile(k, 64), tile(j, 128)], b_ring.at[slot], full[slot])
        else:
            set_max_registers(232, action="increase")
            acc = ACC((64, 128), f32)
            for k in range(steps):
                slot = k % stages
                barrier_wait(full[slot])
                wgmma(acc, a_ring.at[2 * slot + w], b_ring.at[slot])
                wgmma_wait(flight)
                if k >= lag:
                    barrier_arrive(empty[(k - lag) % stages])
            wgmma_wait(0)
            for k in unroll(range(lag)):
                barrier_arrive(empty[(steps - lag + k) % stages])
            o[tile(2 * i + w, 64), tile(j, 128)] = acc[...]


@pytest.mark.parametrize("flight", [0, 1])
def test_two_warpgroups_multiply_from_one_ring(flight: int) -> None:
    a, b = HALVES[:128, :320].round(), HALVES[:320, :128].round()
    expected = a.astype(np.float32) @ b.astype(np.float32)
    found = agree(multiplied, lambda: [a, b], targets=["sm_90a"], flight=flight)
    assert np.array_equal(found, expected)


def test_a_slot_that_is_released_while_a_product_reads_it_is_reported() -> None:
    a, b = HALVES[:128, :320], HALVES[:320, :128]
    with pytest.raises(KernelError, match=r"A501|A601"):
        multiplied.on("emulator", target="sm_90a")(a, b, early=True)


@kernel(warpgroups=2)
def roles_of_warps(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"], *, stages=3):
    m, depth = a.shape
    _, n = b.shape
    with parallel(cdiv(m, 128), cdiv(n, 128)) as (i, j):
        a_ring, b_ring = SMEM((stages, 128, 64), f16), SMEM((stages, 64, 128), f16)
        full = Barrier(num_arrivals=2, num_barriers=stages)
        empty = Barrier(num_barriers=stages, orders_tensor_core=True)
        done, acc = Barrier(orders_tensor_core=True), TMEM((128, 128))
        steps = cdiv(depth, 64)
        if warpgroup_id() == 0:
            if warp_id() == 0:
                for k in range(steps):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    copy_gmem_to_smem(a.at[tile(i, 128), tile(k, 64)], a_ring.at[slot], full[slot])
                    copy_gmem_to_smem(b.at[tile(k, 64), tile(j, 128)], b_ring.at[slot], full[slot])
            if warp_id() == 1:
                for k in range(steps):
                    slot = k % stages
                    barrier_wait(full[slot])
                    left, right = a_ring.at[slot], b_ring.at[slot]
                    tcgen05_mma(acc, left, right, empty[slot], accumulate=k > 0)
                tcgen05_commit_arrive(done)
        else:
            barrier_wait(done)
            o[tile(i, 128), tile(j, 128)] = async_load_tmem(acc)


@pytest.mark.parametrize("depth", [64, 320])
def test_one_warp_copies_one_multiplies_and_a_warpgroup_stores(depth: int) -> None:
    a, b = HALVES[:128, :depth].round(), HALVES[:depth, :128].round()
    expected = a.astype(np.float32) @ b.astype(np.float32)
    found = agree(roles_of_warps, lambda: [a, b], targets=["sm_100a"])
    assert np.array_equal(found, expected)


@kernel(warpgroups=2)
def two_grids(x: In[f32, "M 64"], s: f32, o: Out[f32, "M 64"]):
    m, _ = x.shape
    assert m % 32 == 0, "whole blocks"
    w, part = warpgroup_id(), GMEM((m, 64), f32)
    first = x[0, :]
    with parallel(m // 32) as i:
        mine = tile(2 * i + w, 16)
        part[mine, :] = x[mine, :] * s + first[None, :]
    with parallel(m // 32) as i:
        other = tile(2 * i + 1 - w, 16)
        o[other, :] = part[other, :] + 1


def test_each_grid_is_a_launch_and_blocks_begin_with_what_stands_before() -> None:
    x = X[:96, :64].round()
    assert np.array_equal(agree(two_grids, lambda: [x, 2.0]), x * 2 + x[0] + 1)


@kernel(warpgroups=2)
def in_turns(x: In[f32, "64"], n: i32, o: Out[f32, "2 64"]):
    w, y = warpgroup_id(), x[...]
    for i in range(n):
        if i % 2 == w:
            y = y + 1
    o[w, :] = y


def test_a_branch_on_the_number_is_decided_while_running() -> None:
    x = X[0, :64]
    assert np.array_equal(agree(in_turns, lambda: [x, 5]), np.stack([x + 1 + 1 + 1, x + 1 + 1]))
