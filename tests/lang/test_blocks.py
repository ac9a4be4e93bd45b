"""Names carried by branches, loops and pipelines: types, structures, raggedness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from astdsl import arange, cdiv, exp, f16, f32, full, i32, maximum, pipeline, tile, where, zeros
from astdsl.errors import BranchMismatch, HiddenMutation, OutsideLost
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.evaluate import evaluate
from tests.frontend.tracing import array, error_of, operations, trace


def carried(function: Any, kind: Any = ops.For, **parameters: Any) -> list[list[str]]:
    """Return the types that each loop carries."""
    traced = trace(function, **parameters)
    return [[str(v.type) for v in op.initial] for op in operations(traced, kind)]


def test_a_number_takes_the_dtype_that_the_body_gives_it() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        total = 0
        for k in range(n):
            total += x[k]
        o[0] = total

    assert carried(kernel, n=i32, x=array(None), o=array(None)) == [["f32"]]


def test_a_step_that_leaves_a_tile_as_it_is_carries_nothing() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        t, count = x[0:4], i32(n)
        for _ in range(n):
            t, count = t.astype(f32), i32(count)
        o[0:4] = t + count

    assert carried(kernel, n=i32, x=array(8), o=array(8)) == [[]]


def test_a_step_that_gives_a_weak_number_a_dtype_carries_it() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        places, count = arange(4), 0
        for _ in range(n):
            places, count = places.astype(i32), i32(count)
        o[0:4] = x[0:4] + places + count

    assert carried(kernel, n=i32, x=array(8), o=array(8)) == [["i32", "i32[4]"]]


def test_numbers_that_meet_no_dtype_stay_weak() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        count = 0
        for _ in range(n):
            count += 1
        o[0:4] = x[0:4] * count

    traced = trace(kernel, n=i32, x=array(None, dtype=f16), o=array(None, dtype=f16))
    (product,) = operations(traced, ops.Multiply)
    assert str(product.result.type) == "f16[4]"


def test_a_number_becomes_a_float_over_several_traces() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        a = b = c = 0
        for k in range(n):
            a, b, c = b, c, x[k]
        o[0] = a

    assert carried(kernel, n=i32, x=array(None), o=array(None)) == [["f32"] * 3]


def test_a_name_that_no_step_changes_is_not_carried() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        y, z = x[0:4], 3
        for _ in range(n):
            if z > 4:
                y = y + 1
            y = (y, 1)[0]
        o[0:4] = y

    assert carried(kernel, n=i32, x=array(None), o=array(None)) == [[]]


def test_a_name_that_every_step_assigns_first_is_not_carried() -> None:
    def kernel(x: Any, o: Any) -> None:
        t = x[0:4]
        with pipeline(4) as i:
            t = x[tile(i, 4)]
            o[tile(i, 4)] = t

    assert carried(kernel, ops.Pipeline, x=array(None), o=array(None)) == [[]]


def test_what_is_read_behind_a_loop_is_carried() -> None:
    def kernel(x: Any, o: Any) -> None:
        t = x[0:4]
        with pipeline(4) as i:
            t = x[tile(i, 4)].filled(0)
        o[0:4] = t

    assert carried(kernel, ops.Pipeline, x=array(None), o=array(None)) == [["f32[4]"]]


@dataclass
class State:
    top: Any
    parts: Any


def test_structures_are_carried_leaf_by_leaf() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        state = State(x[0:4], [0, {"a": 1.5}])
        for k in range(n):
            state = State(state.top + 1, [state.parts[0] + k, {"a": state.parts[1]["a"] * 2}])
        o[0:4] = state.top * state.parts[0] + state.parts[1]["a"]

    types = {"n": i32, "x": array(None), "o": array(None)}
    assert carried(kernel, **types) == [["f32[4]", "i64", "f32"]]
    x, o = np.ones(4, np.float32), np.zeros(4, np.float32)
    evaluate(trace(kernel, **types).module, [3, x, o])
    assert o.tolist() == [4 * 3 + 12] * 4


def test_weak_numbers_take_the_other_branch_s_dtype() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        y = 1
        if n > 2:
            y = x[0]
        o[0:4] = x[0:4] * y

    traced = trace(kernel, n=i32, x=array(None, dtype=f16), o=array(None))
    (branch,) = operations(traced, ops.If)
    assert [str(v.type) for v in branch.results] == ["f16"]


def test_equal_constants_of_both_branches_stay_python_s() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        if n > 2:
            size, y = 4, 1
        else:
            size, y = 4, 2
        o[0:size] = y

    trace(kernel, n=i32, x=array(None), o=array(None))


def test_a_float_does_not_silently_become_an_integer() -> None:
    def kernel(n: Any, x: Any, o: Any) -> None:
        y = n
        if n > 2:
            y = 1.5
        o[0] = y

    assert isinstance(error_of(kernel, n=i32, x=array(None), o=array(None)), BranchMismatch)


def run(kernel: Any, size: int, out: int, **constants: Any) -> np.ndarray[Any, Any]:
    x = np.arange(1, size + 1, dtype=np.float32)
    o = np.zeros(out, np.float32)
    module = trace(kernel, x=array(None), o=array(None), **constants).module
    evaluate(module, [x, o])
    return o


def test_sums_of_what_was_read_are_carried_along_the_ragged_axis() -> None:
    def kernel(x: Any, o: Any) -> None:
        acc = zeros((4,), f32)
        with pipeline(cdiv(x.shape[0], 4)) as k:
            acc += x[tile(k, 4)]
        o[0] = acc.sum()

    assert run(kernel, 10, 1)[0] == 55


def test_an_edge_that_does_not_depend_on_the_step_is_kept() -> None:
    def kernel(x: Any, o: Any) -> None:
        with pipeline(cdiv(x.shape[0], 4)) as i:
            least = full((4,), 1e30, f32)
            with pipeline(3) as k:
                least = where(least < 5.0, least, exp(x[tile(i, 4)]) - k)
            o[i] = least.min()

    def by_numpy(x: Any) -> Any:
        return np.exp(x[4:6]).min() - 2

    assert np.allclose(run(kernel, 6, 2)[1], by_numpy(np.arange(1, 7)), rtol=1e-5)


def test_an_edge_that_moves_with_the_step_is_refused_where_the_outside_counts() -> None:
    def kernel(x: Any, o: Any) -> None:
        acc = full((4,), -1e30, f32)
        with pipeline(cdiv(x.shape[0], 4)) as k:
            acc = maximum(acc, x[tile(k, 4)])
        o[0] = acc.max()

    error = error_of(kernel, x=array(None), o=array(None))
    assert isinstance(error, OutsideLost)
    assert "`acc`" in error.message
    assert "axis 0" in error.message
    assert "filled" in error.help


def test_filled_elements_are_carried_as_ordinary_ones() -> None:
    def kernel(x: Any, o: Any) -> None:
        acc = full((4,), -1e30, f32)
        with pipeline(cdiv(x.shape[0], 4)) as k:
            acc = maximum(acc, x[tile(k, 4)].filled(-1e30))
        o[0] = acc.max()

    assert run(kernel, 10, 1)[0] == 10


def test_both_branches_may_leave_the_same_edge() -> None:
    def kernel(x: Any, o: Any, n: Any) -> None:
        t = x[tile(1, 4)]
        if n > 2:
            t = exp(t)
            o[0] = 7
        else:
            t = exp(t) + 1
        o[0] = t.min()

    module = trace(kernel, x=array(None), o=array(None), n=i32).module
    x, o = np.full(6, -1, np.float32), np.zeros(1, np.float32)
    evaluate(module, [x, o, 1])
    assert np.isclose(o[0], np.exp(-1) + 1)


@pytest.mark.parametrize(
    "change",
    [
        "state.top = n",
        "state.parts.append(n)",
        "table['k'] = n",
        "table['new'] = n",
        "numbers[0] += 1",
        "chosen.add(slotted)",
        "nested[0]['a'].clear()",
        "other.value = n",
        "slotted.value = n",
    ],
)
def test_a_change_inside_of_an_object_is_refused(change: str, tmp_path: Any) -> None:
    from tests.frontend.test_spans import module_of  # noqa: PLC0415

    source = f"""
