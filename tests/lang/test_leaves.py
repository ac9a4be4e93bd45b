"""Leaves of containers: what is a part, and that what is rebuilt leaves the old one as it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from astdsl import In, Out, f32, kernel, tile
from astdsl.errors import TypeMismatch
from astdsl.lang.leaves import rebuild


@dataclass
class Once:
    """An object of which there is one only."""

    count: int

    def __copy__(self) -> Once:
        return self


@dataclass(frozen=True, slots=True)
class OnceFrozen:
    """The same, frozen."""

    count: int

    def __copy__(self) -> OnceFrozen:
        return self


@pytest.mark.parametrize("kind", [Once, OnceFrozen])
def test_an_object_that_is_its_own_copy_is_not_changed(kind: type) -> None:
    once = kind(1)
    made = rebuild([once], lambda _: 2.5)
    assert (made[0].count, once.count) == (2.5, 1)


def test_a_dtype_is_no_container() -> None:
    assert rebuild((f32, 1), lambda _: 2.5) == (f32, 2.5)
    assert f32.bits == 32


@kernel
def adds_to_a_pair(x: In[f32, "M"], o: Out[f32, "M"], *, bm=4):
    total = ((bm,), f32)
    for i in range(x.shape[0] // bm):
        total += x[tile(i, bm)]
    o[tile(0, bm)] = total


def test_a_pair_with_a_dtype_that_a_loop_changes_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeMismatch, match="got tuple"):
            adds_to_a_pair.on("reference")(np.ones(16, np.float32))
    assert f32.bits == 32
