"""Cases 23 and 25: Python in kernels, and the texts and places that kernels stand in."""

from __future__ import annotations

import importlib.util
import linecache
import textwrap
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    KernelError,
    Out,
    f32,
    kernel,
    zeros,
)
from tests.arrays import whole
from tests.witnesses import agree

ONE = ("sm_90a",)


# 23. Python in kernels


def traced(function: Any) -> Any:
    """Decorate a helper, as libraries do."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


@traced
def halved(t, *, by=2):
    def inner(u):
        return u / by

    return inner(t)


@kernel
def dead_branches(x: In[f32, "N"], o: Out[f32, "N"], *, debug=False, mode="fast"):
    t = x[0:64]
    if debug:
        print(t.no_such_attribute, undefined_name)  # noqa: T201
        yield_ = list(t)
        t = np.linalg.inv(yield_)
    if mode == "fast" or t.no_such_attribute:
        t = t + 1
    t = t if mode == "fast" else undefined_name
    assert mode != "slow", f"{undefined_name}"
    while debug:
        t = undefined_name
    o[0:64] = t


@kernel
def pythonic(x: In[f32, "N"], o: Out[f32, "N"], *, factors=(1, 2, 3), name="x"):
    label = f"{name!r:>10} of {x.dtype} {x.shape} {len(factors):03d}"
    parts = {i: x[0:64] * f for i, f in enumerate(factors) if f % 2 or f > 1}
    biggest = max(parts, key=lambda i: factors[i])
    total = zeros((64,), f32)
    for _key, part in sorted(parts.items()):
        total += part
    if (n := len(label)) > 3 and (size := min(n, 4)):
        total = total * size
    *_, last = (halved(p, by=4) for p in parts.values())
    compose = lambda f, g: lambda t: f(g(t))  # noqa: E731
    o[0:64] = compose(lambda t: t + last, halved)(total) + parts[biggest]


def test_23_branches_that_are_not_taken_may_hold_anything() -> None:
    x = whole(64)
    np.testing.assert_array_equal(agree(dead_branches, lambda: (x,), targets=ONE), x + 1)


def test_23_python_around_kernel_values_is_python() -> None:
    x = whole(64)
    expected = x * 6 * 4 / 2 + x * 3 / 4 + x * 3
    np.testing.assert_array_equal(agree(pythonic, lambda: (x,), targets=ONE), expected)


# 25. where a kernel may stand

TEXT = """
from astdsl import In, Out, f32, kernel, tile, pipeline, cdiv


