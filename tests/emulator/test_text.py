"""Tests of reading PTX."""

from typing import Any

import pytest

from astdsl.emulator.faults import PtxSyntaxError
from astdsl.emulator.syntax import Address, Immediate, Negated, Pair, Register, Symbol, Vector
from astdsl.emulator.text import parse
from tests.emulator.running import module


def body(code: str, declarations: str = "", **keywords: Any) -> Any:
    """Return the instructions of a kernel with this body, without its last `ret`."""
    found = parse(module(code, [], declarations, **keywords)).functions["k"]
    return found.instructions[:-1]


def operands(code: str) -> Any:
    return body(code)[0].operands


def name_of(operand: Any) -> str:
    assert isinstance(operand, Register | Symbol), operand
    return operand.name


def test_an_instruction_has_opcode_operands_and_guard() -> None:
    (only,) = body("@!%p1 mad.lo.s32 %r1, %r2, -3, %r3;")
    assert (only.opcode, only.predicate, only.negated) == ("mad.lo.s32", "%p1", True)
    assert only.operands == (Register("%r1"), Register("%r2"), Immediate(-3), Register("%r3"))
    assert only.modifiers == ["lo", "s32"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0f3F800000", Immediate(0x3F800000, "f32")),
        ("-0f3F800000", Immediate(0xBF800000, "f32")),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
        ("1.0", Immediate(0x3FF0000000000000, "f64")),
        ("0x1fU", Immediate(31)),
        ("0b101", Immediate(5)),
        ("017", Immediate(15)),
        ("12U", Immediate(12)),
        ("{%r1, %r2}", Vector((Register("%r1"), Register("%r2")))),
        ("%p1|%p2", Pair(Register("%p1"), Register("%p2"))),
        ("_|%p2", Pair(Symbol("_"), Register("%p2"))),
        ("!%p1", Negated(Register("%p1"))),
        ("[%rd1]", Address(Register("%rd1"))),
        ("[%rd1+-16]", Address(Register("%rd1"), -16)),
        ("[ %rd1 + 4 ]", Address(Register("%rd1"), 4)),
        ("[smem+8]", Address(Symbol("smem", 8))),
        (
            "[%rd1, {%r1, %r2}]",
            Address(Register("%rd1"), 0, (Vector((Register("%r1"), Register("%r2"))),)),
        ),
        ("%tid.x", Register("%tid.x")),
        ("name", Symbol("name")),
    ],
)
def test_operands(text: str, expected: Any) -> None:
    assert operands(f"mov.b32 {text};") == (expected,)


def test_labels_and_lines_are_kept() -> None:
    found = parse(module("mov.b32 %r1, 0;\nHERE:\n  bra HERE;", [])).functions["k"]
    assert found.labels["HERE"] == 1
    assert found.instructions[1].ptx_line == found.instructions[0].ptx_line + 2


def test_loc_gives_the_kernel_line_until_the_next_one() -> None:
    code = ".loc 1 7 5\nmov.b32 %r1, 0;\nmov.b32 %r2, 0;\n.loc 1 8 9\nmov.b32 %r3, 0;"
    text = module(code, []) + '.file 1 "dir/k\\303\\251.py"\n.section .debug_macinfo { }\n'
    lines = [i.kernel_line for i in parse(text).functions["k"].instructions[:3]]
    assert lines == [("dir/ké.py", 7, 5), ("dir/ké.py", 7, 5), ("dir/ké.py", 8, 9)]


def test_loc_with_inlining_is_read() -> None:
    code = ".loc 1 7 5, function_name $L__info_string0, inlined_at 1 3 4\nmov.b32 %r1, 0;"
    assert body(code)[0].kernel_line == ("file 1", 7, 5)


def test_names_in_a_scope_are_apart_from_those_outside() -> None:
    found = body(
        "mov.b32 r, 1; { .reg .b32 r; mov.b32 r, 2; bra OUT; OUT: mov.b32 r, 3; } mov.b32 r, 4;",
        ".reg .b32 r;",
    )
    names = [name_of(i.operands[0]) for i in found if i.opcode == "mov.b32"]
    assert names[0] == names[3] == "r"
    assert names[1] == names[2] != "r"


def test_the_same_label_may_stand_in_two_scopes() -> None:
    code = "{ bra L; L: mov.b32 %r1, 1; } { bra L; L: mov.b32 %r1, 2; }"
    found = parse(module(code, [])).functions["k"]
    targets = [name_of(i.operands[0]) for i in found.instructions if i.opcode == "bra"]
    assert [found.labels[name] for name in targets] == [1, 3]


def test_register_ranges_declare_each_number_below_the_count() -> None:
    found = parse(module("", [], ".reg .b32 %r<3>; .reg .pred %p<2>, q;")).functions["k"]
    assert [found.register_type(n) for n in ("%r0", "%r2", "%r3", "q")] == [
        "b32", "b32", None, "pred",
    ]  # fmt: skip


def test_parameters_know_size_and_alignment() -> None:
    text = """.version 8.6 .target sm_90a .address_size 64
    .visible .entry k(.param .u64 .ptr .global .align 16 a, .param .align 64 .b8 map[128],
      .param .b8 flag) .maxntid 128, 1, 1 .minnctapersm 1 { ret; }"""
    found = parse(text).functions["k"]
    assert [(p.type, p.count, p.align_bytes) for p in found.parameters] == [
        ("u64", 1, 8), ("b8", 128, 64), ("b8", 1, 1),
    ]  # fmt: skip
    assert found.directives == {"maxntid": (128, 1, 1), "minnctapersm": (1,)}


def test_variables_have_space_count_and_initial_values() -> None:
    outside = ".global .align 4 .u32 table[3] = {1, 2, 3}; .extern .shared .align 16 .b8 smem[];"
    table, shared = parse(module("", [], outside=outside)).variables
    assert (table.space, table.count) == ("global", 3)
    assert table.initial == tuple(Immediate(value) for value in (1, 2, 3))
    assert (shared.space, shared.count, shared.align_bytes) == ("shared", -1, 16)


def test_pragmas_and_prototypes_are_passed_over() -> None:
    code = """.pragma "nounroll"; proto: .callprototype (.param .b32 _) _ (.param .b64 _);
      mov.b32 %r1, 0;"""
    assert [i.opcode for i in body(code)] == ["mov.b32"]


def test_targets_of_an_indirect_branch_are_kept() -> None:
    code = "T: .branchtargets A, B; brx.idx %r1, T; A: ret; B: ret;"
    found = parse(module(code, [])).functions["k"]
    assert found.branch_targets == {"T": ("A", "B")}


@pytest.mark.parametrize(
    "code", ["mov.b32 %r1 %r2;", ".unknown 3;", "mov.b32 ?;", "mov.b32 %r1, 0"]
)
def test_what_is_not_ptx_is_named_with_its_line(code: str) -> None:
    with pytest.raises(PtxSyntaxError) as error:
        body(code)
    assert error.value.ptx_line is not None


def test_a_text_may_end_with_a_byte_0_as_nvrtc_returns_it() -> None:
    text = module("", [])
    assert parse(text + "\0") == parse(text)
    with pytest.raises(PtxSyntaxError):
        parse(text + "\0" + text)
