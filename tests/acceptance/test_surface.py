"""Acceptance behaviours of the explicit level and of pipelines: 1 to 6, 8, 10, 12 and 13."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import (
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
    full,
    i8,
    i32,
    kernel,
    parallel,
    pipeline,
    tile,
    wait_smem_to_gmem,
    warp_id,
    warpgroup_id,
    zeros,
)
from astdsl.errors import DeviceError, ProtocolError
from tests.arrays import normal
from tests.witnesses import TARGETS, agree


@kernel(warpgroups=1)
def double_buffered(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=32, bn=16):
    M, N = x.shape
    with parallel(cdiv(N, bn)) as j:
        steps = M // bm
        into, out = SMEM((2, bm, bn), f32), SMEM((2, bm, bn), f32)
        full = Barrier(num_barriers=2)
        copy_gmem_to_smem(x.at[0:bm, tile(j, bn)], into.at[0], full.at[0])
        for k in range(steps):
            slot = k % 2
            if k + 1 < steps:
                ahead = x.at[tile(k + 1, bm), tile(j, bn)]
                copy_gmem_to_smem(ahead, into.at[1 - slot], full.at[1 - slot])
            barrier_wait(full.at[slot])
            wait_smem_to_gmem(1, wait_read_only=True)
            out[slot] = into[slot] + 1
            commit_smem()
            copy_smem_to_gmem(out.at[slot], o.at[tile(k, bm), tile(j, bn)])
        wait_smem_to_gmem(0)


def test_1_double_buffering_by_hand_adds_one() -> None:
    x = normal(128, 64)
    np.testing.assert_array_equal(agree(double_buffered, lambda: (x,)), x + 1)


@kernel
def four_columns(x: In[f32, "M N"], o: Out[f32, "M N"], *, times=1, stages=2):
    M, N = x.shape
    for _ in range(times):
        with pipeline(cdiv(N, 64), stages=stages) as k:
            o[0:64, tile(k, 64)] = x[0:64, tile(k, 64)] + 1


@pytest.mark.parametrize("times", [1, 10])
def test_2_a_pipeline_of_four_steps_runs_again_and_again(times: int) -> None:
    x = normal(64, 256)
    found = agree(four_columns, lambda: (x,), times=times)
    np.testing.assert_array_equal(found, x + 1)


@kernel
def last_step_stays(x: In[f32, "M N"], o: Out[f32, "32 16"], *, stages=2):
    M, N = x.shape
    with pipeline(cdiv(N, 64), stages=stages, axes="sequential") as k:
        o[...] = x[0:32, tile(k, 64)][:, 0:16] + 1


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_3_an_output_whose_window_stays_keeps_its_last_step(stages: int) -> None:
    x = normal(32, 256)
    found = agree(last_step_stays, lambda: (x,), stages=stages)
    np.testing.assert_array_equal(found, x[:, 192:208] + 1)


@kernel
def blocks_of_steps(x: In[f32, "M N"], o: Out[f32, "M N"], *, stages=2):
    M, N = x.shape
    with parallel(cdiv(N, 16)) as j:
        with pipeline(cdiv(M, 32), stages=stages) as i:
            o[tile(i, 32), tile(j, 16)] = x[tile(i, 32), tile(j, 16)] + 1


@kernel
def boxes(x: In[f32, "A B C"], o: Out[f32, "A B C"], *, stages=2):
    A, B, C = x.shape
    with pipeline(1) as _:
        with pipeline(cdiv(A, 32), cdiv(B, 16), cdiv(C, 8), stages=stages) as (a, b, c):
            window = tile(a, 32), tile(b, 16), tile(c, 8)
            o[window] = x[window] + 1


@kernel
def static_boxes(x: In[f32, "64 32 8"], o: Out[f32, "64 32 8"], *, grid=(2, 2)):
    with pipeline(1) as _:
        with pipeline(grid, stages=2) as (a, b):
            window = tile(a, 32), tile(b, 16), slice(None)
            o[window] = x[window] + 1


@kernel
def counted(x: In[f32, "M N"], o: InOut[f32, "M N"], rows: i32, columns: i32, *, stages=2):
    with pipeline(1) as _:
        with pipeline(rows, columns, stages=stages) as (i, j):
            o[tile(i, 32), tile(j, 16)] = x[tile(i, 32), tile(j, 16)] + 1


@kernel
def static_grid(x: In[f32, "M N"], o: Out[f32, "M N"], *, grid=(4, 5)):
    with pipeline(1) as _:
        with pipeline(grid, stages=2) as (i, j):
            o[tile(i, 32), tile(j, 16)] = x[tile(i, 32), tile(j, 16)] + 1


@pytest.mark.parametrize("grid", [(4, 5), (1, 1)])
def test_4_static_grids(grid: tuple[int, int]) -> None:
    x = normal(32 * grid[0], 16 * grid[1])
    np.testing.assert_array_equal(agree(static_grid, lambda: (x,), grid=grid), x + 1)


def test_4_a_grid_of_four_blocks_runs_pipelines_of_five_steps() -> None:
    x = normal(160, 64)
    np.testing.assert_array_equal(agree(blocks_of_steps, lambda: (x,)), x + 1)


@pytest.mark.parametrize("grid", [(4, 5), (1, 1)])
def test_4_grids_known_and_counted_at_run_time(grid: tuple[int, int]) -> None:
    rows, columns = grid
    x, o = normal(32 * rows, 16 * columns), np.zeros((32 * rows, 16 * columns), np.float32)
    np.testing.assert_array_equal(agree(counted, lambda: (x, o.copy(), rows, columns)), x + 1)
    x = normal(32 * rows, 32, 8 * columns)
    np.testing.assert_array_equal(agree(boxes, lambda: (x,), targets=("sm_90a",)), x + 1)


def test_4_boxes_of_three_dims_in_a_static_grid() -> None:
    x = normal(64, 32, 8)
    np.testing.assert_array_equal(agree(static_boxes, lambda: (x,)), x + 1)


@kernel
def twice_counted(x: In[f32, "M N"], o: InOut[f32, "M N"], rows: i32):
    for _ in range(2):
        with pipeline(rows, stages=2) as i:
            o[tile(i, 32), 0:16] = x[tile(i, 32), 0:16] + 1


def test_5_a_grid_of_no_steps_leaves_the_output_alone() -> None:
    x, o = normal(64, 16), np.full((64, 16), 7, np.float32)
    for target in TARGETS:
        for device in ("reference", "emulator"):
            mine = o.copy()
            twice_counted.on(device, target=target)(x, mine, 0)
            np.testing.assert_array_equal(mine, o)
    np.testing.assert_array_equal(agree(twice_counted, lambda: (x, o.copy(), 2)), x + 1)


@kernel
def carried_number(o: Out[i32, "M N"]):
    M, N = o.shape
    carry = 0
    with pipeline(cdiv(N, 64), stages=2, axes="sequential") as k:
        o[0:64, tile(k, 64)] = full((64, 64), carry, i32)
        carry += 1


def test_6_a_carried_number_fills_one_block_a_step() -> None:
    found = agree(carried_number, lambda: (np.zeros((64, 256), np.int32),))
    np.testing.assert_array_equal(found, np.tile(np.repeat(np.arange(4), 64), (64, 1)))


@kernel
def tall(x: In[f32, "M N"], o: Out[f32, "M N"], *, stages=2):
    M, N = x.shape
    with pipeline(1) as _:
        with pipeline(cdiv(M, 128), cdiv(N, 16), stages=stages) as (i, j):
            o[tile(i, 128), tile(j, 16)] = x[tile(i, 128), tile(j, 16)] + 1


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 16])
def test_8_every_number_of_stages_gives_the_same(stages: int) -> None:
    x = normal(256, 64)
    targets = TARGETS if stages == 2 else ("sm_90a",)
    found = agree(tall, lambda: (x,), stages=stages, targets=targets)
    np.testing.assert_array_equal(found, x + 1)


@kernel(warpgroups=1)
def window_at(x: In[i8, "N"], o: Out[i8, "208"], start: i32):
    buf, full = SMEM((208,), i8), Barrier()
    copy_gmem_to_smem(x.at[ds(start, 208)], buf, full)
    barrier_wait(full)
    commit_smem()
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("start", [0, 80, 112, 192, 208, -16, -208, 400])
def test_12_windows_over_an_edge_read_zeros_outside(start: int) -> None:
    x = np.arange(1, 209, dtype=np.uint8).view(np.int8)
    padded = np.concatenate([np.zeros(416, np.int8), x, np.zeros(624, np.int8)])
    found = agree(window_at, lambda: (x, np.zeros(208, np.int8), start), targets=("sm_90a",))
    np.testing.assert_array_equal(found, padded[416 + start : 624 + start])


@kernel(warpgroups=1)
def predicated(x: In[f32, "64 32"], o: InOut[f32, "64 32"], wanted: i32):
    buf, full = SMEM((64, 32), f32), Barrier()
    buf[...] = zeros((64, 32), f32)
    commit_smem()
    copy_gmem_to_smem(x.at[...], buf, full, predicate=wanted > 0)
    barrier_wait(full)
    copy_smem_to_gmem(buf, o.at[...], predicate=wanted > 1)
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_12_a_copy_whose_predicate_is_false_arrives_and_copies_nothing(wanted: int) -> None:
    x, o = normal(64, 32), np.full((64, 32), 7, np.float32)
    for target in TARGETS:
        for device in ("reference", "emulator"):
            mine = o.copy()
            predicated.on(device, target=target)(x, mine, wanted)
            np.testing.assert_array_equal(mine, x if wanted == 2 else o)


@kernel(warpgroups=1)
def handed_back(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    buf, full, empty = SMEM((32, 32), f32), Barrier(), Barrier()
    with_out = SMEM((32, 32), f32)
    for k in range(cdiv(M, 32)):
        if k > 0:
            barrier_wait(empty)
        copy_gmem_to_smem(x.at[tile(k, 32), 0:32], buf, full)
        barrier_wait(full)
        wait_smem_to_gmem(0, wait_read_only=True)
        with_out[...] = buf[...] + 1
        barrier_arrive(empty)
        commit_smem()
        copy_smem_to_gmem(with_out, o.at[tile(k, 32), 0:32])
    wait_smem_to_gmem(0)


def test_a_slot_is_handed_back_by_a_barrier() -> None:
    x = normal(96, 32)
    np.testing.assert_array_equal(agree(handed_back, lambda: (x,)), x + 1)


@kernel
def matmul(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=128, bn=128, bk=64):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=4) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
def test_13_matmul_of_plain_and_transposed_operands(order: str, target: str) -> None:
    a, b = normal(512, 640, dtype=np.float16), normal(640, 512, dtype=np.float16)
    a, b = np.asarray(a, order=order[0]), np.asarray(b, order=order[1])  # type: ignore[call-overload]
    found = matmul.on("emulator", target=target)(a, b)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@kernel(warpgroups=2)
def added_to_all(
    x: In[f16, "M N"], y: In[f16, "64 32"], o: Out[f16, "M N"], *, stages=2, bm=64, bn=32
):
    M, N = x.shape
    with parallel(cdiv(M, bm)) as i:
        still, arrived = SMEM((bm, bn), f16), Barrier()
        ring, full = SMEM((stages, bm, bn), f16), Barrier(num_barriers=stages)
        empty = Barrier(num_barriers=stages)
        if warpgroup_id() == 0:
            if warp_id() == 0:
                copy_gmem_to_smem(y.at[...], still, arrived)
                for k in range(cdiv(N, bn)):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    copy_gmem_to_smem(x.at[tile(i, bm), tile(k, bn)], ring.at[slot], full[slot])
        else:
            barrier_wait(arrived)
            for k in range(cdiv(N, bn)):
                slot = k % stages
                barrier_wait(full[slot])
                o[tile(i, bm), tile(k, bn)] = ring[slot] + still[...]
                barrier_arrive(empty[slot])


@pytest.mark.parametrize("stages", [2, 3])
def test_10_a_stationary_input_is_added_to_every_block_of_another(stages: int) -> None:
    x, y = normal(128, 256, dtype=np.float16), normal(64, 32, dtype=np.float16)
    found = agree(added_to_all, lambda: (x, y), stages=stages)
    np.testing.assert_array_equal(found, x + np.tile(y, (2, 8)))


def half_arrived(x: In[f32, "64 32"], o: Out[f32, "64 32"]):
    barrier = Barrier(num_arrivals=2)
    barrier_arrive(barrier)
    o[...] = x[...]


@pytest.mark.parametrize("target", TARGETS)
def test_a_phase_that_is_half_arrived_at_the_exit_is_reported(target: str) -> None:
    checked = kernel(warpgroups=1)(half_arrived)
    with pytest.raises(ProtocolError, match="in the middle of a phase"):
        checked.on("emulator", target=target)(normal(64, 32))
    launched = kernel(warpgroups=1, check=False)(half_arrived)
    with pytest.raises(DeviceError, match="in the middle of a phase"):
        launched.on("emulator", target=target)(normal(64, 32))
