"""Cases 23 and 24: Python around kernel values, and nests that are too deep."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl import In, KernelError, Out, f32, kernel

X = np.random.default_rng(0).integers(-9, 10, 64).astype(np.float32)
HEADER = """from __future__ import annotations
import collections, contextlib, dataclasses, enum, functools, itertools, math, operator, typing
import numpy as np
from astdsl import *
"""


def load(path: Path, name: str = "texts_of_cases") -> Any:
    """Import a file and return its kernel `k`."""
    found = importlib.util.spec_from_file_location(name, path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    # Where dataclasses look for what text annotations name.
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module.k


# 23. what Python does around kernel values: each of these adds 1

KERNEL = """@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
"""
CONSTRUCTS = {
    "decorated kernel below": """
def passing(f):
    return f
@kernel
@passing
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = x[0:64] + 1
""",
    "decorated nested helper": """
def twice(f):
    @functools.wraps(f)
    def inner(t, *a, **kw):
        return f(f(t, *a, **kw), *a, **kw)
    return inner
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    @twice
    def step(t, by=0.5):
        return t + by
    o[0:64] = step(x[0:64])
""",
    "decorator with arguments in kernel": """
def times(n):
    def deco(f):
        def inner(t):
            for _ in range(n):
                t = f(t)
            return t
        return inner
    return deco
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    @times(4)
    def step(t): return t + 0.25
    o[0:64] = step(x[0:64])
""",
    "lru_cache helper without kernel values": """
@functools.lru_cache
def amount(n): return n * 1.0
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = x[0:64] + amount(1)
""",
    "dataclass in kernel": """
@dataclasses.dataclass(frozen=True)
class P:
    a: object
    b: float = 1.0
    def apply(self): return self.a + self.b
    @property
    def c(self): return self.b
    @classmethod
    def of(cls, t): return cls(t)
    @staticmethod
    def same(t): return t
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    p = P.same(P.of(x[0:64]))
    p = dataclasses.replace(p, b=p.c)
    o[0:64] = p.apply()
""",
    "slots dataclass carried": """
@dataclasses.dataclass(slots=True)
class S:
    total: object
    n: object
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    s = S(x[0:64], 0)
    for i in range(4):
        s = S(s.total + 0.25, s.n + 1)
    o[0:64] = s.total + (s.n - 4)
""",
    "local class": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    class Local:
        by = 1
        def __call__(self, t): return t + self.by
        def __enter__(self): return self
        def __exit__(self, *a): return None
    o[0:64] = Local()(x[0:64])
""",
    "callable object": """
class Adder:
    def __init__(self, by): self.by = by
    def __call__(self, t): return t + self.by if t.shape == (64,) else t
adder = Adder(1)
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = adder(x[0:64])
""",
    "walrus everywhere": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    parts = [(u := x[0:64] * i) + 0 for i in range(3)]
    if (n := len(parts)) == 3 and (m := n + 1) > 3:
        pass
    t = (v := x[0:64]) + (v - v) + (m - n)
    while (n := n - 1) > 0:
        t = t + 0
    o[0:64] = t + (u - u)
""",
    "walrus on kernel conditions": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    if (first := x[0]) > -1000:
        t = x[0:64] + 1
    else:
        t = x[0:64] + first
    o[0:64] = t
""",
    "defaults and star args": """
def h(t, /, a=0, *rest, by=1, **kw):
    return t + by + a + sum(rest) + sum(kw.values())
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    args, kw = (0, 0, 0), {"z": 0}
    o[0:64] = h(x[0:64], *args, **kw, by=1)
""",
    "default that is a kernel value": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    def h(a, b=t, c=[]):
        c.append(1)
        return a + b * 0
    o[0:64] = h(t) + 1
""",
    "lambda in comprehension with late binding": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    fs = [lambda t, i=i: t + i for i in range(2)]
    gs = [lambda t: t + j for j in range(2)]
    o[0:64] = fs[0](x[0:64]) + gs[0](x[0:64] * 0)
""",
    "comprehensions nested": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    d = {(i, j): x[0:64] * int(i == j) for i in range(2) for j in range(2) if i <= j}
    s = {i for i in range(3)}
    g = sum(v for (i, j), v in d.items() if i == 0 and j == 0)
    o[0:64] = g + len(s) - 2 + sum([q * 0 for q in (y for y in d.values())])
""",
    "f-strings": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"], *, w=5):
    t = x[0:64]
    label = f"{t.shape!r:>{w}} {t.dtype} {x.shape[0]!s} {{}} {f'{w:03d}'} {w=}"
    o[0:64] = t + (1 if "005" in label and "w=5" in label else 100)
""",
    "enums and match": """
class Mode(enum.Enum):
    A = 1
    B = 2
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"], *, mode=Mode.A):
    match mode:
        case Mode.A: t = x[0:64] + 1
        case Mode.B: t = undefined
    match (mode.value, [1, 2]):
        case (1, [a, *rest]): pass
    o[0:64] = t
""",
    "dead branches": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"], *, dead=False):
    if dead:
        import os.path
        from math import pi
        global G
        with open("/nonexistent") as f: pass
        raise ValueError(undefined)
        try: x.y
        except* ValueError: pass
        del o
        assert False
        async def g(): await 1
        return
    elif dead is None:
        x.oops.oops = 3
    else:
        t = x[0:64] + 1
    t = undefined if dead else t
    t = t if not dead else undefined.nope[0]
    [undefined for _ in range(0)]
    dead and undefined
    not dead or undefined
    for _ in []: undefined()
    while dead: undefined()
    o[0:64] = t
