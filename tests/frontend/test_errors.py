"""Every mistake that the front end finds has a report that shows the place and the way out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from astdsl.errors import KernelError
from astdsl.ir.dtypes import i32
from tests.frontend.test_spans import module_of
from tests.frontend.tracing import array, trace
from tests.goldens import Golden

HEADER = "from astdsl import *\nfrom dataclasses import dataclass\n\n"
# Each is a kernel of a scalar n, an array x and an output o, with one mistake.
MISTAKES = {
    "call-of-a-ref": """
def kernel(n, x, o):
    o[0:4] = x(3)
""",
    "loop-that-a-comprehension-runs-through": """
def kernel(n, x, o):
    steps = [step.index for step in nd_loop((3, 4))]
    o[0:4] = x[0:4]
""",
    "misspelt-name-in-a-helper": """
def helper(t):
    return zerows(t.shape)
def kernel(n, x, o):
    o[0:4] = helper(x[0:4])
""",
    "divmod-of-a-ref": """
def kernel(n, x, o):
    o[0:4] = divmod(x, 3)
""",
    "placements-that-are-no-words": """
def kernel(n, x, o):
    with pipeline(4, axes=3) as i:
        o[i] = x[i]
""",
    "pipeline-that-nothing-enters": """
def kernel(n, x, o):
    pipeline(3)
    o[0:4] = x[0:4]
""",
    "parallel-that-nothing-enters": """
def kernel(n, x, o):
    steps = parallel(3)
    for i in range(3):
        o[i] = x[i]
""",
    "pipeline-of-a-helper-that-nothing-enters": """
def steps(count):
    return pipeline(count)
def kernel(n, x, o):
    if n > 0:
        steps(n)
    o[0:4] = x[0:4]
""",
    "loop-that-nothing-runs-through": """
def kernel(n, x, o):
    nd_loop((3, n))
    o[0:4] = x[0:4]
""",
    "emitted-pipeline-that-is-not-called": """
def kernel(n, x, o):
    def step(index):
        o[index[0]] = x[index[0]]
    emit_pipeline(step, grid=(3,))
""",
    "when-without-a-function": """
def kernel(n, x, o):
    if when(n > 0):
        o[0:4] = x[0:4]
""",
    "index-as-a-key": """
def kernel(n, x, o):
    factors = {0: 1.0, 1: 0.5}
    with pipeline(2) as i:
        o[i] = x[i] * factors[i]
""",
    "tile-in-a-set": """
def kernel(n, x, o):
    seen = {x[0], x[1]}
    o[0] = len(seen)
""",
    "tile-given-to-a-cached-function": """
import functools
@functools.cache
def doubled(t):
    return t * 2
def kernel(n, x, o):
    o[0] = doubled(x[0])
""",
    "blocks-at-is-assigned": """
def kernel(n, x, o):
    o.blocks(4).at[0] = x[0:4]
""",
    "own-name-as-a-value": """
def scaled(t):
    return scaled * t
def kernel(n, x, o):
    o[0:4] = scaled(x[0:4])
""",
    "with-on-a-tuple": """
def kernel(n, x, o):
    with (x, o) as (a, b):
        b[0:4] = a[0:4]
""",
    "too-many-arguments-of-ours": """
def kernel(n, x, o):
    o[0:4] = exp(x[0:4], 2)
""",
    "keyword-that-a-builtin-lacks": """
def kernel(n, x, o):
    o[0] = sum(x[0:4], axes=0)
""",
    "keyword-that-a-method-lacks": """
def kernel(n, x, o):
    o[0:4] = x[0:2, 0:2].reshape(4, order="C")
""",
    "kernel-condition-in-a-comprehension": """
def kernel(n, x, o):
    o[0:4] = sum([t for t in ([x[0:4]] if n > 2 else [])])
""",
    "branch-mismatch": """
def kernel(n, x, o):
    if n > 2:
        y = zeros((4,), f32)
    else:
        y = zeros((8,), f32)
    o[0:4] = y
""",
    "branch-mismatch-in-a-tuple": """
