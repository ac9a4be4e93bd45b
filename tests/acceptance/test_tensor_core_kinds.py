"""Acceptance 14 and 15: every kind of product by hand, and products of several warpgroups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    ACC,
    SMEM,
    TMEM,
    Barrier,
    In,
    Out,
    async_load_tmem,
    async_store_tmem,
    barrier_wait,
    commit_tmem,
    copy_gmem_to_smem,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i8,
    i32,
    kernel,
    tcgen05_mma,
    tile,
    u8,
    warp_id,
    warpgroup_id,
    wgmma,
)
from astdsl.errors import UnsupportedFeature
from tests.witnesses import agree

RANDOM = np.random.default_rng(15)


@kernel
def by_wgmma(a: In["M K"], b: In["N K"], c: Out["M N"], *, dtypes, held):
    M, K = a.shape
    N, _ = b.shape
    left, right, full = SMEM((M, K), dtypes[0]), SMEM((N, K), dtypes[1]), Barrier(2)
    copy_gmem_to_smem(a.at[...], left, full)
    copy_gmem_to_smem(b.at[...], right, full)
    barrier_wait(full)
    acc = ACC((M, N), dtypes[2])
    wgmma(acc, left[...] if held else left, right.T)
    c[...] = acc[...]


@kernel
def by_tcgen05(a: In["M K"], b: In["N K"], c: Out["M N"], *, dtypes, held):
    M, K = a.shape
    N, _ = b.shape
    left, right, full = SMEM((M, K), dtypes[0]), SMEM((N, K), dtypes[1]), Barrier(2)
    acc, done = TMEM((M, N), dtypes[2]), Barrier(orders_tensor_core=True)
    copy_gmem_to_smem(a.at[...], left, full)
    copy_gmem_to_smem(b.at[...], right, full)
    barrier_wait(full)
    first = left
    if held:
        first = TMEM((M, K), dtypes[0], packed=dtypes[0].bits < 32)
        async_store_tmem(first, left[...])
        commit_tmem()
    tcgen05_mma(acc, first, right.T, done, accumulate=False)
    barrier_wait(done)
    c[...] = async_load_tmem(acc)


PROGRAMS = {"sm_90a": by_wgmma, "sm_100a": by_tcgen05}
KINDS = [
    (f16, f16, f16),
    (f32, f32, f32),
    (f8e4m3, f8e5m2, f32),
    (f8e5m2, f8e4m3, f16),
    (i8, i8, i32),
    (u8, u8, i32),
    (u8, i8, i32),
]


@pytest.mark.parametrize("dtypes", KINDS, ids=lambda d: "-".join(x.name for x in d))
@pytest.mark.parametrize("target", PROGRAMS)
def test_14_15_every_kind_is_exact_of_small_integers(target: str, dtypes: Any) -> None:
    low = 0 if u8 in dtypes else -8
    a = RANDOM.integers(low, 8, (64, 128)).astype(dtypes[0].numpy)
    b = RANDOM.integers(low, 8, (64, 128)).astype(dtypes[1].numpy)
    given = (a, b, np.zeros((64, 64), dtypes[2].numpy))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    for held in (False, True):
        program = PROGRAMS[target]
        for device in ("reference", "emulator"):
            placed = program.on(device, target=target)
            found = placed(*map(np.copy, given), dtypes=dtypes, held=held)
            assert np.array_equal(found.astype(np.float64), expected)


@kernel
def along_n(a: In[i8, "64 64"], b: In[i8, "64 64"], c: Out[i32, "64 64"]):
    left, right, full = SMEM((64, 64), i8), SMEM((64, 64), i8), Barrier(2)
    copy_gmem_to_smem(a.at[...], left, full)
    copy_gmem_to_smem(b.at[...], right, full)
    barrier_wait(full)
    acc = ACC((64, 64), i32)
    wgmma(acc, left, right)
    c[...] = acc[...]


def test_bytes_that_are_not_contiguous_along_k_are_refused_with_a_way_out() -> None:
    x = np.zeros((64, 64), np.int8)
    with pytest.raises(UnsupportedFeature, match="contiguous along k, and `b` is so along n"):
        along_n.on("emulator", target="sm_90a")(x, x)


@kernel(warpgroups=2)
def each_its_rows(a: In[f16, "128 64"], b: In[f16, "64 64"], c: Out[f32, "128 64"]):
    left, right, full = SMEM((2, 64, 64), f16), SMEM((64, 64), f16), Barrier(3)
    warpgroup = warpgroup_id()
    if warpgroup == 0:
        copy_gmem_to_smem(a.at[0:64], left.at[0], full)
        copy_gmem_to_smem(a.at[64:128], left.at[1], full)
        copy_gmem_to_smem(b.at[...], right, full)
    barrier_wait(full)
    acc = ACC((64, 64))
    wgmma(acc, left.at[warpgroup], right)
    c[tile(warpgroup, 64)] = acc[...]


@kernel(warpgroups=2)
def handed_on(a: In[f16, "128 64"], b: In[f16, "64 64"], c: Out[f32, "128 64"]):
    left, right, full = SMEM((128, 64), f16), SMEM((64, 64), f16), Barrier(2)
    acc, done = TMEM((128, 64)), Barrier(orders_tensor_core=True)
    if warpgroup_id() == 0 and warp_id() == 0:
        copy_gmem_to_smem(a.at[...], left, full)
        copy_gmem_to_smem(b.at[...], right, full)
        barrier_wait(full)
        tcgen05_mma(acc, left, right, done, accumulate=False)
    if warpgroup_id() == 1:
        barrier_wait(done)
        c[...] = async_load_tmem(acc)


@pytest.mark.parametrize(
    ("multiply", "target"), [(each_its_rows, "sm_90a"), (handed_on, "sm_100a")]
)
def test_warpgroups_multiply_each_for_itself_or_for_another(multiply: Any, target: str) -> None:
    a = RANDOM.integers(-3, 4, (128, 64)).astype(np.float16)
    b = RANDOM.integers(-3, 4, (64, 64)).astype(np.float16)
    found = agree(multiply, lambda: (a, b), targets=(target,))
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))
