"""Tensor maps that a kernel changes before it copies by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import TensorMap, run
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fields import replaced
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import TensorDataType
from tests.emulator.asm import faulting, kernel, wait

# Thread 0 copies the map to shared memory and changes it there; the warp publishes it.
BODY = f"""
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem; add.u32 %r2, %r1, 512;
  ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; ld.param.u64 %d2, [a2];
  mov.b64 %d5, a3; cvta.param.u64 %d5, %d5;
  mul.wide.u32 %d6, %r0, 4; cvt.u32.u64 %r4, %d6; add.u64 %d7, %d5, %d6; add.u32 %r5, %r1, %r4;
  ld.b32 %r6, [%d7]; st.shared.b32 [%r5], %r6;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  bar.sync 0;
  @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d1;
  @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 1, {{rows}};
  {{more}}
  bar.sync 0;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
    [%d0], [%r1], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;
  add.u32 %r7, %r1, 128;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r7], [%d0, {{{{0, 0}}}}], [%r2];
  {wait("%r2", 0)}
  add.u32 %r8, %r7, %r4; ld.shared.b32 %r9, [%r8]; add.u64 %d8, %d2, %d6;
  st.global.b32 [%d8], %r9;
""".replace("{{{{", "{{").replace("}}}}", "}}")


def room(tensor_map: TensorMap | None = None) -> np.ndarray[Any, Any]:
    """Return memory for a tensor map, aligned as maps are, that holds one."""
    memory = np.zeros(24, np.uint64)
    start = -memory.__array_interface__["data"][0] % 64 // 8
    if tensor_map is not None:
        memory[start : start + 16] = np.frombuffer(tensor_map.to_bytes(), np.uint64)
    return memory[start : start + 16]


def launch(rows: int = 4, more: str = "") -> np.ndarray[Any, Any]:
    old, new = np.zeros((4, 8), np.uint32), np.arange(32, dtype=np.uint32).reshape(4, 8) + 1
    copy, out = room(), np.zeros((4, 8), np.uint32)
    tensor_map = TensorMap.of(old, (4, 8))
    text = kernel(
        BODY.format(rows=rows, more=more), ["u64", "u64", "u64", "map"], shared_bytes=1024
    )
    run(text, "k", (1,), (32,), [copy, new, out, tensor_map])
    return out


fault = faulting(launch)


def test_a_copy_uses_the_map_as_the_kernel_changed_it() -> None:
    whole = np.arange(32).reshape(4, 8) + 1
    assert (launch() == whole).all()
    shorter = launch(rows=2)
    assert (shorter[:2] == whole[:2]).all()
    assert not shorter[2:].any()


def test_a_map_that_breaks_a_rule_is_found_when_it_is_used() -> None:
    more = "@%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r1], 0, 24;"
    assert "not a multiple of 16" in fault("E255", more=more)


def test_a_field_that_does_not_exist_is_refused() -> None:
    more = "@%p0 tensormap.replace.tile.colour.shared::cta.b1024.b32 [%r1], 0;"
    fault("E201", more=more)


def test_every_field_has_its_codes() -> None:
    raw = TensorMap.of(np.zeros((4, 64), np.float32), (4, 32)).to_bytes()
    for field, value in (("elemtype", 10), ("box_dim", 64), ("swizzle_mode", 3)):
        raw = replaced(raw, field, 0, value)
    found = TensorMap.from_bytes(replaced(raw, "fill_mode", 0, 1))
    assert found.dtype is TensorDataType.BF16
    assert (found.box, found.swizzle, found.out_of_bounds) == ((64, 4), Swizzle.B128, 1)
    narrow = TensorMap.from_bytes(replaced(replaced(raw, "box_dim", 0, 32), "swizzle_mode", 0, 4))
    assert narrow.swizzle is Swizzle.B96
    atoms = TensorMap.from_bytes(replaced(raw, "swizzle_atomicity", 0, 1))
    assert atoms.swizzle is Swizzle.B128_ATOM_32B
    assert TensorMap.from_bytes(replaced(raw, "element_stride", 1, 2)).element_strides == (1, 2)
    wrong = (("elemtype", 0, 16), ("box_dim", 5, 1), ("swizzle_mode", 0, 5))
    for field, ordinal, value in wrong:
        with pytest.raises(FormatError):
            replaced(raw, field, ordinal, value)


def test_a_map_may_be_made_of_zeros_field_by_field() -> None:
    array = np.zeros((4, 64), np.uint16)
    raw = bytes(128)
    with pytest.raises(FormatError):
        TensorMap.from_bytes(raw)
    fields = (
        ("global_address", 0, array.ctypes.data), ("rank", 0, 1), ("elemtype", 0, 1),
        ("global_dim", 0, 64), ("global_dim", 1, 4), ("global_stride", 0, 128),
        ("box_dim", 0, 32), ("box_dim", 1, 4), ("element_stride", 0, 1), ("swizzle_mode", 0, 2),
    )  # fmt: skip
    for field, ordinal, value in fields:
        raw = replaced(raw, field, ordinal, value)
    with pytest.raises(FormatError, match="element stride 0"):
        TensorMap.from_bytes(raw)
    whole = TensorMap.from_bytes(replaced(raw, "element_stride", 1, 1))
    assert whole == TensorMap.of(array, (4, 32), swizzle=Swizzle.B64)


FENCE = "fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;"


def launched(change: str, between: str) -> np.ndarray[Any, Any]:
    """Change a map that lies in global memory where it is, and copy by it."""
    body = f"""
      mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 512;
      ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; ld.param.u64 %d2, [a2];
      @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0;
      {change} {between}
      @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
      @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%d0, {{0, 0}}], [%r2];
      {wait("%r2", 0)}
      shl.b32 %r4, %r0, 2; add.u32 %r8, %r1, %r4; ld.shared.b32 %r9, [%r8];
      mul.wide.u32 %d6, %r0, 4; add.u64 %d8, %d2, %d6; st.global.b32 [%d8], %r9;
    """
    old, new = np.zeros((4, 8), np.uint32), np.arange(32, dtype=np.uint32).reshape(4, 8) + 1
    given, other = room(TensorMap.of(old, (4, 8))), room(TensorMap.of(new, (4, 8)))
    out = np.zeros((4, 8), np.uint32)
    text = kernel(body, ["u64", "u64", "u64", "u64", "u64"], shared_bytes=1024)
    run(text, "k", (1,), (32,), [given, new, out, other, old])
    return out


CHANGE = "@%p0 tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;"
RELEASE = "fence.proxy.tensormap::generic.release.gpu;"
broken = faulting(launched)


# The words of another map, by ordinary stores and by a copy.
BY_STORES = """
  ld.param.u64 %d3, [a3]; setp.lt.u32 %p3, %r0, 16; mul.wide.u32 %d6, %r0, 8; add.u64 %d7, %d3, %d6;
  @%p3 ld.global.b64 %d8, [%d7]; add.u64 %d9, %d0, %d6; @%p3 st.global.b64 [%d9], %d8;
  bar.warp.sync 0xffffffff;
