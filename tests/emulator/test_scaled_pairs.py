"""Block-scaled products of pairs of blocks, `.cta_group::2`, and A in their tensor memory.

Where the scales lie: PTX ISA 9.7.16.10.7; for M = 128, whose halves of D lie in halves of the
lanes (9.7.16.10.5.2), CuTe `tmem_sf_frg` ("SFB, 2x2 datapath") and CuTe DSL's example
`2cta_mma_blockscale_m128.py`, which runs on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator.formats.descriptors import MatrixDescriptor, encode_tcgen05_descriptor
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.swizzle import Swizzle
from tests.emulator import test_pairs as pairs
from tests.emulator.asm import faulting
from tests.emulator.test_block_scaled import E8M0, KINDS, RNG, operand, scaled
from tests.emulator.test_pairs import ANY, IMAGE_BYTES, PRODUCT, WAIT, load
from tests.emulator.test_wgmma import descriptor_of, place, random_tile

Array = np.ndarray[Any, Any]
A_AT, B_AT, SFA_AT, SFB_AT = 0, 8192, 16384, 20480
N_COLUMNS = 256
BEGIN = pairs.BEGIN.replace("%r2 + 8], 64;", f"%r2 + 8], {N_COLUMNS};")
END = pairs.END.replace("%r10, 64;", f"%r10, {N_COLUMNS};")
FROM_A, FROM_B = "32x128b.warpx4", "64x128b.warpx2::01_23"


def launch(body: str, images: Array, n: int, **keywords: Any) -> Array:
    return pairs.launch(body, images, n, begin=BEGIN, end=END, **keywords)


fault = faulting(launch)


def lanes_image(scales: Array) -> Array:
    """Return 512 bytes a multiple of 128 rows: scale k of row r is byte 4 * (r / 32) + k."""
    image = np.zeros((-(-len(scales) // 128), 32, 4, 4), np.uint8)
    for row, values in enumerate(scales.view(np.uint8)):
        image[row // 128, row % 32, row % 128 // 32, : len(values)] = values
    return image.reshape(-1)


def random_scales(rows: int, kind: str) -> Array:
    """Return scales of few bits, with which float32 sums are exact."""
    _, _, count, dtype = KINDS[kind]
    few = [0.5, 1, 2, 4] if dtype is E8M0 else [0.5, 0.75, 1, 1.5]
    return RNG.choice(np.array(few, np.float32), (rows, count)).astype(dtype)


def case(m: int, n: int, kind: str) -> tuple[Array, str, Array]:
    """Return a pair's images, the code of one product, and its result [m, n]."""
    word, bits, _, _ = KINDS[kind]
    (a, a_bytes), (b, b_bytes) = operand(m, kind), operand(n, kind)
    sfa, sfb = random_scales(m, kind), random_scales(n, kind)
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    for rank in (0, 1):
        descriptors = []
        for start, tile in ((A_AT, a_bytes), (B_AT, b_bytes)):
            half = tile[rank * len(tile) // 2 : (rank + 1) * len(tile) // 2]
            descriptor = descriptor_of(start, half, Swizzle.B32)
            place(images[rank], start, half, descriptor)
            descriptors.append(encode_tcgen05_descriptor(descriptor))
        # A block has the scales of its rows of A, and of all columns of B.
        parts = [sfb] if m == 256 else [sfb[: n // 2], sfb[n // 2 :]]
        own = lanes_image(sfa[rank * m // 2 : (rank + 1) * m // 2])
        others = np.concatenate([lanes_image(part) for part in parts])
        images[rank][SFA_AT : SFA_AT + len(own)] = own
        images[rank][SFB_AT : SFB_AT + len(others)] = others
        descriptors += [
            encode_tcgen05_descriptor(MatrixDescriptor(start, 16, 128, Swizzle.NONE))
            for start in (SFA_AT, SFB_AT)
        ]
    bits |= m >> 7 << 27 | n >> 3 << 17
    # D has at most 128 columns here; the scales of A lie behind it, then those of B.
    code = "mov.b64 %d10, {}; mov.b64 %d11, {}; mov.b64 %d12, {}; mov.b64 %d13, {};".format(
        *descriptors
    )
    code += f"""
  add.u32 %r14, %r10, 128; add.u32 %r15, %r10, 132; mov.u32 %r13, {bits}; mov.b16 %h1, 3;
  @%p2 tcgen05.cp.cta_group::2.{FROM_A} [%r14], %d12;
  @%p2 tcgen05.cp.cta_group::2.{FROM_A if m == 256 else FROM_B} [%r15], %d13;
  @%p2 tcgen05.mma.cta_group::2.kind::{kind}.block_scale.{word}
       [%r10], %d10, %d11, %r13, [%r14], [%r15], 0;
"""
    code += PRODUCT[PRODUCT.index("  @%p2 tcgen05.commit") :]
    return images, code, scaled(a, sfa) @ scaled(b, sfb).T


def by_rows(out: Array, m: int) -> Array:
    """Return D [m, n]: of M = 128 the right half of the columns lies in lanes 64 to 127."""
    values = out.view(np.float32)
    if m == 256:
        return values.reshape(256, -1)
    return np.concatenate([np.hstack([block[:64], block[64:]]) for block in values])


@pytest.mark.parametrize("completion", ANY)
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("m", "n"), [(256, 64), (256, 128), (128, 32), (128, 256)])
def test_a_pair_scales_blocks_of_k(m: int, n: int, kind: str, completion: Any) -> None:
    images, code, expected = case(m, n, kind)
    shown = n if m == 256 else n // 2
    out = launch(code + WAIT + load(shown), images, shown, completion=completion)
    assert np.array_equal(by_rows(out, m), expected)


def test_the_scales_of_each_half_of_the_columns_lie_in_two_partitions() -> None:
    images, code, _ = case(128, 256, "mxf8f6f4")
    other = code.replace(FROM_B, "64x128b.warpx2::02_13")
    assert "both partitions of each half" in fault("E281", other + WAIT, images, 64)


def test_the_scales_of_a_are_the_same_in_all_partitions() -> None:
    images, code, _ = case(128, 256, "mxf8f6f4")
    other = code.replace(FROM_A, FROM_B)
    assert "all four partitions" in fault("E281", other + WAIT, images, 64)


def test_the_scales_of_both_blocks_must_be_there() -> None:
    images, code, _ = case(128, 128, "mxf4")
    alone = code.replace(f"tcgen05.cp.cta_group::2.{FROM_B}", "mov.b32 %r16, %r16; //")
    assert "nothing has written its scale factors" in fault("E231", alone + WAIT, images, 64)


def a_in_tensor_memory(m: int) -> tuple[Array, str, Array]:
    """Return a pair's images, code that stores A and multiplies, and the result."""
    a, b = random_tile(m, 16, "f16"), random_tile(64, 16, "f16")
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    for rank in (0, 1):
        rows = a[rank * m // 2 : (rank + 1) * m // 2]
        held = np.resize(rows, (128, 16)).view(np.uint8)
        images[rank][: held.size] = held.reshape(-1)
        half = b[rank * 32 : rank * 32 + 32]
        descriptor = descriptor_of(B_AT, half, Swizzle.B32)
        place(images[rank], B_AT, half, descriptor)
    names = [f"%r{40 + i}" for i in range(8)]
    bits = InstructionDescriptor(m, 64, "f16", "f16", "f32").encode(MMA_KINDS["f16"])
    code = "shl.b32 %r16, %r0, 5; add.u32 %r16, %r16, %r1;"
    code += "".join(f"ld.shared.u32 {name}, [%r16 + {4 * i}];" for i, name in enumerate(names))
    code += f"""add.u32 %r17, %r12, 128; add.u32 %r14, %r10, 128;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%r17], {{{", ".join(names)}}};
  tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;
  {pairs.SYNC} tcgen05.fence::after_thread_sync;"""
    product = PRODUCT.format(
        bits=bits, a=0, b=encode_tcgen05_descriptor(descriptor), kind="f16"
    ).replace("[%r10], %d10", "[%r10], [%r14]")
    return images, code + product, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("m", [128, 256])
def test_a_of_a_pair_may_lie_in_tensor_memory(m: int) -> None:
    """Of M = 128 its rows lie there twice (CuTe `TmemAllocMode::Duplicated`)."""
    images, code, expected = a_in_tensor_memory(m)
    shown = m // 4
    assert np.array_equal(by_rows(launch(code + WAIT + load(shown), images, shown), m), expected)


def test_64_rows_in_half_of_the_lanes_are_a_fault() -> None:
    images, code, _ = a_in_tensor_memory(128)
    images[1][64 * 32] ^= 1
    assert "not the same in lanes 64 to 127" in fault("E281", code + WAIT, images, 32)
    half = code.replace("  tcgen05.st", "  setp.lt.u32 %p3, %r0, 64;\n@%p3 tcgen05.st")
    assert "nothing has written its operand A" in fault("E231", half + WAIT, images, 32)
