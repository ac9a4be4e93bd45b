"""What operands change that the running kernel may not evaluate: names are merged, objects refused.

`x if c else y`, `a and b`, `a < b < c` and the test of a `while`, with assignment expressions and
functions that assign by `nonlocal` inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, f32, i32, kernel
from astdsl.errors import BranchMismatch, HiddenMutation
from tests.witnesses import agree

V = np.arange(1, 17, dtype=np.float32)


@kernel
def walrus_in_a_choice(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 1.0
    y = (n := 5.0) if x[0] > 0 else 0.0
    o[0] = n
    o[1] = y


@kernel
def closure_in_a_choice(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 1.0

    def bump():
        nonlocal n
        n = 5.0
        return 7.0

    y = bump() if x[0] > 0 else 0.0
    o[0] = n
    o[1] = y


@kernel
def closures_in_nested_choices(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 0

    def said(v):
        nonlocal n
        n += 1
        return v

    both = said(3.0) if x[2] < 0 and said(x[3]) < 0 else 9.0
    o[0] = said(1.0) if x[0] > 0 else said(said(2.0)) if x[1] < -5 else both
    o[1] = n


@kernel
def walrus_behind_and(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 1.0
    y = 0.0
    if x[0] > 0 and (n := x[1]) > 1:
        y = 2.0
    o[0] = n
    o[1] = y


@kernel
def walrus_of_a_new_name(x: In[f32, "N"], o: Out[f32, "2"]):
    o[1] = 0
    if x[0] > 0 and (y := x[...]).sum() > 0:
        o[0] = y.max()
    else:
        o[0] = 0


@kernel
def walrus_in_a_chain(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 1.0
    o[1] = 0 < x[0] < (n := x[1] * 2)
    o[0] = n


@kernel
def closure_behind_or(x: In[f32, "N"], o: Out[f32, "2"]):
    n = 1.0

    def more():
        nonlocal n
        n = n + 1
        return n > 0

    o[1] = x[0] > 0 or more()
    o[0] = n


@kernel
def walrus_in_a_comprehension(x: In[f32, "N"], o: Out[f32, "2"]):
    last = 100.0
    parts = [(last := x[i]) if x[i] > 2 else 0.0 for i in range(4)]
    o[0] = last
    o[1] = sum(parts)


@kernel
def broken_while(x: In[f32, "N"], o: Out[f32, "2"]):
    k = tries = 0

    def more():
        nonlocal tries
        tries += 1
        return tries < 10

    while (k := k + 1) < 12 and more():
        if x[k] > 4:
            break
    o[0] = k
    o[1] = tries


CASES: list[tuple[Any, list[float], list[float]]] = [
    (walrus_in_a_choice, [5, 5], [1, 0]),
    (closure_in_a_choice, [5, 7], [1, 0]),
    (closures_in_nested_choices, [1, 1], [3, 2]),
    (walrus_behind_and, [2, 2], [1, 0]),
    (walrus_of_a_new_name, [16, 0], [0, 0]),
    (walrus_in_a_chain, [4, 1], [1, 0]),
    (closure_behind_or, [1, 1], [2, 1]),
    (walrus_in_a_comprehension, [4, 7], [100, 0]),
    (broken_while, [4, 4], [10, 10]),
]


@pytest.mark.parametrize(
    ("chosen", "of_positive", "of_negative"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_names_hold_what_the_operands_that_are_evaluated_leave(
    chosen: Any, of_positive: list[float], of_negative: list[float]
) -> None:
    assert agree(chosen, lambda: (V,)).tolist() == of_positive
    assert agree(chosen, lambda: (-V,)).tolist() == of_negative


@kernel
def list_changed_by_a_choice(x: In[f32, "N"], o: Out[i32, "1"]):
    parts: list[float] = []
    y = parts.insert(0, 3.0) if x[0] > 0 else None  # type: ignore[func-returns-value]
    o[0] = len(parts) + (y is None)


class Hits:
    def __init__(self) -> None:
        self.count = 0

    def hit(self, v: Any) -> Any:
        self.count += 1
        return v > 0


@kernel
def field_changed_behind_and(x: In[f32, "N"], o: Out[i32, "2"]):
    hits = Hits()
    o[0] = x[0] > 0 and hits.hit(x[1])
    o[1] = hits.count


@pytest.mark.parametrize("wrong", [list_changed_by_a_choice, field_changed_behind_and])
def test_an_object_that_only_some_operands_change_is_refused(wrong: Any) -> None:
    with pytest.raises(HiddenMutation, match="is changed inside a block") as caught:
        wrong.on("reference")(V)
    assert caught.value.help
    assert caught.value.places


@kernel
def assigned_on_one_path(x: In[f32, "N"], o: Out[f32, "1"]):
    y = (n := 5.0) if x[0] > 0 else 0.0
    o[0] = n + y


def test_a_name_that_one_side_of_a_choice_assigns_is_refused() -> None:
    with pytest.raises(BranchMismatch, match="`n` is assigned on one path only") as caught:
        assigned_on_one_path.on("reference")(V)
    assert caught.value.help
