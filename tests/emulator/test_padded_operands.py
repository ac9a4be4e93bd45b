"""Operands of 4 and 6 bits that tensor copies pad on their way, multiplied where they arrive."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import Swizzle, TensorMap, run
from astdsl.emulator.formats.descriptors import MatrixDescriptor, encode_tcgen05_descriptor
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.tensormap import TensorDataType
from tests.emulator.asm import kernel, map_address, wait

Array = NDArray[Any]
M, N, K = 128, 32, 128
B_START, BARRIERS = 16384, 24576
STEP_BYTES = MMA_KINDS["f8f6f4"].depth
MODE = Swizzle.B128


def operand(rows: int, bits: int, kind: TensorDataType) -> tuple[Array, TensorMap]:
    """Return random codes [rows, K], and a map of them packed in global memory."""
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (rows, K)).astype(np.uint8)
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    packed = np.packbits(stream.reshape(rows, -1), axis=-1, bitorder="little")
    room = np.zeros(packed.nbytes + 32, np.uint8)
    memory = room[-room.ctypes.data % 32 :][: packed.nbytes].reshape(packed.shape)
    memory[...] = packed
    shape, strides, at = (K, rows), (packed.shape[1],), int(memory.ctypes.data)
    return codes, TensorMap(kind, at, shape, strides, (K, rows), swizzle=MODE, arrays=(memory,))


def products() -> str:
    """Return code of one product over all of K: A at the start of shared memory, B behind it."""
    first = encode_tcgen05_descriptor(MatrixDescriptor(0, 16, 1024, MODE))
    bits = InstructionDescriptor(M, N, "e2m1", "e3m2", "f32").encode(MMA_KINDS["f8f6f4"])
    lines = [f"mov.b64 %d10, {first}; add.u64 %d11, %d10, {B_START >> 4}; mov.u32 %r13, {bits};"]
    for step in range(K // STEP_BYTES):
        more = step * STEP_BYTES >> 4
        lines.append(
            f"add.u64 %d12, %d10, {more}; add.u64 %d13, %d11, {more}; setp.ne.u32 %p5, 0, {step};"
            "@%p0 tcgen05.mma.cta_group::1.kind::f8f6f4 [%r10], %d12, %d13, %r13, %p5;"
        )
    return "\n".join(lines)


def body(counted_bytes: int) -> str:
    names = [f"%r{200 + i}" for i in range(N)]
    stores = "".join(f"st.global.b32 [%d7 + {4 * i}], {name};" for i, name in enumerate(names))
    copy = "@%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    return f"""
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p7, %r0, 32; mov.u32 %r20, 0;
  mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIERS}; add.u32 %r4, %r2, 8; add.u32 %r3, %r1, {B_START};
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 mbarrier.init.shared::cta.b64 [%r4], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  @%p7 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2 + 16], 32;
  tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
  ld.shared.u32 %r10, [%r2 + 16]; {map_address("%d5", 1)} {map_address("%d6", 2)}
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {counted_bytes};
  {copy} [%r1], [%d5, {{%r20, %r20}}], [%r2];
  {copy} [%r3], [%d6, {{%r20, %r20}}], [%r2];
  {wait("%r2", 0)} {products()}
  @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];
  {wait("%r4", 0, "b")} tcgen05.fence::after_thread_sync;
  and.b32 %r11, %r0, 96; shl.b32 %r11, %r11, 16; add.u32 %r12, %r10, %r11;
  tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {{{", ".join(names)}}}, [%r12];
  tcgen05.wait::ld.sync.aligned;
  ld.param.u64 %d1, [a0]; mul.wide.u32 %d7, %r0, {4 * N}; add.u64 %d7, %d1, %d7; {stores}
  tcgen05.fence::before_thread_sync; bar.sync 0;
  @%p7 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
"""


@pytest.mark.parametrize("completion", ["late", "early", 3])
def test_padded_operands_are_multiplied_where_tensor_copies_put_them(completion: Any) -> None:
    """The copies count the bytes of global memory, and write twice as many, or a third more."""
    a, a_map = operand(M, 4, TensorDataType.U4_ALIGN16B)
    b, b_map = operand(N, 6, TensorDataType.U6_ALIGN16B)
    out = np.zeros((M, N), np.float32)
    ptx = kernel(
        body(a_map.box_bytes + b_map.box_bytes), ["u64", "map", "map"], target="sm_100a",
        shared_bytes=BARRIERS + 32,
    )  # fmt: skip
    run(ptx, "k", (1,), (128,), [out, a_map, b_map], completion=completion, strict=True)
    wide_a = a.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    wide_b = b.view(ml_dtypes.float6_e3m2fn).astype(np.float32)
    assert np.array_equal(out, wide_a @ wide_b.T)
