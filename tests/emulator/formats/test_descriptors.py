"""Tests of matrix and instruction descriptors and the layouts they describe."""

import numpy as np
import pytest

from astdsl.emulator.formats import descriptors as d
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.instruction import (
    MMA_KINDS,
    InstructionDescriptor,
    decode_instruction,
)
from astdsl.emulator.formats.swizzle import Swizzle

SWIZZLED = d.MatrixDescriptor(0x8400, 16, 1024, Swizzle.B128)


@pytest.mark.parametrize("mode", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_descriptors_decode_to_what_was_encoded(mode: Swizzle) -> None:
    descriptor = d.MatrixDescriptor(0x1230, 0x440, 0x3FFF0, mode)
    assert d.decode_wgmma_descriptor(d.encode_wgmma_descriptor(descriptor)) == descriptor
    assert d.decode_tcgen05_descriptor(d.encode_tcgen05_descriptor(descriptor)) == descriptor


def test_fields_stand_where_the_isa_puts_them() -> None:
    bits = d.encode_wgmma_descriptor(SWIZZLED)
    assert bits == 0x840 | 1 << 16 | 64 << 32 | 1 << 62
    assert d.encode_tcgen05_descriptor(SWIZZLED) == 0x840 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61


def test_strides_must_be_chunks() -> None:
    with pytest.raises(FormatError, match="multiple of 16"):
        d.encode_wgmma_descriptor(d.MatrixDescriptor(8, 16, 16, Swizzle.NONE))


def test_a_base_offset_is_refused() -> None:
    with pytest.raises(FormatError, match="base offset"):
        d.decode_wgmma_descriptor(d.encode_wgmma_descriptor(SWIZZLED) | 1 << 49)


@pytest.mark.parametrize("mode", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_a_k_major_tile_is_rows_of_the_span_with_the_swizzle_applied(mode: Swizzle) -> None:
    span = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}[mode]
    descriptor = d.MatrixDescriptor(0, 16, 8 * span, mode)
    chunks = d.operand_chunks(descriptor, d.OperandShape(64, span // 2, 2))
    assert chunks.shape == (64, span // 16)
    assert sorted(chunks.reshape(-1).tolist()) == list(range(64 * span // 16))
    assert chunks[0].tolist() == list(range(span // 16))


def test_advancing_the_start_by_one_k_step_reads_the_next_columns() -> None:
    tile, next_step = (d.MatrixDescriptor(s, 16, 1024, Swizzle.B128) for s in (0, 32))
    whole = d.operand_chunks(tile, d.OperandShape(64, 64, 2))
    step = d.operand_chunks(next_step, d.OperandShape(64, 16, 2))
    assert np.array_equal(step, whole[:, 2:4])


def test_k_major_without_swizzle_is_core_matrices() -> None:
    descriptor = d.MatrixDescriptor(0, 128, 256, Swizzle.NONE)
    chunks = d.operand_chunks(descriptor, d.OperandShape(16, 16, 2))
    assert chunks[:, 0].tolist() == [*range(8), *range(16, 24)]
    assert chunks[:, 1].tolist() == [*range(8, 16), *range(24, 32)]


def test_mn_major_tiles_are_rows_of_k() -> None:
    descriptor = d.MatrixDescriptor(0, 8192, 1024, Swizzle.B128)
    chunks = d.operand_chunks(descriptor, d.OperandShape(128, 16, 2, mn_major=True))
    assert chunks.shape == (16, 16)
    assert chunks[0].tolist() == [*range(8), *range(512, 520)]
    assert chunks[9, 0] == (1024 + 128) // 16 + 1


def test_mn_major_without_swizzle_exchanges_the_strides() -> None:
    descriptor = d.MatrixDescriptor(0, 2048, 128, Swizzle.NONE)
    chunks = d.operand_chunks(descriptor, d.OperandShape(16, 16, 2, mn_major=True))
    assert chunks[:, 0].tolist() == [*range(8), *range(128, 136)]
    assert chunks[0].tolist() == [0, 8]


def test_the_32_byte_atom_is_four_rows_of_k_deep() -> None:
    descriptor = d.MatrixDescriptor(0, 4096, 512, Swizzle.B128_ATOM_32B)
    chunks = d.operand_chunks(descriptor, d.OperandShape(32, 8, 4, mn_major=True))
    assert sorted(chunks.reshape(-1).tolist()) == list(range(64))


def test_instruction_descriptors_decode_to_what_was_encoded() -> None:
    kind = MMA_KINDS["f16"]
    fields = InstructionDescriptor(128, 256, "bf16", "f16", "f32", True, False, False, True)
    assert decode_instruction(fields.encode(kind), kind) == fields


def test_instruction_fields_stand_where_the_isa_puts_them() -> None:
    fields = InstructionDescriptor(128, 128, "bf16", "bf16", "f32", transpose_b=True)
    types, extents = 1 << 4 | 1 << 7 | 1 << 10, 16 << 17 | 8 << 24
    assert fields.encode(MMA_KINDS["f16"]) == types | 1 << 16 | extents


@pytest.mark.parametrize(
    ("bits", "kind", "message"),
    [
        (1 << 2, "f16", "sparse"),
        (1 << 4 | 16 << 17 | 2 << 24, "f16", "M is 32"),
        (1 << 4 | 33 << 17 | 8 << 24, "f16", "N is 264"),
        (2 << 4 | 5 << 17 | 8 << 24, "i8", "N is 40, must be a multiple of 16"),
        (1 << 4 | 3 << 7 | 16 << 17 | 8 << 24, "f16", "no A type 3"),
        (2 << 4 | 16 << 17 | 8 << 24, "f16", "no D type 2"),
        (1 << 3 | 1 << 4 | 16 << 17 | 8 << 24, "f16", "saturates"),
        (2 << 4 | 1 << 13 | 16 << 17 | 8 << 24, "i8", "negate"),
    ],
)
def test_illegal_instruction_descriptors_are_refused(bits: int, kind: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_instruction(bits, MMA_KINDS[kind])


@pytest.mark.parametrize(("kind", "n_blocks", "n"), [("f16", 1, 8), ("i8", 1, 24), ("f16", 2, 16)])
def test_n_counts_in_the_steps_of_its_kind(kind: str, n_blocks: int, n: int) -> None:
    """PTX ISA table 39: steps of 8 for a block also where M is 128, of 16 for a pair."""
    known = MMA_KINDS[kind]
    types = {"f16": ("f16", "f16", "f32"), "i8": ("s8", "s8", "s32")}[kind]
    fields = InstructionDescriptor(128, n, *types)
    assert decode_instruction(fields.encode(known), known, n_blocks) == fields
    narrow = InstructionDescriptor(128, 48, "s8", "s8", "s32").encode(MMA_KINDS["i8"])
    with pytest.raises(FormatError, match="must be a multiple of 32"):
        decode_instruction(narrow, MMA_KINDS["i8"], 2)


@pytest.mark.parametrize(
    ("flip", "message"), [(1 << 46, "46-48"), (1 << 52, "sm_103"), (1 << 61, "code 3")]
)
def test_malformed_tcgen05_descriptors_are_refused(flip: int, message: str) -> None:
    codes = d.encode_tcgen05_descriptor(d.MatrixDescriptor(0, 16, 1024, Swizzle.B128))
    with pytest.raises(FormatError, match=message):
        d.decode_tcgen05_descriptor(codes ^ flip)
