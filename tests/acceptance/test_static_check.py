"""Surface 19: what is removed from a correct hand-written kernel is named before it is launched.

Each line that synchronises is removed in turn, and `lower` is called, which runs nothing. With
nothing removed the check is silent.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import astdsl
from astdsl import (
    ACC,
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
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    ds,
    f16,
    f32,
    i32,
    iota,
    kernel,
    ones,
    parallel,
    pipeline,
    tcgen05_commit_arrive,
    tcgen05_mma,
    tile,
    wait_load_tmem,
    wait_smem_to_gmem,
    warp_id,
    warpgroup_id,
    wgmma,
    wgmma_wait,
    where,
)
from astdsl.errors import BadSignature, BadWindow, KernelError, ProtocolError, UnwrittenRead
from astdsl.kernel import Kernel

Function: TypeAlias = Callable[..., Any]
X = np.random.default_rng(5).integers(-3, 4, (128, 64)).astype(np.float32)


def copy_tile(x: In[f32, "M N"], o: Out[f32, "M N"]):
    buf, full = SMEM((128, 64), f32), Barrier()
    copy_gmem_to_smem(x.at[0:128, 0:64], buf, full)
    barrier_wait(full)
    buf[...] = buf[...] + 1
    commit_smem()
    copy_smem_to_gmem(buf, o.at[0:128, 0:64])
    wait_smem_to_gmem(0)


def two_slots(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=16, bn=32):
    M, N = x.shape
    with parallel(cdiv(N, bn)) as j:
        into, out = SMEM((2, bm, bn), f32), SMEM((2, bm, bn), f32)
        full = Barrier(num_barriers=2)
        steps = cdiv(M, bm)
        copy_gmem_to_smem(x.at[tile(0, bm), tile(j, bn)], into.at[0], full.at[0])
        for k in range(steps):
            slot = k % 2
            if k + 1 < steps:
                copy_gmem_to_smem(
                    x.at[tile(k + 1, bm), tile(j, bn)], into.at[1 - slot], full.at[1 - slot]
                )
            barrier_wait(full.at[slot])
            wait_smem_to_gmem(1, wait_read_only=True)
            out[slot] = into[slot] + 1
            commit_smem()
            copy_smem_to_gmem(out.at[slot], o.at[tile(k, bm), tile(j, bn)])
        wait_smem_to_gmem(0)


def memory_and_compute(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=16, bn=32, stages=2):
    M, N = x.shape
    with parallel(cdiv(N, bn)) as j:
        ring, full = SMEM((stages, bm, bn), f32), Barrier(num_barriers=stages)
        sums = SMEM((2, bm // 2, bn), f32)
        empty = Barrier(num_arrivals=2, num_barriers=stages)
        steps = cdiv(M, bm)
        w = warpgroup_id()
        if w == 2:
            if warp_id() == 0:
                for k in range(steps):
                    slot = k % stages
                    if k >= stages:
                        barrier_wait(empty[slot])
                    copy_gmem_to_smem(x.at[tile(k, bm), tile(j, bn)], ring.at[slot], full[slot])
        else:
            own = ds(w * (bm // 2), bm // 2)
            for k in range(steps):
                slot = k % stages
                barrier_wait(full[slot])
                total = ring[slot, own, :] + 1
                barrier_arrive(empty[slot])
                wait_smem_to_gmem(0, wait_read_only=True)
                sums[w] = total
                commit_smem()
                copy_smem_to_gmem(
                    sums.at[w], o.at[ds(k * bm + w * (bm // 2), bm // 2), tile(j, bn)]
                )
            wait_smem_to_gmem(0)


def product_in_registers(x: In[f32, "M N"], o: Out[f32, "M N"]):
    left, right = SMEM((128, 64), f16), SMEM((64, 64), f16)
    left[...] = x[0:128, 0:64].astype(f16)
    right[...] = where(iota((64, 64), 0) == iota((64, 64), 1), 1.0, 0.0).astype(f16)
    commit_smem()
    acc = ACC((128, 64))
    wgmma(acc, left, right)
    wgmma_wait(0)
    left[...] = ones((128, 64), f16)
    o[0:128, 0:64] = acc[...] + left[...]


def product_in_tensor_memory(x: In[f32, "M N"], o: Out[f32, "M N"]):
    left, right = SMEM((128, 64), f16), SMEM((64, 64), f16)
    done, acc = Barrier(orders_tensor_core=True), TMEM((128, 64))
    left[...] = x[0:128, 0:64].astype(f16)
    right[...] = where(iota((64, 64), 0) == iota((64, 64), 1), 1.0, 0.0).astype(f16)
    commit_smem()
    tcgen05_mma(acc, left, right, accumulate=False)
    tcgen05_commit_arrive(done)
    barrier_wait(done)
    found = async_load_tmem(acc)
    wait_load_tmem()
    async_store_tmem(acc, found + 1)
    commit_tmem()
    o[0:128, 0:64] = async_load_tmem(acc)


# Each correct kernel, with its warpgroups and a target that it can be compiled for.
CORRECT = {
    copy_tile: (1, "sm_90a"),
    two_slots: (1, "sm_90a"),
    memory_and_compute: (3, "sm_90a"),
    product_in_registers: (1, "sm_90a"),
    product_in_tensor_memory: (1, "sm_100a"),
}
ANY_SHAPE = (two_slots, memory_and_compute)
SYNCHRONISES = re.compile(
    r"^ *(barrier_wait|barrier_arrive|commit_smem|wait_smem_to_gmem|wgmma_wait|commit_tmem"
    r"|wait_load_tmem|tcgen05_commit_arrive)\("
)


def kernel_of(text: str, name: str, warpgroups: int, folder: Path, **options: bool) -> Kernel:
    """Return the kernel of a text, which is written to a file for its lines."""
    path = folder / f"{name}.py"
    path.write_text("from astdsl import *\n" + text, encoding="utf-8")
    names: dict[str, Function] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)  # noqa: S102
    made = kernel(warpgroups=warpgroups, **options)(names[name])
    assert isinstance(made, Kernel)
    return made


def removals() -> list[tuple[Function, int, str]]:
    """Return each line of the correct kernels that synchronises: its number and what it calls."""
    found = []
    for function in CORRECT:
        for number, line in enumerate(inspect.getsource(function).splitlines()):
            if called := SYNCHRONISES.match(line):
                found.append((function, number, called[1]))
    return found


@pytest.mark.parametrize("function", CORRECT, ids=lambda f: f.__name__)
def test_19_a_correct_kernel_is_silent(function: Function, tmp_path: Path) -> None:
    text, name = inspect.getsource(function), function.__name__
    warpgroups, target = CORRECT[function]
    made = kernel_of(text, name, warpgroups, tmp_path)
    np.testing.assert_array_equal(made.on("emulator", target=target)(X), X + 1)
    for shape in ((16, 32), (40, 70), (4096, 4096)) if function in ANY_SHAPE else ():
        made.lower(astdsl.spec(shape, f32)).ir


REMOVALS = removals()


@pytest.mark.parametrize(
    "removal", REMOVALS, ids=[f"{f.__name__}-{n}-{called}" for f, n, called in REMOVALS]
)
def test_19_what_is_removed_is_named_before_the_launch(
    removal: tuple[Function, int, str], tmp_path: Path
) -> None:
    function, number, called = removal
    lines = inspect.getsource(function).splitlines()
    blank = re.match(" *", lines[number])
    lines[number] = f"{blank[0] if blank else ''}pass"
    made = kernel_of("\n".join(lines), function.__name__, CORRECT[function][0], tmp_path)
    with pytest.raises(KernelError) as caught:
        made.lower(X)
    error = caught.value
    assert called in error.report()
    # At the end of a block there is only the work that is in flight.
    assert len(error.places) >= (1 if called == "wait_smem_to_gmem" else 2)
    assert error.help


def test_19_what_is_not_checked_is_left_to_the_devices(tmp_path: Path) -> None:
    text = inspect.getsource(copy_tile).replace("    commit_smem()\n", "")
    made = kernel_of(text, "copy_tile", 1, tmp_path, check=False)
    lowered = made.lower(X)
    assert "fence.proxy" not in lowered.ptx.split("mbarrier.try_wait")[1]
    with pytest.raises(astdsl.KernelError, match="fence"):
        made.on("emulator")(X)


def test_check_is_true_or_false() -> None:
    made = kernel(check=1)(copy_tile)
    with pytest.raises(BadSignature, match="True or False"):
        made(X)


def refused(function: Function, kind: type[KernelError], match: str, warpgroups=1) -> None:
    with pytest.raises(kind, match=match) as caught:
        kernel(warpgroups=warpgroups)(function).lower(X)
    assert caught.value.places
    assert caught.value.help


def test_a_phase_that_is_left_half_arrived_is_reported() -> None:
    def half(x: In[f32, "M N"], o: Out[f32, "M N"]):
        both = Barrier(num_arrivals=2)
        barrier_arrive(both)
        o[0:16, 0:16] = x[0:16, 0:16]

    refused(half, ProtocolError, "in the middle of a phase: 1 of 2 arrivals")


def test_more_arrivals_than_a_barrier_counts_are_reported() -> None:
    def thrice(x: In[f32, "M N"], o: Out[f32, "M N"]):
        one = Barrier(num_arrivals=1)
        barrier_arrive(one)
        barrier_wait(one)
        o[0:16, 0:16] = x[0:16, 0:16]

    refused(thrice, ProtocolError, "overruns the barrier|deadlock", warpgroups=3)


def test_a_copy_that_nobody_waits_for_at_the_end_is_reported() -> None:
    def leaves(x: In[f32, "M N"], o: Out[f32, "M N"]):
        buf, full = SMEM((16, 16), f32), Barrier()
        o[0:16, 0:16] = x[0:16, 0:16]
        copy_gmem_to_smem(x.at[0:16, 0:16], buf, full)

    refused(leaves, ProtocolError, "this copy may still write")


def test_a_slot_that_is_never_filled_is_reported() -> None:
    def empty(x: In[f32, "M N"], o: Out[f32, "M N"]):
        buf, full = SMEM((2, 16, 16), f32), Barrier()
        copy_gmem_to_smem(x.at[0:16, 0:16], buf.at[0], full)
        barrier_wait(full)
        o[0:16, 0:16] = buf[1]

    refused(empty, UnwrittenRead, "before it is written")


def test_a_slot_that_does_not_exist_is_reported() -> None:
    def beyond(x: In[f32, "M N"], o: Out[f32, "M N"]):
        buf, full = SMEM((2, 16, 16), f32), Barrier()
        for k in range(3):
            copy_gmem_to_smem(x.at[tile(k, 16), 0:16], buf.at[k], full)
            barrier_wait(full)
        o[0:16, 0:16] = buf[1]

    refused(beyond, BadWindow, "slot 2 of shared memory, which has 2")


def test_what_data_decide_is_left_to_the_devices() -> None:
    @kernel(warpgroups=1)
    def decided(x: In[f32, "M N"], o: Out[f32, "M N"], n: i32):
        buf, full = SMEM((16, 16), f32), Barrier()
        copy_gmem_to_smem(x.at[0:16, 0:16], buf, full)
        if n > 0:
            barrier_wait(full)
        o[0:16, 0:16] = buf[...]

    decided.lower(X, n=1)
    with pytest.raises(ProtocolError, match="before the copy into it"):
        decided.on("reference")(X, n=0)


def test_only_kernels_with_explicit_names_are_rehearsed() -> None:
    @kernel
    def plain(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=16):
        M, N = x.shape
        with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
            o[tile(i, b), tile(j, b)] = x[tile(i, b), tile(j, b)]

    plain.lower(astdsl.spec((1 << 20, 1 << 20), f32))
