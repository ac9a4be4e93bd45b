"""Tests of TMA and bulk copies, by kernels of one block or a few."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import run
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.formats.swizzle import Swizzle, swizzle
from astdsl.emulator.formats.tensormap import OutOfBounds, TensorDataType, TensorMap
from tests.emulator.asm import faulting, kernel, map_address, wait

COMPLETIONS = ["late", "early", 7]
SHARED_BYTES = 8192 + 16
# Thread 0 makes the barrier at 8192, loads the box, all threads wait and copy shared memory out.
BEGIN = """
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem;
  add.u32 %r2, %r1, 8192;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
COPY_OUT = """
  ld.param.u64 %d1, [a0];
  shl.b32 %r3, %r0, 2;
  cvt.u64.u32 %d2, %r3;
  add.u64 %d1, %d1, %d2;
  add.u32 %r4, %r1, %r3;
  mov.u32 %r5, %r3;
LOOP:
  setp.ge.u32 %p1, %r5, {bytes};
  @%p1 bra DONE;
  ld.shared.u32 %r6, [%r4];
  st.global.u32 [%d1], %r6;
  add.u32 %r4, %r4, 128;
  add.u64 %d1, %d1, 128;
  add.u32 %r5, %r5, 128;
  bra LOOP;
DONE:
"""


def load_kernel(rank: int, box_bytes: int, expected: int | None = None) -> str:
    coordinates = ", ".join(f"%r{20 + i}" for i in range(rank))
    loads = "\n".join(f"ld.param.s32 %r{20 + i}, [a{2 + i}];" for i in range(rank))
    body = f"""{BEGIN}
  {map_address("%d5", 1)}
  {loads}
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {expected or box_bytes};
  @%p0 cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes
       [%r1], [%d5, {{{coordinates}}}], [%r2];
  {wait("%r2", 0)}
  {COPY_OUT.format(bytes=box_bytes)}
"""
    parameters = ["u64", "map", *["s32"] * rank]
    return kernel(body, parameters, shared_bytes=SHARED_BYTES)


def load(
    m: TensorMap, corner: tuple[int, ...], completion: Completion = "late", **change: Any
) -> NDArray[Any]:
    """Return shared memory after one load of a box, as bytes."""
    out = np.zeros(m.shared_bytes, np.uint8)
    ptx = load_kernel(m.rank, m.shared_bytes, **{"expected": m.box_bytes} | change)
    run(ptx, "k", (1,), (32,), [out, m, *corner], completion=completion)
    return out


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    "mode", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B96, Swizzle.B128]
)
def test_a_box_arrives_swizzled(mode: Swizzle, completion: Completion) -> None:
    array = np.arange(64 * 256, dtype=np.uint16).reshape(64, 256)
    span = {Swizzle.NONE: 16, Swizzle.B32: 16, Swizzle.B96: 48}.get(mode, 32)
    m = TensorMap.of(array, (32, span), swizzle=mode)
    out = load(m, (16, 8), completion)
    box = np.ascontiguousarray(array[8:40, 16 : 16 + m.box[0]]).view(np.uint8).reshape(-1)
    assert np.array_equal(out[swizzle(np.arange(len(box)), mode)], box)


@pytest.mark.parametrize("corner", [(-3, 0), (0, -2), (120, 60), (300, 0), (5, 1)])
def test_elements_outside_are_zero(corner: tuple[int, ...]) -> None:
    array = np.arange(1, 64 * 128 + 1, dtype=np.uint16).reshape(64, 128)
    out = load(TensorMap.of(array, (8, 32)), corner).view(np.uint16).reshape(8, 32)
    padded = np.pad(array, 512)
    x, y = corner
    assert np.array_equal(out, padded[512 + y : 520 + y, 512 + x : 544 + x])


