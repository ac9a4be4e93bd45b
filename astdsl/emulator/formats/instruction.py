"""The 32-bit instruction descriptor of tcgen05.mma: types, shape, signs and transposes.

Invariant: `decode_instruction` accepts exactly what PTX ISA tables 39 and 42 allow for one CTA
and dense operands; everything else is a `FormatError` that names the field.
Source: PTX ISA 9.7.16.4.2 "Instruction descriptor", CuTe `mma_sm100_desc.hpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from astdsl.emulator.formats.errors import FormatError

__all__ = [
    "MMA_KINDS", "SCALED_KINDS", "InstructionDescriptor", "MmaKind", "ScaleIds",
    "decode_instruction", "decode_scaled_instruction",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MmaKind:
    """List what one `.kind` accepts: operand types by code, accumulators by code, K, N step."""

    name: str
    operands: dict[int, str]
    accumulators: dict[int, str]
    depth: int
    element_bytes: int
    can_transpose: bool


_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
MMA_KINDS = {
    "f16": MmaKind("f16", {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}, 16, 2, True),
    "tf32": MmaKind("tf32", {2: "tf32"}, {1: "f32"}, 8, 4, True),
    "f8f6f4": MmaKind("f8f6f4", _F8F6F4, {0: "f16", 1: "f32"}, 32, 1, True),
    "i8": MmaKind("i8", {0: "u8", 1: "s8"}, {2: "s32"}, 32, 1, True),
}

# Block-scaled kinds: operands of 4 bits are pairs in bytes, so that their depth counts bytes.
SCALED_KINDS = {
    "mxf8f6f4": MmaKind("mxf8f6f4", _F8F6F4, {0: "f32"}, 32, 1, True),
    "mxf4": MmaKind("mxf4", {1: "e2m1x2"}, {0: "f32"}, 32, 1, False),
    "mxf4nvf4": MmaKind("mxf4nvf4", {1: "e2m1x2"}, {0: "f32"}, 32, 1, False),
}


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """Hold the decoded fields; `m` and `n` are the extents of the product."""

    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    transpose_a: bool = False
    transpose_b: bool = False
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    scale_type: str = ""

    def encode(self, kind: MmaKind) -> int:
        """Pack the fields; inverse of `decode_instruction`."""
        flags = (self.negate_a, self.negate_b, self.transpose_a, self.transpose_b)
        bits = self.saturate << 3 | _code(kind.accumulators, self.d_type) << 4
        bits |= _code(kind.operands, self.a_type) << 7 | _code(kind.operands, self.b_type) << 10
        for position, flag in enumerate(flags, start=13):
            bits |= flag << position
        return bits | (self.n >> 3) << 17 | (self.m >> 4) << 24


def _code(table: dict[int, str], name: str) -> int:
    for code, known in table.items():
        if known == name:
            return code
    raise FormatError(f"this kind of tcgen05.mma has no type {name}")


def _named(table: dict[int, str], code: int, what: str, kind: MmaKind) -> str:
    if code not in table:
        raise FormatError(f"instruction descriptor: kind::{kind.name} has no {what} type {code}")
    return table[code]


def decode_instruction(bits: int, kind: MmaKind, n_blocks: int = 1) -> InstructionDescriptor:
    """Decode and check the descriptor of a dense product of one block or of two.

    M is 64 or 128, N 8 to 256 in steps of 8; for two blocks M is 128 or 256, and N 16 to 256 in
    steps of 16. Integers have steps of 16 above N = 32, for two blocks of 32 (PTX ISA table 39).
    """
    if bits & 0b111:
        raise FormatError("instruction descriptor: sparse operands are not supported")
    negate = (bits >> 13 & 1, bits >> 14 & 1)
    transpose = (bits >> 15 & 1, bits >> 16 & 1)
    saturate = bits >> 3 & 1
    if kind.name == "i8" and any(negate):
        raise FormatError("instruction descriptor: kind::i8 cannot negate")
    if kind.name != "i8" and saturate:
        raise FormatError("instruction descriptor: only kind::i8 saturates")
    m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
    _check_extents(m, n, (64 * n_blocks, 128 * n_blocks), kind, n_blocks)
    return InstructionDescriptor(
        m, n,
        _named(kind.operands, bits >> 7 & 7, "A", kind),
        _named(kind.operands, bits >> 10 & 7, "B", kind),
        _named(kind.accumulators, bits >> 4 & 3, "D", kind),
        bool(transpose[0]), bool(transpose[1]), bool(negate[0]), bool(negate[1]), bool(saturate),
    )  # fmt: skip


def _check_extents(m: int, n: int, allowed: tuple[int, ...], kind: MmaKind, n_blocks: int) -> None:
    if m not in allowed:
        which = " or ".join(str(each) for each in allowed)
        blocks = "one block" if n_blocks == 1 else "a pair of blocks"
        raise FormatError(f"instruction descriptor: M is {m}, must be {which} for {blocks}")
    least = 8 * n_blocks
    step = 2 * least if kind.name == "i8" and (n > 32 or n_blocks == 2) else least
    if n % step or not least <= n <= 256:
        raise FormatError(
            f"instruction descriptor: N is {n}, must be a multiple of {step} up to 256"
        )


@dataclass(frozen=True, slots=True)
class ScaleIds:
    """Say in which byte of its cells the first scale of each operand lies."""

    a: int
    b: int


def decode_scaled_instruction(
    bits: int, kind: MmaKind, n_blocks: int = 1
) -> tuple[InstructionDescriptor, ScaleIds]:
    """Decode the descriptor of a block-scaled product (PTX ISA tables 39, 43, 44)."""
    if bits & 0b111:
        raise FormatError("instruction descriptor: sparse operands are not supported")
    if bits >> 31:
        raise FormatError("instruction descriptor: K = 96 exists on sm_103 only")
    if not kind.can_transpose and bits >> 15 & 3:
        raise FormatError(f"instruction descriptor: kind::{kind.name} cannot transpose")
    m, n = (bits >> 27 & 3) << 7, (bits >> 17 & 63) << 3
    _check_extents(m, n, (128,) if n_blocks == 1 else (128, 256), kind, n_blocks)
    b_width = 7 if kind.can_transpose else 3
    descriptor = InstructionDescriptor(
        m, n,
        _named(kind.operands, bits >> 7 & 7, "A", kind),
        _named(kind.operands, bits >> 10 & b_width, "B", kind),
        "f32", bool(bits >> 15 & 1), bool(bits >> 16 & 1), bool(bits >> 13 & 1),
        bool(bits >> 14 & 1), scale_type="ue8m0" if bits >> 23 & 1 else "ue4m3",
    )  # fmt: skip
    return descriptor, ScaleIds(bits >> 29 & 3, bits >> 4 & 3)
