"""Parts of a container that a loop carries: they may change places from step to step."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

from astdsl import In, Out, f32, i32, kernel, pipeline
from tests.witnesses import agree

X = np.arange(-3, 4, dtype=np.float32)


class Both(NamedTuple):
    """A named tuple of two tiles."""

    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Held:
    """A dataclass of two tiles."""

    first: Any
    second: Any


@kernel
def tuple_in_a_pipeline(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    pair = x[...], x[...] * 2
    with pipeline(n):
        pair = pair[1], pair[0]
    o[...] = pair[0]


@kernel
def named_tuple_in_a_for(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    pair = Both(x[...], x[...] * 2)
    for _ in range(n):
        pair = Both(pair.second, pair.first)
    o[...] = pair.first


@kernel
def dataclass_in_a_while(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    pair, k = Held(x[...], x[...] * 2), n
    while k > 0:
        pair, k = Held(pair.second, pair.first), k - 1
    o[...] = pair.first


@kernel
def list_and_dict_in_a_for(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    parts, named = [x[...], x[...] * 2, x[...]], {"a": x[...], "b": x[...] * 2}
    for _ in range(n):
        parts = [parts[1], parts[0], parts[2]]
        named = {"a": named["b"], "b": named["a"]}
    o[...] = (parts[0] + named["a"] * 3) / 4


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "swapping",
    [tuple_in_a_pipeline, named_tuple_in_a_for, dataclass_in_a_while, list_and_dict_in_a_for],
    ids=lambda k: k.__name__,
)
def test_parts_of_a_carried_container_change_places(swapping: Any, steps: int) -> None:
    found = agree(swapping, lambda: (X, steps))
    np.testing.assert_array_equal(found, X * 2 if steps % 2 else X)


@kernel
def one_part_kept(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    three = x[...], x[...] * 2, x[...] * 3
    for _ in range(n):
        three = three[2], three[1], three[1]
    o[...] = three[0] + three[1] * 10


@pytest.mark.parametrize(("steps", "factor"), [(0, 21), (1, 23), (2, 22), (5, 22)])
def test_a_part_that_every_step_keeps_stands_beside_parts_that_move(
    steps: int, factor: int
) -> None:
    found = agree(one_part_kept, lambda: (X, steps))
    np.testing.assert_array_equal(found, X * factor)
