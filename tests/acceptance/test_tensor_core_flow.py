"""Products by hand under control flow, and names that a target has not."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import (
    ACC,
    SMEM,
    TMEM,
    Barrier,
    In,
    Out,
    TilingTransform,
    async_load_tmem,
    async_store_tmem,
    barrier_arrive,
    barrier_wait,
    commit_smem,
    commit_tmem,
    copy_gmem_to_smem,
    ds,
    f16,
    f32,
    i32,
    kernel,
    parallel,
    set_max_registers,
    tcgen05_commit_arrive,
    tcgen05_mma,
    tile,
    wait_load_tmem,
    warp_id,
    warpgroup_id,
    wgmma,
    wgmma_wait,
    zeros,
)
from astdsl.errors import DeviceError, UnsupportedFeature, WrongTarget
from tests.witnesses import agree

RANDOM = np.random.default_rng(16)
A = RANDOM.integers(-2, 3, (64, 64)).astype(np.float16)
B = RANDOM.integers(-2, 3, (64, 64)).astype(np.float16)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32)


def operands(a, b):
    left, right = SMEM((64, 64), f16), SMEM((64, 64), f16)
    left[...] = a[...]
    right[...] = b[...]
    commit_smem()
    return left, right


@kernel
def leaves_early(n: i32, a: In[f16, "64 64"], b: In[f16, "64 64"], o: Out[f32, "64 64", 0]):
    acc, done = TMEM((64, 64)), Barrier(orders_tensor_core=True)
    left, right = operands(a, b)
    async_store_tmem(acc, 0.0)
    commit_tmem()
    if n == 0:
        return
    for _ in range(n):
        tcgen05_mma(acc, left, right, done)
        barrier_wait(done)
    o[...] = async_load_tmem(acc)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_tensor_memory_is_freed_on_every_exit(n: int) -> None:
    found = agree(leaves_early, lambda: (n, A, B), targets=("sm_100a",))
    assert np.array_equal(found, n * PRODUCT)


@kernel
def skips_one(n: i32, a: In[f16, "64 64"], b: In[f16, "64 64"], o: Out[f32, "64 64"]):
    left, right = operands(a, b)
    acc = ACC((64, 64))
    for k in range(n):
        if k != 2:
            wgmma(acc, left, right)
    wgmma_wait(0)
    o[...] = acc[...]


@pytest.mark.parametrize("n", [0, 2, 4])
def test_products_are_started_in_loops_and_branches(n: int) -> None:
    found = agree(skips_one, lambda: (n, A, B), targets=("sm_90a",))
    assert np.array_equal(found, (n - (n > 2)) * PRODUCT)


@kernel
def carried(n: i32, a: In[f16, "64 64"], b: In[f16, "64 64"], o: Out[f32, "64 64"]):
    left, right = operands(a, b)
    total = zeros((64, 64))
    for _ in range(n):
        acc = ACC.init(total * 0.5)
        wgmma(acc, left, right)
        total = acc[...]
    o[...] = total


def test_an_accumulator_starts_as_a_tile_in_each_step() -> None:
    found = agree(carried, lambda: (3, A, B), targets=("sm_90a",))
    assert np.array_equal(found, 1.75 * PRODUCT)


@kernel
def without_swizzle(a: In[f16, "64 64"], b: In[f16, "64 64"], o: Out[f32, "64 64"]):
    left, right = SMEM((64, 64), f16, transforms=(TilingTransform((8, 64)),)), SMEM((64, 64), f16)
    left[...] = a[...]
    right[...] = b[...]
    commit_smem()
    acc = ACC((64, 64))
    wgmma(acc, left, right)
    o[...] = acc[...]


def test_a_layout_that_products_do_not_read_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedFeature, match="cannot read `a`") as caught:
        without_swizzle.on("emulator", target="sm_90a")(A, B)
    assert "SwizzleTransform(128)" in caught.value.help


@kernel
def names(o: Out[f32, "8"], *, which):
    if which == "wgmma_wait":
        wgmma_wait(0)
    elif which == "commit_tmem":
        commit_tmem()
    elif which == "wait_load_tmem":
        wait_load_tmem()
    else:
        tcgen05_commit_arrive(Barrier(orders_tensor_core=True))
    o[...] = 0.0


NAMES: dict[str, tuple[str, str]] = {
    "wgmma_wait": ("sm_90a", "sm_100a"),
    "commit_tmem": ("sm_100a", "sm_90a"),
    "wait_load_tmem": ("sm_100a", "sm_90a"),
    "tcgen05_commit_arrive": ("sm_100a", "sm_90a"),
}


@pytest.mark.parametrize("which", NAMES)
def test_each_name_names_both_targets_on_the_other_one(which: str) -> None:
    has, has_not = NAMES[which]
    said = f"`{which}` needs {has}, and this kernel is compiled for {has_not}"
    with pytest.raises(WrongTarget, match=said):
        names.lower(which=which, target=has_not).ptx
    assert names.lower(which=which, target=has).ptx


@kernel(warpgroups=3)
def specialised(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, stages=2):
    M, K = a.shape
    _, N = b.shape
    with parallel(M // 128, N // 128) as (i, j):
        left, right = SMEM((stages, 2, 64, 64), f16), SMEM((stages, 64, 128), f16)
        full, empty, steps = Barrier(3, stages), Barrier(2, stages), K // 64
        warpgroup = warpgroup_id()
        if warpgroup == 2:
            set_max_registers(40, action="decrease")
            if warp_id() == 0:
                for k in range(steps):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    rows, depth = a.at[tile(i, 128), tile(k, 64)], tile(k, 64)
                    copy_gmem_to_smem(rows.at[0:64], left.at[slot, 0], full[slot])
                    copy_gmem_to_smem(rows.at[64:128], left.at[slot, 1], full[slot])
                    copy_gmem_to_smem(b.at[depth, tile(j, 128)], right.at[slot], full[slot])
        else:
            set_max_registers(232, action="increase")
            acc = ACC((64, 128))
            for k in range(steps):
                slot = k % stages
                barrier_wait(full[slot])
                wgmma(acc, left.at[slot, warpgroup], right.at[slot])
                wgmma_wait(0)
                barrier_arrive(empty[slot])
            c[ds(i * 128 + warpgroup * 64, 64), tile(j, 128)] = acc[...]


def test_a_memory_warp_feeds_two_warpgroups_that_multiply() -> None:
    a = RANDOM.integers(-2, 3, (128, 256)).astype(np.float16)
    b = RANDOM.integers(-2, 3, (256, 128)).astype(np.float16)
    found = agree(specialised, lambda: (a, b), targets=("sm_90a",))
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))
    assert specialised.lower(a, b, target="sm_90a").resources.messages == ()


@kernel(check=False)
def waits_for_one_copy(a: In[f16, "64 64"], b: In[f16, "64 64"], o: Out[f32, "64 64"], *, one):
    left, right, arrived = SMEM((64, 64), f16), SMEM((64, 64), f16), Barrier(num_barriers=2)
    copy_gmem_to_smem(a.at[...], left, arrived[0])
    copy_gmem_to_smem(b.at[...], right, arrived[1])
    barrier_wait(arrived[one])
    acc = ACC((64, 64))
    wgmma(acc, left, right)
    o[...] = acc[...]


@pytest.mark.parametrize("one", [0, 1])
def test_a_wait_for_the_other_copy_is_not_enough_on_the_emulator(one: int) -> None:
    with pytest.raises(DeviceError, match=r"while the TMA load .* is still writing it"):
        waits_for_one_copy.on("emulator", target="sm_90a")(A, B, one=one)
