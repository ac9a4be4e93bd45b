"""Which names statements bind and need: checked on small pieces of text."""

from __future__ import annotations

import ast

import pytest

from astdsl.frontend import scopes


def body(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


BOUND = {
    "x = y": "x",
    "x, (y, *z) = w": "xyz",
    "x += 1": "x",
    "for i in r: j = 1": "ij",
    "with c as (x, y): pass": "xy",
    "import a.b, c as d": "ad",
    "def f(x): y = 1": "f",
    "def f():\n    nonlocal x\n    x = 1": "fx",
    "def f():\n    x = 0\n    def g():\n        nonlocal x, y\n        x = y = 1": "fy",
    "class C: x = 1": "C",
    "[x for x in y]": "",
    "[(z := x) for x in y]": "z",
    "f(x := 1)": "x",
    "lambda: (x := 1)": "",
    "match s:\n    case [a, *b] if c: d = 1": "abd",
    "match s:\n    case {'k': e, **f}: pass\n    case C(g) as h: pass": "efgh",
    "x: int = 1": "x",
    "a.b = c[d] = 1": "",
}  # fmt: skip


@pytest.mark.parametrize("text", BOUND)
def test_statements_bind_names(text: str) -> None:
    assert scopes.bound(body(text)) == set(BOUND[text])


EXPOSED = {
    "x = y": "y",
    "x = 1\ny = x": "",
    "y = x\nx = 1": "x",
    "x += 1": "x",
    "if c: x = 1\ny = x": "cx",
    "if c: x = 1\nelse: x = 2\ny = x": "c",
    "for i in r: x = i\ny = x": "rx",
    "for i in r: y = i": "r",
    "while x < n: x += 1": "nx",
    "with c as x: y = x": "c",
    "f(x := 1)\ny = x": "fx",
    "for i in r:\n    if c: break\n    x = 1\n    y = x": "cr",
    "def f(): return x\nx = 1": "x",
    "match s:\n    case [a]: y = a": "s",
}


@pytest.mark.parametrize("text", EXPOSED)
def test_statements_need_names_from_before(text: str) -> None:
    assert scopes.exposed(body(text)) == set(EXPOSED[text])


def after(text: str, names: str = "") -> set[str]:
    """Return the names needed behind the statement on the line that ends in `# here`."""
    nodes = body(text)
    liveness = scopes.Liveness(scopes.captured(nodes))
    liveness.run(nodes, frozenset(names))
    line = next(k for k, line in enumerate(text.splitlines(), 1) if line.endswith("# here"))
    return set(next(found for s, found in liveness.after.items() if s.lineno == line))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1  # here\ny = x", "x"),
        ("x = 1  # here\nx = 2\ny = x", ""),
        ("for i in r:\n    x = 1  # here\n    y = x\n", "x"),
        ("for i in r:\n    y = x\n    x = 1  # here\n", "x"),
        ("for i in r:\n    x = 2\n    y = x\n    z = 1  # here\n", ""),
        ("for i in r:\n    if c:  # here\n        break\n    x = 1\ny = x", "cx"),
        ("for i in r:\n    if c:  # here\n        continue\n    x = 1\n    y = x", "c"),
        ("x = 1  # here\nf = lambda: x", "fx"),
    ],
)
def test_names_are_needed_behind_a_statement(text: str, expected: str) -> None:
    found = after(text)
    assert set(expected) - {"f"} <= found
    assert found <= set(expected)
