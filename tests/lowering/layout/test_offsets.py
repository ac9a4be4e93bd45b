"""Places in shared memory, split into what the thread decides and what the register decides."""

import itertools

import numpy as np
import pytest

from astdsl.ir.dtypes import DType, f16, f32
from astdsl.lowering.layout.offsets import plain_offsets, split_offsets
from astdsl.lowering.layout.registers import Layout, blocked, wgmma_accumulator
from astdsl.lowering.layout.shared import (
    SWIZZLE_PERIOD_BITS,
    SWIZZLE_UNIT_BYTES,
    BufferLayout,
    buffer_layout,
)

THREADS = 128
SHAPE = (64, 128)
LAYOUTS = {
    "wgmma": wgmma_accumulator(SHAPE, THREADS),
    "rows": blocked(SHAPE, THREADS, 4, (1, 0)),
    "columns": blocked(SHAPE, THREADS, 2, (0, 1)),
}


def address_in_slot(buffer: BufferLayout, place: tuple[int, ...]) -> int:
    """Follow the hardware's rule for one element (PTX ISA 5.5.7)."""
    plain = int(plain_offsets(buffer, np.array([place]))[0])
    if not buffer.swizzle_bytes:
        return plain
    row = plain >> SWIZZLE_PERIOD_BITS & (buffer.swizzle_bytes // SWIZZLE_UNIT_BYTES - 1)
    return plain ^ row * SWIZZLE_UNIT_BYTES


def places(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    return layout.bases, np.array(layout.offsets)


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
@pytest.mark.parametrize("swizzled", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_split_place_is_where_the_hardware_puts_the_element(
    name: str, swizzled: bool, order: tuple[int, ...], dtype: DType
) -> None:
    buffer = buffer_layout(SHAPE, dtype, order, swizzled=swizzled)
    threads, registers = places(LAYOUTS[name])
    split = split_offsets(buffer, threads, registers)
    assert split is not None
    for thread, register in itertools.product(range(0, THREADS, 7), range(len(registers))):
        flip, move = split[register]
        own = address_in_slot(buffer, tuple(threads[thread]))
        wanted = address_in_slot(buffer, tuple(threads[thread] + registers[register]))
        assert (own ^ flip) + move == wanted


def test_places_that_carry_into_the_next_chunk_do_not_split() -> None:
    buffer = buffer_layout((8, 128), f32, (1, 0))
    threads = np.array([[0, 31], [0, 0]])
    assert split_offsets(buffer, threads, np.array([[0, 1]])) is None


def test_places_that_carry_into_the_swizzled_bits_do_not_split() -> None:
    buffer = buffer_layout((8, 32), f32, (1, 0))
    threads = np.array([[1, 0], [0, 0]])
    assert split_offsets(buffer, threads, np.array([[1, 0]])) is None
