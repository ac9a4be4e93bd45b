"""Stated layouts: they change no element, whatever is converted to what, and `explain` says how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, Layout, Out, f32, f64, i16, i32, kernel, layout_cast, load
from astdsl.errors import KernelError, ShapeMismatch, TypeMismatch
from astdsl.ir.types import TileType
from astdsl.lang.layouts import StatedLayout
from astdsl.lowering.layout.stated import LEAST, ROWS, stated_layout
from tests.lang.harness import a_trace
from tests.witnesses import agree

SHAPE = (128, 128)
PLAIN = {n: v for n, v in vars(Layout).items() if isinstance(v, StatedLayout)}
# A row to a thread, and two rows far apart.
LANES = ((64, 0, 1), (2, -1, 0))
DIGITS = (((2, 0, 64), (2, 1, 1), (64, 1, 2)), ((64, 0, 1), (2, -1, 0)))
CHAIN = [
    *(v for v in PLAIN.values() if len(v.multiples) == 2),
    Layout.TCGEN05_M64_COLLECTIVE(128),
    Layout.WG_STRIDED(SHAPE, 1),
    Layout.SMEM_GMEM_COPY(SHAPE, i16),
    Layout.TILED(SHAPE, *DIGITS),
]


def through(x: In[i16, "128 128"], o: Out[i16, "128 128"], *, layouts: Any) -> None:
    t = load(x.at[...], layout=layouts[0])
    for layout in layouts[1:]:
        t = layout_cast(t + 1, layout)
    o[...] = t


def test_every_name_has_its_digits() -> None:
    stated = {v.spec[0] for v in CHAIN} | {"WG_SPLAT", "TMA_INDICES"}
    assert stated == set(ROWS)
    plain = {n: v.multiples for n, v in PLAIN.items() if v.multiples}
    assert plain == LEAST


@pytest.mark.parametrize("step", [1, 2, 5])
def test_any_layout_converts_to_any_other(step: int) -> None:
    count = len(CHAIN)
    layouts = tuple(CHAIN[k * step % count] for k in range(count + 1))
    x = (np.arange(128 * 128) % 30011).astype(np.int16).reshape(SHAPE)
    found = agree(kernel(through), lambda: (x,), targets=["sm_90a"], layouts=layouts)
    assert np.array_equal(found, x + np.int16(count))


@pytest.mark.parametrize("warpgroups", [1, 2])
@pytest.mark.parametrize("layout", CHAIN[:-1], ids=repr)
def test_every_element_has_a_holder(layout: StatedLayout, warpgroups: int) -> None:
    held = stated_layout(layout.spec, SHAPE, 128 * warpgroups)
    places = held.bases[:, None, :] + np.array(held.offsets)[None]
    numbers = places.reshape(-1, 2) @ np.array([128, 1])
    inside = (places.reshape(-1, 2) < 128).all(axis=1)
    assert len(np.unique(numbers[inside])) == 128 * 128


def sums(x: In[f32, "64 64"], o: Out[f32, "64 64"], p: Out[f32, "64"], q: Out[f32, "64"]) -> None:
    t = load(x.at[...], layout=Layout.WGMMA)
    wide = layout_cast(t, Layout.WG_STRIDED((64, 64), 4))
    p[...] = layout_cast(wide.sum(1), Layout.WGMMA.reduce(1))
    q[...] = layout_cast(wide.sum(0), Layout.WGMMA.reduce(0)) + t.sum(0) * 0
    o[...] = t


def test_a_reduced_layout_is_that_of_the_reduction() -> None:
    x = (np.arange(64 * 64) % 11).astype(np.float32).reshape(64, 64)
    same, rows, columns = agree(kernel(sums), lambda: (x,))
    assert np.array_equal(same, x)
    assert np.array_equal(rows, x.sum(axis=1))
    assert np.array_equal(columns, x.sum(axis=0))
    inner = stated_layout(Layout.WGMMA.spec, (64, 64), 128)
    for axis in (0, 1):
        spec = Layout.WGMMA.reduce(axis).spec
        assert stated_layout(spec, (64,), 128) == inner.without([axis])


def test_a_collective_layout_gives_half_of_the_columns_to_two_warps() -> None:
    held = stated_layout(Layout.TCGEN05_M64_COLLECTIVE(64).spec, (64, 64), 128)
    rows, columns = held.bases[::32].T
    assert (rows.tolist(), columns.tolist()) == ([0, 32, 0, 32], [0, 0, 32, 32])
    assert held.register_count == 32
    for axis in (0, 1):
        spec = Layout.TCGEN05_M64_COLLECTIVE(64).reduce(axis).spec
        assert stated_layout(spec, (64,), 128) == held.without([axis])


def test_indices_are_held_four_by_four_in_every_lane_of_a_warp() -> None:
    held = stated_layout(Layout.TMA_INDICES.spec, (32,), 128)
    assert held.bases[[0, 31, 32, 96], 0].tolist() == [0, 0, 4, 12]
    assert [first for (first,) in held.offsets] == [0, 1, 2, 3, 16, 17, 18, 19]


def gathered(x: In[f32, "64 64"], i: In[i32, "32"], o: Out[f32, "32 64"]) -> None:
    rows = load(i.at[...], layout=Layout.TMA_INDICES)
    o[...] = x[rows, 0:64]


def test_indices_in_their_layout_gather_rows() -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    rows = np.random.default_rng(1).integers(0, 64, 32).astype(np.int32)
    assert np.array_equal(agree(kernel(gathered), lambda: (x, rows)), x[rows])


def shuffling(x: In[i16, "64 16"], o: Out[i16, "64 16"]) -> None:
    t = load(x.at[...], layout=Layout.WGMMA)
    o[...] = layout_cast(t + 1, Layout.WGMMA_8BIT)


def test_explain_lists_each_conversion_and_its_way() -> None:
    x = np.arange(64 * 16, dtype=np.int16).reshape(64, 16)
    assert np.array_equal(agree(kernel(shuffling), lambda: (x,)), x + 1)
    text = kernel(shuffling).lower(x).explain()
    assert "conversion of i16[64x16] at test_layouts.py" in text
    assert "shuffles" in text
    y = np.zeros((64, 64), np.float32)
    explained = kernel(sums).lower(y).explain()
    assert "conversion of f32[64x64]" in explained
    assert "4-way bank conflicts" in explained


def test_explain_counts_the_bank_conflicts_of_buffers() -> None:
    def by_pairs(x: In[f32, "64 64"], o: Out[f32, "64"]) -> None:
        o[...] = load(x.at[...], layout=Layout.WGMMA).sum(1)

    def by_rows(x: In[f32, "64 64"], o: Out[f32, "64"]) -> None:
        # A row to a thread: the swizzle keeps the vectors of neighbouring rows apart.
        o[...] = load(x.at[...], layout=Layout.TILED((64, 64), ((64, 1, 1),), LANES)).sum(1)

    y = np.zeros((64, 64), np.float32)
    assert "access of f32[64x64]" in kernel(by_pairs).lower(y).explain()
    assert "bank conflicts" not in kernel(by_rows).lower(y).explain()


def test_a_load_in_a_stated_layout_needs_no_conversion() -> None:
    def copy(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
        o[...] = load(x.at[...], fill=0, layout=Layout.WGMMA)

    assert "conversion" not in kernel(copy).lower(np.zeros((64, 64), np.float32)).explain()


MISTAKES: list[tuple[Any, type[KernelError], str]] = [
    (lambda x: layout_cast(x, 3), TypeMismatch, "takes a layout, got 3"),
    (lambda x: layout_cast(x[:48], Layout.WGMMA), ShapeMismatch, "multiples of"),
    (lambda x: layout_cast(x[0], Layout.WGMMA), ShapeMismatch, "2 axes"),
    (lambda x: layout_cast(x, Layout.WG_STRIDED((8, 8), 4)), ShapeMismatch, "tiles of shape"),
    (lambda x: layout_cast(x, Layout.WG_STRIDED((64, 64), 3)), ShapeMismatch, "vectors"),
    (lambda x: layout_cast(x, Layout.WG_SPLAT), ShapeMismatch, "4096 registers"),
    (
        lambda x: Layout.TILED((64, 64), ((32, 1, 1),), ((64, 0, 1), (2, -1, 0))),
        ShapeMismatch,
        "128",
    ),
    (lambda x: Layout.TILED((2,), ((2, 0, 1),), ((64, -1, 0),)), ShapeMismatch, "64 threads"),
    (lambda x: Layout.WGMMA.reduce(2), ShapeMismatch, "axis from 0 to 1"),
    (lambda x: Layout.TMA_INDICES.reduce(0), ShapeMismatch, "two axes or more"),
    (lambda x: Layout.WGMMA.reduce(0).reduce(0), ShapeMismatch, "two axes or more"),
    (lambda x: layout_cast(x[0, :24], Layout.TMA_INDICES), ShapeMismatch, "multiples of"),
    (lambda x: Layout.TCGEN05_M64_COLLECTIVE(24), ShapeMismatch, "multiple of 16 columns"),
    (
        lambda x: layout_cast(x, Layout.TCGEN05_M64_COLLECTIVE(128)),
        ShapeMismatch,
        r"multiples of \(64, 128\)",
    ),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), MISTAKES)
def test_a_mistake_says_what_to_do(wrong: Any, kind: type[KernelError], said: str) -> None:
    with a_trace(TileType((64, 64), f64)) as (_, x), pytest.raises(kind, match=said) as caught:
        wrong(x)
    assert caught.value.help
