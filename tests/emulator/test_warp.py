"""Tests of the collectives of a warp, converged and diverged."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import bits_of, module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .f32 %f<4>; .reg .pred %p<8>;"
STORE = "ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r9;"
LOAD = """mov.u32 %r0, %tid.x; mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ntid.x;
  mad.lo.u32 %r0, %r20, %r21, %r0; ld.param.u64 %d2, [p1]; mad.wide.u32 %d3, %r0, 4, %d2;
  ld.global.b32 %r1, [%d3]; mov.u32 %r2, %laneid;"""


def results(body: str, values: Any = None, *, grid: Any = 1) -> Any:
    """Return %r9 of every thread; %r1 holds its value, %r2 its lane."""
    values = np.arange(64 * grid, dtype=np.uint32) if values is None else values
    out = np.zeros(len(values), np.uint32)
    text = module(LOAD + body + STORE, ["u64", "u64"], REGISTERS)
    run(text, "k", (grid,), (len(values) // grid,), [out, values])
    return out


def shuffled(values: Any, mode: str, b: Any, c: Any) -> Any:
    """PTX ISA 9.7.9.6, word for word, for one warp."""
    out = []
    for lane in range(32):
        bval, cval, mask = b & 31, c & 31, c >> 8 & 31
        maximum = (lane & mask) | (cval & ~mask)
        minimum = lane & mask
        if mode == "up":
            j, ok = lane - bval, lane - bval >= maximum
        elif mode == "down":
            j, ok = lane + bval, lane + bval <= maximum
        elif mode == "bfly":
            j, ok = lane ^ bval, lane ^ bval <= maximum
        else:
            j = minimum | (bval & ~mask)
            ok = j <= maximum
        out.append((values[j if ok else lane], ok))
    return out


SHUFFLES = [
    ("up", 3, 0), ("down", 5, 31), ("bfly", 16, 31), ("idx", 7, 31),
    ("up", 2, 0x1800), ("down", 2, 0x181F), ("bfly", 3, 0x1C1F), ("idx", 2, 0x181F),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "b", "c"), SHUFFLES)
@pytest.mark.parametrize("constant", [True, False])
def test_shuffles(mode: str, b: Any, c: Any, constant: bool) -> None:
    values = bits_of(128, "u4")
    operands = f"{b}, {c}" if constant else "%r3, %r4"
    code = f"mov.b32 %r3, {b}; mov.b32 %r4, {c}; shfl.sync.{mode}.b32 %r9|%p0, %r1, {operands}, -1;"
    expected = [v for w in range(4) for v in shuffled(values[32 * w : 32 * w + 32], mode, b, c)]
    assert results(code, values, grid=2).tolist() == [value for value, _ in expected]
    valid = results(code + "selp.u32 %r9, 1, 0, %p0;", values, grid=2)
    assert valid.tolist() == [int(ok) for _, ok in expected]


def test_lanes_that_come_apart_wait_for_each_other_at_a_shuffle() -> None:
    body = """setp.lt.u32 %p0, %r2, 10; @%p0 bra LONG; bra MEET;
      LONG: mov.b32 %r3, 0; L: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra L;
      MEET: shfl.sync.idx.b32 %r9, %r1, 5, 31, -1;"""
    assert results(body).tolist() == [5] * 32 + [37] * 32


def test_a_shuffle_among_some_lanes_leaves_the_others_alone() -> None:
    body = """mov.b32 %r9, 9; setp.lt.u32 %p0, %r2, 4;
      @%p0 shfl.sync.bfly.b32 %r9, %r1, 1, 31, 15;"""
    assert results(body).tolist() == [1, 0, 3, 2, *[9] * 28, 33, 32, 35, 34, *[9] * 28]


def test_a_lane_that_never_comes_is_a_deadlock() -> None:
    with pytest.raises(DeviceFault) as error:
        results("""setp.lt.u32 %p0, %r2, 16; @%p0 bra A; bar.sync 0;
          A: shfl.sync.idx.b32 %r9, %r1, 0, 31, -1;""")
    assert error.value.code == "E210"
    assert "0xffffffff" in error.value.message


def test_ended_lanes_are_not_waited_for() -> None:
    body = """setp.lt.u32 %p0, %r2, 16; @%p0 bra A; exit; A: vote.sync.all.pred %p1, %p0, -1;
      selp.u32 %r9, 1, 0, %p1;"""
    assert results(body).tolist() == ([1] * 16 + [0] * 16) * 2


@pytest.mark.parametrize(
    ("mode", "bound", "expected"),
    [("any", 1, [1, 0]), ("all", 32, [1, 0]), ("uni", 32, [1, 1]), ("uni", 5, [0, 1])],
)
def test_votes(mode: str, bound: Any, expected: Any) -> None:
    body = f"""setp.lt.u32 %p0, %r1, {bound}; vote.sync.{mode}.pred %p1, %p0, -1;
      selp.u32 %r9, 1, 0, %p1;"""
    assert results(body).tolist() == [expected[0]] * 32 + [expected[1]] * 32


def test_a_ballot_has_a_bit_for_each_lane() -> None:
    body = "and.b32 %r3, %r1, 3; setp.eq.u32 %p0, %r3, 0; vote.sync.ballot.b32 %r9, %p0, -1;"
    assert results(body).tolist() == [0x11111111] * 64


HALVES = "and.b32 %r3, %r2, 16; shl.b32 %r4, 0xffff, %r3; setp.lt.u32 %p1, %r2, 20;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("vote.sync.ballot.b32 %r9, %p1, %r4;", [0xFFFF, 0xF0000]),
        ("vote.sync.all.pred %p2, %p1, %r4; selp.b32 %r9, 1, 0, %p2;", [1, 0]),
        ("redux.sync.add.u32 %r9, %r2, %r4;", [sum(range(16)), sum(range(16, 32))]),
        ("redux.sync.min.u32 %r9, %r2, %r4;", [0, 16]),
        ("match.any.sync.b32 %r9, 7, %r4;", [0xFFFF, 0xFFFF0000]),
        ("match.all.sync.b32 %r9, %r3, %r4;", [0xFFFF, 0xFFFF0000]),
        ("elect.sync %r9|%p2, %r4;", [0, 16]),
        ("shfl.sync.idx.b32 %r9, %r2, 3, 0x101f, %r4;", [3, 19]),
    ],
)
def test_lanes_of_two_masks_take_part_in_two_operations(body: str, expected: Any) -> None:
    assert results(HALVES + body)[:32].tolist() == np.repeat(expected, 16).tolist()


def test_the_lanes_of_one_mask_do_not_wait_for_those_of_another() -> None:
    apart = "@%p3 bra LATE; redux.sync.add.u32 %r9, 1, %r4; bra END;"
    late = "LATE: redux.sync.add.u32 %r9, 2, %r4; END:"
    body = f"{HALVES} setp.eq.u32 %p3, %r3, 0; {apart} {late}"
    assert results(body)[:32].tolist() == np.repeat([32, 16], 16).tolist()


def test_what_a_lane_of_another_mask_would_give_is_undefined() -> None:
    with pytest.raises(DeviceFault) as error:
        results(HALVES + "shfl.sync.bfly.b32 %r9, %r2, 16, 31, %r4;")
    assert error.value.code == "E230"


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r4, 0xfffffffe;",
        "setp.eq.u32 %p1, %r2, 5; selp.b32 %r4, 0xff, 0xffffffff, %p1;",
    ],
)
@pytest.mark.parametrize(
    "collective",
    ["bar.warp.sync %r4;", "vote.sync.any.pred %p2, %p2, %r4;", "elect.sync _|%p2, %r4;"],
)
def test_lanes_that_do_not_agree_on_their_mask_are_reported(body: str, collective: str) -> None:
    with pytest.raises(DeviceFault, match="mask 0x") as error:
        results("setp.eq.u32 %p2, 0, 1;" + body + collective)
    assert error.value.code == "E214"


def test_match_any_gives_the_lanes_with_the_same_value() -> None:
    body = "rem.u32 %r3, %r2, 4; match.any.sync.b32 %r9, %r3, -1;"
    assert results(body).tolist() == [0x11111111 << t % 4 for t in range(64)]


def test_match_all_says_whether_every_value_is_the_same() -> None:
    body = "shr.u32 %r3, %r1, 4; match.all.sync.b32 %r9|%p0, %r3, -1;"
    assert results(body).tolist() == [0] * 64
    body = "shr.u32 %r3, %r1, 5; match.all.sync.b32 %r9|%p0, %r3, -1;"
    assert results(body).tolist() == [0xFFFFFFFF] * 64


REDUCTIONS = {"add.u32": np.add, "min.u32": np.minimum, "max.u32": np.maximum,
              "and.b32": np.bitwise_and, "or.b32": np.bitwise_or,
              "xor.b32": np.bitwise_xor}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_a_warp(name: str) -> None:
    values = bits_of(64, "u4")
    expected = REDUCTIONS[name].reduce(values.reshape(2, 32), axis=1, dtype=np.uint32)
    got = results(f"redux.sync.{name} %r9, %r1, -1;", values)
    assert got.tolist() == np.repeat(expected, 32).tolist()


def test_reductions_of_some_lanes_leave_out_the_others() -> None:
    body = "mov.b32 %r9, 0; setp.lt.u32 %p0, %r2, 3; @%p0 redux.sync.min.s32 %r9, %r1, 7;"
    assert results(body).tolist() == [0] * 32 + [32] * 3 + [0] * 29


def test_reductions_of_floats_skip_nan() -> None:
    values = np.full(64, np.nan, np.float32)
    values[:3] = [1.0, -5.0, 3.0]
    got = results("redux.sync.max.f32 %r9, %r1, -1;", values.view(np.uint32))
    assert got.view(np.float32)[:32].tolist() == [3.0] * 32


@pytest.mark.parametrize("word", ["min", "max"])
def test_extremes_of_floats_order_zeros_and_give_the_canonical_nan(word: str) -> None:
    values = np.full(64, 0.0, np.float32)
    values[1] = values[32:] = -0.0
    values[33] = np.uint32(0x7FC00001).view(np.float32)
    of_numbers, with_nan = (
        results(f"redux.sync.{word}{nan}.f32 %r9, %r1, -1;", values.view(np.uint32))
        for nan in ("", ".NaN")
    )
    zeros = [0x80000000 if word == "min" else 0, 0x80000000]
    assert of_numbers[::32].tolist() == zeros
    assert with_nan[::32].tolist() == [zeros[0], 0x7FFFFFFF]


def test_elect_picks_the_lowest_lane() -> None:
    body = "mov.b32 %r9, 5; elect.sync %r3|%p0, -1; @%p0 mov.b32 %r9, 6;"
    assert results(body).tolist() == ([6] + [5] * 31) * 2


def test_activemask_names_the_lanes_that_are_there() -> None:
    body = "mov.b32 %r9, 0; setp.lt.u32 %p0, %r2, 4; @%p0 activemask.b32 %r9;"
    assert results(body).tolist() == ([15] * 4 + [0] * 28) * 2


def test_lane_masks_and_numbers() -> None:
    body = "mov.u32 %r3, %lanemask_lt; mov.u32 %r4, %warpid; mad.lo.u32 %r9, %r4, 7, %r3;"
    assert results(body).tolist() == [((1 << t % 32) - 1) + t // 32 * 7 for t in range(64)]
