"""tcgen05 of pairs of blocks, `.cta_group::2`: allocation, products and commits, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from astdsl.emulator.formats.descriptors import encode_tcgen05_descriptor
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.swizzle import Swizzle
from tests.emulator.asm import faulting, fill, kernel, wait
from tests.emulator.test_wgmma import descriptor_of, place, random_tile

Array = np.ndarray[Any, Any]
IMAGE_BYTES = 32768
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
# Each block copies its image to shared memory; the pair allocates; %r19 is the rank.
BEGIN = f"""
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  setp.lt.u32 %p7, %r0, 32;
  mov.u32 %r1, smem;
  add.u32 %r2, %r1, {IMAGE_BYTES};
  mov.u32 %r19, %cluster_ctarank;
  setp.eq.and.u32 %p2, %r19, 0, %p0;
  mov.u32 %r18, %ctaid.x;
  ld.param.u64 %d0, [a0];
  mul.wide.u32 %d2, %r18, {IMAGE_BYTES};
  add.u64 %d0, %d0, %d2;
  ld.param.u64 %d1, [a1];
  shl.b32 %r3, %r0, 4;
{fill(IMAGE_BYTES)}
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p7 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2 + 8], 64;
  @%p7 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
  fence.proxy.async.shared::cta;
  fence.mbarrier_init.release.cluster;
  {SYNC}
  ld.shared.u32 %r10, [%r2 + 8];
  and.b32 %r11, %r0, 96;
  shl.b32 %r11, %r11, 16;
  add.u32 %r12, %r10, %r11;
"""
PRODUCT = """
  mov.u32 %r13, {bits}; setp.ne.u32 %p5, 0, 0; mov.b16 %h1, 3;
  mov.b64 %d10, {a}; mov.b64 %d11, {b};
  @%p2 tcgen05.mma.cta_group::2.kind::{kind} [%r10], %d10, %d11, %r13, %p5;
  @%p2 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
    [%r2], %h1;
"""
END = f"""
  {SYNC}
  @%p7 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r10, 64;
"""


def load(n: int) -> str:
    """Return code that loads n columns of the warp's lanes and stores them to the output."""
    names = [f"%r{200 + i}" for i in range(n)]
    lines = [
        f"tcgen05.ld.sync.aligned.32x32b.x{n}.b32 {{{', '.join(names)}}}, [%r12];",
        "tcgen05.wait::ld.sync.aligned;",
        "mad.lo.u32 %r4, %r18, 128, %r0;",
        f"mul.wide.u32 %d5, %r4, {4 * n}; add.u64 %d5, %d1, %d5;",
    ]
    return "\n".join(
        [*lines, *(f"st.global.b32 [%d5 + {4 * i}], {name};" for i, name in enumerate(names))]
    )


def launch(
    body: str, images: Array, n: int, *, end: str = END, begin: str = BEGIN, cluster: int = 2,
    **schedule: Any,
) -> Array:  # fmt: skip
    out = np.zeros((len(images), 128, n), np.uint32)
    text = kernel(
        begin + body + end, ["u64", "u64"], target="sm_100a", shared_bytes=IMAGE_BYTES + 16
    )
    run(text, "k", (len(images),), (128,), [images, out], cluster=(cluster,), **schedule)
    return out


fault = faulting(launch)


