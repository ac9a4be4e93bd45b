"""Operands of 4 and 6 bits of tcgen05: packed in shared memory, in bytes in tensor memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator.formats.descriptors import encode_tcgen05_descriptor
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.swizzle import Swizzle
from tests.emulator.test_tcgen05 import IMAGE_BYTES, fault, finished, launch, load, product
from tests.emulator.test_wgmma import descriptor_of, place

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
TYPES: dict[str, tuple[int, Any]] = {
    "e2m1": (4, ml_dtypes.float4_e2m1fn), "e2m3": (6, ml_dtypes.float6_e2m3fn),
    "e3m2": (6, ml_dtypes.float6_e3m2fn), "e4m3": (8, ml_dtypes.float8_e4m3fn),
}  # fmt: skip
FORMATS = {"e2m1": "b4x16_p64", "e2m3": "b6x16_p32", "e3m2": "b6x16_p32"}
PAIRS = [("e2m1", "e4m3"), ("e4m3", "e2m3"), ("e3m2", "e2m1"), ("e2m3", "e3m2")]
K = MMA_KINDS["f8f6f4"].depth
N = 32


def operand(rows: int, name: str) -> tuple[Array, Array]:
    """Return random codes [rows, K] and the bytes that hold them, [rows, K], padding undefined."""
    bits, _ = TYPES[name]
    # No NaN among the bytes: 0x7f and 0xff.
    codes = RNG.integers(0, min(1 << bits, 0x7F), (rows, K)).astype(np.uint8)
    raw = RNG.integers(0, 256, (rows, K // 16, 16)).astype(np.uint8)
    for place_of in range(16):
        for bit in range(bits):
            at, shift = divmod(place_of * bits + bit, 8)
            one = codes.reshape(rows, -1, 16)[:, :, place_of] >> bit & 1
            raw[:, :, at] = raw[:, :, at] & (0xFF ^ 1 << shift) | one << shift
    return codes, raw.reshape(rows, K)


def values(codes: Array, name: str) -> Array:
    found: Array = codes.view(TYPES[name][1]).astype(np.float32)
    return found


def case(a_type: str, b_type: str, mode: Swizzle = Swizzle.B32) -> tuple[Array, str, int, Array]:
    """Return shared memory, code with both descriptors, the instruction's bits, and the result."""
    a, a_bytes = operand(128, a_type)
    b, b_bytes = operand(N, b_type)
    image, bits = np.zeros(IMAGE_BYTES, np.uint8), []
    for start, tile in ((0, a_bytes), (16384, b_bytes)):
        descriptor = descriptor_of(start, tile, mode)
        place(image, start, tile, descriptor)
        bits.append(encode_tcgen05_descriptor(descriptor))
    fields = InstructionDescriptor(128, N, a_type, b_type, "f32").encode(MMA_KINDS["f8f6f4"])
    code = "mov.b64 %d10, {}; mov.b64 %d11, {};".format(*bits)
    return image, code, fields, values(a, a_type) @ values(b, b_type).T


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
@pytest.mark.parametrize("mode", [Swizzle.NONE, Swizzle.B32])
def test_packed_operands_are_multiplied_exactly(a_type: str, b_type: str, mode: Swizzle) -> None:
    image, code, fields, expected = case(a_type, b_type, mode)
    out = launch(finished(code + product(fields, "f8f6f4")) + load(N), image, N)
    assert np.array_equal(out.view(np.float32), expected)


@pytest.mark.parametrize("a_type", FORMATS)
def test_a_copy_unpacks_elements_into_bytes(a_type: str) -> None:
    codes, packed = operand(128, a_type)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    descriptor = descriptor_of(0, packed, Swizzle.NONE)
    place(image, 0, packed, descriptor)
    bits = encode_tcgen05_descriptor(descriptor)
    code = f"mov.b64 %d10, {bits};"
    code += f"@%p0 tcgen05.cp.cta_group::1.128x256b.b8x16.{FORMATS[a_type]} [%r10], %d10;"
    out = launch(finished(code) + load(8), image, 8)
    shift = 2 if a_type == "e2m1" else 0
    assert np.array_equal(out.view(np.uint8).reshape(128, K), codes << shift)


@pytest.mark.parametrize("a_type", FORMATS)
@pytest.mark.parametrize("completion", ["late", "early", 3])
def test_a_product_takes_unpacked_elements_from_tensor_memory(a_type: str, completion: Any) -> None:
    image, code, fields, expected = case(a_type, "e4m3", Swizzle.NONE)
    code += "add.u32 %r14, %r10, 32;"
    code += f"@%p0 tcgen05.cp.cta_group::1.128x256b.b8x16.{FORMATS[a_type]} [%r14], %d10;"
    code += product(fields, "f8f6f4", a="[%r14]")
    out = launch(finished(code) + load(N), image, N, completion)
    assert np.array_equal(out.view(np.float32), expected)


def test_packed_operands_are_k_major() -> None:
    image, code, fields, _ = case("e2m1", "e4m3")
    text = fault("E281", finished(code + product(fields | 1 << 15, "f8f6f4")), image=image)
    assert "e2m1 are K-major" in text


def test_half_of_a_format_is_refused_before_the_run() -> None:
    copy = "@%p0 tcgen05.cp.cta_group::1.128x256b.b8x16 [%r10], %d10;"
    fault("E201", copy, image=np.zeros(IMAGE_BYTES, np.uint8))


def overwritten(at: int) -> str:
    """Return code that stores 4 bytes of a register that nothing has written."""
    return f"@%p0 st.shared.b32 [%r1 + {at}], %r99; fence.proxy.async.shared::cta; bar.sync 0;"


@pytest.mark.parametrize(("name", "used"), [("e2m1", 8), ("e3m2", 12)])
def test_padding_may_be_undefined(name: str, used: int) -> None:
    image, code, fields, expected = case(name, name, Swizzle.NONE)
    run_on = finished(code + product(fields, "f8f6f4")) + load(N)
    out = launch(overwritten(used) + run_on, image, N)
    assert np.array_equal(out.view(np.float32), expected)
    assert "nothing has written" in fault("E231", overwritten(used - 4) + run_on, image, N)


def test_padding_may_be_undefined_where_a_copy_leaves_it_out() -> None:
    codes, packed = operand(128, "e2m1")
    image = np.zeros(IMAGE_BYTES, np.uint8)
    descriptor = descriptor_of(0, packed, Swizzle.NONE)
    place(image, 0, packed, descriptor)
    code = f"mov.b64 %d10, {encode_tcgen05_descriptor(descriptor)};"
    code += "@%p0 tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r10], %d10;"
    out = launch(overwritten(12) + finished(code) + load(8), image, 8)
    assert np.array_equal(out.view(np.uint8).reshape(128, K), codes << 2)
    fault("E231", overwritten(4) + finished(code) + load(8), image, 8)
