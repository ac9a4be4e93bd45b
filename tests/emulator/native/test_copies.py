"""Tests that what machine code moves is what NumPy moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator.native import copies
from astdsl.emulator.native.host import host

pytestmark = pytest.mark.skipif(host() is None, reason="this processor has no compiled loops")

RNG = np.random.default_rng(0)


def bits(dtype: str, *shape: int) -> Any:
    return RNG.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[
        ..., 0
    ]


def rows_at(array: Any) -> Any:
    return array.ctypes.data + np.arange(len(array)) * array.strides[0]


def same_but_for_quiet_nans(found: Any, wanted: Any) -> bool:
    quiet = np.where(np.isnan(wanted), wanted.view(np.uint32) | 0x400000, wanted.view(np.uint32))
    return bool((found.view(np.uint32) == quiet).all())


def test_float16_is_widened_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1)
    found = copies.widen_f16(every.view(np.uint8))
    assert found is not None
    assert same_but_for_quiet_nans(found, every.view(np.float16).astype(np.float32))


def test_an_odd_number_of_values_is_left_to_numpy() -> None:
    assert copies.widen_f16(np.zeros((3, 10), np.uint8)) is None


def test_chunks_of_rows_are_widened_in_the_order_of_their_list() -> None:
    memory, chunks = bits("u1", 5, 1024), RNG.integers(0, 64, (7, 3))
    found = copies.widen_chunks(memory, chunks)
    assert found is not None
    raw = np.take(memory.view(np.complex128), chunks, axis=1).view(np.float16)
    assert found.shape == (5, 7, 24)
    assert same_but_for_quiet_nans(found, raw.astype(np.float32))


@pytest.mark.parametrize(("n_rows", "n_columns"), [(8, 8), (16, 64), (256, 32)])
def test_rows_become_columns(n_rows: int, n_columns: int) -> None:
    source, target = bits("u4", n_rows, n_columns + 5), np.zeros((n_columns, n_rows + 3), np.uint32)
    assert copies.transpose(rows_at(source[:, 2:]), rows_at(target))
    assert (target[:, :n_rows] == source[:, 2 : 2 + n_columns].T).all()
    assert not target[:, n_rows:].any()


def test_other_numbers_of_rows_are_left_to_numpy() -> None:
    source, target = np.zeros((12, 8), np.uint32), np.zeros((8, 12), np.uint32)
    assert not copies.transpose(rows_at(source), rows_at(target))


@pytest.mark.parametrize("n_blocks", [6, 16])
@pytest.mark.parametrize("adds", [False, True])
def test_tiles_are_put_or_added_to_registers(adds: bool, n_blocks: int) -> None:
    tiles = bits("f4", n_blocks, 4, 32)
    positions = RNG.permutation(128).reshape(4, 32)
    registers = bits("f4", 4, 32 * n_blocks)
    for array, payload in ((tiles, 0x7FC0_0001), (registers, 0xFFC0_0002)):
        array.reshape(-1).view(np.uint32)[RNG.random(array.size) < 0.3] = payload
    wanted = tiles.reshape(n_blocks, -1)[:, positions].transpose(1, 2, 0).reshape(4, -1)
    with np.errstate(all="ignore"):
        wanted = registers + wanted if adds else wanted.copy()
    assert copies.add_fragment(tiles, positions, rows_at(registers), adds=adds)
    assert (registers.view(np.uint32) == wanted.view(np.uint32)).all()


def test_pairs_of_float16_go_to_their_places_in_each_tile() -> None:
    raw, tiles = bits("u4", 20, 3), np.zeros((3, 8, 16), np.float32)
    positions = RNG.permutation(60)[:20] * 2
    assert copies.widen_pairs(raw, positions, tiles, 4)
    wanted = np.zeros((3, 128), np.float32)
    pairs = raw.view(np.float16).reshape(20, 3, 2).astype(np.float32)
    for entry, place in enumerate(positions):
        wanted[:, place + 4 : place + 6] = pairs[entry]
    assert same_but_for_quiet_nans(tiles.reshape(3, -1), wanted)


@pytest.mark.parametrize("n_units", [10, 8])
def test_units_move_between_addresses_and_rows_of_memory(n_units: int) -> None:
    memory, values = bits("u1", 6, 512), bits("u1", 40, 16).view(np.complex128)[:, 0]
    rows, units = np.array([4, 1, 2]), RNG.permutation(32)[:n_units]
    corners, relative = np.array([26, 0, 13]), RNG.permutation(13)[:n_units]
    places = corners[:, None] + relative
    before = memory.copy()
    at = values.ctypes.data + 16 * corners, 16 * relative
    assert copies.fill(memory, rows, units, at)
    view = before.view(np.complex128)
    view[rows[:, None], units] = values[places]
    assert (memory == before).all()
    found = copies.collect(memory, rows, units)
    assert found is not None
    assert found.tobytes() == values[places].tobytes()
    target = np.zeros(40, np.complex128)
    assert copies.scatter(found, (target.ctypes.data + 16 * corners, 16 * relative))
    assert target[places].tobytes() == found.tobytes()
