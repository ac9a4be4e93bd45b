"""Faults that users reported, cases 4, 15 and 26: programs in explicit names, and what fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import (
    ACC,
    SMEM,
    Barrier,
    In,
    KernelError,
    Out,
    barrier_arrive,
    barrier_wait,
    cdiv,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f16,
    f32,
    kernel,
    pipeline,
    tile,
    unroll,
    wait_smem_to_gmem,
    warpgroup_id,
    wgmma,
    wgmma_wait,
    zeros,
)
from astdsl.errors import OutOfSharedMemory, TileTooLarge, UnsupportedFeature
from tests.arrays import whole
from tests.witnesses import TARGETS, agree

ONE = ("sm_90a",)


# 4. an operand that is staged once for two warpgroups, and no barrier at the end of a step


@kernel(warpgroups=3)
def staged_once(
    a: In[f16, "2 T 64 K"], b: In[f16, "K 16"], o: Out[f32, "2 64 16"], *, steps=5, k=32, stages=2
):
    left, right = SMEM((stages, 2, 64, k), f16), SMEM((k, 16), f16)
    filled = Barrier(num_barriers=stages, num_arrivals=2)
    free = Barrier(num_barriers=stages, num_arrivals=2)
    once, w = Barrier(), warpgroup_id()
    if w == 2:
        copy_gmem_to_smem(b.at[...], right, once)
        for step in range(steps):
            slot = step % stages
            if step >= stages:
                barrier_wait(free.at[slot])
            for half in unroll(range(2)):
                copy_gmem_to_smem(a.at[half, step], left.at[slot, half], filled.at[slot])
        for step in unroll(range(stages)):
            barrier_wait(free.at[(steps + step) % stages])
    else:
        total = ACC((64, 16), f32)
        barrier_wait(once)
        for step in range(steps):
            slot = step % stages
            barrier_wait(filled.at[slot])
            wgmma(total, left.at[slot, w], right)
            wgmma_wait(0)
            barrier_arrive(free.at[slot])
        o[w] = total[...]


@pytest.mark.parametrize(("k", "stages"), [(32, 1), (128, 2), (16, 3)])
def test_4_two_warpgroups_read_an_operand_that_is_staged_once(k: int, stages: int) -> None:
    a, b = whole(2, 5, 64, k, dtype=np.float16), whole(k, 16, dtype=np.float16)
    arguments = (a, b, np.zeros((2, 64, 16), np.float32))
    found = agree(staged_once, lambda: arguments, targets=ONE, k=k, stages=stages)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).sum(1)
    np.testing.assert_array_equal(found, expected)


@kernel(warpgroups=1)
def slots_in_two_ways(a: In[f16, "2 64 16"], b: In[f16, "16 16"], o: Out[f32, "2 64 16"]):
    left, right, filled = SMEM((2, 64, 16), f16), SMEM((16, 16), f16), Barrier(num_arrivals=2)
    copy_gmem_to_smem(b.at[...], right, filled)
    copy_gmem_to_smem(a.at[...], left, filled)
    barrier_wait(filled)
    total = ACC((64, 16), f32)
    wgmma(total, left.at[1], right)
    wgmma_wait(0)
    o[1] = total[...]


def test_4_a_buffer_is_taken_apart_into_slots_in_one_way() -> None:
    shapes = [astdsl.spec(s, f16) for s in ((2, 64, 16), (16, 16))]
    with pytest.raises(UnsupportedFeature, match="slots in two ways") as caught:
        slots_in_two_ways.lower(*shapes, astdsl.spec((2, 64, 16), f32), target="sm_90a").ptx
    assert len(caught.value.places) == 2
    assert "each `buffer.at[i]`" in caught.value.help


# 15. no race is reported of rings of any rank, unrolled or not


@kernel(warpgroups=1)
def in_a_ring(x: In[f32, "..."], o: Out[f32, "..."], *, shape=(64,), steps=7, unrolled=False):
    into, out = SMEM((2, *shape), f32), SMEM((2, *shape), f32)
    filled = Barrier(num_barriers=2)
    copy_gmem_to_smem(x.at[0], into.at[0], filled.at[0])
    for k in unroll(range(steps)) if unrolled else range(steps):
        slot = k % 2
        if k + 1 < steps:
            copy_gmem_to_smem(x.at[k + 1], into.at[1 - slot], filled.at[1 - slot])
        barrier_wait(filled.at[slot])
        wait_smem_to_gmem(1, wait_read_only=True)
        out[slot] = into[slot] + 1
        commit_smem()
        copy_smem_to_gmem(out.at[slot], o.at[k])
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("shape", [(64,), (8, 32), (2, 4, 32)], ids=str)
def test_15_a_ring_of_any_rank_is_silent(shape: tuple[int, ...], unrolled: bool) -> None:
    x = whole(7, *shape)
    arguments = (x, np.zeros_like(x))
    found = agree(in_a_ring, lambda: arguments, targets=ONE, shape=shape, unrolled=unrolled)
    np.testing.assert_array_equal(found, x + 1)


# 26 and 29. what does not fit is refused before any code is generated


@kernel
def large_stages(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, S=6):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 128), cdiv(N, 128)) as (i, j):
        total = zeros((128, 128), f32)
        with pipeline(cdiv(K, 128), stages=S) as k:
            total += a[tile(i, 128), tile(k, 128)] @ b[tile(k, 128), tile(j, 128)]
        c[tile(i, 128), tile(j, 128)] = total


@kernel
def large_buffers(x: In[f32, "N"], o: Out[f32, "128"]):
    p, q = SMEM((256, 128), f32), SMEM((256, 128), f32)
    p[...] = zeros((256, 128), f32)
    q[...] = p[...]
    o[...] = q[0] + x[0:128]


@kernel
def large_tiles(x: In[f32, "M N"], o: Out[f32, "1024"]):
    t = x[0:1024, 0:1024]
    o[...] = t.sum(axis=1) + t.max(axis=1)


LARGE: list[tuple[Any, list[Any], type[KernelError], list[str]]] = [
    (
        large_stages,
        [((512, 512), f16)] * 2,
        OutOfSharedMemory,
        ["ring of a", "ring of b", "out of c"],
    ),
    (large_buffers, [((128,), f32)], OutOfSharedMemory, ["buffer: 131072 bytes"]),
    (large_tiles, [((2048, 2048), f32)], TileTooLarge, ["65536 elements fits"]),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("program", "given", "kind", "said"), LARGE)
def test_26_what_does_not_fit_is_refused_before_code_is_generated(
    program: Any,
    given: list[Any],
    kind: type[KernelError],
    said: list[str],
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def generate(*_: Any) -> None:
        raise AssertionError("code is generated")

    monkeypatch.setattr("astdsl.lowering.compiler.generate", generate)
    shapes = [astdsl.spec(*each) for each in given]
    with pytest.raises(kind) as caught:
        program.lower(*shapes, target=target).ptx
    assert all(each in str(caught.value) for each in said)
    if program is large_stages:
        with pytest.raises(AssertionError, match="code is generated"):
            program.lower(*shapes, target=target, S=2).ptx
