"""Tests of warpgroup products, by kernels of one warpgroup, against NumPy."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.formats.descriptors import MatrixDescriptor, encode_wgmma_descriptor
from astdsl.emulator.formats.fragments import wgmma_a_fragment, wgmma_d_fragment
from astdsl.emulator.formats.swizzle import Swizzle, swizzle
from astdsl.emulator.mbarriers import LIMIT
from tests.emulator.asm import faulting, fill, kernel

COMPLETIONS = ["late", "early", 3]
RNG = np.random.default_rng(0)
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DTYPES = {
    "f16": np.float16, "bf16": BF16, "tf32": np.float32, "e4m3": E4M3, "e5m2": E5M2,
    "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
BEGIN = """
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, smem;
  ld.param.u64 %d0, [a0];
  ld.param.u64 %d1, [a1];
  shl.b32 %r2, %r0, 4;
  mov.u32 %r3, %r2;
{fill}
  fence.proxy.async.shared::cta;
  bar.sync 0;
"""


def registers(n: int, first: int = 200) -> list[str]:
    return [f"%r{first + i}" for i in range(n)]


def store_registers(names: Sequence[str]) -> str:
    """Return code that stores each thread's registers in a row of the output."""
    lines = [f"mul.lo.u32 %r4, %r0, {4 * len(names)};", "cvt.u64.u32 %d5, %r4;",
             "add.u64 %d5, %d1, %d5;"]  # fmt: skip
    lines += [f"st.global.b32 [%d5 + {4 * i}], {name};" for i, name in enumerate(names)]
    return "\n".join(lines)


def launch(
    body: str,
    image: NDArray[Any],
    n_registers: int,
    completion: Completion = "late",
    *,
    extra: Sequence[Any] = (),
    threads: int = 128,
    grid: int = 1,
    **options: Any,
) -> NDArray[Any]:
    """Fill shared memory with an image, run, and return each thread's registers, by block."""
    shared_bytes = -(-len(image) // 2048) * 2048
    padded = np.zeros(shared_bytes, np.uint8)
    padded[: len(image)] = image
    out = np.zeros((grid * threads, n_registers), np.uint32)
    code = BEGIN.format(fill=fill(shared_bytes)) + body + store_registers(registers(n_registers))
    ptx = kernel(code, ["u64", "u64", *["u64"] * len(extra)], shared_bytes=shared_bytes)
    args = [padded, out, *extra]
    run(ptx, "k", (grid,), (threads,), args, completion=completion, **options)
    return out


def place(
    image: NDArray[Any],
    start: int,
    tile: NDArray[Any],
    descriptor: MatrixDescriptor,
    mn_major: bool = False,
) -> None:
    """Write a tile into shared memory by the formulas of PTX ISA 9.7.15.5.1, byte by byte."""
    raw = np.ascontiguousarray(tile.T if mn_major else tile)
    size = raw.itemsize
    outer, inner = np.arange(raw.shape[0])[:, None], np.arange(raw.shape[1])[None, :] * size
    span = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}.get(descriptor.swizzle)
    lead, stride = descriptor.leading_bytes, descriptor.stride_bytes
    if span is None:
        group, core = (lead, stride) if mn_major else (stride, lead)
        offset = outer // 8 * group + outer % 8 * 16 + inner // 16 * core + inner % 16
    else:
        beyond = inner // span * lead if mn_major else 0
        offset = outer // 8 * stride + outer % 8 * span + beyond + inner % span
    at = swizzle((start + offset).astype(np.int64), descriptor.swizzle)
    for byte in range(size):
        image[at + byte] = raw.view(np.uint8).reshape(*raw.shape, size)[:, :, byte]


def descriptor_of(
    start: int, tile: NDArray[Any], mode: Swizzle, mn_major: bool = False
) -> MatrixDescriptor:
    """Return a descriptor for a tile stored densely in the canonical layout."""
    rows, depth = tile.shape
    size = tile.itemsize
    span = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}.get(mode)
    if span is None:
        if mn_major:
            return MatrixDescriptor(start, rows * size * 8, 128, mode)
        return MatrixDescriptor(start, rows * 16, 128, mode)
    if mn_major:
        return MatrixDescriptor(start, depth * span, 8 * span, mode)
    return MatrixDescriptor(start, 16, 8 * span, mode)


def random_tile(rows: int, depth: int, name: str) -> NDArray[Any]:
    dtype = DTYPES[name]
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, (rows, depth), dtype, endpoint=True)
    return RNG.integers(-8, 9, (rows, depth)).astype(np.float32).astype(dtype)


