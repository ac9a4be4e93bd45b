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
