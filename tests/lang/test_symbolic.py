"""Index arithmetic as polynomials: equal where equal, and never proved what does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from astdsl import i32
from astdsl.lang.symbolic import MOST_CASES, MOST_FACTORS, MOST_TERMS, Atom, Form
from astdsl.lang.values import Tile
from tests.lang.harness import a_trace, an_index, given, run, written

BOUNDS = (-6, 9)


class World:
    """Three unknowns, the last below the first: what each of them is, and forms made of them."""

    def __init__(self, x: int, y: int, under: int) -> None:
        self.atoms = [Atom(n, None, b) for n, b in enumerate((BOUNDS, BOUNDS, (-20, 8)))]
        self.values = dict(zip(self.atoms, (x, y, min(under, x - 1)), strict=True))
        self.atoms[2].high = Form.unknown(self.atoms[0]) - Form.of(1)

    def value(self, form: Form) -> int:
        total = 0
        for monomial, coefficient in form.terms.items():
            part = coefficient
            for atom in monomial:
                part *= self.values[atom]
            total += part
        return total


WORLDS = st.builds(World, *[st.integers(*BOUNDS)] * 2, st.integers(-20, 8))


def forms(world: World) -> st.SearchStrategy[tuple[Form, int]]:
    """Draw a form with what Python's arithmetic gives for it."""
    leaves = st.integers(-5, 5).map(lambda n: (Form.of(n), n)) | st.sampled_from(world.atoms).map(
        lambda a: (Form.unknown(a), world.values[a])
    )

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pairs = st.tuples(inner, inner)
        return (
            pairs.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1]))
            | pairs.map(lambda p: (p[0][0] - p[1][0], p[0][1] - p[1][1]))
            | pairs.map(lambda p: (p[0][0] * p[1][0], p[0][1] * p[1][1]))
        )

    return st.recursive(leaves, grown, max_leaves=6)


@settings(max_examples=200)
@hypothesis.given(WORLDS, st.data())
def test_a_form_is_what_python_computes(world: World, data: st.DataObject) -> None:
    form, number = data.draw(forms(world))
    assert world.value(form) == number


@settings(max_examples=200)
@hypothesis.given(WORLDS, st.data())
def test_bounds_enclose_and_proofs_hold(world: World, data: st.DataObject) -> None:
    form, number = data.draw(forms(world))
    low, high = form.bounds
    assert low <= number <= high
    assert number >= 0 or not form.is_nonnegative()


def test_equal_polynomials_are_equal_forms() -> None:
    i, b = (Form.unknown(Atom(n, None)) for n in range(2))
    one = Form.of(1)
    assert (i + one) * b - i * b == b
    assert hash((i + b) * (i - b)) == hash(i * i - b * b)
    assert ((i + one) - i).constant == 1
    assert (i - i).constant == 0
    assert i.constant is None


def test_what_lies_below_a_limit_is_proved() -> None:
    n, i = Atom(0, None, (0, 2**31 - 1)), Atom(1, None, (0, 2**31 - 2))
    i.high = Form.unknown(n) - Form.of(1)
    room = Form.unknown(n) - Form.of(1) - Form.unknown(i)
    assert room.is_nonnegative()
    assert not (room - Form.of(1)).is_nonnegative()


def squared(v: Any, other: Any) -> Any:
    return v * v + v


def multiplied(v: Any, other: Any) -> Any:
    return v * (other + v)


def added(v: Any, other: Any) -> Any:
    return v + other


GROWING = (squared, multiplied, added)


def grown(v: Any, step: Callable[[Any, Any], Any], times: int = 100) -> Any:
    """Compute with an index again and again, each time with another unknown."""
    for k in range(times):
        v = step(v, v % (k + 2))
    return v


@pytest.mark.parametrize("step", GROWING)
def test_polynomials_stay_short(step: Callable[[Any, Any], Any]) -> None:
    with a_trace(), an_index(7) as i:
        v = grown(i, step)
        assert isinstance(v, Tile)
        assert v.form is not None
        assert len(v.form.terms) <= MOST_TERMS
        assert v.form.degree <= MOST_FACTORS


@pytest.mark.parametrize("step", GROWING)
def test_what_is_computed_twice_is_one_value_however_long(step: Callable[[Any, Any], Any]) -> None:
    with a_trace(), an_index(7) as i:
        assert grown(i, step).value is grown(i, step).value


@pytest.mark.parametrize("step", GROWING)
@pytest.mark.parametrize("start", [0, 1, 3, -2])
def test_long_polynomials_have_the_value_of_pythons(
    step: Callable[[Any, Any], Any], start: int
) -> None:
    def body(x: Any, o: Any) -> None:
        o[0] = grown(x[0], step, 4) % 1000

    found = run(body, given(np.array([start], np.int64)), written((1,), np.int64))
    assert found[0] == grown(start, step, 4) % 1000


def test_a_typed_product_that_may_wrap_is_not_taken_for_one_that_does_not() -> None:
    with a_trace(), an_index(2**20) as i:
        typed, index = i.astype(i32), i
        for _ in range(6):
            typed, index = typed * typed, index * index
        assert typed.form.bounds[0] < 0
        assert typed.form != index.form


def test_a_proof_looks_at_few_cases() -> None:
    atoms = [Atom(n, None) for n in range(20)]
    room = Form.of(0)
    for x, limit in zip(atoms[::2], atoms[1::2], strict=True):
        x.high = Form.unknown(limit)
        room += Form.unknown(limit).scaled(2) - Form.unknown(x)
    with mock.patch.object(Form, "_worst_cases", autospec=True, side_effect=Form._worst_cases) as m:
        assert not room.is_nonnegative()
    assert m.call_count <= MOST_CASES + len(atoms)