@kernel
def double(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    \"\"\"Multi-line text: é 漢字
      # not a comment
    \"\"\"
    größe = cdiv(x.shape[0], b); 漢 = 2
    with pipeline(größe) as i:
        o[tile(i, b)] = (
            x[tile(i, b)]
            * 漢
        )
"""
ENCODINGS = {
    "plain": TEXT.encode(),
    "CRLF": TEXT.replace("\n", "\r\n").encode(),
    "BOM": b"\xef\xbb\xbf" + TEXT.encode(),
    "tabs": TEXT.replace("    ", "\t").encode(),
    "form feed": TEXT.replace("\n\n@", "\n\x0c\n@").encode(),
    "latin-1": b"# -*- coding: latin-1 -*-\n"
    + TEXT.replace("漢字", "").replace("漢", "ç").encode("latin-1"),
    "no newline at the end": TEXT.rstrip().encode(),
    "continued lines": TEXT.replace(" as i:", " \\\n        as i:").encode(),
}


def load(path: Path, name: str = "made") -> ModuleType:
    found = importlib.util.spec_from_file_location(name, path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_25_files_of_every_kind(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_bytes(ENCODINGS[encoding])
    x = whole(70)
    np.testing.assert_array_equal(load(path).double(x), x * 2)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_25_carets_are_right_in_files_of_every_kind(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    old = "漢 = 2" if encoding != "latin-1" else "ç = 2"
    codec = "latin-1" if encoding == "latin-1" else "utf-8"
    text = ENCODINGS[encoding].decode(codec)
    assert old in text
    path.write_bytes(text.replace(old, old + "; missing(größe)").encode(codec))
    with pytest.raises(KernelError) as caught:
        load(path).double(whole(70))
    shown = str(caught.value).splitlines()
    at = next(i for i, line in enumerate(shown) if "missing(größe)" in line)
    prefix = shown[at][: shown[at].index("missing")]
    wide = sum(2 if ch == "漢" else 1 for ch in prefix)
    assert shown[at + 1].index("^") == wide


def test_25_a_cell_of_a_notebook() -> None:
    name = "<ipython-input-1-abc>"
    lines = TEXT.splitlines(keepends=True)
    linecache.cache[name] = (len(TEXT), None, lines, name)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(TEXT, name, "exec"), scope)  # noqa: S102
    x = whole(70)
    np.testing.assert_array_equal(scope["double"](x), x * 2)


def test_25_code_without_text_is_refused_at_the_call() -> None:
    scope: dict[str, Any] = {"__name__": "made"}
    exec(compile(TEXT, "<made>", "exec"), scope)  # noqa: S102
    with pytest.raises(KernelError, match="help:"):
        scope["double"](whole(70))


def test_25_a_kernel_in_a_function_in_a_class(tmp_path: Path) -> None:
    nested = "class A:\n    class B:\n        def make(self, k):\n" + textwrap.indent(
        TEXT.replace("* 漢", "* 漢 * k") + "\nreturn double\n", "            "
    )
    path = tmp_path / "nested.py"
    path.write_text(nested, encoding="utf-8")
    x = whole(70)
    np.testing.assert_array_equal(load(path).A.B().make(3)(x), x * 6)


# Each makes a module with a kernel `k`, which adds 1, of the text of one.
SMALL = """@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    o[0:64] = t + 1
"""
IN_BLOCKS = """class A:
    class B:
        @staticmethod
        def make(n):
            for _ in range(n):
                try:
{}
                    return k
                finally: pass
k = A.B.make(1)
"""


def on_one_line(text: str) -> str:
    header = "\n".join(text.splitlines()[:2])
    return f"{header} t = x[0:64]; o[0:64] = {text.strip().rpartition(' = ')[2]}\n"


PLACES: dict[str, Callable[[str], str]] = {
    "a class": lambda t: (
        "class A:\n" + textwrap.indent(t.replace("(x:", "(self, x:"), "    ") + "k = A().k\n"
    ),
    "a function": lambda t: (
        "def make():\n" + textwrap.indent(t + "return k\n", "    ") + "k = make()\n"
    ),
    "blocks in a class in a class": lambda t: IN_BLOCKS.format(textwrap.indent(t, " " * 20)),
    "one of two branches": lambda t: (
        "if False:\n"
        + textwrap.indent(t.replace("+ 1", "+ 5"), "  ")
        + "else:\n"
        + textwrap.indent(t, "  ")
    ),
    "a block of tabs": lambda t: "if True:\n" + textwrap.indent(t, "\t"),
    "one line": on_one_line,
    "behind another of its name": lambda t: t.replace("t + 1", "7") + t,
    "far below": lambda t: "\n" * 300 + t,
    "a decorator of several lines": lambda t: t.replace("@kernel", "@(lambda f: (\n  kernel(f)))"),
    "behind strings of several lines": lambda t: t.replace(
        "    t = x", '    s = """漢\n  é\t漢\n"""; s = ("a"\n  "漢"); t = x'
    ),
    "on the last line of a string": lambda t: t.replace("= t", '= ("""漢\n漢字é""" and t)').replace(
        "= missing(t)", '= ("""漢\n漢字é""" and missing(t))'
    ),
    "behind an f-string of several lines": lambda t: t.replace(
        "t = x", 'n = f"""{1}\n{"漢"}\n"""; t = x'
    ),
    "between comments": lambda t: t.replace("    t =", "# 漢\n\n        # deep\n    t ="),
    "continued lines": lambda t: t.replace("t = x[0:64]", "t = \\\n  x[0:\\\n64]"),
}


def defined(text: str, how: str, path: Path) -> Any:
    """Return the kernel `k` of a text: of a file, of a file by `exec`, of a cell."""
    if how == "file":
        path.write_text(text, encoding="utf-8")
        return load(path).k
    name = str(path) if how == "exec" else f"<cell {path}>"
    if how == "exec":
        path.write_text(text, encoding="utf-8")
    else:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, name, "exec"), scope)  # noqa: S102
    return scope["k"]


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text)


@pytest.mark.parametrize("how", ["file", "exec", "cell"])
@pytest.mark.parametrize("place", PLACES)
def test_25_a_kernel_in_any_place_runs_and_is_reported_at_its_place(
    place: str, how: str, tmp_path: Path
) -> None:
    header, x = "from astdsl import *\n", whole(64)
    text = header + PLACES[place](SMALL)
    found = defined(text, how, tmp_path / "good.py").on("reference")(x)
    np.testing.assert_array_equal(found, x + 1)
    text = header + PLACES[place](SMALL.replace("t + 1", "missing(t)"))
    with pytest.raises(KernelError) as caught:
        defined(text, how, tmp_path / "bad.py").on("reference")(x)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if "missing" in line]
    assert caught.value.span
    assert caught.value.span.line == lines[-1]
    shown = str(caught.value).splitlines()
    at = next(i for i, line in enumerate(shown) if "missing(t)" in line)
    assert shown[at + 1].index("^") == columns(shown[at][: shown[at].index("missing")])
