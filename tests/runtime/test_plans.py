"""Launch plans as data: there and back, and nothing else gets in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.ir.dtypes import ALL
from astdsl.ir.launch import (
    HOST_OPERATIONS,
    Check,
    DimSlot,
    Entry,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    Report,
    ScalarSlot,
    Scratch,
    StrideSlot,
)
from astdsl.runtime.plans import BadData, data_of, expression_of, plan_of
from astdsl.source import Span

SMALL = st.integers(0, 9)
DTYPES = st.sampled_from(ALL)
NUMBERS = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False))
LEAVES = st.one_of(
    NUMBERS,
    st.tuples(st.just("dim"), SMALL, SMALL),
    st.tuples(st.just("scalar"), SMALL),
)


def _operations(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rows = [(name, row.count("{")) for name, row in HOST_OPERATIONS.items()]
    return st.one_of([st.tuples(st.just(name), *[inner] * arity) for name, arity in rows])


EXPRESSIONS = st.recursive(LEAVES, _operations, max_leaves=6)
PLACES = st.builds(Span, st.text(), SMALL, SMALL, SMALL, SMALL)
SPANS = st.builds(lambda s, inner: s.within(tuple(inner)), PLACES, st.lists(PLACES, max_size=2))
MAPS = st.permutations(range(3)).map(lambda o: MapSlot(1, tuple(o), (8, 4, 2), 64))
SLOTS = st.one_of(
    st.builds(PointerSlot, SMALL),
    st.builds(ScalarSlot, SMALL, DTYPES),
    st.builds(DimSlot, SMALL, SMALL),
    st.builds(StrideSlot, SMALL, SMALL),
    MAPS,
)
ENTRIES = st.builds(
    Entry, st.text(), st.lists(SLOTS, max_size=4).map(tuple), EXPRESSIONS, SMALL, SMALL
)
SCRATCH = st.builds(Scratch, st.text(), st.lists(EXPRESSIONS, max_size=2).map(tuple), DTYPES, SPANS)
VALUES = st.lists(st.tuples(st.lists(SMALL, max_size=2).map(tuple), DTYPES), max_size=2)
REPORTS = st.builds(
    lambda values, text, span, flag: Report((text,) * (len(values) + 1), tuple(values), span, flag),
    VALUES, st.text(), SPANS, st.booleans(),
)  # fmt: skip
TOLD = st.lists(st.tuples(EXPRESSIONS, DTYPES), max_size=2)
CHECKS = st.builds(
    lambda holds, told, text, span: Check(holds, (text,) * (len(told) + 1), span, tuple(told)),
    EXPRESSIONS, TOLD, st.text(), SPANS,
)  # fmt: skip
PLANS = st.builds(
    LaunchPlan,
    st.sampled_from(["sm_90a", "sm_100a"]),
    st.lists(ENTRIES, max_size=2).map(tuple),
    st.lists(SCRATCH, max_size=2).map(tuple),
    st.lists(CHECKS, max_size=2).map(tuple),
    st.lists(REPORTS, max_size=2).map(tuple),
)


@given(PLANS)
def test_a_plan_is_the_same_after_going_through_json(plan: LaunchPlan) -> None:
    assert repr(plan_of(json.loads(json.dumps(data_of(plan))))) == repr(plan)


SPAN = ["f", 1, 1, 1, 1, []]
PLAN = LaunchPlan("sm_90a", (Entry("k", (MapSlot(0, (1, 0), (8, 8), 0),), 1, 128, 0),))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("target",), 90),
        (("entries",), {}),
        (("entries", 0, "threads"), -1),
        (("entries", 0, "threads"), True),
        (("entries", 0, "grid"), "__import__('os')"),
        (("entries", 0, "grid"), ["system", 1]),
        (("entries", 0, "grid"), ["add", 1]),
        (("entries", 0, "grid"), ["dim", 0, "0"]),
        (("entries", 0, "grid"), []),
        (("entries", 0, "slots", 0, 0), "file"),
        (("entries", 0, "slots", 0, 2), [0, 0]),
        (("entries", 0, "slots", 0, 4), 48),
        (("entries", 0, "slots", 0), ["scalar", 0, "f7"]),
        (("entries", 0, "slots", 0), ["dim", 0]),
        (("checks",), [{"condition": 1, "pieces": [""], "values": [], "span": ["f", 1, 1, 1]}]),
        (("checks",), [{"condition": 1, "pieces": [], "values": [], "span": SPAN}]),
        (("checks",), [{"condition": 1, "pieces": ["", ""], "values": [[1]], "span": SPAN}]),
        (("reports",), [{"pieces": [], "values": [], "span": [], "is_assertion": False}]),
        (("more",), 1),
    ],
)
def test_data_that_are_no_plan_are_refused(path: tuple[Any, ...], value: Any) -> None:
    data = json.loads(json.dumps(data_of(PLAN)))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(BadData):
        plan_of(data)


def test_an_infinity_in_an_expression_comes_back() -> None:
    assert expression_of(json.loads(json.dumps(float("inf")))) == float("inf")