""",
    "partial, operator, reduce, itertools, zip, enumerate, map": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    add1 = functools.partial(operator.add, 1)
    parts = list(map(lambda p: p * 0, [t, t]))
    total = functools.reduce(operator.add, parts, add1(t))
    for i, (a, b) in enumerate(zip(parts, itertools.repeat(t))):
        total = total + a * i
    o[0:64] = max([total], key=id)
""",
    "star unpack and swap": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    a, *b, (c, d) = x[0:64], 1, 2, (3, x[0:64] * 0)
    a, d = d, a
    (e,) = [a + d]
    o[0:64], = (e + b[0],)
""",
    "nonlocal counter": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    count()
    o[0:64] = x[0:64] + n
""",
    "context manager of the user": """
@contextlib.contextmanager
def scope(name):
    yield name
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    with scope("a") as s, contextlib.nullcontext(1) as one:
        o[0:64] = x[0:64] + one
""",
    "super and private names": """
class Base:
    def bias(self): return 0.5
class D(Base):
    __scale = 2
    @kernel
    def run(self, x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:64] = x[0:64] + super().bias() * self.__scale
    def bias(self): return 1e9
k = D().run
""",
    "static and class methods": """
class D:
    one = 1
    @staticmethod
    @kernel
    def s(x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:64] = x[0:64] + 1
    @classmethod
    @kernel
    def c(cls, x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:64] = x[0:64] + cls.one
assert np.array_equal(D.c(np.ones(64, np.float32)), np.full(64, 2, np.float32))
assert np.array_equal(D().s(np.ones(64, np.float32)), np.full(64, 2, np.float32))
k = D.s
""",
    "type aliases and annotated names": """
V = In[f32, "N"]
@kernel
def k(x: V, o: Out[f32, "N"]) -> None:
    t: Tile = x[0:64]
    n: int
    n = 1
    o[0:64] = t + n
""",
    "chained comparisons and boolean operators": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    if -1e9 < x[0] < 1e9 and not (x[1] > 1e9 or x[2] != x[2]):
        t = t + 1
    o[0:64] = t
""",
    "for else while else": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    for i in [1, 2]:
        if i == 5: break
    else:
        t = t + 1
    o[0:64] = t
""",
    "kernel for else": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[0:64]
    for i in range(x.shape[0]):
        if x[i] > 1e9: break
    else:
        t = t + 1
    o[0:64] = t
""",
    "recursion and generators of python": """
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def gen(n):
    for i in range(n): yield i
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = x[0:64] + depth(3) - sum(gen(3)) + 1 - 0
""",
    "names of ours shadowed": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    tile, exp, range_ = x[0:64], 1, range
    sum = tile
    __if__ = 0
    o[0:64] = sum + exp + __if__
""",
    "conditional lambda body": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    f = lambda t, c: t + 1 if c else t + 5
    o[0:64] = f(x[0:64], x[0] < 1e9)
""",
    "namedtuple and typing": """
class NT(typing.NamedTuple):
    a: object
    b: int = 1
Q = collections.namedtuple("Q", "a b")
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    n = NT(x[0:64])
    for _ in range(3):
        n = n._replace(a=n.a + 0)
    q = Q(*n)
    o[0:64] = q.a + q.b
""",
    "dict and set operations": """
@kernel
def k(x: In[f32, "N"], o: Out[f32, "N"]):
    d = dict(a=x[0:64], **{"b": 1})
    d |= {"c": 0}
    d.setdefault("e", []).append(d["a"])
    o[0:64] = d.pop("a") + d["b"] + d.get("zz", 0)
""",
}


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_23_python_around_kernel_values_does_what_python_does(
    construct: str, tmp_path: Path
) -> None:
    path = tmp_path / "constructs.py"
    path.write_text(HEADER + CONSTRUCTS[construct], encoding="utf-8")
    np.testing.assert_array_equal(load(path).on("reference")(X), X + 1)


# 24. nests that are deeper than the compiler follows

DEEP = {
    "elifs of the running kernel": "    if x[0] == 0: t = x[0:64]\n"
    + "".join(f"    elif x[0] == {i}: t = x[0:64] + {i}\n" for i in range(1, 400)),
    "elifs of Python": "    m = len(x.shape)\n    if m == 0: t = x[0:64]\n"
    + "".join(f"    elif m == {i}: t = x[0:64] + {i}\n" for i in range(1, 400)),
    "choices": "    t = x[0:64]\n    o[0:64] = "
    + "".join(f"t if x[0] == {i} else " for i in range(400))
    + "t + 1\n",
    "methods": "    o[0:64] = x[0:64]" + ".astype(f32)" * 400 + "\n",
    "operands": "    if "
    + " or ".join(f"x[{i}] > 3" for i in range(400))
    + ":\n        o[0] = 1\n",
}


@pytest.mark.parametrize("kind", DEEP)
def test_24_a_nest_that_is_too_deep_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text(HEADER + KERNEL + DEEP[kind], encoding="utf-8")
    with pytest.raises(KernelError, match="nests deeper than the compiler follows") as caught:
        load(path).on("reference")(X)
    assert caught.value.places
    assert "write it as a loop" in caught.value.help


def endless(n: int) -> int:
    return endless(n + 1)


@kernel
def calls_endless(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = x[0:64] + endless(1)


def test_24_a_recursion_of_plain_python_is_the_users() -> None:
    with pytest.raises(RecursionError) as caught:
        calls_endless.on("reference")(X)
    assert caught.value.__notes__[0].startswith("in kernel `calls_endless`")
