"""Tests of ordinary accesses of shared memory with and without machine code."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.isa import memory
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Machine
from astdsl.emulator.native import shared
from astdsl.emulator.native.host import host
from astdsl.emulator.native.runs import Budget, NativeCode
from tests.emulator.native.machines import program_of

pytestmark = pytest.mark.skipif(host() is None, reason="this processor has no compiled loops")

_KERNEL = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 at)
{
  .shared .align 16 .b8 buffer[8192];
  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<2>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; ld.param.u32 %r2, [at];
  mad.lo.u32 %r3, %r1, 64, %r0;
  mul.lo.u32 %r4, %r0, WIDTH; mov.u32 %r5, buffer; add.u32 %r6, %r4, %r5;
  mul.lo.u32 %r8, %r3, 3; mul.lo.u32 %r9, %r3, 5; mul.lo.u32 %r10, %r3, 7;
  mov.b64 %d2, {%r8, %r9}; mov.b64 %d3, {%r10, %r3};
  st.shared.STORED [%r6], VALUES;
  bar.sync 0;
  xor.b32 %r7, %r0, 5; mul.lo.u32 %r4, %r7, WIDTH; add.u32 %r6, %r4, %r2; add.u32 %r6, %r6, %r5;
  ld.shared.STORED RESULTS, [%r6];
  ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r3, WIDTH; add.u64 %d0, %d0, %d1;
  st.global.STORED [%d0], RESULTS;
  ret;
}
"""
_SHAPES = {
    "b32": (4, "%r8", "%r11"),
    "v2.b32": (8, "{%r8, %r9}", "{%r11, %r12}"),
    "v4.b32": (16, "{%r8, %r9, %r10, %r3}", "{%r11, %r12, %r13, %r14}"),
    "b64": (8, "%d2", "%d4"),
    "v2.b64": (16, "{%d2, %d3}", "{%d4, %d5}"),
}


def result(shape: str, at: int, note: str = "") -> Any:
    width, values, results = _SHAPES[shape]
    # Another text is another program.
    text = f"// {note}\n" + _KERNEL.replace("STORED", shape).replace("WIDTH", str(width))
    text = text.replace("VALUES", values).replace("RESULTS", results)
    out = np.zeros((6, 64, width), np.uint8)
    run(text, "k", (6,), (64,), [out, at], check=False)
    return out


@pytest.mark.parametrize("shape", _SHAPES)
def test_accesses_move_the_same_bytes(shape: str) -> None:
    with patch.object(shared, "started", lambda: None):
        wanted = result(shape, 0)
    moved = []

    class Noted(shared.SharedMove):
        def execute(self, m: Machine, lanes: Lanes) -> bool:
            moved.append(super().execute(m, lanes))
            return moved[-1]

    with patch.object(memory, "SharedMove", Noted):
        assert (result(shape, 0, "noted") == wanted).all()
    assert moved == [True, True]
    assert wanted.any()


@pytest.mark.parametrize(("at", "code"), [(8192, "E220"), (4, "E221"), (-16, "E220")])
def test_what_goes_wrong_is_reported_as_without_machine_code(at: int, code: str) -> None:
    with pytest.raises(DeviceFault) as found:
        result("v4.b32", at & 0xFFFFFFFF)
    assert found.value.code == code


def test_what_is_unwritten_is_reported_as_without_machine_code() -> None:
    with pytest.raises(DeviceFault) as found:
        result("v4.b32", 1024)
    assert found.value.code == "E230"


def pieces_of(lines: list[str]) -> list[tuple[int, int, bool]]:
    code = NativeCode(program_of(lines).native.instructions, Budget(0, 0, 0, 0))
    found = code.pieces(0, len(lines), 1)
    assert found is not None
    return [(each.start, each.stop, each.run is not None) for each in found]


def test_neighbouring_loads_are_done_together_and_so_are_stores() -> None:
    loads = ["ld.shared.b32 %r0, [%r2];", "ld.shared.b32 %r1, [%r2+4];"]
    stores = ["st.shared.b32 [%r2], %r0;", "st.shared.v2.b32 [%d1+8], {%r1, %r0};"]
    assert pieces_of([*loads, *stores]) == [(0, 2, True), (2, 4, True)]


@pytest.mark.parametrize(
    "alone",
    [
        "@%p0 ld.shared.b32 %r0, [%r2];",
        "ld.volatile.shared.b32 %r0, [%r2];",
        "ld.shared.b32 %r2, [%r2];",
        "ld.shared.u16 %r0, [%r2];",
    ],
)
def test_accesses_that_have_no_form_or_cannot_be_done_twice_are_left_to_their_steps(
    alone: str,
) -> None:
    assert pieces_of([alone, alone]) == [(0, 1, False), (1, 2, False)]


def test_no_load_changes_a_register_that_has_given_an_address_of_its_piece() -> None:
    lines = [f"ld.shared.b32 %r{to}, [%r{at}];" for to, at in ((0, 2), (1, 2), (2, 0), (3, 2))]
    assert pieces_of(lines) == [(0, 2, True), (2, 4, True)]


_LOADS = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
  .shared .align 16 .b8 buffer[256];
  .reg .b32 %r<12>; .reg .b64 %d<3>; .reg .pred %p<2>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r9, 0; mov.u32 %r8, buffer;
  mad.lo.u32 %r1, %r1, 32, %r0; shl.b32 %r2, %r0, 3; add.u32 %r2, %r2, %r8;
  sub.u32 %r3, %r2, 8; mul.lo.u32 %r4, %r1, 3;
  st.shared.b32 [%r2], %r4; st.shared.b32 [%r3+12], %r1; bar.sync 0;
LOOP:
  ld.shared.b32 %r5, [buffer+8]; ld.shared.b32 %r6, [%r3+8]; ld.shared.b32 %r7, [%r2+4];
  add.u32 %r9, %r9, 1; setp.lt.u32 %p0, %r9, 1000; @%p0 bra LOOP;
  ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r1, 16; add.u64 %d0, %d0, %d1;
  st.global.v4.b32 [%d0], {%r5, %r6, %r7, %r9};
  ret;
}
"""


@pytest.mark.parametrize("n_blocks", [1, 5, 16])
def test_a_piece_loads_what_its_steps_load(n_blocks: int) -> None:
    out = np.zeros((n_blocks, 32, 4), np.uint32)
    thread = np.arange(32 * n_blocks, dtype=np.uint32).reshape(n_blocks, 32)
    run(_LOADS, "k", (n_blocks,), (32,), [out], check=False)
    assert (out[..., 0] == 3 * thread[:, 1:2]).all()
    assert (out[..., 1] == 3 * thread).all()
    assert (out[..., 2] == thread).all()
