"""Tests of block-scaled products of tensor memory, against NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.formats.descriptors import MatrixDescriptor, encode_tcgen05_descriptor
from astdsl.emulator.formats.swizzle import Swizzle
from tests.emulator.test_tcgen05 import (
    IMAGE_BYTES,
    fault,
    finished,
    launch,
    load,
)
from tests.emulator.test_wgmma import descriptor_of, place

COMPLETIONS = ["late", "early", 5]
E4M3, E2M1, E8M0 = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu,
)  # fmt: skip
RNG = np.random.default_rng(1)
N = 32
SCALES_AT = (8192, 8192 + 512)
# Kind -> word, bits of the descriptor besides N, M and scale ids, scales a step, scale type.
KINDS = {
    "mxf8f6f4": ("block32", 1 << 23, 1, E8M0),
    "mxf4": ("block32", 1 << 7 | 1 << 10 | 1 << 23, 2, E8M0),
    "mxf4nvf4": ("block16", 1 << 7 | 1 << 10, 4, E4M3),
}


def operand(rows: int, kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return random values [rows, k] and the bytes that hold them, [rows, 32]."""
    if kind == "mxf8f6f4":
        values = RNG.integers(-8, 9, (rows, 32)).astype(np.float32).astype(E4M3)
        return values.astype(np.float32), values.view(np.uint8)
    bits = RNG.integers(0, 16, (rows, 64)).astype(np.uint8)
    values = bits.view(E2M1).astype(np.float32)
    return values, bits[:, 0::2] | bits[:, 1::2] << 4


def scale_image(scales: NDArray[Any], first: int) -> NDArray[Any]:
    """Return 512 bytes: byte (row % 32) * 16 + (row / 32) * 4 + k is scale k of a row."""
    image = np.zeros((32, 4, 4), np.uint8)
    for row, values in enumerate(scales.view(np.uint8)):
        image[row % 32, row // 32, first : first + len(values)] = values[: 4 - first]
    return image.reshape(-1)


def scaled(values: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    return values * np.repeat(scales.astype(np.float32), values.shape[1] // scales.shape[1], axis=1)


def case(kind: str, first: int = 0) -> tuple[NDArray[Any], str, NDArray[Any]]:
    """Return shared memory, the code of one product, and its result."""
    word, bits, count, dtype = KINDS[kind]
    a, a_bytes = operand(128, kind)
    b, b_bytes = operand(N, kind)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    descriptors = []
    for start, tile in ((0, a_bytes), (16384, b_bytes)):
        descriptor = descriptor_of(start, tile, Swizzle.B32)
        place(image, start, tile, descriptor)
        descriptors.append(encode_tcgen05_descriptor(descriptor))
    scales = []
    for start, rows in zip(SCALES_AT, (128, N), strict=True):
        raw = RNG.integers(120, 134, (rows, count)) if dtype is E8M0 else None
        values = RNG.uniform(0.5, 2, (rows, count)).astype(E4M3)
        scales.append(values if raw is None else raw.astype(np.uint8).view(E8M0))
        image[start : start + 512] = scale_image(scales[-1], first)
        where = MatrixDescriptor(start, 16, 128, Swizzle.NONE)
        descriptors.append(encode_tcgen05_descriptor(where))
    bits |= 1 << 27 | N >> 3 << 17 | first << 29 | first << 4
    code = "mov.b64 %d10, {}; mov.b64 %d11, {}; mov.b64 %d12, {}; mov.b64 %d13, {};".format(
        *descriptors
    )
    code += f"""
  add.u32 %r14, %r10, {N}; add.u32 %r15, %r10, {N + 4}; mov.u32 %r13, {bits};
  @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r14], %d12;
  @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r15], %d13;
  @%p0 tcgen05.mma.cta_group::1.kind::{kind}.block_scale.{word}
       [%r10], %d10, %d11, %r13, [%r14], [%r15], 0;
"""
    return image, code, scaled(a, scales[0]) @ scaled(b, scales[1]).T


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_blocks_of_k_are_scaled(kind: str, completion: Completion) -> None:
    image, code, expected = case(kind)
    out = launch(finished(code) + load(N), image, N, completion).view(np.float32)
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-3)


def test_the_descriptor_says_which_byte_of_a_cell_to_use() -> None:
    image, code, expected = case("mxf8f6f4", first=3)
    out = launch(finished(code) + load(N), image, N).view(np.float32)
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-3)


def test_scales_that_nothing_has_written_are_a_fault() -> None:
    image, code, _ = case("mxf8f6f4")
    lines = [line for line in code.splitlines() if "tcgen05.cp" not in line]
    assert "scale factors" in fault("E231", "\n".join(lines), image=image)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_scales_must_be_the_same_in_all_partitions(completion: Completion) -> None:
    """PTX ISA 9.7.16.10.7: they "need to be duplicated to all 32 lane partitions"."""
    image, code, _ = case("mxf8f6f4")
    half = code.replace("32x128b.warpx4 [%r14]", "64x128b.warpx2::02_13 [%r14]")
    assert "not the same in all four" in fault("E281", finished(half), image, N, completion)
    once = "mov.u32 %r16, 0x7f7f7f7f; setp.lt.u32 %p3, %r0, 32;"
    once += "@%p3 tcgen05.st.sync.aligned.32x32b.x4.b32 [%r14], {%r16, %r16, %r16, %r16};"
    once += "@%p3 tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0;"
    once += "tcgen05.fence::after_thread_sync;"
    at = code.index("@%p0 tcgen05.cp")
    rest = code[at:].partition("\n")[2]
    assert "scale factors" in fault("E231", finished(code[:at] + once + rest), image, N, completion)


def test_scales_beyond_their_cell_are_a_fault() -> None:
    image, code, _ = case("mxf4nvf4", first=1)
    assert "from byte 1 of a cell on" in fault("E281", code, image=image)


@pytest.mark.parametrize(
    ("old", "new"),
    [(", [%r14], [%r15], 0", ", 0"), (".block16", ""), ("block16", "block64")],
)
def test_malformed_products_are_refused_before_the_run(old: str, new: str) -> None:
    image, code, _ = case("mxf4nvf4")
    fault("E201", code.replace(old, new), image=image)
