"""The explicit level in one warpgroup: shared memory, copies, barriers, fences."""

from __future__ import annotations

# Annotations of kernels are arrays, which a type checker takes for no types.
from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    barrier_arrive,
    barrier_wait,
    cdiv,
    commit_smem,
    commit_smem_to_gmem_group,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f32,
    i32,
    kernel,
    parallel,
    tile,
    wait_smem_to_gmem,
)
from astdsl.errors import BadWindow, ProtocolError, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import walk
from tests.lang.harness import a_trace, an_index

DEVICES = ["reference", "emulator"]
X = np.random.default_rng(5).normal(size=(64, 32)).astype(np.float32)


@kernel
def copied(x: In[f32, "64 32"], o: Out[f32, "64 32"]):
    buf, full = SMEM((64, 32), f32), Barrier()
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    buf[...] = buf[...] + 1
    commit_smem()
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tile_goes_through_shared_memory(device: str) -> None:
    assert np.array_equal(copied.on(device)(X), X + 1)


@kernel
def double_buffered(x: In[f32, "M 32"], o: Out[f32, "M 32"], *, b=16):
    m, _ = x.shape
    incoming, outgoing = SMEM((2, b, 32), f32), SMEM((2, b, 32), f32)
    full = Barrier(num_barriers=2)
    steps = cdiv(m, b)
    copy_gmem_to_smem(x.at[tile(0, b)], incoming.at[0], full[0])
    for i in range(steps):
        slot, following = i % 2, (i + 1) % 2
        if i + 1 < steps:
            copy_gmem_to_smem(x.at[tile(i + 1, b)], incoming.at[following], full[following])
        barrier_wait(full[slot])
        wait_smem_to_gmem(1, wait_read_only=True)
        outgoing[slot] = incoming[slot] + 1
        commit_smem()
        copy_smem_to_gmem(outgoing.at[slot], o.at[tile(i, b)], commit_group=False)
        commit_smem_to_gmem_group()
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [16, 32, 48, 64])
def test_phases_of_an_array_of_barriers_are_tracked(device: str, rows: int) -> None:
    assert np.array_equal(double_buffered.on(device)(X[:rows]), X[:rows] + 1)


@kernel
def predicated(x: In[f32, "64 32"], o: Out[f32, "64 32"], yes: i32):
    buf, full = SMEM((64, 32), f32), Barrier()
    buf[...] = 5
    commit_smem()
    copy_gmem_to_smem(x.at[...], buf, full, predicate=yes != 0)
    barrier_wait(full)
    o[...] = buf[...]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("yes", [0, 1])
def test_a_copy_whose_predicate_is_false_arrives_without_data(device: str, yes: int) -> None:
    o = np.zeros_like(X)
    predicated.on(device)(X, o, yes)
    assert np.array_equal(o, X if yes else np.full_like(X, 5))


@kernel
def gridded(x: In[f32, "M 32"], o: Out[f32, "M 32"], *, b=16):
    m, _ = x.shape
    with parallel(cdiv(m, b), names=("m",)) as i:
        buf, full = SMEM((b, 32), f32), Barrier()
        copy_gmem_to_smem(x.at[tile(i, b)], buf, full)
        barrier_wait(full)
        o[tile(i, b)] = buf[...] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_each_block_of_a_grid_has_its_own_buffers(device: str) -> None:
    assert np.array_equal(gridded.on(device)(X[:56]), X[:56] * 2)


def test_a_barrier_takes_as_many_arrivals_as_were_stated() -> None:
    with a_trace() as (now,):
        both = Barrier(num_arrivals=2)
        barrier_arrive(both)
        barrier_arrive(both)
        barrier_wait(both)
    kinds = [type(op) for op in walk(now.builder.finish())]
    assert kinds.count(ops.BarrierArrive) == 2
    assert kinds.count(ops.CounterAdd) == 1


@pytest.mark.parametrize("arrivals", [0, -1, 2**20])
def test_arrivals_that_no_barrier_counts_are_refused(arrivals: int) -> None:
    with a_trace() as _, pytest.raises(TypeMismatch, match="arrivals"):
        Barrier(arrivals)


@pytest.mark.parametrize("index", [2, -1])
def test_a_barrier_outside_its_array_is_refused(index: int) -> None:
    with a_trace() as _, pytest.raises(BadWindow, match="array of 2"):
        Barrier(num_barriers=2)[index]


@pytest.mark.parametrize("n", [-1, 1.5])
def test_a_wait_counts_groups(n: Any) -> None:
    with a_trace() as _, pytest.raises(TypeMismatch, match="number of groups"):
        wait_smem_to_gmem(n)


def test_a_runtime_index_picks_among_the_counters_of_all_slots() -> None:
    with a_trace() as (now,), an_index(4) as i:
        barrier_wait(Barrier(num_barriers=3)[i % 3])
        kinds = [type(op) for op in now.builder.current.ops]
    assert kinds.count(ops.CounterRead) == 3
    assert kinds.count(ops.BarrierWait) == 1


@kernel
def beyond(x: In[f32, "64 32"], o: Out[f32, "64 32"], slot: i32):
    full = Barrier(num_barriers=2)
    barrier_arrive(full[slot])
    o[...] = x[...]


@pytest.mark.parametrize("slot", [2, -1])
def test_a_barrier_index_outside_is_found_by_the_reference(slot: int) -> None:
    with pytest.raises(ProtocolError, match="array of 2") as caught:
        beyond.on("reference")(X, np.zeros_like(X), slot)
    assert caught.value.span is not None
    assert caught.value.span.line > 100