"""
BY_A_COPY = """
  ld.param.u64 %d3, [a3]; setp.lt.u32 %p3, %r0, 16; mul.wide.u32 %d6, %r0, 8; add.u64 %d7, %d3, %d6;
  @%p3 ld.global.b64 %d8, [%d7]; cvt.u32.u64 %r4, %d6; add.u32 %r5, %r1, %r4;
  @%p3 st.shared.b64 [%r5], %d8; fence.proxy.async; bar.warp.sync 0xffffffff;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 128;
  @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff;
"""


@pytest.mark.parametrize("change", [CHANGE, BY_STORES, BY_A_COPY])
def test_a_map_changed_in_place_needs_a_release_and_an_acquire(change: str) -> None:
    assert (launched(change, RELEASE + FENCE) == np.arange(32).reshape(4, 8) + 1).all()
    assert "without a tensormap proxy acquire" in broken("E254", change, RELEASE)
    assert "without a tensormap proxy release" in broken("E254", change, FENCE)
    assert "without a tensormap proxy acquire" in broken("E254", change, FENCE + RELEASE)


def test_a_map_changed_after_the_release_is_reported() -> None:
    text = broken("E254", RELEASE + BY_STORES, FENCE)
    assert "by warp 0 of block (0, 0, 0), PTX line" in text


# The first block changes the map, tells a word of it, and has ended before the last one begins.
LATER = f"""
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 512;
  ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; mov.u32 %r10, %ctaid.x;
  setp.eq.u32 %p1, %r10, 0; setp.eq.u32 %p2, %r10, 299; and.pred %p4, %p0, %p1;
  @%p1 bra FIRST; @!%p2 bra END;
  AGAIN: ld.acquire.gpu.global.u32 %r11, [%d1]; setp.eq.u32 %p3, %r11, 0; @%p3 bra AGAIN;
  {{acquire}}
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d0, {{{{0, 0}}}}], [%r2];
  {wait("%r2", 0)}
  bra END;
  FIRST: {{change}} {{release}} bar.sync 0; @%p0 st.release.gpu.global.u32 [%d1], 1;
  END:
""".replace("{{{{0", "{{0").replace("0}}}}", "0}}")


def test_fences_of_blocks_that_have_ended_show_what_they_changed() -> None:
    def later(release: str, acquire: str) -> None:
        old, new = np.zeros((4, 8), np.uint32), np.ones((4, 8), np.uint32)
        given, other = room(TensorMap.of(old, (4, 8))), room(TensorMap.of(new, (4, 8)))
        body = LATER.format(change=BY_STORES, release=release, acquire=acquire)
        text = kernel(body, ["u64"] * 6, shared_bytes=1024)
        word = np.zeros(1, np.uint32)
        run(text, "k", (300,), (32,), [given, word, old, other, old, new])

    later(RELEASE, FENCE)
    report = faulting(later)
    assert "of block (0, 0, 0)" in report("E254", RELEASE, "")
    assert "proxy release" in report("E254", "", FENCE)


def test_a_map_lies_where_copies_read_it() -> None:
    shared = "cvt.u64.u32 %d0, %r1; cvta.shared.u64 %d0, %d0;"
    assert "lies in shared memory" in broken("E255", shared, "")
    assert "is not a multiple of 64" in broken("E221", "add.u64 %d0, %d0, 16;", "")


def test_a_map_that_nobody_changed_needs_none() -> None:
    assert not launched("", "").any()
