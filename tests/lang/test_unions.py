"""Buffers that take turns in one region of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    RefUnion,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f16,
    f32,
    kernel,
    wait_smem_to_gmem,
)
from astdsl.errors import KernelError, ProtocolError, TypeMismatch, UnwrittenRead
from tests.witnesses import agree

X = np.random.default_rng(2).standard_normal((64, 64), np.float32)


@kernel
def in_turns(x: In[f32, "64 64"], o: Out[f16, "64 64"]):
    incoming, (half, rest) = RefUnion(SMEM((64, 64), f32), (SMEM((64, 64), f16), SMEM((64,), f32)))
    full = Barrier()
    copy_gmem_to_smem(x.at[...], incoming, full)
    barrier_wait(full)
    value = incoming[...]
    half[...] = value.astype(f16)
    rest[...] = value.sum(axis=1)
    half[...] = half[...] + rest[...][:, None].astype(f16)
    commit_smem()
    copy_smem_to_gmem(half, o.at[...])
    wait_smem_to_gmem(0)


def test_buffers_take_turns() -> None:
    agree(in_turns, lambda: [X.round()])


def test_they_take_as_much_as_the_largest() -> None:
    (report,) = in_turns.lower(X)._program.compiled("sm_90a").shared
    assert report.total_bytes < 64 * 64 * 4 + 64 * 64 * 2
    assert len(set(report.offsets.values())) < len(report.offsets)


@kernel
def reads_what_is_lost(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    a, b = RefUnion(SMEM((64, 64), f32), SMEM((64, 64), f32))
    a[...] = x[...]
    b[...] = x[...] + 1
    o[...] = a[...]


def test_what_another_buffer_overwrote_is_not_read() -> None:
    with pytest.raises(UnwrittenRead, match="before it is written"):
        reads_what_is_lost.on("reference")(X)


@kernel
def writes_in_flight(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    a, b = RefUnion(SMEM((64, 64), f32), SMEM((64, 64), f32))
    a[...] = x[...]
    commit_smem()
    copy_smem_to_gmem(a, o.at[...])
    b[...] = x[...] + 1
    wait_smem_to_gmem(0)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_one_is_not_written_while_another_is_in_flight(device: str) -> None:
    with pytest.raises(ProtocolError, match="in flight"):
        writes_in_flight.on(device)(X)


@kernel
def alone(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    RefUnion(SMEM((64, 64), f32))


@kernel
def twice(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    a = SMEM((64, 64), f32)
    RefUnion(a, a)


@kernel
def late(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    a, b = SMEM((64, 64), f32), SMEM((64, 64), f32)
    a[...] = x[...]
    RefUnion(a, b)


@kernel
def of_arrays(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    RefUnion(x, o)


@kernel
def of_parts(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    RefUnion(SMEM((64, 64), f32).at[0:32], SMEM((64, 64), f32))


REFUSED: list[tuple[Any, type[KernelError], str]] = [
    (alone, TypeMismatch, "two buffers or more"),
    (twice, TypeMismatch, "given twice"),
    (late, TypeMismatch, "used before"),
    (of_arrays, TypeMismatch, "of shared memory"),
    (of_parts, TypeMismatch, "part of a buffer"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), REFUSED, ids=[x[0].__name__ for x in REFUSED])
def test_a_mistake_has_a_way_out(wrong: Any, kind: type[KernelError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        wrong.on("reference")(X)
    assert caught.value.help
