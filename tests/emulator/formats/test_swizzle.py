"""Tests of the swizzle formula."""

import numpy as np
import pytest

from astdsl.emulator.formats.swizzle import Swizzle, repeat_bytes, span_bytes, swizzle

BYTES = np.arange(8192, dtype=np.int64)


@pytest.mark.parametrize("mode", list(Swizzle))
def test_a_swizzle_undoes_itself(mode: Swizzle) -> None:
    assert np.array_equal(swizzle(swizzle(BYTES, mode), mode), BYTES)


@pytest.mark.parametrize("mode", list(Swizzle))
def test_a_swizzle_repeats_after_its_repeat_distance_and_not_before(mode: Swizzle) -> None:
    moved = swizzle(BYTES, mode) - BYTES
    repeat = repeat_bytes(mode)
    assert np.array_equal(moved[repeat:], moved[:-repeat])
    if mode is not Swizzle.NONE:
        assert not np.array_equal(moved[repeat // 2 :], moved[: -repeat // 2])


def test_the_128_byte_swizzle_is_the_documented_table() -> None:
    """PTX ISA 5.5.7: row r of eight 16-byte chunks holds chunk c at c ^ r."""
    chunks = swizzle(np.arange(0, 1024, 16), Swizzle.B128).reshape(8, 8) // 16 % 8
    expected = np.arange(8)[None, :] ^ np.arange(8)[:, None]
    assert np.array_equal(chunks, expected)


def test_the_32_byte_swizzle_exchanges_halves_in_every_other_row_of_128_bytes() -> None:
    chunks = swizzle(np.arange(0, 256, 16), Swizzle.B32) // 16
    assert chunks.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 11, 10, 13, 12, 15, 14]


def test_the_64_byte_swizzle_stays_within_its_span() -> None:
    offsets = np.arange(0, 4096, 16)
    span = span_bytes(Swizzle.B64)
    assert np.array_equal(swizzle(offsets, Swizzle.B64) // span, offsets // span)


def test_the_flip_atom_exchanges_the_8_byte_halves_in_odd_rows() -> None:
    plain = swizzle(BYTES, Swizzle.B128_ATOM_32B)
    flipped = swizzle(BYTES, Swizzle.B128_ATOM_32B_FLIP_8B)
    odd = BYTES // 128 % 2 == 1
    assert np.array_equal(flipped[odd], plain[odd] ^ 8)
    assert np.array_equal(flipped[~odd], plain[~odd])
