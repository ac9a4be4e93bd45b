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


@pytest.mark.parametrize("move", ["", "movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r4;"])
def test_a_matrix_of_which_all_lanes_hold_the_same_is_stored(move: str) -> None:
    out = np.zeros((64, 8), np.uint16)
    body = f"""mov.b32 %r4, 0x10001; {move} mov.b32 %r5, %r4; mov.b32 %r6, %r4; mov.b32 %r7, %r4;
      stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {FOUR}; bar.sync 0;
      ld.shared.v4.b32 {FOUR}, [%r2]; st.global.v4.b32 [%d3], {FOUR};"""
    run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (64,), [out, out])
    assert (out == 1).all()


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


def launched(access: str, given: Any) -> Any:
    """Run a matrix load of 32 rows of 16 bytes, or a store of registers [lane, 4]."""
    out = np.zeros((32, 16), np.uint8)
    body = f"ld.global.v4.b32 {FOUR}, [%d2];" + access
    run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (32,), [given, out])
    return out


LOAD = f"st.shared.v4.b32 [%r2], {FOUR}; bar.sync 0; LOAD st.global.v4.b32 [%d3], {FOUR};"
LANES = np.arange(32)


def test_matrices_of_bytes_are_transposed() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (32, 16), np.uint8)
    load = f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {FOUR}, [%r2];"
    out = launched(LOAD.replace("LOAD", load), rows)
    for register in range(4):
        matrix = rows[16 * (register // 2) : 16 * (register // 2) + 16]
        row = LANES // 4 + 8 * (register % 2)
        for i in range(4):
            expected = matrix[4 * (LANES % 4) + i, row]
            assert (out[:, 4 * register + i] == expected).all()


@pytest.mark.parametrize(("form", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
@pytest.mark.parametrize("shape", ["m8n16", "m16n16"])
def test_packed_elements_become_bytes(form: str, bits: int, shape: str) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, (32, 16), np.uint8)
    stream = np.unpackbits(values[..., None], axis=-1, bitorder="little")[..., :bits]
    rows = np.full((32, 16), 255, np.uint8)
    packed = np.packbits(stream.reshape(32, -1), axis=-1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    count = "x4" if shape == "m8n16" else "x2.trans"
    load = f"ldmatrix.sync.aligned.{shape}.{count}.shared.b8x16.{form} {FOUR}, [%r2];"
    out = launched(LOAD.replace("LOAD", load), rows)
    held = values << (2 if bits == 4 else 0)
    for register in range(4):
        for i in range(4):
            column = 4 * (LANES % 4) + i
            if shape == "m8n16":
                expected = held[8 * register + LANES // 4, column]
            else:
                expected = held[16 * (register // 2) + column, LANES // 4 + 8 * (register % 2)]
            assert (out[:, 4 * register + i] == expected).all()


def test_bytes_of_accumulators_are_stored_by_columns() -> None:
    registers = np.random.default_rng(1).integers(0, 256, (32, 16), np.uint8)
    store = f"""stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r2], {FOUR}; bar.sync 0;
      ld.shared.v4.b32 {FOUR}, [%r2]; st.global.v4.b32 [%d3], {FOUR};"""
    out = launched(store, registers)
    for matrix in range(4):
        for i in range(4):
            row, column = LANES // 4 + 8 * (i // 2), 2 * (LANES % 4) + i % 2
            assert (out[8 * matrix + column, row] == registers[:, 4 * matrix + i]).all()


def test_a_matrix_is_transposed_in_registers() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    given = np.zeros((32, 16), np.uint8)
    given[:, :4] = fragments(matrix[None], transposed=False).view(np.uint8).reshape(32, 4)
    move = f"movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r4; st.global.v4.b32 [%d3], {FOUR};"
    out = launched(move, given)
    turned = fragments(matrix[None], transposed=True)
    assert out[:, :4].tobytes() == turned.tobytes()


@pytest.mark.parametrize(
    "form",
    ["m16n16.x1.shared.b8", "m8n16.x1.shared.b8", "m16n16.x4.trans.shared.b8", "m8n8.x1.shared.b8"],
)
def test_forms_that_do_not_exist_are_refused(form: str) -> None:
    body = f"ldmatrix.sync.aligned.{form} {{%r4, %r5}}, [%r2];"
    with pytest.raises(DeviceFault) as caught:
        run(module(START + body, ["u64"] * 2, REGISTERS), "k", (1,), (32,), [0, 0])
    assert caught.value.code == "E201"
