"""`print_layout`: what is told of layouts when a kernel is compiled; nothing else changes."""

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
    Layout,
    Out,
    async_load_tmem,
    barrier_wait,
    commit_smem,
    f16,
    f32,
    full,
    kernel,
    layout_cast,
    pipeline,
    print_layout,
    tcgen05_mma,
    tile,
    wgmma,
    zeros,
)
from astdsl.errors import TypeMismatch
from tests.witnesses import agree

X = np.random.default_rng(0).integers(-4, 5, (64, 64)).astype(np.float16)


def told(kernel: Any, *arguments: Any, target: str = "sm_90a") -> list[str]:
    said = kernel.lower(*arguments, target=target).explain().splitlines()
    return [line.partition(": ")[2] for line in said if line.startswith("layout of ")]


def casts(x: In[f16, "64 64"], o: Out[f16, "64 64"], p: Out[f16, "64"]):
    t = x[0:64, 0:64]
    print_layout(t)
    moved = layout_cast(t, Layout.WGMMA)
    print_layout(moved)
    print_layout(moved.sum(axis=1))
    print_layout(full((64,), 1, f16))
    o[0:64, 0:64] = moved
    p[0:64] = moved.sum(axis=1) + t.sum(axis=1)


def test_the_layout_of_a_tile_is_told_in_the_words_of_a_kernel() -> None:
    agree(kernel(casts), lambda: [X])
    assert told(kernel(casts), X) == [
        "Layout.WG_STRIDED((64, 64), 8)",
        "Layout.WGMMA",
        "Layout.WGMMA.reduce(1)",
        "made where it is used, in the layout of the use",
    ]


def test_a_load_is_made_in_the_layout_that_is_stated_whether_or_not_it_is_printed() -> None:
    def looked_at(x: In[f16, "64 64"], o: Out[f16, "64 64"]) -> None:
        t = x[0:64, 0:64]
        print_layout(t)
        o[0:64, 0:64] = layout_cast(t, Layout.WGMMA_TRANSPOSED)

    assert told(kernel(looked_at), X) == ["Layout.WGMMA_TRANSPOSED"]


def test_layouts_are_printed_whenever_a_kernel_is_compiled(capsys: Any) -> None:
    for _ in range(2):  # the second time its code is kept on disk
        fresh = kernel(casts)
        fresh.on("emulator", target="sm_90a")(X)
        fresh.on("emulator", target="sm_90a")(X)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == 4
        where = f"test_print_layout.py:{casts.__code__.co_firstlineno + 4}:5"
        assert printed[1] == f"layout for sm_90a of f16[64x64] at {where}: Layout.WGMMA"
    kernel(casts).on("reference", target="sm_90a")(X)
    assert capsys.readouterr().out.splitlines() == printed


@kernel
def sums(a: In[f16, "64 K"], b: In[f16, "K 64"], o: Out[f32, "64 64"]):
    total = zeros((64, 64), f32)
    with pipeline(a.shape[1] // 16, stages=2) as k:
        total += a[0:64, tile(k, 16)] @ b[tile(k, 16), 0:64]
    print_layout(total)
    o[0:64, 0:64] = total


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_sum_of_products_is_told_as_its_accumulator_gives_it(target: str) -> None:
    agree(sums, lambda: [X, X], targets=[target])
    assert told(sums, X, X, target=target) == ["Layout.WGMMA"]


@kernel
def in_registers(a: In[f16, "64 64"], o: Out[f32, "64 64"]):
    left = SMEM((64, 64), f16)
    left[...] = a[0:64, 0:64]
    commit_smem()
    acc = ACC((64, 64))
    print_layout(acc)
    print_layout(left)
    wgmma(acc, left, left)
    o[0:64, 0:64] = acc[...]


@kernel
def in_tensor_memory(a: In[f16, "64 64"], o: Out[f32, "64 64"]):
    left, acc, done = SMEM((64, 64), f16), TMEM((64, 64)), Barrier(orders_tensor_core=True)
    left[...] = a[0:64, 0:64]
    commit_smem()
    print_layout(acc)
    print_layout(left.at[0:8])
    tcgen05_mma(acc, left, left, done, accumulate=False)
    barrier_wait(done)
    o[0:64, 0:64] = async_load_tmem(acc)


def test_memory_on_chip_is_told_as_it_is() -> None:
    agree(in_registers, lambda: [X], targets=["sm_90a"])
    agree(in_tensor_memory, lambda: [X], targets=["sm_100a"])
    buffer = "64 along axis 1, 64 along axis 0; swizzled by 128 bytes"
    assert told(in_registers, X) == ["Layout.WGMMA", buffer]
    columns = (
        "columns 0 to 63 of tensor memory, 16 lanes of each warp, an element a cell of 32 bits"
    )
    assert told(in_tensor_memory, X, target="sm_100a") == [columns, buffer]


def test_global_memory_has_no_layout_to_tell() -> None:
    def outside(x: In[f16, "64 64"], o: Out[f16, "64 64"]) -> None:
        print_layout(x.at[0:8])
        o[...] = x[...]

    with pytest.raises(TypeMismatch, match="memory on chip"):
        kernel(outside).on("reference")(X)
