"""Reshapes of register layouts in which every element stays in its register."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astdsl.lowering.layout.registers import Layout, blocked, wgmma_accumulator
from astdsl.lowering.layout.reshaping import reshaped


def held(layout: Layout) -> dict[tuple[int, int], int]:
    """Return the number, in row-major order, of the element in each (thread, register)."""
    found = {}
    for thread, base in enumerate(layout.bases):
        for register, offset in enumerate(layout.offsets):
            place = base + np.array(offset)
            if (place < layout.shape).all():
                number = 0
                for index, extent in zip(place, layout.shape, strict=True):
                    number = number * extent + int(index)
                found[thread, register] = number
    return found


@st.composite
def factored(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4)))


@given(factored(), st.data())
def test_a_register_holds_the_element_that_it_held(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    total = math.prod(shape)
    wanted = data.draw(factored().filter(lambda s: math.prod(s) == total) | st.just((total,)))
    vector = data.draw(st.sampled_from([1, 2, 4]))
    layout = blocked(shape, 32, vector if shape[-1] % vector == 0 else 1)
    found = reshaped(layout, wanted)
    if found is not None:
        assert found.shape == wanted
        before, after = held(layout), held(found)
        assert before == after


def test_blocks_along_rows_are_split_off_and_merged_again() -> None:
    layout = blocked((128, 256), 128, 16)
    split = reshaped(layout, (128, 8, 32))
    assert split is not None
    assert reshaped(split, (128, 256)) == layout
    assert held(split) == held(layout)


def test_an_accumulator_is_split_where_its_digits_end() -> None:
    layout = wgmma_accumulator((64, 64), 128)
    split = reshaped(layout, (2, 32, 4, 16))
    assert split is not None
    assert held(split) == held(layout)


def test_padded_axes_are_not_merged() -> None:
    assert reshaped(blocked((4, 3), 32, 4), (12,)) is None
    assert reshaped(blocked((3, 4), 32, 4), (12,)) is not None
