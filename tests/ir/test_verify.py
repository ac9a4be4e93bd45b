"""A malformed module is refused, with the operation and its place."""

from __future__ import annotations

import pytest

from astdsl.ir import ops
from astdsl.ir.core import IN, Block, Module, Op, Value
from astdsl.ir.dtypes import f32, i32
from astdsl.ir.types import INDEX, TileType
from astdsl.ir.verify import verify
from tests.building import Maker, add_module, gmem


def with_ops(m: Maker, *operations: Op) -> Module:
    module = m.module()
    body = Block(args=module.body.args, ops=(*module.body.ops, *operations))
    return Module(name="k", params=module.params, body=body, span=module.span)


def refusal(module: Module) -> str:
    with pytest.raises(AssertionError) as caught:
        verify(module)
    return str(caught.value)


def test_a_well_formed_module_is_accepted() -> None:
    verify(add_module(f32, (8, 8)))


def test_a_value_that_nobody_makes_is_refused_with_its_operation_and_place() -> None:
    m = Maker()
    stray = ops.Sqrt(span=m.span(), x=Value(TileType((), f32), "ghost"))
    assert refusal(with_ops(m, stray)).splitlines() == [
        "operand <ghost: f32> is never made",
        "  in %0: f32 = Sqrt %ghost",
        "  at kernel.py:1:5",
    ]


def test_a_value_used_outside_its_block_is_refused() -> None:
    m = Maker()
    with m.pipeline(2) as (i,):
        inner = m.make(ops.Negate, i)
    m.make(ops.Negate, inner)
    assert "is used outside its block" in refusal(m.module())


def test_a_value_used_above_its_making_is_refused() -> None:
    m = Maker()
    late = ops.Constant(span=m.span(), value=1, type=INDEX)
    early = ops.Negate(span=m.span(), x=late.result)
    assert "is never made" in refusal(with_ops(m, early, late))


def test_an_operation_that_stands_twice_is_refused() -> None:
    m = Maker()
    op = ops.Constant(span=m.span(), value=1, type=INDEX)
    assert "made twice" in refusal(with_ops(m, op, op))


def test_a_region_without_yield_is_refused() -> None:
    m = Maker()
    with m.region() as grid:
        m.yields(m.index(1))
    body = Block(args=(Value(INDEX),), ops=(ops.CommitGroup(span=m.span()),))
    m.op(ops.Launch, grid=grid.block, body=body)
    assert "a region ends in its only Yield" in refusal(m.module())


def test_an_empty_region_is_refused() -> None:
    m = Maker()
    with m.region() as grid:
        m.yields(m.index(1))
    m.op(ops.Launch, grid=grid.block, body=Block(args=(Value(INDEX),)))
    assert "a region is empty" in refusal(m.module())


def test_a_yield_outside_of_a_region_is_refused() -> None:
    m = Maker()
    m.yields()
    assert "Yield outside of a region" in refusal(m.module())


def test_what_the_operation_itself_refuses_is_told_with_its_place() -> None:
    m = Maker(("x", IN, gmem(i32, 4)))
    m.make(ops.Add, m.index(1), m.full(1.0, f32, 4))
    text = refusal(m.module())
    assert text.startswith("Add: operands differ: ['f32[4]', 'i64']")
    assert "at kernel.py:4:5" in text
