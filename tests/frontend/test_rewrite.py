"""The rewritten Python, as `.source` shows it."""

from __future__ import annotations

import ast
from pathlib import Path

from astdsl.frontend.expressions import ExpressionRewriter
from astdsl.frontend.nodes import clone
from astdsl.frontend.rewrite import HANDLERS, REFUSED
from astdsl.ir.dtypes import i32
from tests.frontend.test_spans import module_of
from tests.frontend.tracing import array, trace
from tests.goldens import Golden

# Expressions that mean what they mean in Python, whatever the values are.
PLAIN = {
    "Attribute", "BinOp", "Constant", "Dict", "DictComp", "FormattedValue", "GeneratorExp",
    "Interpolation", "JoinedStr", "Lambda", "List", "ListComp", "Name", "NamedExpr", "Set",
    "SetComp", "Slice", "Starred", "Subscript", "TemplateStr", "Tuple",
}  # fmt: skip

SOURCE = '''
def helper(x, *, scale=2):
    """What a helper says of itself."""
    if x > 3:
        return x * scale
    for k in range(x):
        if k == 2:
            break
    else:
        x += 1
    return x

class Scaled:
    def __init__(self, factor):
        self.__factor = factor

    def times(self, x: int) -> int:
        __y: int = x * self.__factor
        return __y if __y > 0 and not __y == 4 else super().__sizeof__()

def kernel(n, o, *, b=3):
    total, show = 0, lambda: total
    while True:
        total += 1
        if total * total > n:
            break
        if total in (3, 5):
            continue
        o[1] = (last := total)
    assert b > 2, f"b is {b}"
    match n:
        case 1 | 2:
            o[2] = 0 < n <= b
    def count(values):
        nonlocal total
        total = len([v for v in values if v])
    count([1, 2])
    o[0] = helper(show()) + Scaled(b).times(n)
'''


def test_the_rewritten_functions_are_readable(tmp_path: Path, golden: Golden) -> None:
    module = module_of(tmp_path / "kernel.py", SOURCE)
    traced = trace(module.kernel, n=i32, o=array(None, dtype=i32), b=3)
    golden(traced.source, "frontend/rewritten.py.txt")


def test_the_function_itself_is_untouched(tmp_path: Path) -> None:
    module = module_of(tmp_path / "kernel.py", SOURCE)
    before = module.helper.__code__
    trace(module.kernel, n=i32, o=array(None, dtype=i32))
    assert module.helper.__code__ is before
    assert module.helper(5) == 10
    assert "__if__" not in vars(module)


def test_the_text_is_parsed_once_and_never_changed(tmp_path: Path) -> None:
    module = module_of(tmp_path / "kernel.py", SOURCE)
    first = trace(module.kernel, n=i32, o=array(None, dtype=i32)).source
    assert trace(module.kernel, n=i32, o=array(None, dtype=i32)).source == first


def test_every_statement_of_python_is_rewritten_or_refused() -> None:
    assert HANDLERS.keys() | REFUSED.keys() == set(ast.stmt.__subclasses__())
    assert not HANDLERS.keys() & REFUSED.keys()


def test_every_expression_of_python_is_rewritten_or_plain() -> None:
    every = {kind.__name__ for kind in ast.expr.__subclasses__()}
    rewritten = {name for name in every if f"visit_{name}" in vars(ExpressionRewriter)}
    assert every == rewritten | (PLAIN & every)
    assert not rewritten & PLAIN


def test_a_clone_has_what_the_grammar_has_and_nothing_else() -> None:
    tree = ast.parse("x = y")
    for node in ast.walk(tree):
        node.parent = tree  # type: ignore[attr-defined]
    try:
        copied = clone(tree)
        assert ast.dump(copied) == ast.dump(tree)
        assert not any(hasattr(node, "parent") for node in ast.walk(copied))
    finally:
        for node in ast.walk(tree):  # some are shared by all trees of the process
            vars(node).pop("parent", None)
