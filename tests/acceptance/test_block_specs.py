"""What a `BlockSpec` states of its blocks: their layout on chip, how long they are held, fills."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    BlockSpec,
    In,
    InOut,
    Out,
    SwizzleTransform,
    TilingTransform,
    TransposeTransform,
    cdiv,
    emit_pipeline,
    f16,
    f32,
    i32,
    kernel,
    parallel,
    zeros,
)
from astdsl.errors import BadPipeline, KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.equality import structurally_equal
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from tests.witnesses import TARGETS, agree

RNG = np.random.default_rng(12)
TILED = (TilingTransform((8, 32)), SwizzleTransform(128))
BY_COLUMNS = (TilingTransform((8, 32)), TransposeTransform((1, 0, 2, 3)))
HALVES = (TilingTransform((8, 64)), SwizzleTransform(128))


def scheduled(kernel: Any, *arguments: Any, target: str = "sm_90a", **constants: Any) -> list[Any]:
    lowered = kernel.lower(*arguments, target=target, **constants)
    return list(walk(lowered._program.compiled(target).scheduled.body))


@kernel
def shifted(
    x: In[f32, "64 256"], o: Out[f32, "64 256"], *, layout=None, stages=2, delay=None, repeats=1
):
    def body(_, x_block, o_block):
        o_block[...] = x_block[...] + 1

    source = BlockSpec((64, 64), lambda i: (0, i), transforms=layout, delay_release=delay)
    target = BlockSpec((64, 64), lambda i: (0, i), transforms=layout)
    run = emit_pipeline(
        body, grid=(4,), in_specs=[source], out_specs=[target], max_concurrent_steps=stages
    )
    for _ in range(repeats):
        run(x, o)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("layout", [TILED, BY_COLUMNS, (TilingTransform((8, 32)),)])
def test_2_blocks_are_laid_out_as_stated(layout: Any, repeats: int) -> None:
    x = RNG.standard_normal((64, 256), np.float32)
    found = agree(shifted, lambda: [x], layout=layout, repeats=repeats)
    assert np.array_equal(found, x + 1)
    made = [op for op in scheduled(shifted, x, layout=layout) if isinstance(op, ops.AllocSmem)]
    assert made
    assert {op.transforms for op in made} == {tuple((t.kind, t.numbers) for t in layout)}


@pytest.mark.parametrize(("delay", "stages"), [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (2, "auto")])
def test_slots_are_held_for_as_long_as_is_stated(delay: int, stages: Any) -> None:
    x = RNG.standard_normal((64, 256), np.float32)
    agree(shifted, lambda: [x], delay=delay, stages=stages, repeats=2)


@kernel
def product(
    a: In[f16, "M K"],
    b: In[f16, "K N"],
    o: Out[f32, "M N"],
    *,
    layouts=(None, None),
    delays=(None, None),
    stages=3,
):
    m, k = a.shape
    with parallel(cdiv(m, 64)) as i:

        def body(_, a_block, b_block, total):
            return total + a_block[...] @ b_block[...]

        left = BlockSpec((64, 64), lambda j: (i, j), transforms=layouts[0], delay_release=delays[0])
        right = BlockSpec(
            (64, 64), lambda j: (j, 0), transforms=layouts[1], delay_release=delays[1]
        )
        run = emit_pipeline(
            body,
            grid=(cdiv(k, 64),),
            in_specs=[left, right],
            max_concurrent_steps=stages,
            init_carry=zeros((64, 64), f32),
        )
        o[i * 64 : (i + 1) * 64, 0:64] = run(a, b)


A = RNG.integers(-4, 5, (128, 320)).astype(np.float16)
B = RNG.integers(-4, 5, (320, 64)).astype(np.float16)


@pytest.mark.parametrize("delays", [(None, None), (1, 1), (1, None), (2, 2), (2, 1), (1, 3)])
def test_products_stay_in_flight_for_as_many_steps_as_every_slot_allows(delays: Any) -> None:
    stages = 4
    found = agree(product, lambda: [A, B], layouts=(HALVES, HALVES), delays=delays, stages=stages)
    assert np.array_equal(found, A.astype(np.float32) @ B.astype(np.float32))
    waits = [
        op.pending
        for op in scheduled(product, A, B, delays=delays, stages=stages)
        if isinstance(op, ops.ProductWait)
    ]
    assert max(waits) == min(1 if d is None else d for d in delays)


def test_what_is_stated_is_printed_and_read_back() -> None:
    lowered = product.lower(A, B, target="sm_90a", layouts=(HALVES, None), delays=(1, 2))
    loads = [op for op in walk(lowered.module.body) if isinstance(op, ops.Load)]
    assert [op.delay_release for op in loads] == [1, 2]
    assert structurally_equal(parse_module(print_module(lowered.module)), lowered.module)


@kernel
def sums(x: In[f32, "M N"], o: Out[f32, "M"], *, fill=2.5):
    m, n = x.shape
    with parallel(cdiv(m, 16)) as i:

        def body(_, block, total):
            return total + block[...].sum(axis=1)

        spec = BlockSpec((16, 32), lambda j: (i, j), oob_fill=fill)
        total = emit_pipeline(
            body, grid=(cdiv(n, 32),), in_specs=[spec], init_carry=zeros((16,), f32)
        )(x)
        o[i * 16 : (i + 1) * 16] = total


def test_elements_outside_the_array_are_read_as_stated() -> None:
    x = RNG.integers(-4, 5, (20, 70)).astype(np.float32)
    assert np.array_equal(agree(sums, lambda: [x]), x.sum(axis=1) + 26 * 2.5)
    assert np.array_equal(agree(sums, lambda: [x], fill=0), x.sum(axis=1))
    copies = [op for op in scheduled(sums, x) if isinstance(op, ops.CopyIn)]
    assert copies == []  # rows of 280 bytes are no multiple of 16
    wide = RNG.integers(-4, 5, (20, 72)).astype(np.float32)
    assert np.array_equal(agree(sums, lambda: [wide]), wide.sum(axis=1) + 24 * 2.5)
    assert any(isinstance(op, ops.CopyIn) for op in scheduled(sums, wide))


@kernel
def in_place(x: InOut[i32, "M"]):
    def body(_, block):
        block[...] += block[...].max()

    spec = BlockSpec((8,), lambda i: (i,), oob_fill=7)
    emit_pipeline(body, grid=(cdiv(x.shape[0], 8),), out_specs=[spec])(x)


def test_an_output_that_is_read_is_filled_too() -> None:
    found = agree(in_place, lambda: [np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, -9], np.int32)])
    assert found.tolist() == [9, 10, 11, 12, 13, 14, 15, 16, 18, 0]
    found = agree(in_place, lambda: [np.array([1, 2], np.int32)])
    assert found.tolist() == [8, 9]


def late(delay: int) -> Any:
    def wrong(x: In[f32, "64"], o: Out[f32, "64"]) -> None:
        spec = BlockSpec((8,), lambda i: (i,), delay_release=delay)
        emit_pipeline(lambda i, a: None, grid=(8,), in_specs=[spec], max_concurrent_steps=2)(x)

    return wrong


def of_output(x: In[f32, "64"], o: Out[f32, "64"]) -> None:
    spec = BlockSpec((8,), lambda i: (i,), delay_release=1)
    emit_pipeline(lambda i, a: None, grid=(8,), out_specs=[spec])(o)


def odd_tiles(x: In[f32, "64"], o: Out[f32, "64"]) -> None:
    spec = BlockSpec((8,), lambda i: (i,), transforms=[TilingTransform((3,))])
    emit_pipeline(lambda i, a: None, grid=(8,), in_specs=[spec])(x)


def shared_by_a_cluster(x: In[f32, "64"], o: Out[f32, "64"]) -> None:
    BlockSpec((8,), lambda i: (i,), collective_axes="x")


def filled_by_a_value(x: In[f32, "64"], o: Out[f32, "64"]) -> None:
    BlockSpec((8,), lambda i: (i,), oob_fill=x[0])


def fraction_of_integers(x: In[i32, "64"], o: Out[i32, "64"]) -> None:
    def body(_, block):
        o[0:8] = block[...]

    spec = BlockSpec((8,), lambda i: (i,), oob_fill=0.5)
    emit_pipeline(body, grid=(9,), in_specs=[spec])(x)


WRONG: list[tuple[Any, type[KernelError], str]] = [
    (late(2), BadPipeline, "takes 3 stages or more"),
    (late(-1), TypeMismatch, "a number of steps"),
    (of_output, TypeMismatch, "of inputs"),
    (odd_tiles, ShapeMismatch, "do not divide"),
    (shared_by_a_cluster, UnsupportedFeature, "collective_axes"),
    (filled_by_a_value, TypeMismatch, "is a constant"),
    (fraction_of_integers, TypeMismatch, "0.5"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), WRONG)
def test_what_cannot_be_is_refused(wrong: Any, kind: type[KernelError], said: str) -> None:
    dtype = np.int32 if wrong is fraction_of_integers else np.float32
    with pytest.raises(kind, match=said) as caught:
        kernel(wrong).on("reference")(np.zeros(64, dtype))
    assert caught.value.help
    assert caught.value.places


@pytest.mark.parametrize("target", TARGETS)
def test_a_slot_that_a_product_reads_is_not_held_for_less(target: str) -> None:
    with pytest.raises(BadPipeline, match="products in flight read for 1 step more") as caught:
        product.lower(A, B, target=target, delays=(0, None)).schedule
    assert caught.value.help
    assert caught.value.places
