"""Layouts in the words of a kernel: what is spelt is the layout again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl import Layout as Names
from astdsl.ir.dtypes import f16
from astdsl.lang.layouts import StatedLayout
from astdsl.lowering.layout.registers import blocked, normalised, splat
from astdsl.lowering.layout.shared import buffer_layout
from astdsl.lowering.layout.spelling import spelt, spelt_buffer
from astdsl.lowering.layout.stated import LEAST, stated_layout


def read_back(text: str) -> StatedLayout:
    found: StatedLayout = eval(text.replace("Layout.", "Names."), {"Names": Names})  # noqa: S307
    return found


@pytest.mark.parametrize("name", LEAST)
def test_a_layout_that_has_a_name_is_spelt_by_a_name(name: str) -> None:
    shape = (128, 128)[: len(LEAST[name])]
    layout = normalised(stated_layout((name,), shape, 128))
    text = spelt(layout)
    assert "TILED" not in text
    assert normalised(stated_layout(read_back(text).spec, shape, 128)) == layout


@given(
    st.lists(st.sampled_from([1, 2, 3, 8, 16, 64]), min_size=1, max_size=3).map(tuple),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_what_is_spelt_may_be_stated(shape: tuple[int, ...], vector: int, turned: bool) -> None:
    layout = blocked(shape, 128, vector)
    if turned:
        layout = layout.permuted(tuple(reversed(range(len(shape)))))
    again = stated_layout(read_back(spelt(layout)).spec, layout.shape, 128)
    assert normalised(again) == normalised(layout)


def test_a_layout_that_every_thread_holds_and_one_of_a_reduction_have_names() -> None:
    assert spelt(splat((4,), 128)) == "Layout.WG_SPLAT"
    rows = stated_layout(("WGMMA",), (64, 64), 128).without([1])
    assert spelt(rows) == "Layout.WGMMA.reduce(1)"


def test_digits_of_more_than_a_warpgroup_say_so() -> None:
    turned = blocked((64, 64), 256, 4).permuted((1, 0))
    assert spelt(turned).startswith("Layout.TILED((64, 64), ")
    assert spelt(turned).endswith(", of 256 threads")


def test_a_buffer_is_spelt_contiguous_first() -> None:
    layout = buffer_layout((16, 128), f16, (1, 0))
    assert spelt_buffer(layout, 1) == (
        "64 along axis 1, 16 along axis 0, 2 along axis 1; swizzled by 128 bytes"
    )
    assert spelt_buffer(buffer_layout((8, 4), f16, (0, 1)), 3).startswith("3 slots of 128 bytes,")