def product_code(shape: str, d: Sequence[str], a: str, b: str, tail: str) -> str:
    return f"""
  wgmma.fence.sync.aligned;
  setp.ne.u32 %p5, 0, 0;
  wgmma.mma_async.sync.aligned.{shape} {{{", ".join(d)}}}, {a}, {b}, %p5{tail};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""


def result(out: NDArray[Any], n: int, d_type: str = "f32") -> NDArray[Any]:
    """Return the 64 x n tile that the threads' registers hold."""
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
    fragment = wgmma_d_fragment(n, 2 if d_type == "f16" else 1)
    values = out.view(dtype).reshape(128, -1, fragment.row.shape[2]).transpose(1, 0, 2)
    tile = np.zeros((64, n), dtype)
    tile[fragment.row, fragment.column] = values
    return tile


SWIZZLES = [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128]


@pytest.mark.parametrize("mode", SWIZZLES)
@pytest.mark.parametrize("transposes", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_operands_are_read_in_every_layout(mode: Swizzle, transposes: tuple[int, int]) -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(64, 16, "f16")
    image = np.zeros(32768, np.uint8)
    descriptors = []
    for start, tile, transposed in ((0, a, transposes[0]), (16384, b, transposes[1])):
        descriptor = descriptor_of(start, tile, mode, bool(transposed))
        place(image, start, tile, descriptor, bool(transposed))
        descriptors.append(encode_wgmma_descriptor(descriptor))
    tail = f", 1, 1, {transposes[0]}, {transposes[1]}"
    code = "mov.b64 %d10, {}; mov.b64 %d11, {};".format(*descriptors)
    code += product_code("m64n64k16.f32.f16.f16", registers(32), "%d10", "%d11", tail)
    tile = result(launch(code, image, 32), 64)
    assert np.array_equal(tile, a.astype(np.float32) @ b.astype(np.float32).T)


KINDS = [
    ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"),
    ("e4m3", "e5m2", "f32"), ("e5m2", "e4m3", "f16"), ("s8", "u8", "s32"), ("u8", "u8", "s32"),
]  # fmt: skip


def both_operands(
    a: NDArray[Any], b: NDArray[Any], mode: Swizzle = Swizzle.B32
) -> tuple[NDArray[Any], str]:
    """Return shared memory with two K-major tiles and code that makes their descriptors."""
    image = np.zeros(32768, np.uint8)
    bits = []
    for start, tile in ((0, a), (16384, b)):
        descriptor = descriptor_of(start, tile, mode)
        place(image, start, tile, descriptor)
        bits.append(encode_wgmma_descriptor(descriptor))
    return image, "mov.b64 %d10, {}; mov.b64 %d11, {};".format(*bits)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(("a_type", "b_type", "d_type"), KINDS)
def test_every_type_is_multiplied_exactly(
    a_type: str, b_type: str, d_type: str, completion: Completion
) -> None:
    k = 32 // np.dtype(DTYPES[a_type]).itemsize
    a, b = random_tile(64, k, a_type), random_tile(24, k, b_type)
    image, code = both_operands(a, b)
    tail = "" if d_type == "s32" else ", 1, 1"
    tail += ", 0, 0" if a_type in ("f16", "bf16") else ""
    n_registers = 6 if d_type == "f16" else 12
    shape = f"m64n24k{k}.{d_type}.{a_type}.{b_type}"
    code += product_code(shape, registers(n_registers), "%d10", "%d11", tail)
    tile = result(launch(code, image, n_registers, completion), 24, d_type)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.array_equal(tile, expected.astype(tile.dtype))


@pytest.mark.parametrize("name", ["f16", "tf32", "e4m3", "s8"])
def test_a_may_lie_in_registers(name: str) -> None:
    k = 32 // np.dtype(DTYPES[name]).itemsize
    a, b = random_tile(64, k, name), random_tile(8, k, name)
    fragment = wgmma_a_fragment(8 * np.dtype(DTYPES[name]).itemsize)
    a_registers = np.ascontiguousarray(a[fragment.row, fragment.column].transpose(1, 0, 2))
    image, code = both_operands(a, b)
    code += "ld.param.u64 %d2, [a2]; mul.wide.u32 %d6, %r0, 16; add.u64 %d2, %d2, %d6;"
    code += "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%d2];"
    tail = "" if name == "s8" else ", 1, 1" + (", 0" if name == "f16" else "")
    d_type = "s32" if name == "s8" else "f32"
    shape = f"m64n8k{k}.{d_type}.{name}.{name}"
    code += product_code(shape, registers(4), "{%r20, %r21, %r22, %r23}", "%d11", tail)
    tile = result(launch(code, image, 4, extra=[a_registers]), 8, d_type)
    assert np.array_equal(tile, a.astype(np.float64) @ b.astype(np.float64).T)


def chain(between: str = "", scale: str = "1, -1", keep_first: int = 0, tail_wait: int = 0) -> str:
    """Return two chained products on one accumulator of m64n8k16."""
    d = ", ".join(registers(4))
    return f"""
  mov.u32 %r200, 0x40000000; mov.u32 %r201, 0x40000000;
  mov.u32 %r202, 0x40000000; mov.u32 %r203, 0x40000000;
  setp.ne.u32 %p5, 0, {keep_first};
  setp.eq.u32 %p6, 0, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{d}}}, %d10, %d11, %p5, 1, 1, 0, 0;
  {between}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{d}}}, %d10, %d11, %p6, {scale}, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned {tail_wait};
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("scale", ["1, 1", "1, -1"])
def test_products_add_up_with_their_signs(completion: Completion, keep: int, scale: str) -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    tile = result(launch(code + chain(scale=scale, keep_first=keep), image, 4, completion), 8)
    once = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(tile, 2 * keep + once + (once if scale == "1, 1" else -once))


def test_two_warpgroups_have_accumulators_of_their_own() -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    code += "setp.lt.u32 %p3, %r0, 128; @%p3 bra SECOND;"
    code += product_code("m64n8k16.f32.f16.f16", registers(4), "%d10", "%d11", ", 1, 1, 0, 0")
    code += "bra JOIN; SECOND:"
    code += product_code("m64n8k16.f32.f16.f16", registers(4), "%d10", "%d11", ", -1, 1, 0, 0")
    out = launch(code + "JOIN:", image, 4, threads=256)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(result(out[:128], 8), -expected)
    assert np.array_equal(result(out[128:], 8), expected)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_blocks_on_different_paths_have_accumulators_of_their_own(completion: Completion) -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    code += """mov.u32 %r30, %ctaid.x; and.b32 %r31, %r30, 1; setp.eq.u32 %p3, %r31, 1;
  mul.wide.u32 %d7, %r30, 2048; add.u64 %d1, %d1, %d7;
  @%p3 bra ODD;"""
    code += product_code("m64n8k16.f32.f16.f16", registers(4), "%d10", "%d11", ", 1, 1, 0, 0")
    code += "bra JOIN; ODD:"
    code += product_code("m64n8k16.f32.f16.f16", registers(4), "%d10", "%d11", ", -1, 1, 0, 0")
    # One output for each of the five blocks, 128 threads of 4 registers.
    out = launch(code + "JOIN:", image, 4, completion, grid=5)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    for block in range(5):
        tile = result(out[128 * block : 128 * (block + 1)], 8)
        assert np.array_equal(tile, -expected if block % 2 else expected)


def test_warps_that_come_one_by_one_wait_for_each_other() -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    code += """shr.u32 %r30, %r0, 5; mov.u32 %r31, 0;
SPIN: setp.ge.u32 %p4, %r31, %r30; @%p4 bra THERE; add.u32 %r31, %r31, 1; bra SPIN;
THERE:"""
    code += product_code("m64n8k16.f32.f16.f16", registers(4), "%d10", "%d11", ", 1, 1, 0, 0")
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(result(launch(code, image, 4), 8), expected)


fault = faulting(partial(launch, n_registers=4))


def tiles() -> tuple[NDArray[Any], str]:
    return both_operands(random_tile(64, 16, "f16"), random_tile(8, 16, "f16"))


def test_a_missing_fence_is_a_fault() -> None:
    image, code = tiles()
    fault("E261", code + chain().replace("wgmma.fence.sync.aligned;", ""), image)


def test_a_fence_before_the_last_register_access_is_a_fault() -> None:
    image, code = tiles()
    body = chain().replace("wgmma.fence.sync.aligned;", "", 1)
    fault("E261", code + "wgmma.fence.sync.aligned;" + body, image)


IN_A_LOOP = """
  mov.u32 %r50, 0; setp.ne.u32 %p5, {keeps}, 0; {before}
LOOP:
  {at_head}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%r200, %r201, %r202, %r203}}, %d10, %d11,
    %p5, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  add.u32 %r50, %r50, 1; setp.lt.u32 %p6, %r50, {rounds};
  @%p6 {touch} @%p6 bra LOOP;
