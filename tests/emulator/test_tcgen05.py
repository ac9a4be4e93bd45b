"""Tests of tensor memory and its products, by kernels of one warpgroup, against NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.formats.descriptors import MatrixDescriptor, encode_tcgen05_descriptor
from astdsl.emulator.formats.fragments import accumulator_lanes, tmem_access
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.swizzle import Swizzle, swizzle
from tests.emulator.asm import faulting, fill, kernel, wait
from tests.emulator.test_wgmma import descriptor_of, place, random_tile

COMPLETIONS = ["late", "early", 5]
BF16 = ml_dtypes.bfloat16
IMAGE_BYTES = 32768
# Copies an image to shared memory, makes the barrier behind it and allocates 64 columns.
BEGIN = f"""
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  setp.lt.u32 %p7, %r0, 32;
  mov.u32 %r1, smem;
  add.u32 %r2, %r1, {IMAGE_BYTES};
  ld.param.u64 %d0, [a0];
  ld.param.u64 %d1, [a1];
  shl.b32 %r3, %r0, 4;
{fill(IMAGE_BYTES)}
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p7 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2 + 8], 64;
  @%p7 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  ld.shared.u32 %r10, [%r2 + 8];
  and.b32 %r11, %r0, 96;
  shl.b32 %r11, %r11, 16;
  add.u32 %r12, %r10, %r11;
"""
END = """
  bar.sync 0;
  @%p7 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 64;
"""
COMMIT = "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];"
BEFORE = "tcgen05.fence::before_thread_sync;"
AFTER = "tcgen05.fence::after_thread_sync;"


def registers(n: int) -> list[str]:
    return [f"%r{200 + i}" for i in range(n)]


def load(
    n: int,
    shape: str = "32x32b",
    repeat: int | None = None,
    suffix: str = "",
    tail: str = "",
    waited: bool = True,
) -> str:
    """Return code that loads n registers from the warp's lanes and stores them to the output."""
    names = registers(n)
    opcode = f"tcgen05.ld.sync.aligned.{shape}.x{repeat or n}{suffix}.b32"
    lines = [
        f"{opcode} {{{', '.join(names)}}}, [%r12]{tail};",
        "tcgen05.wait::ld.sync.aligned;" if waited else "",
        f"mul.lo.u32 %r4, %r0, {4 * n}; cvt.u64.u32 %d5, %r4; add.u64 %d5, %d1, %d5;",
    ]
    lines += [f"st.global.b32 [%d5 + {4 * i}], {name};" for i, name in enumerate(names)]
    return "\n".join(lines)


def launch(
    body: str,
    image: NDArray[Any] | None = None,
    n: int = 32,
    completion: Completion = "late",
    *,
    end: str = END,
    grid: int = 1,
    strict: bool | None = None,
    check: bool = True,
) -> NDArray[Any]:
    data = np.zeros(IMAGE_BYTES, np.uint8) if image is None else image
    out = np.zeros((grid * 128, n), np.uint32)
    ptx = kernel(
        BEGIN + body + end, ["u64", "u64"], target="sm_100a", shared_bytes=IMAGE_BYTES + 16
    )
    run(ptx, "k", (grid,), (128,), [data, out], completion=completion, strict=strict, check=check)
    return out


fault = faulting(launch)


def product(
    bits: int | str, kind: str, steps: int = 1, keep: int = 0, a: str = "%d10", tail: str = ""
) -> str:
    """Return code in which thread 0 issues products and everyone waits for their commit."""
    lines = [f"mov.u32 %r13, {bits};", f"setp.ne.u32 %p5, 0, {keep};", "setp.eq.u32 %p6, 0, 0;"]
    for step in range(steps):
        guard = "%p5" if step == 0 else "%p6"
        lines.append(
            f"@%p0 tcgen05.mma.cta_group::1.kind::{kind} [%r10], {a}, %d11, %r13, {guard}{tail};"
        )
    return "\n".join(lines)


