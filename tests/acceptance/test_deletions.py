"""Case 13: each fence, barrier and wait that a correct kernel needs is missed when it is deleted.

One at a time is deleted, from the scheduled IR and from the PTX; what remains is evaluated, checked
as a protocol and run on the emulator. With nothing deleted all of them are silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import astdsl.emulator.device
from astdsl import (
    SMEM,
    Barrier,
    In,
    KernelError,
    Out,
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
    wait_smem_to_gmem,
    zeros,
)
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.evaluate import evaluate
from astdsl.ir.rewrite import map_regions, replace_body, with_ops
from astdsl.lowering.compiler import find_target
from astdsl.lowering.schedule.kernel import schedule
from astdsl.lowering.schedule.protocol import check_protocol

Array = np.ndarray[Any, Any]
SYNCHRONISATION = (
    ops.BarrierArrive,
    ops.BarrierWait,
    ops.BlockBarrier,
    ops.CommitGroup,
    ops.ProductWait,
    ops.ProxyFence,
    ops.WaitGroup,
)


def whole(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


@kernel(warpgroups=1)
def by_hand(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    steps = M // 16
    into, out, full = SMEM((2, 16, 64), f32), SMEM((2, 16, 64), f32), Barrier(num_barriers=2)
    copy_gmem_to_smem(x.at[0:16, 0:64], into.at[0], full.at[0])
    for k in range(steps):
        slot = k % 2
        if k + 1 < steps:
            copy_gmem_to_smem(x.at[tile(k + 1, 16), 0:64], into.at[1 - slot], full.at[1 - slot])
        barrier_wait(full.at[slot])
        wait_smem_to_gmem(1, wait_read_only=True)
        out[slot] = into[slot] * 2 + 1
        commit_smem()
        copy_smem_to_gmem(out.at[slot], o.at[tile(k, 16), 0:64])
    wait_smem_to_gmem(0)


@kernel
def ring(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=64, bn=64):
    M, N = x.shape
    with pipeline(1):
        with pipeline(cdiv(M, bm), cdiv(N, bn), stages=2) as (i, j):
            o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] * 2 + 1


@kernel
def matmul(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"]):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 64), cdiv(N, 64)) as (i, j):
        acc = zeros((64, 64), f32)
        with pipeline(cdiv(K, 32), stages=3) as k:
            acc += a[tile(i, 64), tile(k, 32)] @ b[tile(k, 32), tile(j, 64)]
        c[tile(i, 64), tile(j, 64)] = acc


COPY = (whole(96, 64),)
RING = (whole(256, 128),)
PRODUCT = (whole(64, 192, dtype=np.float16), whole(192, 64, dtype=np.float16))
PROGRAMS = {
    "by hand": (by_hand, COPY, COPY[0] * 2 + 1, "sm_90a"),
    "ring": (ring, RING, RING[0] * 2 + 1, "sm_90a"),
    "wgmma": (
        matmul,
        PRODUCT,
        PRODUCT[0].astype(np.float32) @ PRODUCT[1].astype(np.float32),
        "sm_90a",
    ),
    "tcgen05": (
        matmul,
        PRODUCT,
        PRODUCT[0].astype(np.float32) @ PRODUCT[1].astype(np.float32),
        "sm_100a",
    ),
}


def scheduled(name: str) -> Module:
    program, arguments, _, target = PROGRAMS[name]
    return schedule(program.lower(*arguments, target=target).module, find_target(target))


def without(module: Module, deleted: Op) -> Module:
    """Return the module without one operation."""

    def block(b):
        return with_ops(b, [map_regions(op, block) for op in b.ops if op is not deleted])

    return replace_body(module, block(module.body))


def complaint_of_evaluation(module: Module, arguments: Sequence[Array], expected: Array) -> str:
    given = [*arguments, np.zeros_like(expected)]
    try:
        evaluate(module, given)
    except KernelError as error:
        return str(error)
    return "" if np.array_equal(given[-1], expected) else "wrong results"


def complaint_of_emulator(
    name: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return what the emulator reports of a program whose text is changed; "" if nothing."""
    program, arguments, expected, target = PROGRAMS[name]
    programs = astdsl.emulator.device._PROGRAMS

    class Changed:
        def get(self, ptx, kernel):
            return programs.get(change(ptx), kernel)

    monkeypatch.setattr(astdsl.emulator.device, "_PROGRAMS", Changed())
    for completion in ("late", "early"):
        monkeypatch.setenv("ASTDSL_COMPLETION", completion)
        try:
            found = program.on("emulator", target=target)(*arguments)
        except KernelError as error:
            return str(error)
        if not np.array_equal(found, expected):
            return "wrong results"
    return ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_13_a_schedule_is_silent_and_misses_what_is_deleted_from_it(name: str) -> None:
    _, arguments, expected, _ = PROGRAMS[name]
    module = scheduled(name)
    assert not complaint_of_evaluation(module, arguments, expected)
    silent = [
        op
        for op in walk(module.body)
        if isinstance(op, SYNCHRONISATION)
        and not complaint_of_evaluation(without(module, op), arguments, expected)
    ]
    # The evaluation has one thread: a barrier of the block before a refill, and a wait before the
    # only use of a buffer, change nothing in it. The PTX without them is tested below.
    assert {type(op) for op in silent} <= {ops.BlockBarrier, ops.WaitGroup}
    needed = [op for op in walk(module.body) if isinstance(op, SYNCHRONISATION)]
    assert len(silent) < len(needed) or not needed


