"""What bad input gets: an error before launch, with its code, its places and a way out.

Case 24 too: one token of an example is changed, and whatever is rejected says where and what to do.
"""

# mypy: disable-error-code="valid-type,type-arg,name-defined,var-annotated"
# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# Kernels unpack all dims of a shape and use some.

from __future__ import annotations

import importlib.util
import io
import random
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    In,
    KernelError,
    Out,
    cdiv,
    exp,
    f32,
    i32,
    kernel,
    parallel,
    pipeline,
    tile,
    zeros,
)

Array = np.ndarray[Any, Any]
X = np.ones((64, 60), np.float32)


@kernel
def copy(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"]):
    o[0:64, 0:64] = x[0:64, 0:64] + y[0:64, 0:64]


@kernel
def too_many_stages(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 128)) as i:
        with pipeline(cdiv(N, 128), stages=5) as j:
            o[tile(i, 128), tile(j, 128)] = x[tile(i, 128), tile(j, 128)] + 1


@kernel
def too_large_buffers(x: In[f32, "M N"], o: Out[f32, "M N"]):
    a, b = SMEM((256, 128), f32), SMEM((256, 128), f32)
    a[...] = zeros((256, 128), f32)
    b[...] = a[...]
    o[0:64, 0:64] = b[0:64, 0:64]


@kernel
def too_large_tile(x: In[f32, "M N"], o: Out[f32, "M N"]):
    t = x[0:1024, 0:1024]
    o[0:1024, 0:1024] = exp(t) / t.sum(axis=1, keepdims=True)


@kernel
def with_try(x: In[f32, "M N"], o: Out[f32, "M N"]):
    try:
        o[...] = x[0, 0]
    except ValueError:
        o[...] = 0


@kernel
def with_yield(x: In[f32, "M N"], o: Out[f32, "M N"]):
    yield x[0, 0]


@kernel
def with_global(x: In[f32, "M N"], o: Out[f32, "M N"]):
    global X  # noqa: PLW0603
    X = x[0, 0]


@kernel
def with_del(x: In[f32, "M N"], o: Out[f32, "M N"]):
    del x[0]


@kernel
async def with_async(x: In[f32, "M N"], o: Out[f32, "M N"]):
    o[0, 0] = x[0, 0]


@kernel
def reads_output(x: In[f32, "M N"], o: Out[f32, "M N"]):
    with pipeline(4) as i:
        o[tile(i, 16), 0:64] = o[tile(i, 16), 0:64] + x[tile(i, 16), 0:64]


@kernel
def adds_to_output(x: In[f32, "M N"], o: Out[f32, "N"]):
    with pipeline(x.shape[0], axes="sequential") as i:
        o[0:64] += x[i, 0:64]


@kernel
def accumulates_outside(x: In[f32, "M N"], o: Out[f32, "N"]):
    with pipeline(x.shape[0], 4) as (r, i):
        out = o.at[tile(i, 16)]
        if r == 0:
            out[...] = 0
        out[...] += x[r, tile(i, 16)]


@kernel
def loses_outside(x: In[f32, "M N"], o: Out[f32, "M"]):
    with pipeline(x.shape[0]) as i:
        acc = zeros((64,), f32)
        with pipeline(2) as j:
            acc = exp(x[i, tile(j, 64)]) + acc
        o[i] = acc.sum()


@kernel
def writes_input(x: In[f32, "M N"], o: Out[f32, "M N"]):
    x[0:8, 0:8] = 0


@kernel
def conflicts(x: In[f32, "M N"], o: Out[f32, "M N"]):
    with parallel(7) as i:
        o[0, 0:64] = x[i, 0:64]


@kernel
def misspells(x: In[f32, "M N"], o: Out[f32, "M N"]):
    with pipline(4) as i:
        o[i, 0:64] = x[i, 0:64]


@kernel
def not_yet(x: In[f32, "M N"], o: Out[f32, "M N"]):
    mma(o, x, x)


@kernel
def formats(x: In[f32, "M N"], o: Out[f32, "M N"]):
    o[...] = {f"{x[0, 0]}": 1, f"{x[0, 0]:>9}": 2, f"{x[0, 0]:.3f}": 3}["f32"]


