"""Acceptance 15: block-scaled products of tensor memory by hand, blocks of 32 and of 16."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import (
    SMEM,
    TMEM,
    Barrier,
    In,
    Out,
    TMEMLayout,
    async_copy_scales_to_tmem,
    async_load_tmem,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    ds,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f32,
    kernel,
    tcgen05_commit_arrive,
    tcgen05_mma,
    tile,
)
from astdsl.errors import KernelError, ProtocolError, UnwrittenRead
from tests.lowering.schedule.test_scaled_products import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    image,
    numbers,
    packed,
    require_close,
    scales,
    wanted,
)
from tests.witnesses import agree


@kernel
def product(
    a: In[f8e4m3 | f8e5m2 | f4e2m1, "128 K"],
    b: In[f8e4m3 | f8e5m2 | f4e2m1, "N K"],
    a_scale: In["1 G 32 16"],
    b_scale: In["S G 32 16"],
    c: Out[f32, "128 N"],
    *,
    block=32,
    k=256,
    n=64,
):
    left, right = SMEM((128, k), a.dtype), SMEM((n, k), b.dtype)
    images = [SMEM(x.shape, x.dtype) for x in (a_scale, b_scale)]
    acc = TMEM((128, n), f32)
    a_scales = TMEM((128, k // block), a_scale.dtype, layout=TMEMLayout.SCALES)
    b_scales = TMEM((n, k // block), b_scale.dtype, layout=TMEMLayout.SCALES)
    full, done = Barrier(num_arrivals=4), Barrier(orders_tensor_core=True)
    for source, target in ((a, left), (b, right), (a_scale, images[0]), (b_scale, images[1])):
        copy_gmem_to_smem(source, target, full)
    barrier_wait(full)
    async_copy_scales_to_tmem(images[0], a_scales)
    async_copy_scales_to_tmem(images[1], b_scales)
    tcgen05_mma(acc, left, right.T, done, a_scale=a_scales, b_scale=b_scales, accumulate=False)
    barrier_wait(done)
    c[...] = async_load_tmem(acc)


KINDS = {
    "mxf8f6f4": (E4M3, E5M2, E8M0, 32, 64),
    "mxf4": (E2M1, E2M1, E8M0, 32, 96),
    "mxf4nvf4": (E2M1, E2M1, E4M3, 16, 256),
}


@pytest.mark.parametrize("name", KINDS)
def test_15_block_scaled_products(name):
    a_dtype, b_dtype, scale, block, n = KINDS[name]
    a, b = numbers(a_dtype, 128, 256, seed=1), numbers(b_dtype, n, 256, seed=2)
    both = scales(scale, 128, 256 // block, seed=3), scales(scale, n, 256 // block, seed=4)
    exact = wanted(a, b, *both)
    pack = packed if a_dtype is E2M1 else np.asarray
    given = (pack(a), pack(b), *map(image, both))
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(
        product, lambda: given, targets=("sm_100a",), tolerance=tolerance, block=block, n=n
    )
    require_close(found, exact)


@kernel
def in_a_ring(
    a: In[f4e2m1, "128 K"],
    b: In[f4e2m1, "64 K"],
    a_scale: In["1 G 32 16"],
    b_scale: In["1 G 32 16"],
    c: Out[f32, "128 64"],
    *,
    waits=True,
    steps=4,
):
    left, right = SMEM((2, 128, 128), a.dtype), SMEM((2, 64, 128), b.dtype)
    images = [SMEM((2, 1, 2, 32, 16), a_scale.dtype) for _ in range(2)]
    acc = TMEM((128, 64), f32)
    memories = [TMEM((rows, 8), a_scale.dtype, layout=TMEMLayout.SCALES) for rows in (128, 64)]
    full = Barrier(num_arrivals=4, num_barriers=2)
    free = Barrier(num_barriers=2, orders_tensor_core=True)
    for k in range(steps):
        slot = k % 2
        if k >= 2 and waits:
            barrier_wait(free[slot])
        parts = ds(k * 128, 128), tile(k, 2)
        copy_gmem_to_smem(a.at[:, parts[0]], left.at[slot], full[slot])
        copy_gmem_to_smem(b.at[:, parts[0]], right.at[slot], full[slot])
        copy_gmem_to_smem(a_scale.at[:, parts[1]], images[0].at[slot], full[slot])
        copy_gmem_to_smem(b_scale.at[:, parts[1]], images[1].at[slot], full[slot])
        barrier_wait(full[slot])
        for of, memory in zip(images, memories, strict=True):
            async_copy_scales_to_tmem(of.at[slot], memory)
        tcgen05_mma(
            acc,
            left.at[slot],
            right.at[slot].T,
            free[slot],
            a_scale=memories[0],
            b_scale=memories[1],
            accumulate=k > 0,
        )
    for slot in range(2):
        barrier_wait(free[slot])
    c[...] = async_load_tmem(acc)


def ring_operands():
    a, b = numbers(E2M1, 128, 512, seed=1), numbers(E2M1, 64, 512, seed=2)
    both = scales(E4M3, 128, 32, seed=3), scales(E4M3, 64, 32, seed=4)
    return (packed(a), packed(b), *map(image, both)), wanted(a, b, *both)


def test_15_scales_are_copied_again_while_products_are_in_flight():
    given, exact = ring_operands()
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(in_a_ring, lambda: given, targets=("sm_100a",), tolerance=tolerance)
    require_close(found, exact)


def test_19_a_slot_of_scales_is_not_filled_while_it_is_copied():
    given, _ = ring_operands()
    with pytest.raises(ProtocolError, match="while"):
        in_a_ring.on("reference")(*given, waits=False)


@kernel
def stored_by_threads(
    a: In[f8e4m3, "128 128"],
    b: In[f8e4m3, "64 128"],
    scale: In[f8e8m0, "1 1 32 16"],
    c: Out[f32, "128 64"],
    *,
    commits=True,
    copies=True,
):
    left, right, of = (
        SMEM((128, 128), f8e4m3),
        SMEM((64, 128), f8e4m3),
        SMEM((1, 1, 32, 16), f8e8m0),
    )
    acc, full = TMEM((128, 64), f32), Barrier(num_arrivals=2)
    mine = TMEM((128, 4), f8e8m0, layout=TMEMLayout.SCALES)
    theirs = TMEM((64, 4), f8e8m0, layout=TMEMLayout.SCALES)
    copied, done = Barrier(orders_tensor_core=True), Barrier(orders_tensor_core=True)
    copy_gmem_to_smem(a, left, full)
    copy_gmem_to_smem(b, right, full)
    of[...] = scale[...]
    if commits:
        commit_smem()
    async_copy_scales_to_tmem(of, mine)
    if copies:
        async_copy_scales_to_tmem(of, theirs)
    tcgen05_commit_arrive(copied)
    barrier_wait(copied)
    barrier_wait(full)
    tcgen05_mma(acc, left, right.T, done, a_scale=mine, b_scale=theirs, accumulate=False)
    barrier_wait(done)
    c[...] = async_load_tmem(acc)


def thread_operands():
    a, b = numbers(E4M3, 128, 128, seed=1), numbers(E4M3, 64, 128, seed=2)
    scale = scales(E8M0, 128, 4, seed=3)
    return (a, b, image(scale)), wanted(a, b, scale, scale[:64])


def test_15_threads_may_store_the_scales():
    given, exact = thread_operands()
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(stored_by_threads, lambda: given, targets=("sm_100a",), tolerance=tolerance)
    require_close(found, exact)


@pytest.mark.parametrize(
    ("without", "error", "said"),
    [("commits", ProtocolError, "commit_smem"), ("copies", UnwrittenRead, "before it is written")],
)
def test_19_what_is_left_out_is_reported(without, error, said):
    given, _ = thread_operands()
    with pytest.raises(error) as caught:
        stored_by_threads.on("reference")(*given, **{without: False})
    assert said in str(caught.value)
    # The emulator has no commit to miss: it knows fences, and cells that nobody wrote.
    with pytest.raises(KernelError):
        stored_by_threads.on("emulator", target="sm_100a")(*given, **{without: False})


def test_the_names_are_those_of_sm_100a():
    given, _ = thread_operands()
    with pytest.raises(KernelError, match="sm_90a"):
        _ = stored_by_threads.lower(*given, target="sm_90a").ptx
