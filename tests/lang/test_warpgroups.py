"""What is refused of kernels for warpgroups and warps, and how deadlocks are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    Barrier,
    In,
    InOut,
    Out,
    axis_index,
    barrier_arrive,
    barrier_test,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    f32,
    i32,
    kernel,
    parallel,
    pipeline,
    program_id,
    set_max_registers,
    tile,
    warp_id,
    warpgroup_id,
    when,
)
from astdsl.errors import (
    BadPipeline,
    BadSignature,
    KernelError,
    OutOfScope,
    ParallelConflict,
    ProtocolError,
    TypeMismatch,
    UnknownName,
    UnsupportedFeature,
)
from tests.witnesses import agree

X = np.arange(64, dtype=np.float32)
DEVICES = ["reference", "emulator"]


@kernel
def without_warpgroups(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0] = x[0] + warpgroup_id()


@kernel(warpgroups=0)
def no_warpgroups(x: In[f32, "N"], o: Out[f32, "N"]): ...


@kernel(warpgroups=2)
def tile_of_one_warp(x: In[f32, "64"], o: Out[f32, "64"]):
    if warp_id() == 0:
        o[...] = x[...]


@kernel(warpgroups=2)
def fence_of_one_warp(x: In[f32, "64"], o: Out[f32, "64"]):
    if warp_id() == 0:
        commit_smem()


@kernel(warpgroups=2)
def pipeline_of_one_warp(x: In[f32, "64"], o: InOut[f32, "64"]):
    if warp_id() == 0:
        with pipeline(4) as k:
            o[k] = x[k]


@kernel(warpgroups=2)
def number_outside(x: In[f32, "64"], o: Out[f32, "64"]):
    o[warp_id()] = x[0]


@kernel(warpgroups=2)
def name_carried_out(x: In[f32, "64"], o: Out[f32, "64"]):
    n = 0
    if warp_id() == 0:
        n = 1
    o[n] = x[0]


@kernel(warpgroups=2)
def beside_the_grid(x: In[f32, "64"], o: Out[f32, "64"]):
    with parallel(2) as i:
        o[tile(2 * i + warpgroup_id(), 16)] = x[tile(i, 16)]
    o[0] = x[0]


@kernel(warpgroups=2)
def grid_in_a_branch(x: In[f32, "64"], o: Out[f32, "64"], yes: i32 = 1):
    if yes > 0:
        with parallel(2) as i:
            o[tile(2 * i + warpgroup_id(), 16)] = x[tile(i, 16)]


@kernel(warpgroups=2)
def mixed_grid(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    with pipeline(2, 2, axes=("parallel", "sequential")) as (i, j):
        o[tile(2 * i + warpgroup_id(), 16), tile(j, 16)] = x[tile(i, 16), tile(j, 16)]


@kernel
def no_grid(x: In[f32, "64"], o: Out[f32, "64"]):
    o[program_id(0)] = x[0]


@kernel
def no_such_axis(x: In[f32, "64"], o: Out[f32, "64"]):
    with parallel(4, names=("rows",)) as i:
        o[axis_index("row")] = x[i]


@kernel
def no_such_number(x: In[f32, "64"], o: Out[f32, "64"]):
    with parallel(4) as i:
        o[program_id(1)] = x[i]


@kernel(warpgroups=2)
def odd_registers(x: In[f32, "64"], o: Out[f32, "64"]):
    set_max_registers(100, action="decrease")


@kernel(warpgroups=2)
def odd_action(x: In[f32, "64"], o: Out[f32, "64"]):
    set_max_registers(40, action="decreased")


@kernel
def registers_of_a_block(x: In[f32, "64"], o: Out[f32, "64"]):
    set_max_registers(40, action="decrease")


@kernel(warpgroups=2)
def no_completion(x: In[f32, "64"], o: Out[f32, "64"]):
    barrier_wait(Barrier(), completion=-1)


@kernel
def when_with_parameters(x: In[f32, "64"], o: Out[f32, "64"]):
    @when(x[0] > 0)  # type: ignore[arg-type]
    def _(i):
        o[i] = 0


REFUSED: list[tuple[Any, type[KernelError], str]] = [
    (without_warpgroups, UnsupportedFeature, "run once by its block"),
    (no_warpgroups, BadSignature, "from 1 to 8, got 0"),
    (tile_of_one_warp, TypeMismatch, "belongs to a whole warpgroup"),
    (fence_of_one_warp, TypeMismatch, "joins the four warps"),
    (number_outside, OutOfScope, "differs among the warps"),
    (name_carried_out, OutOfScope, "used after it"),
    (beside_the_grid, BadPipeline, "beside the grid"),
    (grid_in_a_branch, BadPipeline, "in a branch"),
    (mixed_grid, BadPipeline, "runs in order"),
    (no_grid, BadPipeline, "outside of a grid"),
    (no_such_axis, UnknownName, "no axis 'row'"),
    (no_such_number, BadPipeline, "from 0 to 0, got 1"),
    (odd_registers, TypeMismatch, "multiple of 8 from 24 to 256, got 100"),
    (odd_action, TypeMismatch, "one of increase, decrease"),
    (registers_of_a_block, UnsupportedFeature, "run once by its block"),
    (no_completion, TypeMismatch, "from 0, got -1"),
    (when_with_parameters, TypeMismatch, "without parameters"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), REFUSED, ids=[x[0].__name__ for x in REFUSED])
def test_a_mistake_has_a_way_out(wrong: Any, kind: type[KernelError], said: str) -> None:
    array = np.zeros((64, 64), np.float32) if wrong is mixed_grid else X
    with pytest.raises(kind, match=said) as caught:
        wrong.on("reference")(array)
    assert caught.value.help
    assert caught.value.places


def test_a_pipeline_is_not_for_one_warp() -> None:
    with pytest.raises(TypeMismatch, match="run by a whole warpgroup"):
        pipeline_of_one_warp.on("reference")(X, np.zeros_like(X))


@kernel(warpgroups=2)
def waits_for_each_other(o: Out[i32, "2"]):
    mine = Barrier(num_barriers=2)
    w = warpgroup_id()
    barrier_wait(mine[w])
    barrier_arrive(mine[1 - w])
    o[w] = w.astype(i32)


def test_the_reference_names_everybody_who_waits() -> None:
    with pytest.raises(ProtocolError, match="deadlock") as caught:
        waits_for_each_other.on("reference")()
    assert "warpgroup 0 waits" in str(caught.value)
    assert "warpgroup 1 waits" in str(caught.value)


@kernel(warpgroups=2)
def warps_wait(o: Out[i32, "2", 0]):
    never = Barrier()
    if warp_id() == 2:
        barrier_wait(never)


def test_the_reference_names_the_warp_that_waits() -> None:
    with pytest.raises(ProtocolError, match="warp 2 of warpgroup 0 waits"):
        warps_wait.on("reference")()


@kernel(warpgroups=2)
def asks_for_ever(o: Out[i32, "2", 0]):
    never = Barrier()
    if warpgroup_id() == 0:
        while not barrier_test(never):
            pass


def test_a_barrier_tested_for_ever_is_a_deadlock() -> None:
    with pytest.raises(ProtocolError, match="deadlock"):
        asks_for_ever.on("reference")()


@kernel(warpgroups=2)
def stored_twice(x: In[f32, "64"], o: Out[f32, "64"]):
    for k in range(4):
        o[tile(k, 16)] = x[tile(k, 16)]


@pytest.mark.parametrize("device", DEVICES)
def test_two_warpgroups_do_not_store_one_window(device: str) -> None:
    with pytest.raises(ParallelConflict, match="warpgroups"):
        stored_twice.on(device)(X)


@kernel(warpgroups=2)
def waited_by_one_warp(x: In[f32, "64"], o: Out[f32, "64"]):
    buf, full = SMEM((64,), f32), Barrier()
    if warpgroup_id() == 0:
        copy_gmem_to_smem(x.at[...], buf, full)
        if warp_id() == 1:
            barrier_wait(full)
        barrier_wait(full)
        o[...] = buf[...]


def test_warps_that_have_waited_differently_do_not_wait_together() -> None:
    with pytest.raises(ProtocolError, match="differently often"):
        waited_by_one_warp.on("reference")(X)


@kernel(warpgroups=3)
def too_many_registers(x: In[f32, "64"], o: Out[f32, "64"]):
    if warpgroup_id() == 0:
        set_max_registers(40, action="decrease")
    else:
        set_max_registers(240, action="increase")
    o[warpgroup_id()] = x[0]


@kernel(warpgroups=3)
def wrong_way(x: In[f32, "64"], o: Out[f32, "64"]):
    if warpgroup_id() == 0:
        set_max_registers(40, action="increase")
    o[warpgroup_id()] = x[0]


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_registers_come_out_of_the_blocks(target: str) -> None:
    with pytest.raises(ProtocolError, match=r"40 \+ 240 \+ 240 registers.* has 512"):
        too_many_registers.on("emulator", target=target)(X)
    with pytest.raises(TypeMismatch, match="where a thread has 168"):
        wrong_way.on("emulator", target=target)(X)


@kernel(warpgroups=2)
def of_two(x: In[f32, "64"], o: Out[f32, "64"]):
    if warpgroup_id() == 1:
        o[...] = x[...] * 2


@kernel
def calls_of_two(x: In[f32, "64"], o: Out[f32, "64"]):
    of_two(x, o)


@kernel(warpgroups=2)
def calls_alike(x: In[f32, "64"], o: Out[f32, "64"]):
    of_two(x, o)


def test_a_kernel_is_called_by_one_for_as_many_warpgroups() -> None:
    with pytest.raises(UnsupportedFeature, match="each of 2 warpgroups"):
        calls_of_two.on("reference")(X)
    assert np.array_equal(calls_alike.on("reference")(X), X * 2)


@kernel(warpgroups=3)
def handed_on(x: In[f32, "64"], o: Out[f32, "128"], *, out=""):
    row, full, again = SMEM((64,), f32), Barrier(), Barrier(num_arrivals=2)
    w = warpgroup_id()
    if w == 0:
        row[...] = x[...]
        barrier_arrive(full)
        if out != "wait before the write":
            barrier_wait(again)
        row[...] = x[...] * 2
    else:
        if out != "wait of one" or w == 1:
            barrier_wait(full)
        o[tile(w - 1, 64)] = row[...]
        barrier_arrive(again)


def test_a_warpgroup_hands_on_what_it_wrote() -> None:
    assert np.array_equal(agree(handed_on, lambda: [X]), np.concatenate([X, X]))


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("out", ["wait before the write", "wait of one"])
def test_accesses_that_nothing_orders_are_reported(out: str, check: bool) -> None:
    unordered = kernel(warpgroups=3, check=check)(handed_on.__wrapped__)
    with pytest.raises(
        ProtocolError, match=r"nothing orders that after what warpgroup \d (wrote|read)"
    ):
        unordered.on("reference")(X, out=out)
