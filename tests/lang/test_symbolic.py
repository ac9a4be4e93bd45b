"""Index arithmetic as polynomials: equal where equal, and never proved what does not hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.lang.symbolic import Atom, Form

BOUNDS = (-6, 9)


class World:
    """Three unknowns, the last below the first: what each of them is, and forms made of them."""

    def __init__(self, x: int, y: int, under: int) -> None:
        self.atoms = [Atom(n, None, BOUNDS) for n in range(3)]
        self.values = dict(zip(self.atoms, (x, y, min(under, x - 1)), strict=True))
        self.atoms[2].bounds = (-20, 8)
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
@given(WORLDS, st.data())
def test_a_form_is_what_python_computes(world: World, data: st.DataObject) -> None:
    form, number = data.draw(forms(world))
    assert world.value(form) == number


@settings(max_examples=200)
@given(WORLDS, st.data())
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
