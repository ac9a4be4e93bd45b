"""Tests of ldmatrix and stmatrix."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .pred %p<8>; .shared .align 16 .b8 sh[1024];"
START = """mov.u32 %r0, %tid.x; mov.u32 %r16, %laneid; ld.param.u64 %d0, [p0];
  ld.param.u64 %d1, [p1]; mov.u32 %r1, sh; shr.u32 %r17, %r0, 5; shl.b32 %r17, %r17, 9;
  add.u32 %r1, %r1, %r17; shl.b32 %r18, %r16, 4; add.u32 %r2, %r1, %r18;
  mad.wide.u32 %d2, %r0, 16, %d0; mad.wide.u32 %d3, %r0, 16, %d1;"""
FOUR = "{%r4, %r5, %r6, %r7}"


def fragments(matrices: Any, *, transposed: bool) -> Any:
    """Return registers [lane, matrix, half] of 8x8 matrices, by the ISA's figure."""
    lane = np.arange(32)
    rows, columns = lane // 4, 2 * (lane % 4)
    parts = matrices.transpose(0, 2, 1) if transposed else matrices
    both = np.stack([parts[:, rows, columns], parts[:, rows, columns + 1]], axis=-1)
    return both.transpose(1, 0, 2)


@pytest.mark.parametrize("transposed", [False, True])
def test_loads_give_each_lane_two_elements_of_a_row(transposed: bool) -> None:
    matrices = np.arange(2 * 4 * 64, dtype=np.uint16).reshape(2, 4, 8, 8)
    out = np.zeros((2, 32, 4, 2), np.uint16)
    trans = ".trans" if transposed else ""
    body = f"""ld.global.v4.b32 {FOUR}, [%d2]; st.shared.v4.b32 [%r2], {FOUR}; bar.sync 0;
      ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {FOUR}, [%r2];
      st.global.v4.b32 [%d3], {FOUR};"""
    run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (64,), [matrices, out])
    expected = [fragments(m, transposed=transposed) for m in matrices]
    assert out.tolist() == np.array(expected).tolist()


@pytest.mark.parametrize("transposed", [False, True])
def test_stores_undo_loads(transposed: bool) -> None:
    matrices = np.arange(2 * 4 * 64, dtype=np.uint16).reshape(2, 4, 8, 8)
    given = np.array([fragments(m, transposed=transposed) for m in matrices])
    out = np.zeros_like(matrices)
    trans = ".trans" if transposed else ""
    body = f"""ld.global.v4.b32 {FOUR}, [%d2];
      stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r2], {FOUR}; bar.sync 0;
      ld.shared.v4.b32 {FOUR}, [%r2]; st.global.v4.b32 [%d3], {FOUR};"""
    run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (64,), [given, out])
    assert out.tolist() == matrices.tolist()


def test_one_matrix_takes_its_addresses_from_the_first_eight_lanes() -> None:
    out = np.zeros((32, 8), np.uint16)
    body = f"""ld.global.v4.b32 {FOUR}, [%d2]; st.shared.v4.b32 [%r2], {FOUR}; bar.sync 0;
      setp.ge.u32 %p0, %r16, 8; @%p0 mov.b32 %r2, 0x10000;
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r4}}, [%r2]; st.global.b32 [%d3], %r4;"""
    values = np.arange(256, dtype=np.uint16)
    run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (32,), [values, out])
    expected = fragments(values[:64].reshape(1, 8, 8), transposed=False)[:, 0]
    assert out[:, :2].tolist() == expected.tolist()


def test_a_matrix_of_unwritten_memory_is_undefined() -> None:
    args = [np.zeros(256, np.uint16), np.zeros(256, np.uint16)]
    body = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r2]; st.global.b32 [%d3], %r4;"
    with pytest.raises(DeviceFault) as error:
        run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (32,), args)
    assert error.value.code == "E230"


def test_part_of_a_warp_cannot_load_a_matrix() -> None:
    args = [np.zeros(256, np.uint16), np.zeros(256, np.uint16)]
    body = """setp.ge.u32 %p0, %r16, 8; @%p0 bra OUT;
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r2]; OUT: bar.sync 0;"""
    with pytest.raises(DeviceFault) as error:
        run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (32,), args)
    assert error.value.code == "E214"
