"""Loads that LLVM joined over gaps: a pragma names the bytes whose values matter."""

import numpy as np
import pytest

from astdsl.emulator.device import run
from astdsl.emulator.faults import DeviceFault

LOAD = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.b64 %rd1, [x];
    ld.param.b64 %rd2, [y];
    PRAGMA
    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
    st.global.b32 [%rd2], %r1;
    st.global.b32 [%rd2+4], %r3;
    ret;
}
"""
TWO_OF_THREE = '.pragma "used_bytes_mask 0xf0f";'


def test_a_load_may_pass_the_end_by_bytes_that_do_not_matter() -> None:
    x, y = np.arange(1, 4, dtype=np.int32), np.zeros(2, np.int32)
    run(LOAD.replace("PRAGMA", TWO_OF_THREE), "k", (1,), (1,), (x, y))
    assert y.tolist() == [1, 3]


def test_without_the_pragma_every_byte_matters() -> None:
    x, y = np.arange(1, 4, dtype=np.int32), np.zeros(2, np.int32)
    with pytest.raises(DeviceFault, match="E220"):
        run(LOAD.replace("PRAGMA", ""), "k", (1,), (1,), (x, y))


def test_the_mask_holds_for_one_load_only() -> None:
    x, y = np.arange(1, 4, dtype=np.int32), np.zeros(2, np.int32)
    twice = f"{TWO_OF_THREE} ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd1];"
    with pytest.raises(DeviceFault, match="E220"):
        run(LOAD.replace("PRAGMA", twice), "k", (1,), (1,), (x, y))
