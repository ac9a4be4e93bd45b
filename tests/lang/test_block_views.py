"""What is said of views as blocks, of `ref.at`, and of copies of kernel values."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from astdsl import In, KernelError, Out, f32, kernel, pipeline
from tests.witnesses import agree

X = np.arange(30 * 50, dtype=np.float32).reshape(30, 50)


@kernel
def sums_of_blocks(x: In[f32, "M N"], o: Out[f32, "cdiv(M,b) cdiv(N,b)"], *, b=8):
    blocks = x.blocks(b, b)
    with pipeline(*blocks.shape) as (i, j):
        o[i, j] = blocks[i, j].sum()


def test_a_view_as_blocks_has_a_shape() -> None:
    rows = np.add.reduceat(X, range(0, 30, 8), axis=0)
    expected = np.add.reduceat(rows, range(0, 50, 8), axis=1)
    np.testing.assert_array_equal(agree(sums_of_blocks, lambda: (X,)), expected)


@kernel
def misspelt(x: In[f32, "M N"], o: Out[f32, "M N"], *, what=""):
    if what == "blocks":
        x.blocks(8, 8).shpe
    if what == "at":
        x.at.window
    if what == "jax":
        o.at[0].set(x[0])
    o[...] = x[...]


@pytest.mark.parametrize(
    ("what", "said", "way_out"),
    [
        ("blocks", "`blocks(...)` has no attribute `shpe`", "did you mean `shape`?"),
        ("at", "`ref.at` has no attribute `window`", "a window follows it"),
        ("jax", "a ref has no attribute `set`", "memory changes in place"),
    ],
)
def test_an_unknown_attribute_is_refused_with_a_way_out(what: str, said: str, way_out: str) -> None:
    with pytest.raises(KernelError) as caught:
        misspelt(X, what=what)
    assert said in str(caught.value)
    assert way_out in caught.value.help


@dataclasses.dataclass
class State:
    """What a kernel's author may keep together."""

    tile: Any
    ref: Any


@kernel
def copied(x: In[f32, "N"], o: Out[f32, "N"]):
    state = State(x[...], x)
    deep, flat = copy.deepcopy(state), copy.copy(state.tile)
    fields = dataclasses.asdict(state)
    o[...] = deep.tile + flat + fields["tile"] + fields["ref"][...]


def test_python_copies_objects_with_kernel_values() -> None:
    np.testing.assert_array_equal(agree(copied, lambda: (X[0],)), X[0] * 4)