@pytest.mark.parametrize("corner", [(0, 0), (34, 5), (200, 60), (-6, -1)])
def test_pairs_of_4_bit_elements_are_copied_as_they_are(corner: tuple[int, int]) -> None:
    """PTX ISA 5.5.1.1, `.b4x16`; dimensions and coordinates count elements."""
    raw = np.random.default_rng(2).integers(0, 256, (64, 128)).astype(np.uint8)
    kind, at = TensorDataType.U4_ALIGN8B, int(raw.ctypes.data)
    m = TensorMap(kind, at, (256, 64), (128,), (64, 8), swizzle=Swizzle.B32, arrays=(raw,))
    out = load(m, corner)[swizzle(np.arange(256), Swizzle.B32)]
    x, y = corner
    padded = np.pad(raw, 64)
    box = padded[64 + y : 72 + y, 64 + x // 2 : 96 + x // 2]
    assert np.array_equal(out.reshape(8, 32), box)


def test_pairs_of_4_bit_elements_are_not_divided() -> None:
    raw = np.zeros((8, 128), np.uint8)
    kind, at = TensorDataType.U4_ALIGN8B, int(raw.ctypes.data)
    m = TensorMap(kind, at, (256, 8), (128,), (64, 8), arrays=(raw,))
    assert "a coordinate of pairs" in fault("E221", lambda: load(m, (3, 0)))


# Type -> bits of an element; sixteen of them take 16 bytes of shared memory.
PADDED = {TensorDataType.U4_ALIGN16B: 4, TensorDataType.U6_ALIGN16B: 6}


def padded_map(kind: TensorDataType, mode: Swizzle) -> tuple[TensorMap, NDArray[Any]]:
    """Return a map of 40 rows of 256 elements in boxes of 8 x 128, and their packed bytes."""
    row_bytes = 256 * PADDED[kind] // 8
    room = np.random.default_rng(3).integers(0, 256, 40 * row_bytes + 32).astype(np.uint8)
    raw = room[-room.ctypes.data % 32 :][: 40 * row_bytes].reshape(40, row_bytes)
    at = int(raw.ctypes.data)
    m = TensorMap(kind, at, (256, 40), (row_bytes,), (128, 8), swizzle=mode, arrays=(raw,))
    return m, raw


def unpacked(raw: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return rows of packed elements as 16 bytes for 16 elements: data, then zeros."""
    groups = raw.reshape(len(raw), -1, 2 * bits)
    return np.pad(groups, ((0, 0), (0, 0), (0, 16 - 2 * bits))).reshape(len(raw), -1)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("corner", [(0, 0), (128, 35), (-128, 0), (128, -3)])
@pytest.mark.parametrize("mode", [Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B])
@pytest.mark.parametrize("kind", PADDED)
def test_padded_elements_count_the_bytes_of_global_memory(
    kind: TensorDataType, mode: Swizzle, corner: tuple[int, int], completion: Completion
) -> None:
    """PTX ISA 5.5.1.1, `.b4x16_p64` and `.b6x16_p32`; the bytes counted are those of CUTLASS."""
    m, raw = padded_map(kind, mode)
    out = load(m, corner, completion)
    x, y = corner
    rows = np.pad(unpacked(raw, PADDED[kind]), ((8, 8), (128, 128)))
    expected = rows[8 + y : 16 + y, 128 + x : 256 + x].reshape(-1)
    assert np.array_equal(out[swizzle(np.arange(1024), mode)], expected)


def test_padded_elements_begin_at_multiples_of_128() -> None:
    m, _ = padded_map(TensorDataType.U4_ALIGN16B, Swizzle.NONE)
    assert "a coordinate of padded" in fault("E221", lambda: load(m, (64, 0)))


def test_elements_outside_may_be_nan() -> None:
    array = np.ones((8, 32), ml_dtypes.bfloat16)
    m = TensorMap.of(array, (8, 32), out_of_bounds=OutOfBounds.NAN)
    out = load(m, (16, 0)).view(ml_dtypes.bfloat16).astype(np.float32).reshape(8, 32)
    assert (out[:, :16] == 1).all()
    assert np.isnan(out[:, 16:]).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_boxes_have_one_to_five_dimensions(rank: int) -> None:
    shape = (3, 2, 4, 3, 16)[5 - rank :]
    array = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    box = (*(min(2, n) for n in shape[:-1]), 8)
    out = load(TensorMap.of(array, box), (4, *[1] * (rank - 1))).view(np.uint32).reshape(box)
    padded = np.pad(array, [(0, 2)] * (rank - 1) + [(0, 8)])
    expected = padded[(*(slice(1, 1 + n) for n in box[:-1]), slice(4, 12))]
    assert np.array_equal(out, expected)


fault = faulting(lambda action: action())


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("more", [16, 512])
def test_too_many_expected_bytes_deadlock_with_both_numbers(
    more: int, completion: Completion
) -> None:
    m = TensorMap.of(np.zeros((64, 64), np.uint16), (8, 32))
    text = fault("E210", lambda: load(m, (0, 0), completion, expected=512 + more))
    assert f"0 of 1 arrivals missing, {512 + more} bytes expected and 512 arrived" in text


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("fewer", [16, 256])
def test_too_few_expected_bytes_are_reported(fewer: int, completion: Completion) -> None:
    m = TensorMap.of(np.zeros((64, 64), np.uint16), (8, 32))
    text = fault("E210", lambda: load(m, (0, 0), completion, expected=512 - fewer))
    assert f"0 of 1 arrivals missing, {512 - fewer} bytes expected and 512 arrived" in text


def test_the_shared_address_must_be_aligned() -> None:
    m = TensorMap.of(np.zeros((64, 64), np.uint16), (8, 32))
    ptx = load_kernel(2, 512).replace("[%r1], [%d5", "[%r1 + 16], [%d5")
    text = fault("E221", lambda: run(ptx, "k", (1,), (32,), [np.zeros(512, np.uint8), m, 0, 0]))
    assert "multiple of 128" in text


def test_a_map_of_another_rank_is_a_fault() -> None:
    m = TensorMap.of(np.zeros((4, 64, 64), np.uint16), (1, 8, 32))
    ptx = load_kernel(2, 512)
    text = fault("E255", lambda: run(ptx, "k", (1,), (32,), [np.zeros(512, np.uint8), m, 0, 0]))
    assert "2d copy uses a tensor map of rank 3" in text


@pytest.mark.parametrize("word", ["im2col", "multicast::cluster", "tile::gather4"])
def test_what_is_not_modelled_is_refused_before_the_run(word: str) -> None:
    ptx = load_kernel(2, 512).replace(".tile.", f".{word}.")
    fault("E201", lambda: run(ptx, "k", (1,), (32,), [np.zeros(512, np.uint8), None, 0, 0]))


# Stores: every thread fills shared memory with its number, thread 0 stores the box.
def store_body(
    instruction: str, fence: str = "fence.proxy.async.shared::cta;", after: str = ""
) -> str:
    return f"""
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem;
  shl.b32 %r3, %r0, 4;
  add.u32 %r4, %r1, %r3;
  st.shared.v4.u32 [%r4], {{%r0, %r0, %r0, %r0}};
  {fence}
  bar.sync 0;
  {map_address("%d5", 0)}
  mov.u32 %r20, 4;
  mov.u32 %r21, 2;
  @%p0 {instruction}
  @%p0 cp.async.bulk.commit_group;
  {after}
"""


STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d5, {%r20, %r21}], [%r1];"
WAIT_ALL = "cp.async.bulk.wait_group 0;"


def store(body: str, target: NDArray[Any], grid: int = 1) -> None:
    ptx = kernel(body, ["map"], shared_bytes=1024)
    run(ptx, "k", (grid,), (32,), [TensorMap.of(target, (8, 16))])


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_store_writes_only_what_is_inside(completion: Completion) -> None:
    target = np.full((8, 16), 77, np.uint32)
    ptx = kernel(store_body(STORE, after=WAIT_ALL), ["map"], shared_bytes=1024)
    run(ptx, "k", (1,), (32,), [TensorMap.of(target, (8, 16))], completion=completion)
    expected = np.full((8, 16), 77, np.uint32)
    box = np.repeat(np.arange(32, dtype=np.uint32), 4).reshape(8, 16)
    expected[2:, 4:] = box[:6, :12]
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("coordinate", [0, 1])
def test_a_store_does_not_begin_before_the_tensor(coordinate: int) -> None:
    target = np.zeros((8, 16), np.uint32)
    old = f"mov.u32 %r{20 + coordinate}, {(4, 2)[coordinate]};"
    body = store_body(STORE, after=WAIT_ALL)
    assert old in body
    body = body.replace(old, f"mov.s32 %r{20 + coordinate}, -1;")
    assert "only loads may begin before 0" in fault("E255", lambda: store(body, target))


def test_a_store_has_no_swizzle_that_flips_8_bytes() -> None:
    target = np.zeros((8, 16), np.uint32)
    m = TensorMap.of(target, (8, 16), swizzle=Swizzle.B128_ATOM_32B_FLIP_8B)
    ptx = kernel(store_body(STORE, after=WAIT_ALL), ["map"], shared_bytes=1024)
    text = fault("E255", lambda: run(ptx, "k", (1,), (32,), [m]))
    assert "only loads have swizzle" in text


@pytest.mark.parametrize(
    ("word", "function"),
    [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("xor", np.bitwise_xor)],
)
def test_reductions_combine_with_global_memory(word: str, function: Any) -> None:
    target = np.arange(128, dtype=np.int32).reshape(8, 16)
    expected = target.copy()
    box = np.repeat(np.arange(32, dtype=np.int32), 4).reshape(8, 16)
    expected[2:, 4:] = function(expected[2:, 4:], box[:6, :12])
    instruction = STORE.replace("cp.async", "cp.reduce.async").replace(
        ".bulk_group", f".{word}.tile.bulk_group"
    )
    store(store_body(instruction, after=WAIT_ALL), target)
    assert np.array_equal(target, expected)


def test_reductions_of_several_blocks_add_up() -> None:
    target = np.zeros((8, 16), np.int32)
    instruction = STORE.replace("cp.async", "cp.reduce.async").replace(
        ".bulk_group", ".add.tile.bulk_group"
    )
    store(store_body(instruction, after=WAIT_ALL), target, grid=3)
    assert target[2, 8] == 3 * 1


# Thread t writes 8 words of 1024 bytes, word i as i times a large odd number.
FACTOR = 2654435761
FILL = "\n".join(
    f"mad.lo.u32 %r5, %r0, 8, {k}; mul.lo.u32 %r5, %r5, {FACTOR};"
    f"st.shared.u32 [%r4 + {4 * k}], %r5;"
    for k in range(8)
)


def padded_store(m: TensorMap, corner: tuple[int, int]) -> str:
    """Return a kernel that stores a box of 8 x 128 bytes."""
    return kernel(
        f"""mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem;
  mad.lo.u32 %r4, %r0, 32, %r1; {FILL}
  fence.proxy.async; bar.sync 0; {map_address("%d5", 0)}
  mov.u32 %r20, {corner[0]}; mov.u32 %r21, {corner[1]};
  @%p0 {STORE} @%p0 cp.async.bulk.commit_group; {WAIT_ALL}
""",
        ["map"],
        shared_bytes=1024,
    )


@pytest.mark.parametrize("mode", [Swizzle.NONE, Swizzle.B128])
def test_elements_of_6_bits_are_packed_by_a_store(mode: Swizzle) -> None:
    """PTX ISA 5.5.1.1, `.b6p2x16`: two bits of each byte stay behind."""
    m, raw = padded_map(TensorDataType.U6_ALIGN16B, mode)
    expected = raw.copy()
    run(padded_store(m, (128, 35)), "k", (1,), (32,), [m])
    words = np.arange(256, dtype=np.uint32) * np.uint32(FACTOR)
    box = words.view(np.uint8)[swizzle(np.arange(1024), mode)].reshape(8, 128, 1)
    bits = np.unpackbits(box, axis=-1, bitorder="little")[..., :6].reshape(8, -1)
    expected[35:, 96:] = np.packbits(bits, axis=-1, bitorder="little")[:5]
    assert np.array_equal(raw, expected)


def test_padded_elements_of_4_bits_are_not_stored() -> None:
    m, _ = padded_map(TensorDataType.U4_ALIGN16B, Swizzle.NONE)
    ptx = padded_store(m, (0, 0))
    text = fault("E255", lambda: run(ptx, "k", (1,), (32,), [m]))
    assert "no store of U4_ALIGN16B" in text


def _floats_with_ties_and_subnormals() -> NDArray[Any]:
    bits = np.random.default_rng(4).integers(0, 1 << 32, (16, 32), dtype=np.uint32)
    bits[0] = np.arange(32, dtype=np.uint32) << np.uint32(12)
    bits[1] = np.uint32(0x3F800000) + (np.arange(32, dtype=np.uint32) << np.uint32(12))
    bits[2, :4] = 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x807FFFFF
    return bits.view(np.float32)


def _tf32(values: NDArray[Any]) -> NDArray[Any]:
    """Round to 10 bits of fraction, ties to even, by exact float64 arithmetic."""
    with np.errstate(over="ignore", invalid="ignore"):
        _, exponent = np.frexp(values.astype(np.float64))
        step = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
        return np.asarray(np.rint(values / step) * step, np.float32)


def _flushed(values: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.abs(values) < 2.0**-126, np.copysign(np.float32(0), values), values)


ROUNDINGS: dict[TensorDataType, Callable[[NDArray[Any]], NDArray[Any]]] = {
    TensorDataType.F32_FTZ: _flushed,
    TensorDataType.TF32: _tf32,
    TensorDataType.TF32_FTZ: lambda values: _tf32(_flushed(values)),
}


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_types_that_round_do_so_on_loads(kind: TensorDataType) -> None:
    array = _floats_with_ties_and_subnormals()
    m = replace(TensorMap.of(array, (16, 32)), dtype=kind)
    out = load(m, (0, 0)).view(np.float32).reshape(16, 32)
    expected = ROUNDINGS[kind](array)
    assert np.array_equal(np.isnan(out), np.isnan(expected))
    here = ~np.isnan(out)
    assert np.array_equal(out.view(np.uint32)[here], expected.view(np.uint32)[here])


def test_types_that_flush_do_so_in_reductions() -> None:
    target = np.full((8, 16), np.float32(1e-40))
    m = replace(TensorMap.of(target, (8, 16)), dtype=TensorDataType.F32_FTZ)
    instruction = STORE.replace("cp.async", "cp.reduce.async").replace(
        ".bulk_group", ".add.tile.bulk_group"
    )
    ptx = kernel(store_body(instruction, after=WAIT_ALL), ["map"], shared_bytes=1024)
    run(ptx, "k", (1,), (32,), [m])
    assert (target[2:, 4:] == 0).all()
    assert (target[:2] == np.float32(1e-40)).all()


def test_a_missing_proxy_fence_names_both_places() -> None:
    target = np.zeros((8, 16), np.uint32)
    text = fault("E252", lambda: store(store_body(STORE, fence="", after=WAIT_ALL), target))
    assert "TMA store" in text
    assert "without fence.proxy.async" in text


def test_overwriting_the_source_of_a_store_is_a_fault() -> None:
    target = np.zeros((8, 16), np.uint32)
    again = "bar.sync 0; st.shared.u32 [%r4], %r0;"
    text = fault("E250", lambda: store(store_body(STORE, after=again + WAIT_ALL), target))
    assert "is written while the TMA store" in text


def test_the_source_may_be_overwritten_once_it_is_read() -> None:
    target = np.full((8, 16), 5, np.uint32)
    after = """cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.u32 [%r4], 99; bar.sync 0;
      cp.async.bulk.wait_group 0;"""
    store(store_body(STORE, after=after), target)
    assert target[7, 15] == 22


def test_a_store_into_read_only_memory_is_a_fault() -> None:
    target = np.zeros((8, 16), np.uint32)
    target.flags.writeable = False
    fault("E222", lambda: store(store_body(STORE, after=WAIT_ALL), target))


def test_reading_the_destination_of_a_load_in_flight_is_a_fault() -> None:
    m = TensorMap.of(np.zeros((64, 64), np.uint16), (8, 32))
    ptx = (
        load_kernel(2, 512)
        .replace("@!%p9 bra WAIT_a;", "")
        .replace("mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;", "")
    )
    text = fault("E250", lambda: run(ptx, "k", (1,), (32,), [np.zeros(512, np.uint8), m, 0, 0]))
    assert "is read while the TMA load" in text


BULK = """
  ld.param.u64 %d6, [a1];
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d6], 256, [%r2];
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_bulk_loads_copy_bytes(completion: Completion) -> None:
    source = np.arange(256, dtype=np.uint8)
    out = np.zeros(256, np.uint8)
    body = BEGIN + BULK + wait("%r2", 0) + COPY_OUT.format(bytes=256)
    ptx = kernel(body, ["u64", "u64"], shared_bytes=SHARED_BYTES)
    run(ptx, "k", (1,), (32,), [out, source], completion=completion)
    assert np.array_equal(out, source)


CHANGE = "@%p0 st.global.u32 [%d6 + {}], 7;"


def _changed(body: str) -> NDArray[Any]:
    source, out = np.arange(512, dtype=np.uint8), np.zeros(256, np.uint8)
    body = BEGIN + body + COPY_OUT.format(bytes=256)
    run(kernel(body, ["u64", "u64"], shared_bytes=SHARED_BYTES), "k", (1,), (32,), [out, source])
    return out


def test_the_source_of_a_bulk_load_in_flight_may_not_change() -> None:
    text = fault("E250", lambda: _changed(BULK + CHANGE.format(252) + wait("%r2", 0)))
    assert "is written while the bulk load" in text
    assert "wait for the mbarrier of the copy first" in text


@pytest.mark.parametrize("at", [0, 256])
def test_the_source_of_a_bulk_load_may_change_behind_it_and_afterwards(at: int) -> None:
    early = CHANGE.format(at) if at else ""
    out = _changed(BULK + early + wait("%r2", 0) + CHANGE.format(0))
    assert np.array_equal(out, np.arange(256, dtype=np.uint8))


def test_the_source_of_a_tensor_load_in_flight_may_not_change() -> None:
    source = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    ptx = load_kernel(2, 512)
    inside = ptx.replace("[%r1], [%d5, {%r20, %r21}], [%r2];", "[%r1], [%d5, {%r20, %r21}], [%r2];"
                         "ld.param.u64 %d9, [a0]; @%p0 st.global.u16 [%d9], 3;")  # fmt: skip
    assert inside != ptx
    m = TensorMap.of(source, (8, 32))
    assert "TMA load" in fault("E250", lambda: run(inside, "k", (1,), (32,), [source, m, 0, 0]))
    box = source[8:16, 8:40].copy()
    run(inside, "k", (1,), (32,), [source, m, 8, 8])
    assert np.array_equal(source.reshape(-1)[:256], box.reshape(-1))


@pytest.mark.parametrize("reduces", [False, True])
def test_bulk_stores_copy_or_add(reduces: bool) -> None:
    source = np.arange(64, dtype=np.float32)
    out = np.ones(64, np.float32)
    opcode = "cp.async.bulk.global.shared::cta.bulk_group"
    if reduces:
        opcode = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
    body = f"""{BEGIN}{BULK}{wait("%r2", 0)}
  ld.param.u64 %d7, [a0];
  @%p0 {opcode} [%d7], [%r1], 256;
  @%p0 cp.async.bulk.commit_group;
  @%p0 cp.async.bulk.wait_group 0;
"""
    ptx = kernel(body, ["u64", "u64"], shared_bytes=SHARED_BYTES)
    run(ptx, "k", (1,), (32,), [out, source])
    assert np.array_equal(out, source + reduces)


MASKED = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; ld.param.u64 %d0, [a0];
  add.u32 %r2, %r1, %r0; cvt.u16.u32 %h1, %r0; st.shared.u8 [%r2], %h1;
  fence.proxy.async.shared::cta; bar.sync 0; mov.b16 %h2, 0x8005; mov.b64 %d1, 0;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group{hint}.cp_mask [%d0], [%r1], 64{policy}, %h2;
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(("hint", "policy"), [("", ""), (".L2::cache_hint", ", %d1")])
def test_a_mask_chooses_bytes_of_each_sixteen(
    hint: str, policy: str, completion: Completion
) -> None:
    """PTX ISA 9.7.9.25.4.1: bit i of the mask says whether byte i of each chunk is copied."""
    memory = np.full(96, 255, np.uint8)
    start = -memory.ctypes.data % 16
    out = memory[start : start + 64]
    body = MASKED.format(hint=hint, policy=policy)
    text = kernel(body, ["u64"], target="sm_100a", shared_bytes=64)
    run(text, "k", (1,), (64,), [out], completion=completion)
    kept = np.isin(np.arange(64) % 16, (0, 2, 15))
    assert np.array_equal(out, np.where(kept, np.arange(64), 255))
