"""Slices and joined tiles stay in their threads where digits of registers allow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl import In, Out, concat, f32, kernel, reshape, stack, take
from astdsl.lowering.layout.conversion import Moves, slice_moves
from astdsl.lowering.layout.parts import extended, sliced
from astdsl.lowering.layout.registers import blocked, wgmma_accumulator
from tests.witnesses import agree

COALESCED = blocked((64, 64), 128, 4)


@pytest.mark.parametrize(
    ("starts", "sizes", "steps"),
    [
        ((0, 0), (32, 64), (1, 1)),
        ((32, 0), (32, 64), (1, 1)),
        ((0, 1), (64, 32), (1, 2)),
        ((8, 0), (16, 64), (1, 1)),
    ],
)
def test_a_slice_of_registers_stays_where_it_is(starts: Any, sizes: Any, steps: Any) -> None:
    found = sliced(COALESCED, starts, sizes, steps)
    assert found is not None
    assert found.shape == sizes
    assert isinstance(slice_moves(COALESCED, found, starts, steps), Moves)


def test_a_slice_of_some_threads_moves() -> None:
    assert sliced(COALESCED, (0, 0), (64, 4), (1, 1)) is None
    assert sliced(COALESCED, (3, 0), (8, 64), (1, 1)) is None


def test_a_whole_is_its_parts_in_further_registers() -> None:
    half = wgmma_accumulator((64, 32), 128)
    found = extended(half, (64, 64), (0, 0))
    assert found == wgmma_accumulator((64, 64), 128)
    assert extended(blocked((64, 24), 128), (64, 48), (0, 0)) is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_returned_holds_every_element(data: st.DataObject) -> None:
    extents = (64, 32)
    layout = data.draw(st.sampled_from([blocked(extents, 128, 4), wgmma_accumulator(extents, 128)]))
    steps = tuple(data.draw(st.sampled_from([1, 2, 4])) for _ in extents)
    starts = tuple(data.draw(st.sampled_from([0, 1, 8, 16])) for _ in extents)
    limits = [-(-(n - a) // s) for n, a, s in zip(extents, starts, steps, strict=True)]
    sizes = tuple(data.draw(st.sampled_from([n, max(1, n // 2), 1])) for n in limits)
    found = sliced(layout, starts, sizes, steps)
    if found is not None:
        assert isinstance(slice_moves(layout, found, starts, steps), Moves)


def rotated(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
    t = x[...]
    a, b = t[:, ::2], t[:, 1::2]
    o[...] = reshape(stack((a * 2 - b, a + b * 3), 2), (64, 64))


def swapped(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
    t = x[...]
    o[...] = concat((t[32:] + 1, t[:32] - 1), 0)


def picked(x: In[f32, "8 24"], o: Out[f32, "8 6"]) -> None:
    o[...] = take(x[...], (5, 0, 0, 23, 1, 7), 1)


@pytest.mark.parametrize(("function", "shape"), [(rotated, (64, 64)), (swapped, (64, 64))])
def test_halves_and_pairs_are_joined_without_shared_memory(function: Any, shape: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    agree(kernel(function), lambda: (x,))
    assert "conversion" not in kernel(function).lower(x).explain()


def test_a_tile_is_stored_once_for_all_that_is_picked_from_it() -> None:
    x = np.arange(8 * 24, dtype=np.float32).reshape(8, 24)
    found = agree(kernel(picked), lambda: (x,))
    assert np.array_equal(found, x[:, [5, 0, 0, 23, 1, 7]])
    ptx = kernel(picked).lower(x).ptx
    assert ptx.count("bar.sync") < 2 * 6


@given(st.sampled_from([(64, 64), (8, 32), (3, 5), (16, 6, 4)]), st.data())
def test_a_layout_of_pairs_is_that_of_bytes_with_each_element_twice(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    vector = data.draw(st.sampled_from([v for v in (1, 2, 4) if shape[-1] % v == 0]))
    of_bytes = blocked(shape, 128, vector)
    of_pairs = of_bytes.doubled(axis)
    assert of_pairs.halved(axis) == of_bytes
    for register, place in enumerate(of_bytes.offsets):
        for half in (0, 1):
            wanted = tuple(2 * n + half if a == axis else n for a, n in enumerate(place))
            assert of_pairs.offsets[2 * register + half] == wanted


def test_a_layout_that_parts_neighbours_is_of_no_bytes() -> None:
    assert blocked((4, 64), 128, 1).halved(1) is None
    assert blocked((4, 64), 128, 2).halved(0) is None