def kernel(n, x, o):
    pair = (1, zeros((4,), f32))
    if n > 2:
        pair = (2, zeros((4,), f16))
    o[0:4] = pair[1]
""",
    "assigned-on-one-path": """
def kernel(n, x, o):
    if n > 2:
        y = n
    o[0] = y
""",
    "two-returns": """
def helper(n):
    if n > 2:
        return n
def kernel(n, x, o):
    o[0] = helper(n)
""",
    "carried-type-changes": """
def kernel(n, x, o):
    acc = zeros((4,), f16)
    for k in range(n):
        acc = acc + x[0:4]
    o[0:4] = acc
""",
    "carried-shape-changes": """
def kernel(n, x, o):
    acc = x[0:8]
    for k in range(3):
        acc = acc[0:4]
    o[0:4] = acc
""",
    "conditional-expression-mismatch": """
def kernel(n, x, o):
    o[0:4] = x[0:4] if n > 2 else x[0:8]
""",
    "local-of-a-loop": """
def kernel(n, x, o):
    for k in range(n):
        y = k * 2
    o[0] = y
""",
    "index-of-a-pipeline-outside": """
def kernel(n, x, o):
    with pipeline(n) as k:
        y = x[tile(k, 4)]
    o[0] = k
""",
    "hidden-mutation-of-a-list": """
def kernel(n, x, o):
    parts = []
    for k in range(n):
        parts.append(x[tile(k, 4)])
    o[0:4] = parts[0]
""",
    "hidden-mutation-of-a-field": """
@dataclass
class State:
    total: object
def kernel(n, x, o):
    state = State(0)
    if n > 2:
        state.total = n
    o[0] = state.total
""",
    "hidden-mutation-by-a-closure": """
def counter():
    count = 0
    def more():
        nonlocal count
        count += 1
        return count
    return more
more = counter()
def kernel(n, x, o):
    if n > 2:
        o[0] = more()
""",
    "outside-lost-in-a-loop": """
def kernel(n, x, o):
    acc = zeros((4,), f32)
    for k in range(n):
        acc += exp(x[tile(k, 4)])
    o[0:4] = acc
""",
    "outside-lost-in-a-branch": """
def kernel(n, x, o):
    y = zeros((4,), f32)
    if n > 2:
        y = exp(x[tile(n, 4)])
    o[0] = y.sum()
""",
    "tile-as-a-condition": """
def kernel(n, x, o):
    if x[0:4] > 0:
        o[0] = 1
""",
    "constant-wanted": """
def kernel(n, x, o):
    names = ["a", "b"]
    for k in range(2):
        print(names[k])
""",
    "return-in-a-pipeline": """
def kernel(n, x, o):
    with pipeline(n) as k:
        if k == 2:
            return
        o[k] = 1
""",
    "break-around-a-pipeline": """
def kernel(n, x, o):
    for k in range(n):
        with pipeline(3) as j:
            o[j] = 1
            if j == 2:
                break
""",
    "yield": """
def kernel(n, x, o):
    o[0] = n
    yield n
""",
    "try": """
def kernel(n, x, o):
    try:
        o[0] = n
    except ValueError:
        pass
""",
    "global": """
count = 0
def kernel(n, x, o):
    global count
    count = n
""",
    "and-of-tiles": """
def kernel(n, x, o):
    o[0:4] = where(x[0:4] > 0 and x[0:4] < 3, 1.0, 0.0)
""",
    "chained-comparison-of-tiles": """
def kernel(n, x, o):
    o[0:4] = where(0 < x[0:4] < 3, 1.0, 0.0)
""",
    "not-of-a-tile": """
def kernel(n, x, o):
    o[0:4] = where(not x[0:4] > 0, 1.0, 0.0)
""",
    "a-function-for-each-branch": """
def kernel(n, x, o):
    if n > 2:
        f = lambda v: v * 2
    else:
        f = lambda v: v + 1
    o[0:4] = f(x[0:4])
""",
    "two-ellipses": """
def kernel(n, x, o):
    o[0:4] = x[..., ...][0:4]