BIG = np.ones((1024, 1024), np.float32)
REJECTED = {
    "shapes that disagree": (copy, (X, X[:50]), "A202", 2),
    "dtypes that disagree": (copy, (X, X.astype(np.float64)), "A202", 1),
    "more axes than annotated": (copy, (X[None], X), "A202", 1),
    "output aliasing input": (copy, (X, X, X), "A203", 2),
    "output overlapping input": (copy, (X[1:], X[1:], X[:-1]), "A203", 2),
    "stages over the budget": (too_many_stages, (BIG,), "A401", 2),
    "buffers over the budget": (too_large_buffers, (X,), "A401", 2),
    "a tile over the registers": (too_large_tile, (BIG,), "A402", 1),
    "try": (with_try, (X,), "A101", 1),
    "yield": (with_yield, (X,), "A101", 1),
    "global": (with_global, (X,), "A101", 1),
    "del": (with_del, (X,), "A104", 1),
    "async": (with_async, (X,), "A101", 1),
    "reads of unwritten outputs": (reads_output, (X,), "A302", 1),
    "sums into unwritten outputs": (adds_to_output, (X,), "A302", 1),
    "accumulation over an outer axis": (accumulates_outside, (X,), "A303", 2),
    "a carried tile that loses its outside": (loses_outside, (X,), "A111", 2),
    "writes to inputs": (writes_input, (X,), "A301", 2),
    "a proved conflict": (conflicts, (X,), "A305", 2),
    "the text of a kernel value": (formats, (X,), "A107", 2),
    "a misspelt name": (misspells, (X,), "A103", 1),
    "a name of a later version": (not_yet, (X,), "A102", 1),
}


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("what", REJECTED)
def test_it_is_an_error_before_launch(what: str, target: str) -> None:
    program, arguments, code, places = REJECTED[what]
    before = [a.copy() for a in arguments]
    with pytest.raises(KernelError) as caught:
        program.on("emulator", target=target)(*arguments)
    error = caught.value
    assert error.code == code
    assert len(error.places) >= places
    assert error.help
    report = str(error)
    assert report.count("^") >= places
    assert Path(__file__).name in report
    for a, b in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_both_arguments_are_named() -> None:
    with pytest.raises(KernelError) as caught:
        copy(X, X[:50])
    assert "`x`" in caught.value.message
    assert "`y`" in caught.value.message


TEXT = """
from astdsl import (
    In, InOut, Out, arange, argmax, cdiv, clip, ds, exp, f16, f32, i32, iota, kernel, maximum, mean,
    minimum, parallel, pipeline, sqrt, tile, unroll, where, zeros,
)


def scaled(t, by=2):
    return t * by


@kernel
def example(x: In[f32, "M N"], n: i32, o: Out[f32, "M N"], p: Out[f32, "M"], *, bm=8, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        acc = zeros((bm,), f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            window = tile(i, bm), tile(j, bn)
            t = x[window]
            if n > 3 and j == 0:
                t = exp(t) + scaled(t, by=3)
            elif n < 0:
                t = where(t > 0, t, -t)
            for k in range(2):
                t = t * 2 + k
            o[window] = minimum(t, 100)
            acc += x[window].sum(axis=1)
        p[tile(i, bm)] = acc
"""
HEAD = TEXT[: TEXT.index("def scaled")].count("\n")
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "@", "<", ">", "==", "&", "|", "<<"]
BRACKETS = ["(", ")", "[", "]", "{", "}", ",", ":", "=", "."]


def mutated(seed: int) -> str:
    """Return the example with one token of its kernel or helper changed."""
    choice = random.Random(seed)  # noqa: S311
    lines = io.StringIO(TEXT).readline
    tokens = [
        t
        for t in tokenize.generate_tokens(lines)
        if t.start[0] > HEAD and t.type in (tokenize.NAME, tokenize.NUMBER, tokenize.OP)
    ]
    token = choice.choice(tokens)
    names = sorted({t.string for t in tokens if t.type == tokenize.NAME} - {"def", "with", "as"})
    others = {
        tokenize.NAME: [*names, "None", "1", "missing", "2.5", "'text'", "[]", "float", "x", "o"],
        tokenize.NUMBER: ["0", "-1", "1.5", "x", "None", "1000000", "True", "t", "i"],
        tokenize.OP: [*OPERATORS] if token.string in OPERATORS else BRACKETS,
    }[token.type]
    new = choice.choice([o for o in others if o != token.string])
    rows = TEXT.splitlines(keepends=True)
    row, column = token.start
    line = rows[row - 1]
    rows[row - 1] = line[:column] + new + line[token.end[1] :]
    return "".join(rows)


def compiles(text: str) -> bool:
    try:
        compile(text, "example.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_24_one_changed_token_is_accepted_or_rejected_in_words(seed: int, tmp_path: Path) -> None:
    for number in range(seed * 1000, seed * 1000 + 10):
        text = mutated(number)
        if not compiles(text):
            continue
        path = tmp_path / f"example_{number}.py"
        path.write_text(text)
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found
        assert found.loader
        module = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(module)
        except (NameError, TypeError, AttributeError):
            continue  # Python's own: a decorator, a default or an annotation of the module
        call_in_words(module, path)


def call_in_words(module: Any, path: Path) -> None:
    """Call the example; whatever stops it is one of ours with all its parts, or of the user."""
    x = np.ones((20, 70), np.float32)
    try:
        module.example.on("emulator")(x, 5)
        return
    except Exception as error:  # noqa: BLE001
        caught = error
    report, is_ours = str(caught), isinstance(caught, KernelError)
    if not is_ours:
        # The user's Python failed: its note names the kernel's line.
        notes = getattr(caught, "__notes__", [])
        assert any(path.name in note for note in notes), f"{path.read_text()}\n{caught!r}"
        return
    assert path.name in report, report
    assert "^" in report, report
    assert caught.help or caught.code in {"A501", "A601"}, report


def factorial(n):
    if n == 0:
        return 1
    return n * factorial(n - 1)


@kernel
def recurses(x: In[i32, "N"], o: Out[i32, "N"]):
    o[0] = factorial(x[0])


def test_a_recursion_that_a_kernel_value_ends_is_refused_with_the_way_out() -> None:
    with pytest.raises(KernelError, match="`factorial` calls itself without end") as caught:
        recurses(np.ones(8, np.int32))
    assert "`while`" in caught.value.help