def halves(m: int, n: int, kind: str, name: str) -> tuple[Array, Array, str, Array]:
    """Return a pair's images, each with half of A and of B, code of the product, and its result."""
    a, b = random_tile(m, MMA_KINDS[kind].depth, name), random_tile(n, MMA_KINDS[kind].depth, name)
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    for rank in (0, 1):
        bits = []
        for start, tile in ((0, a), (16384, b)):
            half = tile[rank * len(tile) // 2 : (rank + 1) * len(tile) // 2]
            descriptor = descriptor_of(start, half, Swizzle.B32)
            place(images[rank], start, half, descriptor)
            bits.append(encode_tcgen05_descriptor(descriptor))
    fields = InstructionDescriptor(m, n, name, name, "f32").encode(MMA_KINDS[kind])
    code = PRODUCT.format(bits=fields, a=bits[0], b=bits[1], kind=kind)
    return images, a, code, a.astype(np.float32) @ b.astype(np.float32).T


WAIT = wait("%r2", 0) + "tcgen05.fence::after_thread_sync;"
ANY = ["late", "early", 4]


@pytest.mark.parametrize("completion", ANY)
@pytest.mark.parametrize(("kind", "name"), [("f16", "f16"), ("tf32", "tf32"), ("f8f6f4", "e4m3")])
def test_a_pair_multiplies_256_rows_of_which_each_block_holds_half(
    kind: str, name: str, completion: Any
) -> None:
    images, _, code, expected = halves(256, 64, kind, name)
    out = launch(code + WAIT + load(64), images, 64, completion=completion)
    assert np.array_equal(out.view(np.float32).reshape(256, 64), expected)


@pytest.mark.parametrize("completion", ANY)
def test_a_commit_of_no_products_arrives_at_both_blocks(completion: Any) -> None:
    code = "mov.b16 %h1, 3;" + PRODUCT[PRODUCT.index("@%p2 tcgen05.commit") :]
    launch(code + wait("%r2", 0), np.zeros((2, IMAGE_BYTES), np.uint8), 1, completion=completion)


@pytest.mark.parametrize("completion", ANY)
def test_128_rows_lie_in_two_halves_of_the_lanes(completion: Any) -> None:
    images, _, code, expected = halves(128, 64, "f16", "f16")
    out = launch(code + WAIT + load(32), images, 32, completion=completion).view(np.float32)
    for rank in (0, 1):
        rows = expected[64 * rank : 64 * rank + 64]
        assert np.array_equal(out[rank], np.concatenate([rows[:, :32], rows[:, 32:]]))


def test_two_pairs_of_one_cluster_multiply_apart() -> None:
    images, _, code, expected = halves(256, 64, "f16", "f16")
    code = code.replace("mov.b16 %h1, 3;", "and.b32 %r14, %r19, 2; mov.u32 %r15, 3;"
                        "shl.b32 %r15, %r15, %r14; cvt.u16.u32 %h1, %r15;")  # fmt: skip
    even = "and.b32 %r16, %r19, 1; setp.eq.and.u32 %p2, %r16, 0, %p0;"
    four = np.concatenate([images, images])
    out = launch(even + code + WAIT + load(64), four, 64, cluster=4).view(np.float32)
    assert np.array_equal(out.reshape(2, 256, 64), np.stack([expected, expected]))


def test_a_mask_of_a_pair_names_the_lanes_of_both_blocks() -> None:
    images, _, code, expected = halves(256, 64, "f16", "f16")
    mask = "mov.u32 %r40, 0; mov.u32 %r41, 1;"
    registers = "{%r41, %r40, %r40, %r40, %r40, %r40, %r40, %r41}"
    again = code.replace("setp.ne.u32 %p5, 0, 0", "setp.eq.u32 %p5, 0, 0")
    once = code[: code.index("@%p2 tcgen05.commit")]
    again = again.replace("%r13, %p5", f"%r13, {registers}, %p5")
    out = launch(once + mask + again + WAIT + load(64), images, 64).view(np.float32)
    wanted = 2 * expected
    wanted[[0, 128 + 96]] = expected[[0, 128 + 96]]
    assert np.array_equal(out.reshape(256, 64), wanted)


def test_both_blocks_must_wait_for_the_commit() -> None:
    images, _, code, _ = halves(256, 64, "f16", "f16")
    fault("E276", code + load(64), images, 64)


def test_a_block_whose_operands_are_not_fenced_is_reported() -> None:
    images, _, code, _ = halves(256, 64, "f16", "f16")
    begin = BEGIN.replace("fence.proxy.async.shared::cta;", "")
    fault("E252", code + WAIT + load(64), images, 64, begin=begin)


def test_the_other_block_must_be_ready_before_the_product() -> None:
    images, _, code, _ = halves(256, 64, "f16", "f16")
    begin = BEGIN.replace(SYNC, "bar.sync 0;")
    with pytest.raises(Exception, match="E2"):
        launch(code + WAIT + load(64), images, 64, begin=begin, order="max-pc")


def test_a_pair_allocates_only_when_both_blocks_have_come() -> None:
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    begin = BEGIN.replace(
        "@%p7 tcgen05.alloc", "setp.eq.and.u32 %p7, %r19, 0, %p7;@%p7 tcgen05.alloc"
    )
    said = fault("E210", "", images, 64, begin=begin)
    assert "the other block of its pair" in said


def test_a_pair_needs_a_cluster() -> None:
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    fault("E278", "", images, 64, cluster=1)


def test_tensor_memory_of_a_pair_is_freed_by_both() -> None:
    images = np.zeros((2, IMAGE_BYTES), np.uint8)
    fault("E272", "", images, 64, end=SYNC)
