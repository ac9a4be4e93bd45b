"""Two blocks that store in one place of global memory, where nothing orders them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    In,
    InOut,
    atomic_add,
    commit_smem,
    copy_smem_to_gmem,
    ds,
    f16,
    f32,
    i32,
    kernel,
    parallel,
    tile,
    wait_smem_to_gmem,
    warpgroup_id,
)
from astdsl.errors import DeviceError, ParallelConflict
from tests.witnesses import TARGETS, agree

X = np.arange(128, dtype=np.float32)


@kernel
def stored(x: In[f32, "N"], at: In[i32, "K"], o: InOut[f32, "N"]):
    with parallel(at.shape[0]) as i:
        o[ds(at[i], 64)] = x[tile(i, 64)]


@kernel(warpgroups=1)
def copied(x: In[f32, "N"], at: In[i32, "K"], o: InOut[f32, "N"]):
    with parallel(at.shape[0]) as i:
        buf = SMEM((64,), f32)
        buf[...] = x[tile(i, 64)]
        commit_smem()
        copy_smem_to_gmem(buf, o.at[ds(at[i], 64)])
        wait_smem_to_gmem(0)


def arguments(*at: int) -> list[Any]:
    return [X, np.array(at, np.int32), np.zeros_like(X)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("write", [stored, copied])
def test_blocks_that_store_in_one_place_are_reported(write: Any, target: str) -> None:
    with pytest.raises(DeviceError, match="is written by two blocks") as caught:
        write.on("emulator", target=target)(*arguments(0, 32))
    assert "E235" in str(caught.value)
    assert caught.value.help
    with pytest.raises(ParallelConflict):
        write.on("reference", target=target)(*arguments(0, 32))


@pytest.mark.parametrize("write", [stored, copied])
def test_blocks_that_store_side_by_side_are_not(write: Any) -> None:
    assert np.array_equal(agree(write, lambda: arguments(64, 0)), np.roll(X, 64))


@kernel(warpgroups=2)
def of_warpgroups(x: In[f32, "N"], n: i32, o: InOut[f32, "N"]):
    with parallel(1):
        o[ds(warpgroup_id() * n, 64)] = x[tile(warpgroup_id(), 64)]


@pytest.mark.parametrize("target", TARGETS)
def test_warpgroups_that_store_in_one_place_are_reported(target: str) -> None:
    zeros = np.zeros_like(X)
    with pytest.raises(DeviceError, match="by two blocks or warpgroups"):
        of_warpgroups.on("emulator", target=target)(X, 32, zeros)
    with pytest.raises(ParallelConflict):
        of_warpgroups.on("reference", target=target)(X, 32, zeros)
    assert np.array_equal(agree(of_warpgroups, lambda: (X, 64, np.zeros_like(X))), X)


@kernel
def halves(x: In[f16, "N"], o: InOut[f16, "N"], *, b=5):
    with parallel(x.shape[0] // b) as i:
        o[tile(i, b)] = x[tile(i, b)]


def test_halves_of_one_word_may_be_two_blocks() -> None:
    x = np.arange(50, dtype=np.float16)
    assert np.array_equal(agree(halves, lambda: (x, np.zeros_like(x))), x)


@kernel
def added(x: In[f32, "N"], o: InOut[f32, "N"]):
    with parallel(2) as i:
        atomic_add(o.at[ds(0, 64)], x[tile(i, 64)])


def test_atomics_of_two_blocks_meet() -> None:
    found = agree(added, lambda: (X, np.zeros_like(X)))
    assert np.array_equal(found[:64], X[:64] + X[64:])