"""
FENCE, TOUCH = "wgmma.fence.sync.aligned;", "mov.u32 %r201, 0;"


def in_a_loop(before: str, at_head: str, touch: str, rounds: int, keeps: int = 0) -> str:
    return IN_A_LOOP.format(before=before, at_head=at_head, touch=touch, rounds=rounds, keeps=keeps)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    ("before", "at_head", "touch", "rounds"),
    [("", FENCE, TOUCH, 3), (FENCE, "", TOUCH, 1), (FENCE, "", "mov.u32 %r60, 0;", 3)],
)
def test_a_fence_is_needed_after_what_has_been_executed(
    before: str, at_head: str, touch: str, rounds: int, completion: Completion
) -> None:
    image, code = tiles()
    body = in_a_loop(before, at_head, touch, rounds)
    launch(code + body, image, 4, completion)


def test_a_fence_missing_on_the_way_round_a_loop_is_a_fault() -> None:
    image, code = tiles()
    head = "mov.u32 %r200, 0; mov.u32 %r201, 0; mov.u32 %r202, 0; mov.u32 %r203, 0;"
    text = fault("E261", code + head + in_a_loop(FENCE, "", TOUCH, 2, keeps=1), image)
    assert re.search(r"registers \(warp 0 of block \(0, 0, 0\), PTX line \d+\)", text)


@pytest.mark.parametrize("touch", [TOUCH, "mov.b32 %r201, %r200;"])
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_move_to_an_accumulator_that_is_not_read_needs_no_fence(
    completion: Completion, touch: str
) -> None:
    image, code = tiles()
    launch(code + in_a_loop(FENCE, "", touch, 3), image, 4, completion)


def test_a_run_that_is_not_strict_wants_no_fence_after_a_move_to_an_accumulator() -> None:
    image, code = tiles()
    head = "mov.u32 %r200, 0; mov.u32 %r201, 0; mov.u32 %r202, 0; mov.u32 %r203, 0;"
    launch(code + head + in_a_loop(FENCE, "", TOUCH, 2, keeps=1), image, 4, strict=False)


def test_a_read_of_an_accumulator_needs_a_fence_though_the_product_does_not_read_it() -> None:
    image, code = tiles()
    fault("E261", code + in_a_loop(FENCE, "", "add.u32 %r60, %r201, 0;", 3), image)


def test_touching_a_register_in_flight_is_a_fault() -> None:
    image, code = tiles()
    text = fault("E260", code + chain(between="mov.u32 %r40, %r201;"), image)
    assert "wgmma.wait_group" in text


def test_reading_the_accumulator_before_the_wait_is_a_fault() -> None:
    image, code = tiles()
    fault("E260", code + chain(tail_wait=1), image)


def test_an_accumulator_of_another_shape_is_a_fault() -> None:
    image, code = tiles()
    other = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r200, %r201, %r202, %r203, "
    other += "%r204, %r205, %r206, %r207}, %d10, %d11, 0, 1, 1, 0, 0;"
    fault("E263", code + chain(between=other), image)


def test_a_missing_proxy_fence_is_a_fault() -> None:
    image, code = tiles()
    text = fault("E252", code + "st.shared.u32 [%r1 + 32], 5; bar.sync 0;" + chain(), image)
    assert "fence.proxy.async" in text


def test_overwriting_an_operand_in_flight_is_a_fault() -> None:
    image, code = tiles()
    fault("E250", code + chain(between="st.shared.u32 [%r1 + 32], %r0;"), image)


def test_reading_operands_that_nothing_has_written_is_a_fault() -> None:
    image, code = tiles()
    beyond = encode_wgmma_descriptor(MatrixDescriptor(0x9000, 16, 256, Swizzle.B32))
    with pytest.raises(DeviceFault, match="past the 32768 bytes"):
        launch(f"{code} mov.b64 %d10, {beyond};" + chain(), image, 4)
    assert beyond > LIMIT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n8k16", "m64n12k16"), ("f32.f16.f16", "f32.f16.bf16"), ("mma_async", "mma_async.sp"),
        ("%p6, 1, -1", "%p6, 1, 2"), ("k16", "k8"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_before_the_run(old: str, new: str) -> None:
    image, code = tiles()
    fault("E201", code + chain().replace(old, new), image)
