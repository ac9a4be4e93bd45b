"""Copies by hand of global memory that threads of the same launch write: barriers and fences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    GMEM,
    SMEM,
    Barrier,
    In,
    InOut,
    Out,
    atomic_add,
    barrier_arrive,
    barrier_wait,
    cdiv,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f32,
    kernel,
    parallel,
    tile,
    wait_smem_to_gmem,
    warpgroup_id,
)
from tests.witnesses import agree

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64) % 7
FENCE = "fence.proxy.async.global"


@kernel
def through_an_output(x: In[f32, "64 64"], s: Out[f32, "64 64"], o: Out[f32, "64 64"]):
    buffer, arrived = SMEM((64, 64), f32), Barrier()
    s[...] = x[...] + 1
    copy_gmem_to_smem(s.at[...], buffer, arrived)
    barrier_wait(arrived)
    o[...] = buffer[...] * 2


@kernel
def through_scratch(x: In[f32, "M 64"], o: Out[f32, "M 64"], *, commits=False):
    M, _ = x.shape
    s = GMEM((M, 64), f32)
    with parallel(cdiv(M, 64)) as i:
        buffer, arrived = SMEM((64, 64), f32), Barrier()
        s[tile(i, 64), :] = x[tile(i, 64), :] + 1
        if commits:
            commit_smem()
        copy_gmem_to_smem(s.at[tile(i, 64), :], buffer, arrived)
        barrier_wait(arrived)
        o[tile(i, 64), :] = buffer[...] * 2


@kernel
def in_a_loop(x: In[f32, "128 64"], s: InOut[f32, "64 64"], o: Out[f32, "128 64"]):
    buffer, arrived = SMEM((64, 64), f32), Barrier()
    for i in range(2):
        s[...] = x[tile(i, 64), :] + s[...]
        copy_gmem_to_smem(s.at[...], buffer, arrived)
        barrier_wait(arrived)
        o[tile(i, 64), :] = buffer[...] * 2


@kernel
def over_what_was_stored(x: In[f32, "64 64"], s: InOut[f32, "64 64"]):
    buffer = SMEM((64, 64), f32)
    s[...] = x[...] + s[...]
    buffer[...] = s[...] * 2
    commit_smem()
    copy_smem_to_gmem(buffer, s.at[...])
    wait_smem_to_gmem(0)


@kernel
def after_updates(x: In[f32, "64 64"], s: InOut[f32, "64 64"], o: Out[f32, "64 64"]):
    buffer, arrived = SMEM((64, 64), f32), Barrier()
    atomic_add(s.at[...], x[...])
    copy_gmem_to_smem(s.at[...], buffer, arrived)
    barrier_wait(arrived)
    o[...] = buffer[...]


@kernel(warpgroups=2)
def of_another_warpgroup(x: In[f32, "64 64"], s: InOut[f32, "64 64"], o: Out[f32, "64 64"]):
    buffer, arrived, told = SMEM((64, 64), f32), Barrier(), Barrier()
    if warpgroup_id() == 0:
        s[...] = x[...] + 1
        barrier_arrive(told)
    else:
        barrier_wait(told)
        copy_gmem_to_smem(s.at[...], buffer, arrived)
        barrier_wait(arrived)
        o[...] = buffer[...] * 2


def ptx(function: Any, *arguments: Any, **constants: Any) -> str:
    text: str = function.lower(*arguments, target="sm_90a", **constants).ptx
    return text


def test_a_copy_reads_what_the_block_has_stored_before() -> None:
    _, found = agree(through_an_output, lambda: (X[:64],))
    assert (found == 2 * X[:64] + 2).all()


@pytest.mark.parametrize("commits", [False, True])
def test_a_copy_reads_scratch_that_its_block_has_stored(commits: bool) -> None:
    found = agree(through_scratch, lambda: (X,), commits=commits)
    assert (found == 2 * X + 2).all()


def test_a_copy_in_a_loop_reads_what_the_same_step_has_stored() -> None:
    zero = np.zeros((64, 64), np.float32)
    found, _ = agree(in_a_loop, lambda: (X, zero.copy()))
    assert (found[64:] == 2 * (X[:64] + X[64:])).all()


def test_a_copy_writes_over_what_the_block_has_stored() -> None:
    found = agree(over_what_was_stored, lambda: (X[:64], X[64:].copy()))
    assert (found == 2 * (X[:64] + X[64:])).all()


def test_a_copy_reads_what_atomics_have_added() -> None:
    found, _ = agree(after_updates, lambda: (X[:64], X[64:].copy()))
    assert (found == X[:64] + X[64:]).all()


def test_a_copy_reads_what_another_warpgroup_has_stored() -> None:
    zero = np.zeros((64, 64), np.float32)
    found, _ = agree(of_another_warpgroup, lambda: (X[:64], zero.copy()))
    assert (found == 2 * X[:64] + 2).all()


def test_only_copies_of_what_threads_write_are_fenced() -> None:
    assert ptx(through_scratch, X, commits=True).count(FENCE) == 1
    assert FENCE in ptx(of_another_warpgroup, X[:64], X[64:].copy())
    assert FENCE not in ptx(copied, X)


@kernel
def copied(x: In[f32, "M 64"], o: Out[f32, "M 64"]):
    M, _ = x.shape
    with parallel(cdiv(M, 64)) as i:
        buffer, arrived = SMEM((64, 64), f32), Barrier()
        copy_gmem_to_smem(x.at[tile(i, 64), :], buffer, arrived)
        barrier_wait(arrived)
        commit_smem()
        copy_smem_to_gmem(buffer, o.at[tile(i, 64), :])
        wait_smem_to_gmem(0)
