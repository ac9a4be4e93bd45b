"""Contents that count as unwritten, over one run and over several."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.emulator.arguments import Unwritten
from astdsl.emulator.device import run
from astdsl.emulator.faults import DeviceFault

PTX = """
.version 8.0
.target sm_90a
.address_size 64

.visible .entry fill(.param .u64 y, .param .u32 n)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
DONE:
    ret;
}

.visible .entry double(.param .u64 y)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.s32 %r3, %r2, %r2;
    st.global.u32 [%rd3], %r3;
    ret;
}
"""


def test_what_one_run_wrote_the_next_may_read() -> None:
    y = np.full(32, 7, np.int32)
    unwritten = Unwritten(y)
    run(PTX, "fill", (1,), (32,), [y, 32], uninitialised=[unwritten])
    run(PTX, "double", (1,), (32,), [y], uninitialised=[unwritten])
    np.testing.assert_array_equal(y, 2 * np.arange(32))


def test_what_no_run_wrote_is_found_when_it_is_read() -> None:
    y = np.full(32, 7, np.int32)
    unwritten = Unwritten(y)
    run(PTX, "fill", (1,), (32,), [y, 31], uninitialised=[unwritten])
    with pytest.raises(DeviceFault):
        run(PTX, "double", (1,), (32,), [y], uninitialised=[unwritten])