def finished(code: str) -> str:
    return code + COMMIT + wait("%r2", 0) + AFTER


def operands(
    a: NDArray[Any],
    b: NDArray[Any],
    transposes: tuple[bool, bool] = (False, False),
    mode: Swizzle = Swizzle.B32,
) -> tuple[NDArray[Any], str]:
    image = np.zeros(IMAGE_BYTES, np.uint8)
    bits = []
    for start, tile, transposed in ((0, a, transposes[0]), (16384, b, transposes[1])):
        descriptor = descriptor_of(start, tile, mode, transposed)
        place(image, start, tile, descriptor, transposed)
        bits.append(encode_tcgen05_descriptor(descriptor))
    return image, "mov.b64 %d10, {}; mov.b64 %d11, {};".format(*bits)


KINDS = [
    ("f16", "f16", "f16", "f32"), ("f16", "bf16", "bf16", "f32"), ("f16", "f16", "f16", "f16"),
    ("tf32", "tf32", "tf32", "f32"), ("f8f6f4", "e4m3", "e5m2", "f32"), ("i8", "s8", "u8", "s32"),
]  # fmt: skip


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize(("kind", "a_type", "b_type", "d_type"), KINDS)
def test_every_kind_is_multiplied_exactly(
    kind: str, a_type: str, b_type: str, d_type: str, m: int, completion: Completion
) -> None:
    k = MMA_KINDS[kind].depth
    a, b = random_tile(m, k, a_type), random_tile(32, k, b_type)
    bits = InstructionDescriptor(m, 32, a_type, b_type, d_type).encode(MMA_KINDS[kind])
    image, code = operands(a, b)
    code = finished(code + product(bits, kind))
    if m == 64:
        code += ready_lanes(32)
    out = launch(code + load(32), image, 32, completion)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
    cells = out[accumulator_lanes(m, 0)]
    got = cells.astype(np.uint16).view(np.float16) if d_type == "f16" else cells.view(dtype)
    assert np.array_equal(got, expected.astype(dtype))


def ready_lanes(n: int) -> str:
    """Return code that fills the lanes that M = 64 leaves unwritten, so that loads are defined."""
    zeros = ", ".join(["%r20"] * n)
    return f"""mov.u32 %r20, 0; add.u32 %r21, %r12, 0x100000;
  tcgen05.st.sync.aligned.16x32bx2.x{n}.b32 [%r21], {n}, {{{zeros}}};
  tcgen05.wait::st.sync.aligned;
"""


