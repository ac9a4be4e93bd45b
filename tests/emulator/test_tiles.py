"""Tests of operands in shared memory whose descriptors differ from block to block."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator.formats.descriptors import (
    MatrixDescriptor,
    OperandShape,
    decode_wgmma_descriptor,
    encode_wgmma_descriptor,
)
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.tiles import locate, read_tiles

SHAPE = OperandShape(8, 16, 1)


def machine(n_blocks: int) -> Any:
    data = np.arange(n_blocks * 1024, dtype=np.uint32).astype(np.uint8).reshape(n_blocks, 1024)
    data += np.arange(n_blocks, dtype=np.uint8)[:, None]
    shared = SimpleNamespace(data=data, size_bytes=1024)
    return SimpleNamespace(n_blocks=n_blocks, memory=SimpleNamespace(shared=shared))


def descriptors(*starts: int) -> NDArray[np.uint64]:
    bits = [encode_wgmma_descriptor(MatrixDescriptor(s, 16, 128, Swizzle.NONE)) for s in starts]
    return np.array(bits, np.uint64)


@pytest.mark.parametrize("starts", [(0, 0, 0), (0, 128, 256)])
@pytest.mark.parametrize("rows", [(0, 1, 2), (2, 0, 1)])
def test_each_block_reads_its_own_tile(starts: tuple[int, ...], rows: tuple[int, ...]) -> None:
    m, blocks = machine(3), np.array(rows)
    tile = locate(m, descriptors(*starts), decode_wgmma_descriptor, SHAPE)
    values = read_tiles(m, blocks, [tile], "u8")
    for k, (row, start) in enumerate(zip(rows, starts, strict=True)):
        expected = m.memory.shared.data[row, start : start + 128].reshape(8, 16)
        assert np.array_equal(values[k], expected)


def test_steps_follow_each_other_along_k() -> None:
    m, blocks = machine(1), np.array([0])
    steps = [locate(m, descriptors(s), decode_wgmma_descriptor, SHAPE) for s in (0, 128)]
    values = read_tiles(m, blocks, steps, "u8")
    assert values.shape == (1, 8, 32)
    assert values[0, 0].tolist() == [*range(16), *range(128, 144)]


def test_a_tile_past_the_end_of_shared_memory_is_refused() -> None:
    with pytest.raises(FormatError, match="past the 1024 bytes"):
        locate(machine(1), descriptors(912), decode_wgmma_descriptor, SHAPE)
