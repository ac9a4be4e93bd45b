"""The text form: it shows the program, and reads back as the same program."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from astdsl.ir import ops
from astdsl.ir.core import IN, OUT, Module
from astdsl.ir.dtypes import bf16, f16, f32
from astdsl.ir.equality import structurally_equal
from astdsl.ir.parser import parse_module, parse_type
from astdsl.ir.printer import print_module
from astdsl.ir.types import GMEM, SMEM, AccumulatorType, BarrierType, CounterType, RefType, TileType
from astdsl.ir.verify import verify
from astdsl.source import Span
from tests.building import Maker, add_module, gmem, matmul_module
from tests.goldens import Golden
from tests.ir.evaluate.test_sync import copy_module, ring_module
from tests.strategies import modules


@given(modules())
def test_a_printed_module_reads_back_as_the_same_module(module: Module) -> None:
    verify(module)
    again = parse_module(print_module(module))
    verify(again)
    assert structurally_equal(module, again)


@given(modules())
def test_a_module_printed_with_spans_reads_back_with_them(module: Module) -> None:
    again = parse_module(print_module(module, spans=True))
    assert structurally_equal(module, again, spans=True)


@given(modules())
def test_what_was_read_prints_as_it_stood(module: Module) -> None:
    text = print_module(module)
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize("module", [copy_module(), ring_module(3, 2)], ids=["copy", "ring"])
def test_explicit_modules_read_back(module: Module) -> None:
    assert structurally_equal(module, parse_module(print_module(module)))


def test_the_text_of_add(golden: Golden) -> None:
    golden(print_module(add_module(f32, (64, 64))), "ir/add.txt")


def test_the_text_of_matmul(golden: Golden) -> None:
    golden(print_module(matmul_module(f16, f32, (128, 128, 64))), "ir/matmul.txt")


def test_the_text_of_a_copy_by_hand(golden: Golden) -> None:
    golden(print_module(copy_module()), "ir/copy.txt")


def test_the_text_with_spans(golden: Golden) -> None:
    golden(print_module(add_module(f32, (64, 64)), spans=True), "ir/add_spans.txt")


def test_a_span_is_printed_with_the_calls_that_led_there() -> None:
    m = Maker(("x", IN, gmem(f32, 4)))
    inner = Span("a b.py", 3, 1, 3, 4).within((Span("k.py", 7, 0, 8, 2), Span("k.py", 9, 0, 9, 1)))
    m.builder.add(ops.CommitGroup(span=inner))
    module = m.module()
    text = print_module(module, spans=True)
    assert '@"a b.py":3:1-3:4 < "k.py":7:0-8:2 < "k.py":9:0-9:1' in text
    assert structurally_equal(parse_module(text), module, spans=True)


def test_target_constants_and_initial_values_are_kept() -> None:
    plain = Maker(("o", OUT, gmem(f32, 4)), o=-0.0).module()
    module = Module(name="k", params=plain.params, body=plain.body, span=plain.span,
                    target="sm_90a", constants=(("bm", "64"), ("f", 'g("x")')))  # fmt: skip
    again = parse_module(print_module(module))
    assert structurally_equal(module, again)
    assert (again.target, again.constants[1]) == ("sm_90a", ("f", 'g("x")'))


@pytest.mark.parametrize(
    "type",
    [
        TileType((), f32), TileType((2, 3), bf16), CounterType(), BarrierType(3, 2),
        AccumulatorType((64, 8), f32), RefType((2, 4), f16, SMEM),
        RefType((None, 4), f16, GMEM, (None, 1), tma=True, align_bytes=16, small=True),
        RefType((None, 4), f16, GMEM, (None, 1), align_bytes=2, small=True, empty=True),
        RefType((), f32, GMEM), RefType((8,), f32, GMEM, (1,), align_bytes=4),
    ],
    ids=str,
)  # fmt: skip
def test_types_read_back(type: object) -> None:
    assert parse_type(str(type)) == type


HEAD = "kernel k\n  in %x: gmem<f32[4] strides=1 align=4>\n{\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%a: f32 = Nonsense value=1", "line 4: expected an operation, got 'Nonsense'"),
        ("%a: f32 = Sqrt %b", "line 4: expected a value made above, got '%b'"),
        ("%a: f32 = Constant value=1 ;", "line 4: cannot read"),
        ("%a: f99 = Constant value=1", "f99 is not a dtype"),
        ("%a: f32 = Dim %x axis=0", "line 4: expected Dim giving i64"),
        ("CommitGroup %x", "line 4: expected at most 0 operands"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_module(f"{HEAD}  {line}\n}}\n")
