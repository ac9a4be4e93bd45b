"""What compiling takes as programs grow: calls are counted, no time is measured.

Each row writes a program that grows in one direction; twice as large it takes at most 2 ** 1.3 as
many calls. What is known to grow faster is named in docs/performance.md, "Large programs".
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astdsl import f16, f32, kernel, spec

HEAD = 'from astdsl import *\n\ndef k(x: In[f32, "M"], o: Out[f32, "M"], *, b=128):\n'
VECTOR = spec((4096,), f32)
EXPONENT = 1.3


def in_steps(*body: str, before: str = "") -> str:
    """Write a kernel whose step reads a tile `t`, runs some statements and writes it."""
    lines = ["t = x[tile(i, b)]", *body, "o[tile(i, b)] = t"]
    return HEAD.replace("def k", f"{before}\ndef k") + _pipeline(lines)


def _pipeline(lines: list[str]) -> str:
    head = "    M, = x.shape\n    with pipeline(cdiv(M, b)) as i:\n"
    return head + "".join(f"        {line}\n" for line in lines)


def of_index(*body: str) -> str:
    """Write a kernel that computes with an index `v`, and reads there."""
    return HEAD + _pipeline(["v = i", *body, "o[tile(i, b)] = x[ds(v, b)]"])


def nested(heads: list[str], innermost: str) -> list[str]:
    """Write blocks in blocks."""
    indented = [f"{'    ' * k}{head}" for k, head in enumerate(heads)]
    return [*indented, f"{'    ' * len(heads)}{innermost}"]


def inputs(n: int) -> str:
    names = [f"x{k}" for k in range(n)]
    arrays = ", ".join(f'{name}: In[f32, "M"]' for name in names)
    head = f'from astdsl import *\n\ndef k({arrays}, o: Out[f32, "M"], *, b=128):\n    x = x0\n'
    return head + _pipeline(["o[tile(i, b)] = " + " + ".join(f"{n}[tile(i, b)]" for n in names)])


def outputs(n: int) -> str:
    arrays = ", ".join(f'o{k}: Out[f32, "M"]' for k in range(n))
    head = f'from astdsl import *\n\ndef k(x: In[f32, "M"], {arrays}, *, b=128):\n'
    return head + _pipeline([f"o{k}[tile(i, b)] = x[tile(i, b)] + {k}.0" for k in range(n)])


def launches(n: int) -> str:
    body = "".join(
        f"    with pipeline(cdiv(M, b)) as i:\n        o[tile(i, b)] = x[tile(i, b)] + {k}.0\n"
        for k in range(n)
    )
    return HEAD.replace('Out[f32, "M"]', 'Out[f32, "M", 0]') + "    M, = x.shape\n" + body


def axes(n: int) -> str:
    names = [f"i{k}" for k in range(n)]
    place = names[0]
    for name in names[1:]:
        place = f"({place}) * 2 + {name}"
    head = f"    with pipeline({', '.join('2' * n)}) as ({', '.join(names)}):\n"
    return f"{HEAD}{head}        o[tile({place}, b)] = x[tile({place}, b)] + 1\n"


def helpers_in_helpers(n: int) -> str:
    calls = (f"def h{k}(t): return h{k - 1}(t) * {k}.5\n" for k in range(1, n))
    return in_steps(f"t = h{n - 1}(t)", before="def h0(t): return t + 1\n" + "".join(calls))


def steps_of_a_loop(n: int) -> str:
    body = nested([f"for q in range({n}):", "with pipeline(4) as j:"], "t = t + x[tile(j + q, b)]")
    return in_steps(*body)


def products(n: int) -> str:
    lines = [f"        acc = acc + a[...] @ b[tile({k}, 64), :]\n" for k in range(n)]
    head = 'from astdsl import *\n\ndef k(a: In[f16, "64 64"], b: In[f16, "N 64"], '
    return (
        head + 'o: Out[f32, "64 64"]):\n    with pipeline(1) as i:\n'
        "        acc = zeros((64, 64), f32)\n" + "".join(lines) + "        o[...] = acc\n"
    )


# How a program of size n is written, and the smaller size.
ROWS: dict[str, tuple[Callable[[int], str], int]] = {
    "statements": (lambda n: in_steps(*(f"t = t * {k}.5 + 1" for k in range(n))), 40),
    "a loop of Python": (
        lambda n: in_steps(f"for u in unroll(range({n})):", "    t = t * 1.5 + u"), 100
    ),
    "choices": (lambda n: in_steps(*(f"t = where(t > {k}, t, 0)" for k in range(n))), 20),
    "minima": (lambda n: in_steps(*(f"t = minimum(t, {k}.0)" for k in range(n))), 40),
    "a deep expression": (lambda n: in_steps("t = " + "(" * n + "t" + " + 1.5)" * n), 30),
    "a value used twice in each line": (lambda n: in_steps(*["t = t + t * t"] * n), 30),
    "sums": (lambda n: in_steps(*(f"t = t + t.sum() * {k}" for k in range(n))), 8),
    "ifs": (lambda n: in_steps(*(f"if i > {k}: t = t + {k}" for k in range(n))), 10),
    "ifs in ifs": (
        lambda n: in_steps(*nested([f"if i > {k}:" for k in range(n)], "t = t + 1")), 4
    ),
    "loops in loops": (
        lambda n: in_steps(*nested([f"for j{k} in range(i):" for k in range(n)], "t = t + 1")), 4
    ),
    "pipelines": (
        lambda n: in_steps(
            *(f"with pipeline(4) as j: t = t + x[tile(i + j, b)] * {k}" for k in range(n))
        ), 6,
    ),
    "pipelines in pipelines": (
        lambda n: in_steps(
            *nested([f"with pipeline(2) as j{k}:" for k in range(n)], "t = t + x[tile(i, b)]")
        ), 3,
    ),
    "launches": (launches, 6),
    "helpers": (
        lambda n: in_steps(
            *(f"t = h(t, {k}.5)" for k in range(n)), before="def h(t, u): return t * u + 1\n"
        ), 20,
    ),
    "helpers in helpers": (helpers_in_helpers, 10),
    "inputs": (inputs, 8),
    "outputs": (outputs, 8),
    "axes": (axes, 6),
    "carried names": (
        lambda n: in_steps(
            *(f"v{k} = t + {k}.0" for k in range(n)),
            "for q in range(i):",
            *(f"    v{k} = v{k} * 2 + v{(k + 1) % n}" for k in range(n)),
            "t = " + " + ".join(f"v{k}" for k in range(n)),
        ), 10,
    ),
    "squares of an index": (lambda n: of_index(*["v = v * v + v"] * n), 8),
    "sums of indices": (lambda n: of_index(*(f"v = v + i % {k + 2}" for k in range(n))), 40),
    "products of indices": (
        lambda n: of_index(*(f"v = v * (i % {k + 2} + 1)" for k in range(n))), 8
    ),
    "minima of indices": (
        lambda n: of_index(*(f"v = minimum(v + {k}, {999 - k} - v)" for k in range(n))), 20
    ),
    "quotients of indices": (
        lambda n: of_index(*(f"v = (v + {k}) // 2 + v % 3" for k in range(n))), 20
    ),
    "windows of windows": (
        lambda n: in_steps("r = x", *["r = r.at[i:]"] * n, "t = r[0:b]"), 10
    ),
    "slots": (
        lambda n: in_steps(f"with pipeline(64, stages={n}) as j: t = t + x[tile(i + j, b)]"), 4
    ),
    "the steps of a loop around a pipeline": (steps_of_a_loop, 500),
    "a tile": (lambda n: HEAD.replace("128", str(n)) + _pipeline(["o[tile(i, b)] = x[tile(i, b)]"]),
               1024),
}  # fmt: skip


def calls_to_compile(text: str, path: Path, arguments: list[Any]) -> int:
    """Return how many functions are called from a kernel's text to LLVM's."""
    path.write_text(text, encoding="utf-8")
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    made = kernel(module.k)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        made.lower(*arguments, target="sm_90a").llvm
    finally:
        sys.setprofile(before)
    return calls


@pytest.fixture(scope="module", autouse=True)
def _everything_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile once before anything is counted: modules are imported when they are first used."""
    calls_to_compile(in_steps(), tmp_path_factory.mktemp("first") / "first.py", [VECTOR])


@pytest.mark.parametrize("name", ROWS)
def test_twice_as_large_takes_little_more_than_twice_as_much(name: str, tmp_path: Path) -> None:
    write, size = ROWS[name]
    counts = [
        calls_to_compile(
            write(n), tmp_path / f"grown_{n}.py", [VECTOR] * (n if write is inputs else 1)
        )
        for n in (size, 2 * size)
    ]
    assert counts[1] <= 2**EXPONENT * counts[0], f"{counts[0]} calls, then {counts[1]}"


def test_products_take_as_many_calls_each(tmp_path: Path) -> None:
    arguments = [spec((64, 64), f16), spec((512, 64), f16)]
    counts = [
        calls_to_compile(products(n), tmp_path / f"products_{n}.py", arguments) for n in (2, 4)
    ]
    assert counts[1] <= 2**EXPONENT * counts[0], f"{counts[0]} calls, then {counts[1]}"
