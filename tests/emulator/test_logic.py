"""Tests of comparison, selection, logic, shifts, bit fields and moves."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.running import bits_of, evaluate, floats

N = 512


def on_words(code: str, dtype: Any = "u4", **arrays: Any) -> Any:
    kinds = {name: (f"b{8 * x.dtype.itemsize}", x) for name, x in arrays.items()}
    return evaluate(code, f"b{8 * np.dtype(dtype).itemsize}", dtype, **kinds).tolist()


@pytest.mark.parametrize(("name", "function"), [("and", np.bitwise_and), ("or", np.bitwise_or),
                                                ("xor", np.bitwise_xor)])  # fmt: skip
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bitwise_operations(name: str, function: Any, bits: int) -> None:
    a, b = bits_of(N, f"u{bits // 8}", 1), bits_of(N, f"u{bits // 8}", 2)
    got = on_words(f"{name}.b{bits} %d, %a, %b;", f"u{bits // 8}", a=a, b=b)
    assert got == function(a, b).tolist()


@pytest.mark.parametrize("table", [0x80, 0xE8, 0x96, 0xCA, 0x01, 0xFF])
def test_lop3_is_its_truth_table(table: int) -> None:
    a, b, c = (bits_of(N, "u4", seed) for seed in (1, 2, 3))
    got = on_words(f"lop3.b32 %d, %a, %b, %c, {table};", a=a, b=b, c=c)
    expected = [
        sum(
            (table >> ((x >> k & 1) << 2 | (y >> k & 1) << 1 | z >> k & 1) & 1) << k
            for k in range(32)
        )
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert got == expected


@pytest.mark.parametrize(("word", "join"), [("or", np.logical_or), ("and", np.logical_and)])
def test_lop3_joins_whether_its_result_is_zero_with_a_predicate(word: str, join: Any) -> None:
    a = np.array([0, 1, 2, 3], "u4")
    code = f"""setp.ge.u32 %q, %a, 2; lop3.{word}.b32 %r0|%p, %a, 1, 0, 0xC0, %q;
      selp.u32 %d, 1, 0, %p; shl.b32 %r0, %r0, 4; or.b32 %d, %d, %r0;"""
    found = np.array(on_words(code, a=a))
    assert (found >> 4).tolist() == (a & 1).tolist()
    assert (found & 1 != 0).tolist() == join(a & 1 != 0, a >= 2).tolist()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shift_counts_are_clamped_at_the_width(bits: int) -> None:
    a = bits_of(N, f"u{bits // 8}", 1)
    count = np.random.default_rng(2).integers(0, bits + 20, N).astype(np.uint32)
    count[0] = 0xFFFFFFFF
    mask = (1 << bits) - 1
    pairs = list(zip(a.tolist(), count.tolist(), strict=True))
    left = on_words(f"shl.b{bits} %d, %a, %b;", f"u{bits // 8}", a=a, b=count)
    assert left == [x << k & mask if k < bits else 0 for x, k in pairs]
    right = on_words(f"shr.u{bits} %d, %a, %b;", f"u{bits // 8}", a=a, b=count)
    assert right == [x >> k if k < bits else 0 for x, k in pairs]
    signed = on_words(f"shr.s{bits} %d, %a, %b;", f"i{bits // 8}", a=a, b=count)
    assert signed == [
        int(x) >> min(k, bits) for x, k in zip(a.view(f"i{bits // 8}"), count.tolist(), strict=True)
    ]


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@pytest.mark.parametrize("side", ["l", "r"])
def test_funnel_shifts_move_a_pair(side: Any, mode: str) -> None:
    a, b = bits_of(N, "u4", 1), bits_of(N, "u4", 2)
    count = np.arange(N, dtype=np.uint32) % 70
    got = on_words(f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", a=a, b=b, c=count)
    expected = []
    for low, high, k in zip(a.tolist(), b.tolist(), count.tolist(), strict=True):
        n = k & 31 if mode == "wrap" else min(k, 32)
        pair = high << 32 | low
        expected.append((pair << n >> 32 if side == "l" else pair >> n) & 0xFFFFFFFF)
    assert got == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_of_bits(bits: int) -> None:
    a = bits_of(N, f"u{bits // 8}", 1) >> np.arange(N, dtype=f"u{bits // 8}") % bits
    a[0] = 0
    numbers = a.tolist()
    assert on_words(f"popc.b{bits} %d, %a;", a=a) == [x.bit_count() for x in numbers]
    assert on_words(f"clz.b{bits} %d, %a;", a=a) == [bits - x.bit_length() for x in numbers]
    found = on_words(f"bfind.u{bits} %d, %a;", a=a)
    assert found == [(x.bit_length() - 1) & 0xFFFFFFFF for x in numbers]
    reverse = on_words(f"brev.b{bits} %d, %a;", f"u{bits // 8}", a=a)
    assert reverse == [int(f"{x:0{bits}b}"[::-1], 2) for x in numbers]


def nth_set_bit(mask: int, base: int, offset: int) -> int:
    """By the loop of PTX ISA 9.7.1.17."""
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if mask >> position & 1:
            if count == 0:
                return position
            count -= 1
        position += step
    return 0xFFFFFFFF


def test_fns_finds_the_nth_set_bit_in_both_directions() -> None:
    masks = bits_of(256, "u4", 9)
    masks[:3] = 0, 0xFFFFFFFF, 0xAAAAAAAA
    bases = bits_of(256, "u4", 10) % np.uint32(32)
    offsets = (bits_of(256, "i4", 11) % 12) - 6
    got = evaluate("fns.b32 %d, %a, %b, %c;", "b32", np.uint32,
                   a=("b32", masks), b=("b32", bases), c=("b32", offsets.astype("i4")))  # fmt: skip
    cases = zip(masks.tolist(), bases.tolist(), offsets.tolist(), strict=True)
    expected = [nth_set_bit(*each) for each in cases]
    assert got.tolist() == expected


def test_bfind_of_signed_numbers_skips_sign_bits() -> None:
    a = np.array([-1, -2, 0, 5, -(2**31)], "i4")
    assert on_words("bfind.s32 %d, %a;", a=a.view("u4")) == [0xFFFFFFFF, 0, 0xFFFFFFFF, 2, 30]
    assert on_words("bfind.shiftamt.s32 %d, %a;", a=a.view("u4")) == [
        0xFFFFFFFF,
        31,
        0xFFFFFFFF,
        29,
        1,
    ]


def extracted(a: Any, position: int, length: int, bits: int, signed: bool) -> Any:
    """PTX ISA 9.7.1.19, word for word."""
    msb = bits - 1
    sign = a >> min(max(position + length - 1, 0), msb) & 1 if signed and length else 0
    d = sum(sign << i for i in range(bits))
    for i in range(msb + 1):
        bit = a >> (position + i) & 1 if i < length and position + i <= msb else sign
        d = d & ~(1 << i) | bit << i
    return d


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_extracted_fields(kind: str) -> None:
    bits = int(kind[1:])
    rng = np.random.default_rng(3)
    a = bits_of(N, f"u{bits // 8}", 4)
    position, length = (rng.integers(0, bits + 8, N).astype(np.uint32) for _ in range(2))
    got = on_words(f"bfe.{kind} %d, %a, %b, %c;", f"u{bits // 8}", a=a, b=position, c=length)
    triples = zip(a.tolist(), position.tolist(), length.tolist(), strict=True)
    assert got == [extracted(*t, bits, kind[0] == "s") for t in triples]


@pytest.mark.parametrize("bits", [32, 64])
def test_inserted_fields(bits: int) -> None:
    rng = np.random.default_rng(5)
    a, b = bits_of(N, f"u{bits // 8}", 6), bits_of(N, f"u{bits // 8}", 7)
    position, length = (rng.integers(0, bits + 8, N).astype(np.uint32) for _ in range(2))
    got = on_words(
        f"bfi.b{bits} %d, %a, %b, %c, %e;", f"u{bits // 8}", a=a, b=b, c=position, e=length
    )
    expected = []
    for x, y, p, n in zip(a.tolist(), b.tolist(), position.tolist(), length.tolist(), strict=True):
        mask = ((1 << n) - 1) << p & ((1 << bits) - 1)
        expected.append(y & ~mask | x << p & mask)
    assert got == expected


def permuted(a: Any, b: Any, c: Any) -> Any:
    octets = [(b << 32 | a) >> 8 * k & 255 for k in range(8)]
    out = 0
    for place in range(4):
        pick = c >> 4 * place & 15
        octet = octets[pick & 7]
        if pick & 8:
            octet = 255 if octet & 128 else 0
        out |= octet << 8 * place
    return out


def test_prmt_picks_bytes_and_spreads_signs() -> None:
    a, b, c = (bits_of(N, "u4", seed) for seed in (1, 2, 3))
    expected = [permuted(*t) for t in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert on_words("prmt.b32 %d, %a, %b, %c;", a=a, b=b, c=c) == expected


@pytest.mark.parametrize(("mode", "expected"), [
    ("f4e", [0x33221100, 0x44332211, 0x55443322, 0x66554433]),
    ("b4e", [0x55667700, 0x66770011, 0x77001122, 0x00112233]),
    ("rc8", [0x00000000, 0x11111111, 0x22222222, 0x33333333]),
    ("ecl", [0x33221100, 0x33221111, 0x33222222, 0x33333333]),
    ("ecr", [0x00000000, 0x11111100, 0x22221100, 0x33221100]),
    ("rc16", [0x11001100, 0x33223322, 0x11001100, 0x33223322]),
])  # fmt: skip
def test_prmt_modes(mode: str, expected: Any) -> None:
    a, b = np.full(4, 0x33221100, "u4"), np.full(4, 0x77665544, "u4")
    c = np.arange(4, dtype="u4")
    assert on_words(f"prmt.b32.{mode} %d, %a, %b, %c;", a=a, b=b, c=c) == expected


ORDERS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
          "gt": np.greater, "ge": np.greater_equal}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", ORDERS)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_ordered_comparisons_are_false_with_nan_and_unordered_true(word: str, kind: str) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}.get(kind, ml_dtypes.bfloat16)
    a, b = (floats(N, np.float32, seed).astype(dtype) for seed in (1, 2))
    b[::5] = a[::5]
    wide = a.astype(np.float64), b.astype(np.float64)
    nan = np.isnan(wide[0]) | np.isnan(wide[1])
    truth = ORDERS[word](*wide)
    code = "setp.{}.{} %p, %a, %b; selp.u32 %d, 1, 0, %p;"
    raw = {name: x.view(f"u{x.dtype.itemsize}") for name, x in (("a", a), ("b", b))}
    assert on_words(code.format(word, kind), **raw) == (truth & ~nan).astype(int).tolist()
    assert on_words(code.format(word + "u", kind), **raw) == (truth | nan).astype(int).tolist()


def test_unsigned_and_signed_comparisons_differ() -> None:
    a, b = np.array([0xFFFFFFFF], "u4"), np.array([1], "u4")
    code = "setp.{} %p, %a, %b; selp.u32 %d, 1, 0, %p;"
    assert on_words(code.format("lt.s32"), a=a, b=b) == [1]
    assert on_words(code.format("lt.u32"), a=a, b=b) == [0]
    assert on_words(code.format("hi.u32"), a=a, b=b) == [1]


def test_a_comparison_combines_with_a_predicate_for_both_results() -> None:
    a = np.array([0, 1, 2, 3], "u4")
    code = """setp.ge.u32 %s0, %a, 2;
      setp.eq.and.u32 %p|%q, %a, 3, %s0;
      selp.u32 %r0, 1, 0, %p; selp.u32 %r1, 2, 0, %q; add.u32 %d, %r0, %r1;"""
    assert on_words(code, a=a) == [0, 0, 2, 1]


def test_packed_comparisons_set_a_predicate_for_each_half() -> None:
    a = np.array([1.0, 5.0, 7.0, 0.0], np.float16).view("u4")
    b = np.array([2.0, 2.0, 2.0, 2.0], np.float16).view("u4")
    code = """setp.lt.f16x2 %p|%q, %a, %b;
      selp.u32 %r0, 1, 0, %p; selp.u32 %r1, 2, 0, %q; add.u32 %d, %r0, %r1;"""
    assert on_words(code, a=a, b=b) == [1, 2]


def test_set_writes_ones_or_one() -> None:
    a = np.array([1.0, 3.0], np.float32)
    assert on_words("set.gt.u32.f32 %d, %a, 0f40000000;", a=a.view("u4")) == [0, 0xFFFFFFFF]
    got = on_words("set.gt.f32.f32 %d, %a, 0f40000000;", a=a.view("u4"))
    assert got == [0, 0x3F800000]


def test_slct_selects_by_sign() -> None:
    c = np.array([-1, 0, 1], "i4").view("u4")
    assert on_words("slct.u32.s32 %d, 7, 8, %a;", a=c) == [8, 7, 7]


def test_moves_pack_and_unpack() -> None:
    a = bits_of(N, "u8", 1)
    code = "mov.b64 {%r0, %r1}, %a; mov.b64 %d, {%r1, %r0};"
    assert on_words(code, "u8", a=a) == [(x << 32 | x >> 32) & (2**64 - 1) for x in a.tolist()]
    code = "mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %d, {%h3, %h2, %h1, %h0};"
    assert (
        on_words(code, "u8", a=a)
        == a.view("u2").reshape(-1, 4)[:, ::-1].copy().view("u8")[:, 0].tolist()
    )


def test_immediates_take_the_type_of_the_instruction() -> None:
    a = np.zeros(1, "u4")
    assert on_words("mov.b32 %d, -1;", a=a) == [0xFFFFFFFF]
    assert on_words("mov.f32 %d, 0f3F800000;", a=a) == [0x3F800000]
    assert on_words("mov.f32 %d, 1.5;", a=a) == [0x3FC00000]
    assert on_words("mov.f64 %d, 0d3FF0000000000000;", "u8", a=a) == [0x3FF0000000000000]
    assert on_words("mov.b32 %d, 0x10U;", a=a) == [16]
    assert on_words("mov.b32 %d, 017;", a=a) == [15]


def test_masks_and_extensions_of_bits() -> None:
    a = np.array([4], "u4")
    assert on_words("bmsk.clamp.b32 %d, %a, 8;", a=a) == [0xFF0]
    b = np.array([0x8, 0x7], "u4")
    assert on_words("szext.clamp.s32 %d, %a, 4;", a=b) == [0xFFFFFFF8, 7]
    assert on_words("cnot.b32 %d, %a;", a=np.array([0, 5], "u4")) == [1, 0]


@pytest.mark.parametrize("name", ["%clock_hi", "%globaltimer_hi"])
def test_the_upper_half_of_a_clock_is_zero_for_a_while(name: str) -> None:
    a = np.zeros(32, np.uint32)
    assert not any(evaluate(f"mov.u32 %d, {name};", "b32", np.uint32, a=("b32", a)))


@pytest.mark.parametrize("name", ["%clock", "%globaltimer_lo"])
def test_clocks_count_instructions(name: str) -> None:
    a = np.zeros(32, np.uint32)
    code = f"mov.u32 %r1, {name}; add.u32 %r3, %r1, 1; mov.u32 %r2, {name};"
    got = evaluate(code + "sub.u32 %d, %r2, %r1;", "b32", np.uint32, a=("b32", a))
    assert got.tolist() == [2] * 32


def test_ftz_compares_flushed_float16() -> None:
    a, b = np.array([1, 0x8001, 0x0400, 1], "u2"), np.array([0, 1, 1, 0x0400], "u2")
    for ftz, wanted in (("", [0, 0, 0, 0]), (".ftz", [1, 1, 0, 0])):
        code = f"setp.eq{ftz}.f16 %p, %a, %b; selp.b32 %d, 1, 0, %p;"
        assert evaluate(code, "b32", np.uint32, a=("b16", a), b=("b16", b)).tolist() == wanted


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_set_of_pairs_tells_of_each_in_one_half_of_an_integer(kind: str) -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0], np.float16)
    b = np.array([1.0, 5.0, 3.0, 4.0], np.float16)
    code = f"set.eq.{kind}.f16x2 %d, %a, %b;"
    got = evaluate(code, "b32", np.uint32, a=("b32", a.view("u4")), b=("b32", b.view("u4")))
    assert got.tolist() == [0x0000FFFF, 0xFFFFFFFF]
