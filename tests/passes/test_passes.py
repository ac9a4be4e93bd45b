"""What every pass keeps, and what each one changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from astdsl.ir import ops
from astdsl.ir.core import IN, INOUT, OUT, Block, Module, Op, Value, walk
from astdsl.ir.dtypes import bf16, f16, f32, i8, i32, i64
from astdsl.ir.equality import structurally_equal
from astdsl.ir.evaluate import evaluate
from astdsl.ir.passes import Pass, run_passes
from astdsl.ir.printer import print_module
from astdsl.ir.types import CONDITION, INDEX
from astdsl.ir.verify import verify
from astdsl.passes import (
    STANDARD,
    eliminate_dead_code,
    fold_constants,
    hoist_invariants,
    merge_common_subexpressions,
    simplify_algebra,
)
from tests.building import Maker, add_module, gmem, matmul_module
from tests.goldens import Golden
from tests.strategies import module_arguments, modules

EACH = pytest.mark.parametrize("step", STANDARD, ids=lambda p: p.__name__)


def results_of(module: Module, arguments: list[Any]) -> list[bytes]:
    """Return the arrays after a run, NaNs made one."""
    own = copy.deepcopy(arguments)
    evaluate(module, own)
    for array in own:
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            array[np.isnan(array)] = np.nan
    return [x.tobytes() for x in own if isinstance(x, np.ndarray)]


@EACH
@given(module=modules(), arguments=module_arguments())
@settings(max_examples=60)
def test_a_pass_keeps_what_evaluate_gives(step: Pass, module: Module, arguments: list[Any]) -> None:
    changed = step(module)
    verify(changed)
    assert results_of(changed, arguments) == results_of(module, arguments)


@EACH
@given(module=modules())
@settings(max_examples=60)
def test_a_pass_does_nothing_the_second_time(step: Pass, module: Module) -> None:
    once = step(module)
    again = step(once)
    assert again is once, print_module(once) + print_module(again)


@EACH
@given(module=modules())
@settings(max_examples=30)
def test_a_pass_leaves_its_module_as_it_was(step: Pass, module: Module) -> None:
    before = print_module(module)
    step(module)
    assert print_module(module) == before


@given(module=modules(size=20), arguments=module_arguments())
@settings(max_examples=60)
def test_all_passes_together_keep_what_evaluate_gives(module: Module, arguments: list[Any]) -> None:
    changed = run_passes(module, STANDARD)
    assert results_of(changed, arguments) == results_of(module, arguments)


def test_what_the_passes_make_of_matmul(golden: Golden) -> None:
    module = matmul_module(f16, f32, (128, 128, 64))
    golden(print_module(run_passes(module, STANDARD)), "passes/matmul.txt")


def test_what_the_passes_make_of_add(golden: Golden) -> None:
    golden(print_module(run_passes(add_module(f32, (64, 64)), STANDARD)), "passes/add.txt")


def expression(build: Callable[[Maker], Value]) -> Module:
    """Return a module that stores one tile made from parameters."""
    m = Maker(("x", IN, gmem(f32, 4)), ("n", IN, gmem(i32, 4)), ("o", OUT, gmem(f32, 64)))
    value = build(m)
    if value.tile.dtype is not f32:
        value = m.make(ops.Cast, value, dtype=f32)
    if len(value.tile.shape) != 1:
        value = m.make(ops.Reshape, value, shape=(value.tile.elements,))
    m.store(m["o"], (0,), value)
    return m.module()


def kinds(module: Module) -> list[str]:
    """Return the names of the operations that are neither constants nor at the ends."""
    quiet = {"Constant", "Load", "Store", "Yield"}
    return [n for op in walk(module.body) if (n := type(op).__name__) not in quiet]


def x_of(m: Maker) -> Value:
    return m.load(m["x"], (0,), (4,))


def n_of(m: Maker) -> Value:
    return m.load(m["n"], (0,), (4,))


def constants_of(module: Module) -> list[Any]:
    return [op.value for op in walk(module.body) if isinstance(op, ops.Constant)]


def test_scalar_arithmetic_on_constants_is_folded() -> None:
    module = expression(
        lambda m: m.make(ops.Cast, m.make(ops.Multiply, m.index(6), m.index(7)), dtype=f32)
    )
    folded = fold_constants(module)
    assert kinds(folded) == []
    assert 42.0 in constants_of(folded)


def test_tiles_of_one_number_are_folded_without_their_elements() -> None:
    big = (1 << 20, 1 << 20)

    def build(m: Maker) -> Value:
        total = m.make(ops.Add, m.full(1, f32, *big), m.full(2, f32, *big))
        return m.make(ops.Slice, total, starts=(5, 5), sizes=(4, 1), steps=(1, 1))

    assert 3.0 in constants_of(fold_constants(expression(build)))


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_folded_numbers_are_rounded_as_run_time_values_are(dtype: Any) -> None:
    module = expression(lambda m: m.make(ops.Add, m.full(256, dtype, 4), m.full(1, dtype, 4)))
    with np.errstate(all="ignore"):
        want = float(np.array(256, dtype.numpy) + np.array(1, dtype.numpy))
    assert want in constants_of(fold_constants(module))


def test_folded_integers_wrap() -> None:
    module = expression(lambda m: m.make(ops.Add, m.full(127, i8, 4), m.full(1, i8, 4)))
    assert -128 in constants_of(fold_constants(module))


def test_an_if_on_a_constant_becomes_the_region_that_runs() -> None:
    def build(m: Maker) -> Value:
        with m.region() as then:
            m.yields(m.full(1, f32, 4))
        with m.region() as otherwise:
            m.yields(m.make(ops.Sqrt, x_of(m)))
        return m.make(ops.If, condition=m.flag(False), then=then.block, otherwise=otherwise.block)

    assert kinds(fold_constants(expression(build))) == ["Sqrt"]


def loop_of(m: Maker, trips: int, initial: Value, body: Callable[[Value, Value], Value]) -> Value:
    low, high, step = m.index(0), m.index(trips), m.index(1)
    with m.region(INDEX, initial.type) as region:
        m.yields(body(*region.args))
    return m.make(ops.For, initial=(initial,), low=low, high=high, step=step, body=region.block)


def test_a_loop_that_never_runs_is_its_initial_values() -> None:
    module = expression(lambda m: loop_of(m, 0, x_of(m), lambda _i, v: m.make(ops.Sqrt, v)))
    assert kinds(fold_constants(module)) == []


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda m: m.make(ops.Multiply, x_of(m), m.full(1, f32, 4)), []),
        (lambda m: m.make(ops.Add, x_of(m), m.full(0, f32, 4)), ["Add"]),
        (lambda m: m.make(ops.Add, n_of(m), m.full(0, i32, 4)), ["Cast"]),
        (lambda m: m.make(ops.Multiply, x_of(m), m.full(0, f32, 4)), ["Multiply"]),
        (lambda m: m.make(ops.Multiply, n_of(m), m.full(0, i32, 4)), ["Cast"]),
        (lambda m: m.make(ops.FloorDivide, n_of(m), m.full(1, i32, 4)), ["Cast"]),
        (lambda m: m.make(ops.Power, x_of(m), m.full(2, f32, 4)), ["Multiply"]),
        (lambda m: m.make(ops.Negate, m.make(ops.Negate, x_of(m))), ["Negate"]),
        (lambda m: m.make(ops.Cast, m.make(ops.Cast, n_of(m), dtype=i64), dtype=i32),
         ["Cast", "Cast"]),
        (lambda m: m.make(ops.Cast, m.make(ops.Cast, n_of(m), dtype=i8), dtype=i32),
         ["Cast", "Cast", "Cast"]),
        (lambda m: m.make(ops.Reshape, m.make(ops.Reshape, x_of(m), shape=(2, 2)), shape=(4,)),
         ["Reshape"]),
        (lambda m: m.make(ops.Transpose, x_of(m), permutation=(0,)), []),
    ],
)  # fmt: skip
def test_algebra_is_simplified_where_the_bits_stay(
    build: Callable[[Maker], Value], left: list[str]
) -> None:
    simplified = simplify_algebra(expression(build))
    verify(simplified)
    assert kinds(simplified) == left


def test_operations_without_users_are_removed_loads_too() -> None:
    def build(m: Maker) -> Value:
        m.make(ops.Sqrt, x_of(m))
        return m.full(1, f32, 4)

    left = eliminate_dead_code(expression(build))
    assert [type(op).__name__ for op in walk(left.body)] == ["Constant", "Constant", "Store"]


def test_regions_without_effect_are_removed_when_nobody_uses_their_results() -> None:
    def build(m: Maker) -> Value:
        loop_of(m, 3, x_of(m), lambda _i, v: m.make(ops.Sqrt, v))
        return m.full(1, f32, 4)

    assert kinds(eliminate_dead_code(expression(build))) == []


def test_a_launch_of_blocks_that_do_nothing_is_kept() -> None:
    m = Maker()
    with m.region() as grid:
        m.yields(m.index(1))
    with m.region(INDEX) as body:
        m.yields()
    m.op(ops.Launch, grid=grid.block, body=body.block)
    assert kinds(run_passes(m.module(), STANDARD)) == ["Launch"]


def test_a_region_that_stores_is_kept() -> None:
    module = add_module(f32, (8, 8))
    assert "Pipeline" in kinds(eliminate_dead_code(module))


def test_equal_expressions_are_computed_once_also_in_inner_regions() -> None:
    def build(m: Maker) -> Value:
        x = x_of(m)
        root = m.make(ops.Sqrt, x)
        again = loop_of(m, 2, x, lambda _i, v: m.make(ops.Add, v, m.make(ops.Sqrt, x)))
        return m.make(ops.Add, again, root)

    assert kinds(merge_common_subexpressions(expression(build))).count("Sqrt") == 1


def test_what_differs_by_the_sign_of_zero_is_not_merged() -> None:
    def build(m: Maker) -> Value:
        return m.make(ops.Divide, m.full(0.0, f32, 4), m.full(-0.0, f32, 4))

    assert len(constants_of(merge_common_subexpressions(expression(build)))) == 3


@pytest.mark.parametrize(("stores", "loads"), [(False, 1), (True, 2)])
def test_loads_are_merged_when_nothing_between_them_writes(stores: bool, loads: int) -> None:
    m = Maker(("x", INOUT, gmem(f32, 4)), ("o", OUT, gmem(f32, 4)))
    first = x_of(m)
    if stores:
        m.store(m["x"], (0,), m.full(1, f32, 4))
    m.store(m["o"], (0,), m.make(ops.Add, first, x_of(m)))
    merged = merge_common_subexpressions(m.module())
    assert [type(op) for op in walk(merged.body)].count(ops.Load) == loads


def places(module: Module, kind: type[Op]) -> list[int]:
    """Return how many regions stand around each operation of a kind."""

    def depths(block: Block, depth: int) -> list[int]:
        found = []
        for op in block.ops:
            found += [depth] if isinstance(op, kind) else []
            for region in op.regions:
                found += depths(region, depth + 1)
        return found

    return depths(module.body, 0)


def nested_module(kind: type[Op]) -> Module:
    """Return pipelines in each other, with a scalar and a tile that do not change inside."""
    m = Maker(("o", OUT, gmem(i64, 4)), ("s", "scalar", INDEX), o=0)
    with m.pipeline(2):
        zero, high, one = m.index(0), m.index(3), m.index(1)
        with m.region(INDEX) as body:
            negative = m.make(ops.Negate, m["s"])
            tile = m.make(ops.Broadcast, negative, shape=(4,))
            m.store(m["o"], (0,), tile)
            m.yields()
        if kind is ops.Pipeline:
            m.op(kind, initial=(), lows=(zero,), highs=(high,), steps=(one,), body=body.block,
                 axes=("sequential",))  # fmt: skip
        else:
            m.op(kind, initial=(), low=zero, high=high, step=one, body=body.block)
    return m.module()


@pytest.mark.parametrize(("kind", "tile_depth"), [(ops.Pipeline, 1), (ops.For, 2)])
def test_scalars_leave_every_loop_and_tiles_nested_pipelines(
    kind: type[Op], tile_depth: int
) -> None:
    hoisted = hoist_invariants(nested_module(kind))
    assert places(hoisted, ops.Negate) == [0]
    assert places(hoisted, ops.Broadcast) == [tile_depth]


def test_what_depends_on_the_index_stays() -> None:
    module = add_module(f32, (8, 8))
    assert places(hoist_invariants(module), ops.Multiply) == [1, 1]


def test_nothing_is_hoisted_out_of_a_branch() -> None:
    m = Maker(("o", OUT, gmem(i64, 4)), ("s", "scalar", INDEX), ("flag", "scalar", CONDITION), o=0)
    with m.pipeline(2):
        with m.region() as then:
            m.store(m["o"], (0,), m.make(ops.Broadcast, m.make(ops.Negate, m["s"]), shape=(4,)))
            m.yields()
        m.op(ops.If, condition=m["flag"], then=then.block, otherwise=m.empty())
    module = m.module()
    assert hoist_invariants(module) is module


def test_the_driver_names_the_pass_that_breaks_a_module() -> None:
    def lose_constants(module: Module) -> Module:
        left = tuple(op for op in module.body.ops if not isinstance(op, ops.Constant))
        body = Block(args=module.body.args, ops=left)
        return Module(name="k", params=module.params, body=body, span=module.span)

    with pytest.raises(AssertionError, match="lose_constants made a malformed module"):
        run_passes(add_module(f32, (8, 8)), [lose_constants])


def test_the_driver_shows_each_module_to_an_observer() -> None:
    seen = []
    module = add_module(f32, (8, 8))
    last = run_passes(module, STANDARD, lambda name, m, seconds: seen.append((name, m, seconds)))
    assert [name for name, _, _ in seen] == [p.__name__ for p in STANDARD]
    assert seen[-1][1] is last
    assert all(seconds >= 0 for _, _, seconds in seen)


def test_modules_that_differ_are_not_equal() -> None:
    assert not structurally_equal(add_module(f32, (8, 8)), add_module(f32, (8, 4)))
    assert structurally_equal(add_module(f32, (8, 8)), add_module(f32, (8, 8)))


@pytest.mark.parametrize(
    ("other", "expected"),
    [(0.0, ["Compare", "Select", "Cast"]), (-0.0, ["Compare", "Cast", "Select"])],
)
def test_a_float_is_masked_before_it_is_narrowed(other: float, expected: list[str]) -> None:
    def build(m: Maker) -> Value:
        x = x_of(m)
        sees = m.make(ops.Compare, x, m.make(ops.Constant, value=1.0, type=x.tile), predicate="lt")
        narrow = m.make(ops.Cast, x, dtype=f16)
        instead = m.make(ops.Constant, value=other, type=narrow.tile)
        return m.make(ops.Select, narrow, instead, condition=sees)

    # The last cast is that of the store.
    assert kinds(run_passes(expression(build), STANDARD))[:-1] == expected