@pytest.mark.parametrize("name", ["ring", "wgmma", "tcgen05"])
def test_13_the_protocol_check_misses_what_is_deleted_from_a_schedule(name: str) -> None:
    module = scheduled(name)
    (launch,) = [op for op in module.body.ops if isinstance(op, ops.Launch)]
    check_protocol(launch.body, trip_counts(launch.body))
    for wanted in (ops.BarrierWait, ops.ProductWait):
        for op in walk(launch.body):
            if type(op) is wanted:
                broken = without(module, op)
                (changed,) = [x for x in broken.body.ops if isinstance(x, ops.Launch)]
                with pytest.raises(AssertionError):
                    check_protocol(changed.body, trip_counts(changed.body))


def trip_counts(body: Block) -> list[Value]:
    """Return what says how many steps the rings of a schedule have."""
    return [op.amount for op in walk(body) if isinstance(op, ops.CounterAdd)]


SKIPPED = re.compile(r"mbarrier\.try_wait\S* (\w+),.*;")
NEEDED = re.compile(
    r"mbarrier\.(init|try_wait|arrive)|wgmma\.(fence|commit|wait)|tcgen05\.(commit|wait)"
    r"|bulk\.(commit_group|wait_group(?!\.read 0))|fence\.proxy|bar\.sync"
)
# The first fence of a kernel is for its barriers, whose visibility the emulator does not model.
FIRST_FENCE = re.compile(r"fence\.mbarrier_init")


def not_the_last(ptx: str, number: int) -> bool:
    """Whether another barrier of the block stands between this one and asynchronous work."""
    rest = re.split(r"cp\.async|mbarrier\.arrive|\.mma", "\n".join(ptx.splitlines()[number + 1 :]))
    return "bar.sync" in rest[0]


def needed_lines(ptx: str) -> Iterator[int]:
    """Yield the lines without which the program is wrong."""
    before = ""
    for number, line in enumerate(ptx.splitlines()):
        instruction = line.strip()
        is_barrier = instruction.startswith("bar.sync")
        if NEEDED.search(instruction):
            first = instruction.startswith("fence.proxy") and FIRST_FENCE.search(before)
            spare = is_barrier and ("fence.proxy" not in before or not_the_last(ptx, number))
            if not first and not spare:
                yield number
        if NEEDED.search(instruction) or FIRST_FENCE.search(instruction):
            before = instruction


def deleting(number: int) -> Callable[[str], str]:
    """Return what deletes a line; a wait that is deleted succeeds at once."""

    def change(ptx: str) -> str:
        lines = ptx.splitlines()
        skipped = SKIPPED.search(lines[number])
        lines[number] = f"setp.eq.u32 {skipped[1]}, 0, 0;" if skipped else ""
        return "\n".join(lines) + "\n"

    return change


@pytest.mark.parametrize("name", PROGRAMS)
def test_13_the_emulator_misses_what_is_deleted_from_the_ptx(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not complaint_of_emulator(name, lambda ptx: ptx, monkeypatch)
    monkeypatch.undo()
    program, arguments, _, target = PROGRAMS[name]
    ptx = program.lower(*arguments, target=target).ptx
    silent = []
    for number in needed_lines(ptx):
        if not complaint_of_emulator(name, deleting(number), monkeypatch):
            silent.append(f"{number}: {ptx.splitlines()[number].strip()}")
        monkeypatch.undo()
    assert not silent
