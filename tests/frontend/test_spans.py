"""An operation's span is the user's own text, whatever the file looks like."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.dtypes import i32
from tests.frontend.tracing import array, operations, text, trace

BINARY = [
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "<",
    "<=",
    ">",
    ">=",
    "==",
    "!=",
]


def module_of(path: Path, source: str, encoding: str = "utf-8", newline: str = "\n") -> ModuleType:
    """Write a module and import it."""
    path.write_bytes(source.replace("\n", newline).encode(encoding))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec, "a file has a spec"
    assert spec.loader, "a spec of a file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spans(function: Any, kind: Any, **parameters: Any) -> list[str]:
    """Return the text of each operation of a kind."""
    return [text(op.span) for op in operations(trace(function, **parameters), kind)]


@pytest.mark.parametrize("operator", BINARY)
def test_an_operator_is_its_whole_expression(operator: str, tmp_path: Path) -> None:
    source = f"def f(a, b, o):\n    x = 1 + (a {operator} b)\n    o[0] = a\n"
    if operator in BINARY[-6:]:
        source = f"def f(a, b, o):\n    x = (a {operator} b)\n    o[0] = a\n"
    module = module_of(tmp_path / "operators.py", source)
    found = {text(op.span) for op in walk(trace(module.f, a=i32, b=i32, o=array(4)).module.body)}
    assert f"a {operator} b" in found


@pytest.mark.parametrize("operator", ["-", "~"])
def test_a_sign_is_a_part_of_its_expression(operator: str, tmp_path: Path) -> None:
    module = module_of(tmp_path / "signs.py", f"def f(a, o):\n    x = 1 + {operator}a\n")
    kind = {"-": ops.Negate, "~": ops.Invert}[operator]
    assert spans(module.f, kind, a=i32, o=array(4)) == [f"{operator}a"]


def test_an_augmented_assignment_is_the_statement(tmp_path: Path) -> None:
    module = module_of(tmp_path / "augmented.py", "def f(a, o):\n    x = a\n    x += a * 2\n")
    assert spans(module.f, ops.Add, a=i32, o=array(4)) == ["x += a * 2"]


def test_a_store_is_the_statement_and_a_load_its_window(tmp_path: Path) -> None:
    module = module_of(tmp_path / "memory.py", "def f(x, o):\n    o[0:4] = 2 * x[0:4]\n")
    assert spans(module.f, ops.Store, x=array(8), o=array(8)) == ["o[0:4] = 2 * x[0:4]"]
    assert spans(module.f, ops.Load, x=array(8), o=array(8)) == ["x[0:4]"]


def test_an_expression_over_several_lines_is_whole(tmp_path: Path) -> None:
    body = "    y = (a\n         + b *\n           a)\n"
    module = module_of(tmp_path / "lines.py", f"def f(a, b, o):\n{body}")
    assert spans(module.f, ops.Multiply, a=i32, b=i32, o=array(4)) == ["b *\n           a"]
    assert spans(module.f, ops.Add, a=i32, b=i32, o=array(4)) == ["a\n         + b *\n           a"]


def test_columns_are_right_behind_wide_characters(tmp_path: Path) -> None:
    module = module_of(
        tmp_path / "wide.py", "def f(a, o):\n    漢, é = 'ü漢🙂', a; ß = é + é * 2\n"
    )
    assert spans(module.f, ops.Add, a=i32, o=array(4)) == ["é + é * 2"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tabs_byte_order_marks_and_line_ends_do_not_move_spans(
    encoding: str, newline: str, tmp_path: Path
) -> None:
    source = "'''a\ntext'''\ndef f(a, o):\n\tif a > 3:\n\t\tx = '''\n\n'''; y = a * 2\n"
    module = module_of(tmp_path / "tabs.py", source, encoding, newline)
    assert spans(module.f, ops.Multiply, a=i32, o=array(4)) == ["a * 2"]
    assert spans(module.f, ops.Compare, a=i32, o=array(4)) == ["a > 3"]


def test_latin_1_source_is_told_in_utf_8_columns(tmp_path: Path) -> None:
    source = "# coding: latin-1\ndef f(a, o):\n    é = 'üüü'; x = a * 3\n"
    module = module_of(tmp_path / "latin.py", source, "latin-1")
    assert spans(module.f, ops.Multiply, a=i32, o=array(4)) == ["a * 3"]


def test_spans_in_comprehensions_and_lambdas_are_theirs(tmp_path: Path) -> None:
    source = "def f(a, o):\n    p = [a * k for k in (2, 3)]\n    g = lambda x: x - 1\n    g(a)\n"
    module = module_of(tmp_path / "inner.py", source)
    traced = trace(module.f, a=i32, o=array(4))
    product, *_ = operations(traced, ops.Multiply)
    assert (text(product.span), product.span.stack) == ("a * k", ())
    (difference,) = operations(traced, ops.Subtract)
    assert text(difference.span) == "x - 1"
    assert [text(call) for call in difference.span.stack] == ["g(a)"]


def test_a_helper_leaves_the_stack_of_its_calls(tmp_path: Path) -> None:
    source = (
        "def inner(x):\n    if x > 1:\n        return x * 2\n    return x\n"
        "def outer(x):\n    return inner(x + 1)\n"
        "def f(a, o):\n    for i in range(3):\n        o[i] = outer(a)\n"
    )
    module = module_of(tmp_path / "helpers.py", source)
    (product,) = operations(trace(module.f, a=i32, o=array(4)), ops.Multiply)
    assert text(product.span) == "x * 2"
    assert [text(call) for call in product.span.stack] == ["inner(x + 1)", "outer(a)"]


def test_blocks_have_the_span_of_their_header(tmp_path: Path) -> None:
    source = (
        "def f(a, o):\n    if a > 1:\n        o[0] = 1\n    for i in range(a):\n        o[1] = i\n"
    )
    module = module_of(tmp_path / "headers.py", source)
    assert spans(module.f, ops.If, a=i32, o=array(4)) == ["if a > 1"]
    assert spans(module.f, ops.For, a=i32, o=array(4)) == ["for i in range(a)"]


def test_rewritten_expressions_keep_their_spans(tmp_path: Path) -> None:
    source = "def f(a, o):\n    x = a > 1 and a < 5\n    y = not x\n    z = 1 if 0 < a < 3 else a\n"
    module = module_of(tmp_path / "logic.py", source)
    parameters = {"a": i32, "o": array(4)}
    assert spans(module.f, ops.BitAnd, **parameters) == ["a > 1 and a < 5", "0 < a < 3"]
    assert spans(module.f, ops.Invert, **parameters) == ["not x"]
    assert spans(module.f, ops.If, **parameters) == ["1 if 0 < a < 3 else a"]


def test_methods_and_private_names_keep_their_spans(tmp_path: Path) -> None:
    source = (
        "class C:\n    __scale = 3\n    def f(self, a, o):\n"
        "        __x = a * self.__scale\n        if a > 2:\n            __x -= 1\n"
    )
    module = module_of(tmp_path / "methods.py", source)
    traced = trace(module.C.f, self=module.C(), a=i32, o=array(4))
    assert [text(op.span) for op in operations(traced, ops.Multiply)] == ["a * self.__scale"]
    assert [text(op.span) for op in operations(traced, ops.Subtract)] == ["__x -= 1"]


def test_every_operation_of_a_kernel_has_a_span_in_it(tmp_path: Path) -> None:
    source = (
        "def f(a, x, o):\n    s = 0\n    while s < a:\n        s += 1 if a > 3 else 2\n"
        "        if s == 7: break\n    o[0:4] = x[0:4] + s\n"
    )
    module = module_of(tmp_path / "whole.py", source)
    traced = trace(module.f, a=i32, x=array(None), o=array(None))
    lines = {op.span.line for op in walk(traced.module.body)}
    assert lines <= set(range(2, 7))