from dataclasses import dataclass
class Plain:
    value = 0
class Slotted:
    __slots__ = ("value",)
@dataclass
class State:
    top: object
    parts: object
def kernel(n, o):
    state, table, numbers, chosen = State(1, []), {{"k": 1}}, [1, 2], set()
    nested, other, slotted = ({{"a": {{1: 2}}}},), Plain(), Slotted()
    if n > 2:
        {change}
    o[0] = n
"""
    module = module_of(tmp_path / "objects.py", source)
    assert isinstance(error_of(module.kernel, n=i32, o=array(None)), HiddenMutation)


def test_objects_made_in_a_block_may_change_there() -> None:
    def kernel(n: Any, o: Any) -> None:
        for k in range(n):
            parts = []
            parts.append(k)
            parts.append(k + 1)
            o[k] = parts[0] + parts[1]

    trace(kernel, n=i32, o=array(None))


def test_operations_of_a_step_taken_back_leave_no_trace() -> None:
    def kernel(n: Any, o: Any) -> None:
        i = 0
        while True:
            o[i] = i
            i += 1
            if i > n:
                break

    traced = trace(kernel, n=i32, o=array(None))
    assert len(list(operations(traced, ops.Store))) == 1
    kinds = [type(op).__name__ for op in walk(traced.module.body)]
    assert kinds.count("While") == 1


def test_a_range_that_a_break_may_end_stops_there() -> None:
    def kernel(n: Any, o: Any) -> None:
        for k in range(100, 0, -3):
            if k < n:
                break
            o[0] = k

    traced = trace(kernel, n=i32, o=array(None))
    assert [type(op) for op in walk(traced.module.body) if isinstance(op, ops.Loop)] == [ops.While]
    output = np.zeros(1, np.float32)
    evaluate(traced.module, [50, output])
    assert output[0] == 52


def test_a_break_that_python_decides_leaves_a_plain_loop() -> None:
    def kernel(n: Any, o: Any, stop: bool = False) -> None:
        for k in range(n):
            if stop:
                break
            o[k] = k

    assert carried(kernel, n=i32, o=array(None)) == [[]]