""",
    "two-ellipses-of-a-tile": """
def kernel(n, x, o):
    o[0:4] = x[0:4][..., None, ...]
""",
    "a-step-of-0": """
def kernel(n, x, o):
    o[0:4] = x[ds(0, 4, 0)]
""",
    "del-tile": """
def kernel(n, x, o):
    y = x[0:8]
    del y[0]
""",
    "del-memory": """
def kernel(n, x, o):
    del x[0]
""",
    "del-in-a-loop": """
def kernel(n, x, o):
    parts = [n, n]
    for i in range(n):
        del parts[0]
""",
    "del-then-read": """
def kernel(n, x, o):
    y = n
    del y
    o[0] = y
""",
    "except-star": """
def kernel(n, x, o):
    try:
        y = n
    except* ValueError:
        pass
""",
    "mistake-in-a-try": """
def kernel(n, x, o):
    try:
        x[0, 0, 0]
    except Exception:
        pass
""",
    "async-def": """
def kernel(n, x, o):
    helper(n)
async def helper(n):
    pass
""",
    "raise-under-a-condition": """
def kernel(n, x, o):
    if n > 3:
        raise ValueError("too large")
""",
    "match-on-structure": """
def kernel(n, x, o):
    match n:
        case (a, b):
            o[0] = a
""",
    "numpy-function": """
import numpy as np
def kernel(n, x, o):
    o[0:4] = np.exp(x[0:4])
""",
    "a-kernel-returns": """
def kernel(n, x, o):
    return x[0:4]
""",
    "assertion": """
def kernel(n, x, o, b=3):
    assert b % 2 == 0, f"b is even, got {b}"
""",
    "helper-stack": """
def inner(t):
    return t + (t > 0)
def outer(t):
    return inner(t)
def kernel(n, x, o):
    o[0:4] = outer(x[0:4])
""",
    "misspelt-name": """
def kernel(n, x, o):
    value = n + 1
    o[0] = vlaue
""",
    "name-not-assigned-yet": """
def kernel(n, x, o):
    for k in range(n):
        if k > 0:
            o[0] = previous
        previous = k
""",
    "wide-characters": """
def kernel(n, x, o):
    漢字 = x[0:4]; '漢🙂'; 漢字 = 漢字 + (漢字 > 0)
""",
}


def report(source: str, folder: Path) -> str:
    """Trace the kernel of a source, and return the report of its mistake."""
    module = module_of(folder / "kernel.py", HEADER + source.removeprefix("\n"))
    with pytest.raises(KernelError) as caught:
        trace(module.kernel, n=i32, x=array(None), o=array(None))
    return caught.value.report() + "\n"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_report(name: str, tmp_path: Path, golden: Golden) -> None:
    golden(report(MISTAKES[name], tmp_path), f"frontend/{name}.txt")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_report_has_a_code_a_place_and_a_way_out(name: str, tmp_path: Path) -> None:
    text = report(MISTAKES[name], tmp_path)
    assert re.match(r"A\d\d\d: ", text)
    assert re.search(r"kernel\.py:\d+:\d+\n    .*\n +\^+", text)
    assert "  help: " in text


T_STRINGS = """
def show(i):
    print(t"{i}")

def kernel(n, x, o, b=3):
    if b > 5:
        show(t"{b}")
    show(n)
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="older versions have no t-strings")
def test_a_t_string_is_refused_where_it_is_reached(tmp_path: Path) -> None:
    shown = report(T_STRINGS, tmp_path)
    assert "`t-string` is not supported in a kernel" in shown
    assert '\n    print(t"{i}")\n          ^^^^^^\n' in shown
    assert "help: an f-string" in shown


def test_what_is_not_reached_may_hold_anything(tmp_path: Path) -> None:
    source = """
def kernel(n, x, o, b=3):
    if b > 5:
        try:
            yield n
        finally:
            del n
    if x is None:
        undefined_name(n)
    o[0] = n
"""
    module = module_of(tmp_path / "kernel.py", HEADER + source)
    trace(module.kernel, n=i32, x=array(None), o=array(None))
