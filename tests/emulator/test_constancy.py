"""Memory that a launch reads by `ld.global.nc` and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel

BEGIN = """
  mov.u32 %r0, %tid.x; ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, %r0, 8; add.u64 %d0, %d0, %d1;
"""
LOAD = "ld.global.nc.b32 %r1, [%d0];"
STORE = "st.global.b32 [%d0 + {at}], %r0;"


def launch(body: str, **options: Any) -> None:
    run(kernel(BEGIN + body, ["u64"]), "k", (1,), (32,), [np.zeros(64, np.uint32)], **options)


fault = faulting(launch)


@pytest.mark.parametrize("body", [LOAD + STORE.format(at=0), STORE.format(at=0) + LOAD])
def test_a_launch_that_writes_what_it_loads_as_constant_is_reported(body: str) -> None:
    assert "ld.global.nc" in fault("E223", body)


def test_neighbours_of_constants_may_be_written() -> None:
    launch(LOAD + STORE.format(at=4))
    launch(STORE.format(at=4) + LOAD)


def test_a_vector_that_holds_a_constant_is_reported() -> None:
    fault("E223", LOAD + "mov.u32 %r2, 0; st.global.v2.b32 [%d0], {%r0, %r2};")


def test_an_ordinary_load_may_be_written_over() -> None:
    launch(LOAD.replace(".nc", "") + STORE.format(at=0))
    launch(LOAD + STORE.format(at=0), check=False)
