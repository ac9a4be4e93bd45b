"""Registers that nothing has written: which ones a kernel may read so, and where it is reported."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.program import prepare
from astdsl.emulator.text import parse
from tests.emulator.running import module
from tests.emulator.test_wgmma import both_operands, chain, launch, random_tile, result

REGISTERS = ".reg .b64 %d<8>; .reg .b32 %r<8>; .reg .b16 %h<8>; .reg .pred %p<8>;"
SHARED = ".shared .align 16 .b8 sh[256];"
START = "ld.param.u64 %d0, [p0]; mov.u32 %r7, %tid.x;"


def text(body: str) -> str:
    return str(module(START + body, ["u64"], REGISTERS + SHARED))


def execute(body: str, **keywords: Any) -> None:
    run(text(body), "k", (2,), (64,), [np.zeros(64, np.uint32)], **keywords)


REPORTED = {
    "a store to global memory": "st.global.b32 [%d0], %r0;",
    "an address": "ld.global.b32 %r1, [%d1];",
    "a branch": "@%p0 bra L; mov.b32 %r1, 0; L:",
    "a guard": "@%p0 mov.b32 %r1, 0;",
    "an atomic": "atom.global.add.u32 %r1, [%d0], %r0;",
    "a sum": "add.u32 %r1, %r0, 1; st.global.b32 [%d0], %r1;",
    "a choice of bytes": "prmt.b32 %r1, 5, 6, %r0; st.global.b32 [%d0], %r1;",
    "a shuffle": "shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; st.global.b32 [%d0], %r1;",
    "shared memory": "st.shared.b32 [sh], %r0; bar.sync 0; ld.shared.b32 %r1, [sh];"
    "st.global.b32 [%d0], %r1;",
    "one path only": "setp.lt.u32 %p0, %r7, 32; @%p0 bra L; mov.b32 %r0, 1; L:"
    "st.global.b32 [%d0], %r0;",
    "some lanes only": "setp.lt.u32 %p0, %r7, 40; @%p0 mov.b32 %r0, 1; st.global.b32 [%d0], %r0;",
    "the first turn of a loop": "mov.b32 %r1, 0; L: st.global.b32 [%d0], %r0; mov.b32 %r0, 1;"
    "add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 3; @%p0 bra L;",
}


@pytest.mark.parametrize("use", REPORTED)
def test_an_unwritten_register_is_reported_when_it_reaches(use: str) -> None:
    with pytest.raises(DeviceFault) as caught:
        execute(REPORTED[use])
    assert caught.value.code == "E230"


HARMLESS = {
    "never used": "mov.b32 %r1, %r0;",
    "written in the lanes that use it": "setp.lt.u32 %p0, %r7, 40; @%p0 mov.b32 %r0, 1;"
    "@%p0 st.global.b32 [%d0], %r0;",
    "written on both paths": "setp.lt.u32 %p0, %r7, 40; @%p0 bra L; mov.b32 %r0, 1; bra M; L:"
    "mov.b32 %r0, 1; M: st.global.b32 [%d0], %r0;",
    "written in the first turn": "mov.b32 %r1, 0; L: setp.ne.u32 %p0, %r1, 0; @%p0 bra M;"
    "mov.b32 %r0, 5; M: st.global.b32 [%d0], %r0; add.u32 %r1, %r1, 1;"
    "setp.lt.u32 %p0, %r1, 3; @%p0 bra L;",
    "not selected": "setp.ne.s32 %p0, 0, 0; selp.b32 %r1, %r0, 3, %p0; st.global.b32 [%d0], %r1;",
    "padding of a pair": "mov.b16 %h0, 7; mov.b32 %r1, {%h0, %h1}; mov.b32 {%h2, %h3}, %r1;"
    "st.global.b16 [%d0], %h2;",
    "a byte that is picked and dropped": "mov.b32 %r1, 7; prmt.b32 %r2, %r1, %r3, 0x3340;"
    "prmt.b32 %r2, %r2, %r1, 0x4210; st.global.b32 [%d0], %r2;",
}


@pytest.mark.parametrize("use", HARMLESS)
@pytest.mark.parametrize("order", ["min-pc", "max-pc"])
def test_an_unwritten_register_is_no_fault_when(use: str, order: Any) -> None:
    execute(HARMLESS[use], order=order)


def test_without_checks_registers_count_as_written() -> None:
    execute("st.global.b32 [%d0], %r0;", check=False)


def test_a_kernel_that_writes_before_it_reads_pays_nothing() -> None:
    ptx = text(HARMLESS["written on both paths"])
    assert prepare(parse(ptx), "k").unwritten == ()


@pytest.mark.parametrize("completion", ["late", "early"])
def test_an_accumulator_that_the_first_product_overwrites_need_not_be_written(
    completion: Any,
) -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    unset = chain(scale="1, 1").partition("setp.ne")
    tile = result(launch(code + "".join(unset[1:]), image, 4, completion), 8)
    assert np.array_equal(tile, 2 * (a.astype(np.float32) @ b.astype(np.float32).T))


def test_a_product_that_adds_to_an_unwritten_accumulator_is_reported() -> None:
    a, b = random_tile(64, 16, "f16"), random_tile(8, 16, "f16")
    image, code = both_operands(a, b)
    unset = chain(scale="1, 1", keep_first=1).partition("setp.ne")
    with pytest.raises(DeviceFault, match="an accumulator of wgmma") as caught:
        launch(code + "".join(unset[1:]), image, 4)
    assert caught.value.code == "E230"