@pytest.mark.parametrize("transposes", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", [Swizzle.NONE, Swizzle.B32, Swizzle.B128])
def test_operands_may_be_transposed(transposes: tuple[bool, bool], mode: Swizzle) -> None:
    a, b = random_tile(128, 16, "f16"), random_tile(64, 16, "f16")
    fields = InstructionDescriptor(128, 64, "f16", "f16", "f32", *transposes)
    image, code = operands(a, b, transposes, mode)
    code = finished(code + product(fields.encode(MMA_KINDS["f16"]), "f16"))
    out = launch(code + load(64), image, 64).view(np.float32)
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


def test_128_rows_may_have_8_columns() -> None:
    a, b = random_tile(128, 16, "f16"), random_tile(8, 16, "f16")
    fields = InstructionDescriptor(128, 8, "f16", "f16", "f32")
    image, code = operands(a, b)
    code = finished(code + product(fields.encode(MMA_KINDS["f16"]), "f16"))
    out = launch(code + load(8), image, 8).view(np.float32)
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


def test_tf32_may_be_transposed_in_atoms_of_32_bytes() -> None:
    a, b = random_tile(128, 8, "tf32"), random_tile(32, 8, "tf32")
    image = np.zeros(IMAGE_BYTES, np.uint8)
    bits = []
    for start, tile in ((0, a), (16384, b)):
        # 128 bytes of MN by 4 of K make an atom; two atoms along K, then the next 128 bytes of MN.
        descriptor = MatrixDescriptor(start, 1024, 512, Swizzle.B128_ATOM_32B)
        k, inner = np.arange(8)[:, None], np.arange(len(tile))[None, :] * 4
        offset = inner // 128 * 1024 + inner % 128 + k // 4 * 512 + k % 4 * 128
        at = swizzle((start + offset).astype(np.int64), descriptor.swizzle) // 4
        image.view(np.float32)[at] = tile.T
        bits.append(encode_tcgen05_descriptor(descriptor))
    code = "mov.b64 %d10, {}; mov.b64 %d11, {};".format(*bits)
    fields = InstructionDescriptor(128, 32, "tf32", "tf32", "f32", True, True)
    code = finished(code + product(fields.encode(MMA_KINDS["tf32"]), "tf32"))
    out = launch(code + load(32), image, 32).view(np.float32)
    assert np.array_equal(out, a @ b.T)


BITS = InstructionDescriptor(128, 32, "f16", "f16", "f32").encode(MMA_KINDS["f16"])


def tiles() -> tuple[NDArray[Any], str, NDArray[Any]]:
    a, b = random_tile(128, 16, "f16"), random_tile(32, 16, "f16")
    return *operands(a, b), a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_commit_of_no_products_arrives(completion: Completion) -> None:
    launch(COMMIT + wait("%r2", 0), completion=completion)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_products_add_up(completion: Completion) -> None:
    image, code, once = tiles()
    code = finished(code + product(BITS, "f16", steps=3))
    out = launch(code + load(32), image, 32, completion)
    assert np.array_equal(out.view(np.float32), 3 * once)


def test_lanes_that_a_mask_names_are_not_written() -> None:
    image, code, once = tiles()
    masked = product(BITS, "f16", steps=2).rpartition("@%p0 tcgen05.mma")
    lanes = "mov.u32 %r40, 5; mov.u32 %r41, 0; mov.u32 %r42, 0x80000000; mov.u32 %r43, -1;"
    second = masked[2].replace("%r13, %p6", "%r13, {%r40, %r41, %r42, %r43}, %p6")
    text = finished(code + masked[0] + lanes + masked[1] + second)
    expected = 2 * once
    for lane in (0, 2, 95, *range(96, 128)):
        expected[lane] = once[lane]
    assert np.array_equal(launch(text + load(32), image, 32).view(np.float32), expected)
    fault("E201", text.replace(", %r43}", "}"), image)


def test_the_accumulator_may_be_scaled_down_first() -> None:
    image, code, once = tiles()
    code = finished(code + product(BITS, "f16", steps=2, tail=", 1"))
    assert np.array_equal(launch(code + load(32), image, 32).view(np.float32), 1.5 * once)


def test_negated_operands_negate_the_product() -> None:
    image, code, once = tiles()
    fields = InstructionDescriptor(128, 32, "f16", "f16", "f32", negate_a=True)
    code = finished(code + product(fields.encode(MMA_KINDS["f16"]), "f16"))
    assert np.array_equal(launch(code + load(32), image, 32).view(np.float32), -once)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_blocks_with_different_descriptors_have_products_of_their_own(
    completion: Completion,
) -> None:
    image, code, once = tiles()
    negated = InstructionDescriptor(128, 32, "f16", "f16", "f32", negate_a=True)
    code += f"""mov.u32 %r30, %ctaid.x; and.b32 %r31, %r30, 1; setp.eq.u32 %p3, %r31, 1;
  mul.wide.u32 %d7, %r30, {128 * 32 * 4}; add.u64 %d1, %d1, %d7;"""
    body = product("%r32", "f16", steps=2)
    code += f"selp.u32 %r32, {negated.encode(MMA_KINDS['f16'])}, {BITS}, %p3;" + body
    out = launch(finished(code) + load(32), image, 32, completion, grid=5).view(np.float32)
    for block in range(5):
        tile = out[128 * block : 128 * (block + 1)]
        assert np.array_equal(tile, -2 * once if block % 2 else 2 * once)


def store(n: int, value: str = "%r0", waited: str = "tcgen05.wait::st.sync.aligned;") -> str:
    values = ", ".join([value] * n)
    return f"tcgen05.st.sync.aligned.32x32b.x{n}.b32 [%r12], {{{values}}};{waited}"


def test_a_may_lie_in_tensor_memory() -> None:
    b = random_tile(32, 16, "f16")
    image, code = operands(random_tile(128, 16, "f16"), b)
    # Every row of A is 1 throughout: two halves of 1.0 in each cell, in columns 32 to 39.
    code += "mov.u32 %r20, 0x3C003C00; add.u32 %r14, %r10, 32; add.u32 %r12, %r12, 32;"
    code += store(8, "%r20") + BEFORE + "bar.sync 0;" + AFTER + "sub.u32 %r12, %r12, 32;"
    out = launch(finished(code + product(BITS, "f16", a="[%r14]")) + load(32), image, 32)
    sums = np.tile(b.astype(np.float32).sum(axis=1), (128, 1))
    assert np.array_equal(out.view(np.float32), sums)


@pytest.mark.parametrize("missing", [BEFORE, AFTER])
def test_a_missing_fence_around_a_barrier_of_threads_is_a_fault(missing: str) -> None:
    image, code, _ = tiles()
    code += "mov.u32 %r20, 0;" + store(32, "%r20") + BEFORE + "bar.sync 0;" + AFTER
    code += product(BITS, "f16")
    launch(finished(code) + load(32), image)
    first = code.replace(missing, "", 1)
    assert "without tcgen05.fence" in fault("E279", finished(first) + load(32), image)


def test_a_missing_fence_after_a_commit_is_a_fault_where_they_are_looked_for() -> None:
    image, code, _ = tiles()
    code += product(BITS, "f16") + COMMIT + wait("%r2", 0) + load(32)
    launch(code, image)
    launch(code, image, strict=False)
    assert "without tcgen05.fence" in fault("E279", code, image, strict=True)
    fault("E279", BEFORE + code, image)


@pytest.mark.parametrize(
    ("shape", "repeat", "n"),
    [("32x32b", 8, 8), ("16x64b", 8, 8), ("16x128b", 4, 8), ("16x256b", 2, 8), ("16x32bx2", 4, 4)],
)
def test_loads_follow_the_fragment_of_their_shape(shape: str, repeat: int, n: int) -> None:
    fill = "\n".join(f"mad.lo.u32 %r{200 + i}, %r0, 64, {i};" for i in range(16))
    code = f"""{fill}
  tcgen05.st.sync.aligned.32x32b.x16.b32 [%r12], {{{", ".join(registers(16))}}};
  tcgen05.wait::st.sync.aligned;
"""
    tail = ", 4" if shape == "16x32bx2" else ""
    out = launch(code + load(n, shape, repeat, tail=tail), n=n)
    access = tmem_access(shape, repeat, 4)
    cells = np.arange(128)[:, None] * 64 + np.arange(16)[None, :]
    for thread in range(128):
        lane = 32 * (thread // 32) + access.lane[:, thread % 32]
        assert np.array_equal(out[thread], cells[lane, access.column[:, thread % 32]])


def test_packed_accesses_move_sixteen_bits_of_two_columns() -> None:
    code = """mov.u32 %r200, 0x00020001; mov.u32 %r201, 0x00040003;
  tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%r12], {%r200, %r201};
  tcgen05.wait::st.sync.aligned;
"""
    assert launch(code + load(4), n=4)[0].tolist() == [1, 2, 3, 4]
    packed = launch(code + load(2, suffix=".pack::16b"), n=2)
    assert packed[9].tolist() == [0x00020001, 0x00040003]


def test_packed_accesses_of_two_halves_begin_where_their_split_says() -> None:
    zeros = ", ".join(["%r202"] * 8)
    code = f"""mad.lo.u32 %r200, %r0, 0x00040004, 0x00010000; add.u32 %r201, %r200, 0x00020002;
  mov.b32 %r202, 0; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r12], {{{zeros}}};
  tcgen05.wait::st.sync.aligned;
  tcgen05.st.sync.aligned.16x32bx2.x2.unpack::16b.b32 [%r12], 4, {{%r200, %r201}};
  tcgen05.wait::st.sync.aligned;
"""
    rows = launch(code + load(8), n=8)
    lower, upper = rows[:16, :4], rows[:16, 4:]
    assert np.array_equal(lower, np.arange(64).reshape(16, 4))
    assert np.array_equal(upper, np.arange(64, 128).reshape(16, 4))


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_copies_bring_rows_to_every_quarter(completion: Completion) -> None:
    rows = np.arange(32 * 4, dtype=np.uint32).reshape(32, 4)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    image[:512] = rows.view(np.uint8).reshape(-1)
    bits = encode_tcgen05_descriptor(MatrixDescriptor(0, 16, 128, Swizzle.NONE))
    code = f"mov.b64 %d10, {bits}; @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r10], %d10;"
    out = launch(finished(code) + load(4), image, 4, completion)
    assert np.array_equal(out, np.tile(rows, (4, 1)))


# Shape -> rows, bytes of a row, and which row comes to each of the 128 lanes (PTX ISA 9.7.16.9.2).
LANE = np.arange(128)
COPIES = {
    "128x256b": (128, 32, LANE),
    "128x128b": (128, 16, LANE),
    "64x128b.warpx2::02_13": (64, 16, LANE % 64),
    "64x128b.warpx2::01_23": (64, 16, LANE % 32 + LANE // 64 * 32),
    "32x128b.warpx4": (32, 16, LANE % 32),
}


@pytest.mark.parametrize("shape", COPIES)
def test_copies_of_each_shape_bring_rows_to_their_lanes(shape: str) -> None:
    rows, width, source = COPIES[shape]
    tile = np.random.default_rng(4).integers(0, 256, (rows, width)).astype(np.uint8)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    descriptor = descriptor_of(0, tile, Swizzle.NONE)
    place(image, 0, tile, descriptor)
    bits = encode_tcgen05_descriptor(descriptor)
    code = f"mov.b64 %d10, {bits}; @%p0 tcgen05.cp.cta_group::1.{shape} [%r10], %d10;"
    out = launch(finished(code) + load(width // 4), image, width // 4)
    assert np.array_equal(out.view(np.uint8).reshape(128, width), tile[source])


def _copied_rows(lane: int) -> tuple[str, NDArray[Any], NDArray[Any]]:
    """Return a copy of four rows to a lane of each partition, its image, and the rows."""
    rows = np.random.default_rng(4).integers(0, 256, (4, 32)).astype(np.uint8)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    descriptor = descriptor_of(0, rows, Swizzle.NONE)
    place(image, 0, rows, descriptor)
    bits = encode_tcgen05_descriptor(descriptor)
    code = f"mov.b64 %d10, {bits}; add.u32 %r11, %r10, {lane << 16};"
    code += "@%p0 tcgen05.cp.cta_group::1.4x256b [%r11], %d10;"
    return code, image, rows.view(np.uint32)


@pytest.mark.parametrize("lane", [0, 5, 31])
def test_copies_of_four_rows_refresh_one_lane_of_each_partition(lane: int) -> None:
    code, image, rows = _copied_rows(lane)
    filled = "mov.u32 %r20, 7;" + store(8, "%r20") + BEFORE + "bar.sync 0;" + AFTER
    out = launch(filled + finished(code) + load(8), image, 8)
    expected = np.full((128, 8), 7, np.uint32)
    expected[lane::32] = rows
    assert np.array_equal(out, expected)


def test_copies_that_leave_a_partition_are_faults() -> None:
    code, image, _ = _copied_rows(32)
    assert "begin in lane 32" in fault("E281", finished(code), image)
    whole = code.replace("4x256b", "32x128b.warpx4")
    assert "32 lanes of each partition begin in lane 32" in fault("E281", finished(whole), image)


# Faults.


def test_tensor_memory_that_is_not_freed_is_reported() -> None:
    text = fault("E272", "", end="")
    assert "64 columns from 0" in text


def test_tensor_memory_beyond_the_allocation_is_a_fault() -> None:
    text = fault("E270", "add.u32 %r12, %r12, 33;" + load(32))
    assert "columns 33..64" in text


def test_freeing_what_was_not_allocated_is_a_fault() -> None:
    fault("E273", "", end=END.replace("%r10, 64", "%r10, 32"))


def test_a_warp_reaches_only_its_own_lanes() -> None:
    text = fault("E274", "mov.u32 %r12, %r10;" + store(4))
    assert "warp 1 accesses lane 0" in text


def test_allocating_after_giving_up_the_permit_is_a_fault() -> None:
    again = "@%p7 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2 + 12], 32;"
    fault("E271", again)


def allocating(columns: str) -> str:
    """Return code that allocates what a register says: 2 blocks with numbers of their own."""
    return f"""mov.u32 %r60, %ctaid.x; {columns}
  @%p7 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2 + 12], %r61;
  bar.sync 0; ld.shared.u32 %r62, [%r2 + 12]; add.u32 %r63, %r62, %r61; add.u32 %r63, %r63, %r11;
  sub.u32 %r63, %r63, 1; mov.u32 %r64, 7;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r63], {{%r64}}; tcgen05.wait::st.sync.aligned;
  bar.sync 0; @%p7 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r62, %r61;
  mul.wide.u32 %d7, %r60, 4; add.u64 %d7, %d1, %d7; st.global.u32 [%d7], %r62;"""


def unpermitted(code: str) -> str:
    """Return a whole kernel in which the permit is not given up before the code."""
    start = BEGIN.replace("@%p7 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", "")
    return kernel(
        start + code + END, ["u64", "u64"], target="sm_100a", shared_bytes=IMAGE_BYTES + 16
    )


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_number_of_columns_may_be_in_a_register(completion: Completion) -> None:
    ptx = unpermitted(allocating("mov.u32 %r61, 64; shl.b32 %r61, %r61, %r60;"))
    out = np.zeros(2, np.uint32)
    run(ptx, "k", (2,), (128,), [np.zeros(IMAGE_BYTES, np.uint8), out], completion=completion)
    assert out[0] == 64
    assert out[1] >= 64


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("mov.u32 %r61, 48;", "power of two from 32 to 512, not 48"),
        ("mov.u32 %r61, 0;", "power of two from 32 to 512, not 0"),
        ("setp.eq.u32 %p3, %r0, 5; selp.u32 %r61, 64, 32, %p3;", "lanes of a warp give different"),
    ],
)
def test_numbers_of_columns_in_registers_are_checked(columns: str, said: str) -> None:
    arrays = [np.zeros(IMAGE_BYTES, np.uint8), np.zeros(4, np.uint32)]
    with pytest.raises(DeviceFault, match=said) as caught:
        run(unpermitted(allocating(columns)), "k", (2,), (128,), arrays)
    assert caught.value.code == "E271"


@pytest.mark.parametrize("counts", [(256, 512), (512, 512), (512, 256)])
def test_two_warps_that_allocate_the_last_columns_at_once_are_a_fault(
    counts: tuple[int, int],
) -> None:
    own = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r20], %r21;"
    body = f"""
  mov.u32 %r0, %tid.x; mov.u32 %r1, smem; shr.u32 %r19, %r0, 5; setp.eq.u32 %p1, %r19, 0;
  selp.u32 %r21, {counts[0]}, {counts[1]}, %p1; mad.lo.u32 %r20, %r19, 4, %r1;
  {own}
"""
    ptx = kernel(body, [], target="sm_100a", shared_bytes=64)
    with pytest.raises(DeviceFault, match="allocate the last columns at once") as caught:
        run(ptx, "k", (1,), (64,), [])
    assert caught.value.code == "E271"


def test_an_allocation_that_never_fits_is_a_deadlock() -> None:
    body = BEGIN.replace("[%r2 + 8], 64;", "[%r2 + 8], 64;@%p7 tcgen05.alloc.cta_group::1.sync."
                         "aligned.shared::cta.b32 [%r2 + 12], 512;")  # fmt: skip
    ptx = kernel(body + END, ["u64", "u64"], target="sm_100a", shared_bytes=IMAGE_BYTES + 16)
    with pytest.raises(DeviceFault, match="waits for 512 free columns"):
        run(ptx, "k", (1,), (128,), [np.zeros(IMAGE_BYTES, np.uint8), np.zeros(4, np.uint32)])


@pytest.mark.parametrize("check", [True, False])
def test_overwriting_what_a_load_reads_without_the_wait_is_a_fault(check: bool) -> None:
    image, code, _ = tiles()
    code += "mov.u32 %r20, 0;" + store(4, "%r20") + load(4, waited=False) + "bar.sync 0;"
    text = fault("E275", code + product(BITS, "f16"), image=image, end=END + WAIT, check=check)
    assert "tcgen05.wait::ld" in text


def loaded_without_wait() -> str:
    return "mov.u32 %r20, 7;" + store(4, "%r20") + load(4, waited=False)


WAIT = "tcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_use_of_a_register_waits_for_its_load_where_nothing_else_does(
    completion: Completion,
) -> None:
    assert (launch(loaded_without_wait(), None, 4, completion) == 7).all()


def test_a_strict_run_wants_the_wait_though_a_register_has_been_used() -> None:
    text = fault("E276", loaded_without_wait(), None, 4, strict=True)
    assert "tcgen05.wait::ld" in text


def test_a_load_whose_registers_nobody_has_used_is_in_flight() -> None:
    unused, _, used = loaded_without_wait().partition("mul.lo.u32")
    fault("E276", unused, None, 4, end=END + "mul.lo.u32" + used)


def test_the_use_of_a_register_is_no_wait_in_programs_that_have_waits() -> None:
    fault("E276", loaded_without_wait(), None, 4, end=END + WAIT)
    launch(loaded_without_wait(), None, 4, end=END + WAIT, strict=False)


def test_loading_a_product_in_flight_is_a_fault() -> None:
    image, code, _ = tiles()
    text = fault("E276", code + product(BITS, "f16") + load(32), image=image)
    assert "tcgen05.mma m128n32" in text


def test_loading_a_store_without_the_wait_is_a_fault() -> None:
    fault("E276", store(4, waited="") + load(4))


def test_a_product_on_a_store_without_the_wait_is_a_fault() -> None:
    image, code, _ = tiles()
    code += "mov.u32 %r20, 0;" + store(32, "%r20", waited="") + "bar.sync 0;"
    fault("E275", code + product(BITS, "f16", keep=1), image=image)


def test_adding_to_what_nothing_has_written_is_a_fault() -> None:
    image, code, _ = tiles()
    fault("E231", code + product(BITS, "f16", keep=1), image=image)


def test_overwriting_an_operand_of_a_product_in_flight_is_a_fault() -> None:
    image, code, _ = tiles()
    fault("E250", code + product(BITS, "f16") + "st.shared.u32 [%r1], %r0;", image=image)


def test_ending_with_a_product_in_flight_is_a_fault() -> None:
    image, code, _ = tiles()
    fault("E276", code + product(BITS, "f16"), image=image)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind::f16", "kind::mxf8f6f4.block_scale"), ("mma.cta_group::1", "mma.cta_group::3"),
        ("mma.cta", "mma.ws.cta"), ("mma.cta", "mma.sp.cta"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_before_the_run(old: str, new: str) -> None:
    image, code, _ = tiles()
    fault("E201", (code + product(BITS, "f16")).replace(old, new), image=image)
