"""Hypothesis strategies: every generator that the tests share, one section for each family."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from astdsl.emulator.formats.tensormap import TensorMap
from astdsl.ir import ops
from astdsl.ir.core import IN, INOUT, OUT, SCALAR, Block, Module, Op, Value
from astdsl.ir.dtypes import DType, boolean, f16, f32, i8, i32, i64
from astdsl.ir.ops.control import INFERRED, SEQUENTIAL
from astdsl.ir.types import CONDITION, INDEX, TileType, Type
from tests.building import Maker, gmem
from tests.pipelines import AROUND, KINDS, PRODUCT, SPLITS, Case

# Modules of the IR: straight-line tile programs, with control flow around them, that are well
# formed and run on any arrays of `module_arguments`.

EXTENT = 8
SHAPES = ((), (4,), (4, 4), (8,), (2, 4))
DTYPES = (f32, f16, i32, i64, i8, boolean)
NUMBERS = (ops.Add, ops.Subtract, ops.Multiply, ops.Minimum, ops.Maximum)
INTEGERS = (*NUMBERS, ops.FloorDivide, ops.Remainder, ops.BitAnd, ops.BitXor, ops.ShiftLeft,
            ops.ShiftRight, ops.Power)  # fmt: skip
FLOATS = (*NUMBERS, ops.Divide)
BOOLS = (ops.BitAnd, ops.BitOr, ops.BitXor)
UNARY: dict[str, tuple[type[Op], ...]] = {
    "float": (ops.Negate, ops.Absolute, ops.Sqrt, ops.Exp, ops.Floor, ops.Round, ops.IsNan),
    "int": (ops.Negate, ops.Absolute, ops.Invert),
    "bool": (ops.Invert,),
}
BINARY: dict[str, tuple[type[Op], ...]] = {"float": FLOATS, "int": INTEGERS, "bool": BOOLS}
REFS = {
    "x": (IN, f32), "n": (IN, i32), "io": (INOUT, f32), "o": (OUT, i32),
}  # fmt: skip


def numbers_of(dtype: DType) -> st.SearchStrategy[float | int | bool]:
    """Draw a Python number that fits a dtype, often one where rules change."""
    if dtype is boolean:
        return st.booleans()
    if dtype.is_float:
        special = st.sampled_from([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan])
        return special | st.floats(-1e3, 1e3, width=16)
    info = np.iinfo(dtype.numpy)
    return st.integers(-4, 9) | st.integers(int(info.min), int(info.max))


class ModuleDrawer:
    """Appends drawn operations to a module; `pool` holds the values that are visible."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        params = [(n, role, gmem(d, EXTENT, EXTENT)) for n, (role, d) in REFS.items()]
        scalars = [("s", SCALAR, INDEX), ("flag", SCALAR, CONDITION)]
        self.m = Maker(*params, *scalars, o=0)
        self.pool: list[Value] = [self.m["s"], self.m["flag"]]
        self.depth = 0

    def pick(self, *, kind: str = "", dtype: DType | None = None, type: Type | None = None) -> Any:
        """Draw a visible value, None where there is none of that kind."""
        found = [
            v
            for v in self.pool
            if (not kind or v.tile.dtype.kind == kind)
            and (dtype is None or v.tile.dtype is dtype)
            and (type is None or v.type == type)
        ]
        return self.draw(st.sampled_from(found)) if found else None

    def value_of(self, type: TileType) -> Value:
        """Draw a visible value of a type, or make a constant."""
        found = self.pick(type=type)
        return found if found is not None else self.constant_of(type)

    def constant_of(self, type: TileType) -> Value:
        """Make a constant of a type."""
        value = self.draw(numbers_of(type.dtype))
        return self.keep(self.m.make(ops.Constant, value=value, type=type))

    def keep(self, value: Value) -> Value:
        """Make a value visible to what is drawn next, sometimes with a name."""
        value.hint = self.draw(st.sampled_from(["", "", "a", "acc", "a_1", "7x"]))
        self.pool.append(value)
        return value

    def constant(self) -> None:
        """Append a constant."""
        shape, dtype = self.draw(st.sampled_from(SHAPES)), self.draw(st.sampled_from(DTYPES))
        self.constant_of(TileType(shape, dtype))

    def binary(self) -> None:
        """Append an operation on two tiles."""
        x = self.pick()
        kind = self.draw(st.sampled_from(BINARY[x.tile.dtype.kind]))
        self.keep(self.m.make(kind, x, self.value_of(x.tile)))

    def unary(self) -> None:
        """Append an operation on one tile."""
        x = self.pick()
        kind = self.draw(st.sampled_from(UNARY[x.tile.dtype.kind]))
        self.keep(self.m.make(kind, x))

    def compare(self) -> None:
        """Append a comparison."""
        x = self.pick()
        predicate = self.draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
        self.keep(self.m.make(ops.Compare, x, self.value_of(x.tile), predicate=predicate))

    def select(self) -> None:
        """Append a selection between two tiles."""
        x = self.pick()
        condition = self.value_of(TileType(x.tile.shape, boolean))
        y = self.value_of(x.tile)
        self.keep(self.m.make(ops.Select, condition=condition, x=x, y=y))

    def cast(self) -> None:
        """Append a conversion."""
        self.keep(self.m.make(ops.Cast, self.pick(), dtype=self.draw(st.sampled_from(DTYPES))))

    def move(self) -> None:
        """Append an operation on the places of a tile."""
        x = self.pick()
        shape = x.tile.shape
        rank, ones = len(shape), (1,) * len(shape)
        moves: list[Callable[[], Value]] = [
            lambda: self.m.make(ops.Broadcast, x, shape=(2, *shape)),
            lambda: self.m.make(ops.Reshape, x, shape=(1, *shape)),
            lambda: self.m.make(ops.Transpose, x, permutation=tuple(range(rank))[::-1]),
            lambda: self.m.make(ops.Slice, x, starts=(0,) * rank, sizes=ones, steps=ones),
            lambda: self.m.make(ops.Insert, x=x, part=x, starts=(0,) * rank),
        ]
        self.keep(self.draw(st.sampled_from(moves))())

    def reduce(self) -> None:
        """Append a reduction, of a tile that is not too deep already."""
        x = self.pick()
        if not x.tile.shape:
            return
        axis = self.draw(st.integers(0, len(x.tile.shape) - 1))
        kinds = ["any", "all"] if x.tile.dtype is boolean else ["sum", "min", "max"]
        kind = self.draw(st.sampled_from(kinds))
        self.keep(self.m.make(ops.Reduce, x, axes=(axis,), kind=kind))

    def combine(self) -> None:
        """Append a scan or a fold: the lesser of the elements, or the last one, so far."""
        x = self.pick()
        if not x.tile.shape or not x.tile.elements:
            return
        axis = self.draw(st.integers(0, len(x.tile.shape) - 1))
        number = TileType((), x.tile.dtype)
        with self.m.region(number, number) as region:
            left, right = region.args
            least = self.m.make(ops.Compare, left, right, predicate="lt")
            chosen = self.m.make(ops.Select, condition=least, x=left, y=right)
            self.m.yields(self.draw(st.sampled_from([chosen, right])))
        kind = self.draw(st.sampled_from([ops.Scan, ops.Fold]))
        made = self.m.op(kind, xs=(x,), captured=(), axis=axis, combine=region.block)
        self.keep(made.result)

    def dot(self) -> None:
        """Append a matrix product."""
        tile = self.value_of(TileType((4, 4), f16))
        self.keep(self.m.make(ops.Dot, a=tile, b=self.value_of(tile.tile), dtype=f32))

    def _start(self) -> Value:
        return self.value_of(INDEX)

    def load(self) -> None:
        """Append a load, anywhere: windows may cross every edge."""
        ref = self.m[self.draw(st.sampled_from(sorted(REFS)))]
        self.keep(self.m.load(ref, (self._start(), self._start()), (4, 4)))

    def store(self) -> None:
        """Append a store to an output."""
        ref = self.m[self.draw(st.sampled_from(["io", "o"]))]
        starts = (self._start(), self._start())
        self.m.store(ref, starts, self.value_of(TileType((4, 4), ref.ref.dtype)))

    def region(
        self, types: tuple[Type, ...], yields: tuple[TileType, ...], *, counts: bool = False
    ) -> Block:
        """Draw a region that yields values of some types; `counts`: first its argument plus 1."""
        outer, self.pool = self.pool, list(self.pool)
        self.depth += 1
        with self.m.region(*types) as opened:
            self.pool += opened.args
            self.some(self.draw(st.integers(0, 3)))
            first = [self.m.make(ops.Add, opened.args[0], self.m.index(1))] if counts else []
            self.m.yields(*first, *(self.value_of(t) for t in yields))
        self.depth -= 1
        self.pool = outer
        return opened.block

    def _carried(self) -> tuple[Value, ...]:
        return tuple(self.draw(st.lists(st.sampled_from(self.pool), max_size=2)))

    def _loop(self, op: Op) -> None:
        for value in op.results:
            self.keep(value)

    def branch(self) -> None:
        """Append an `If`."""
        types = tuple(v.tile for v in self._carried())
        condition = self.value_of(CONDITION)
        then, otherwise = self.region((), types), self.region((), types)
        self._loop(self.m.op(ops.If, condition=condition, then=then, otherwise=otherwise))

    def repeat(self) -> None:
        """Append a `For` of few trips."""
        initial = self._carried()
        types = tuple(v.tile for v in initial)
        limits = ((-1, 1), (0, 3), (1, 2))
        low, high, step = (self.m.index(self.draw(st.integers(*b))) for b in limits)
        body = self.region((INDEX, *types), types)
        self._loop(self.m.op(ops.For, initial=initial, low=low, high=high, step=step, body=body))

    def loop(self) -> None:
        """Append a `While` that counts to a small number."""
        initial = (self.m.index(0), *self._carried())
        types = tuple(v.tile for v in initial)
        trips = self.draw(st.integers(0, 2))
        with self.m.region(*types) as condition:
            bound = self.m.index(trips)
            self.m.yields(self.m.make(ops.Compare, condition.args[0], bound, predicate="lt"))
        body = self.region(types, types[1:], counts=True)
        loop = self.m.op(ops.While, initial=initial, condition=condition.block, body=body)
        self._loop(loop)

    def pipeline(self) -> None:
        """Append a pipeline of one or two axes."""
        initial = self._carried()
        types = tuple(v.tile for v in initial)
        trips = self.draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))
        count = len(trips)
        zero, one = self.m.index(0), self.m.index(1)
        highs = tuple(self.m.index(t) for t in trips)
        axes = tuple(self.draw(st.sampled_from([INFERRED, SEQUENTIAL])) for _ in trips)
        body = self.region((*(INDEX,) * count, *types), types)
        self._loop(self.m.op(ops.Pipeline, initial=initial, lows=(zero,) * count, highs=highs,
                             steps=(one,) * count, body=body, axes=axes, stages=count))  # fmt: skip

    def some(self, count: int) -> None:
        """Append a number of drawn operations."""
        straight: list[Callable[[], None]] = [
            self.constant, self.binary, self.unary, self.compare, self.select, self.cast,
            self.move, self.reduce, self.combine, self.dot, self.load,
            self.store, self.binary, self.store,
        ]  # fmt: skip
        nested = [self.branch, self.repeat, self.loop, self.pipeline] if self.depth < 2 else []
        for _ in range(count):
            self.draw(st.sampled_from([*straight, *nested]))()


@st.composite
def modules(draw: st.DrawFn, size: int = 10) -> Module:
    """Draw a module that is well formed, ends, and writes its outputs."""
    drawer = ModuleDrawer(draw)
    drawer.some(draw(st.integers(0, size)))
    for name in ("io", "o"):
        ref = drawer.m[name]
        value = drawer.value_of(TileType((4, 4), ref.ref.dtype))
        drawer.m.store(ref, (0, 0), value)
    return drawer.m.module()


@st.composite
def module_arguments(draw: st.DrawFn) -> list[Any]:
    """Draw arguments for a module of `modules`."""
    rng = np.random.default_rng(draw(st.integers(0, 3)))
    arrays = [
        rng.integers(-9, 9, (EXTENT, EXTENT)).astype(dtype.numpy) for _, dtype in REFS.values()
    ]
    return [*arrays, draw(st.integers(-3, 9)), draw(st.booleans())]


# Structured Python programs on integers: source text of a helper of n and m that returns an
# integer, with every statement that the front end rewrites. They end, they fail nowhere, and every
# number stays far below 2**31.

VARIABLES = ("a", "b", "c")
EXPRESSIONS = ("name", "constant", "sum", "product", "choice", "min", "walrus", "bump")
CLOSURES = [
    "def bump(k):",
    "    nonlocal a",
    "    a = (a + k) % 101",
    "    return a % 7",
    "def note(k):",
    "    nonlocal b, c",
    "    if k > b:",
    "        c = (c + 1) % 101",
    "    else:",
    "        b -= 1",
    "    return c > k",
]
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class ProgramDrawer:
    """Draws statements of a program; `loops` counts the loops around the statement."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.counters = 0
        self.in_function = False

    def integer(self, depth: int = 2) -> str:
        """Draw an expression whose value is an integer below a few thousand."""
        names = ("n", "m", *VARIABLES)
        kind = self.draw(st.sampled_from(EXPRESSIONS))
        if depth == 0 or kind == "name":
            return self.draw(st.sampled_from(names))
        if kind == "constant":
            return str(self.draw(st.integers(-3, 5)))
        if kind == "walrus":
            return f"({self._target()} := {self.integer(depth - 1)} % 101)"
        if kind == "bump":
            return f"bump({self.integer(depth - 1)})"
        x, y = self.integer(depth - 1), self.integer(depth - 1)
        if kind == "choice":
            return f"({x} if {self.condition(depth - 1)} else {y})"
        if kind == "product":
            return f"({x} % 13 * ({y} % 7))"
        return (
            f"min({x}, {y})" if kind == "min" else f"({x} {self.draw(st.sampled_from('+-'))} {y})"
        )

    def condition(self, depth: int = 2) -> str:
        """Draw a condition."""
        kinds = ("compare", "chain", "and", "or", "not", "in", "note")
        kind = self.draw(st.sampled_from(kinds))
        if depth == 0 or kind == "compare":
            return f"{self.integer(0)} {self.draw(st.sampled_from(COMPARISONS))} {self.integer(0)}"
        if kind == "chain":
            return f"{self.integer(0)} < {self.integer(depth - 1)} <= {self.integer(0)}"
        if kind == "not":
            return f"not ({self.condition(depth - 1)})"
        if kind == "note":
            return f"note({self.integer(depth - 1)})"
        if kind == "in":
            return f"{self.integer(0)} in (1, n, 4)"
        return f"({self.condition(depth - 1)} {kind} {self.condition(depth - 1)})"

    def block(self, depth: int, loops: int) -> list[str]:
        """Draw one to three statements."""
        count = self.draw(st.integers(1, 3))
        return [line for _ in range(count) for line in self.statement(depth, loops)]

    def statement(self, depth: int, loops: int) -> list[str]:
        """Draw a statement as lines."""
        kinds = ["assign", "augment", "swap"]
        kinds += ["if", "for", "while", "with", "match"] * (depth > 0)
        kinds += ["break", "continue"] * (loops > 0)
        kinds += ["return"] * (depth < 3)
        drawn = getattr(self, f"_{self.draw(st.sampled_from(kinds))}")(depth, loops)
        lines: list[str] = drawn
        return lines

    def _target(self) -> str:
        return self.draw(st.sampled_from(VARIABLES))

    def _assign(self, depth: int, loops: int) -> list[str]:
        return [f"{self._target()} = {self.integer()} % 101"]

    def _augment(self, depth: int, loops: int) -> list[str]:
        name = self._target()
        return [f"{name} += {self.integer()}", f"{name} %= 101"]

    def _swap(self, depth: int, loops: int) -> list[str]:
        return ["a, b = b, a"]

    def _if(self, depth: int, loops: int) -> list[str]:
        lines = [f"if {self.condition()}:", *_indented(self.block(depth - 1, loops))]
        if self.draw(st.booleans()):
            lines += [f"elif {self.condition()}:", *_indented(self.block(depth - 1, loops))]
        if self.draw(st.booleans()):
            lines += ["else:", *_indented(self.block(depth - 1, loops))]
        return lines

    def _for(self, depth: int, loops: int) -> list[str]:
        self.counters += 1
        items = self.draw(
            st.sampled_from(("range(n % 4)", "range(3)", "range(1, m % 6, 2)", "(1, 2)"))
        )
        name = f"i{self.counters}"
        body = [f"{self._target()} = ({self.integer()} + {name}) % 101"]
        lines = [f"for {name} in {items}:", *_indented(body + self.block(depth - 1, loops + 1))]
        return lines + self._else(depth, loops)

    def _while(self, depth: int, loops: int) -> list[str]:
        self.counters += 1
        name = f"w{self.counters}"
        lines = [f"{name} = 0", f"while {name} < {self.integer()} % 4:"]
        lines += _indented([f"{name} += 1", *self.block(depth - 1, loops + 1)])
        return lines + self._else(depth, loops)

    def _else(self, depth: int, loops: int) -> list[str]:
        if not self.draw(st.booleans()):
            return []
        return ["else:", *_indented(self.block(depth - 1, loops))]

    def _with(self, depth: int, loops: int) -> list[str]:
        return [f"with nullcontext({self.integer()}) as z:", "    c = z % 101",
                *_indented(self.block(depth - 1, loops))]  # fmt: skip

    def _match(self, depth: int, loops: int) -> list[str]:
        lines = [f"match {self.integer()} % 5:", "    case 0 | 3:"]
        lines += _indented(_indented(self.block(depth - 1, loops)))
        lines += [f"    case 1 if {self.condition(1)}:"]
        return lines + _indented(_indented(self.block(depth - 1, loops)))

    def _break(self, depth: int, loops: int) -> list[str]:
        return ["break"]

    def _continue(self, depth: int, loops: int) -> list[str]:
        return ["continue"]

    def _return(self, depth: int, loops: int) -> list[str]:
        return [f"return {self.integer(1)} + a"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Draw the text of `helper(n, m)`, and of a kernel `f(n, m, o)` that stores what it returns."""
    drawer = ProgramDrawer(draw)
    body = [f"a, b, c = {draw(st.integers(0, 4))}, n % 101, m % 101", *CLOSURES]
    for _ in range(draw(st.integers(1, 3))):
        body += drawer.statement(3, 0)
    lines = ["def helper(n, m):", *_indented([*body, "return a + b * 2 + c"])]
    lines += ["def f(n, m, o):", "    o[0] = helper(n, m)"]
    return "\n".join(["from contextlib import nullcontext", *lines, ""])


# Pipelines of the IR, small enough to be evaluated many times.


def pipeline_cases() -> st.SearchStrategy[Case]:
    """Draw a pipeline with the extents that it runs with; products have blocks for tensor cores."""
    small = {
        "kind": st.sampled_from([k for k in KINDS if k != PRODUCT]),
        "dtype": st.sampled_from([f32, f16, i32]),
        "block": st.sampled_from([(8, 16), (16, 8), (16, 16), (4, 32)]),
    }
    product = {
        "kind": st.just(PRODUCT),
        "dtype": st.just(f32),
        "block": st.sampled_from([(64, 16), (64, 64), (128, 32)]),
    }
    return _cases(small) | _cases(product)


def _cases(parts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        **parts,
        around=st.sampled_from(AROUND),
        trips=st.integers(0, 9),
        is_dynamic=st.booleans(),
        stages=st.integers(0, 4),
        rows=st.integers(1, 40),
        columns=st.integers(1, 40),
        has_branch=st.booleans(),
        has_second=st.booleans(),
        shift=st.sampled_from([0, 0, 1, -3]),
        is_inner_axis=st.booleans(),
        has_tma=st.booleans(),
        load_stages=st.sampled_from([0, 0, 1, 2, 4]),
        split=st.sampled_from(SPLITS),
    )


# Windows and indices of the language: what a user may write between brackets.

Indexing = tuple[Any, ...]
WindowTriple = tuple[int, int, int]


@st.composite
def tile_indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Indexing:
    """Draw an index of a tile by NumPy's rules: integers, slices, `None` and `...`."""
    key: list[Any] = [draw(_tile_item(n)) for n in shape[: draw(st.integers(0, len(shape)))]]
    if draw(st.booleans()):
        key.append(Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


def _tile_item(extent: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-extent, extent)
    step = st.none() | st.integers(-3, 3).filter(bool)
    return st.integers(-extent, extent - 1) | st.builds(slice, bound, bound, step)


@st.composite
def windows(draw: st.DrawFn) -> WindowTriple:
    """Draw start, size and step of a window that may lie outside."""
    size, step = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    return draw(st.integers(-12, 14)), size, step


@st.composite
def overhanging_windows(draw: st.DrawFn, extent: int) -> WindowTriple:
    """Draw start, size and step of a window of an axis that holds an element inside."""
    step = draw(st.integers(1, 2))
    inside = draw(st.integers(0, extent - 1))
    before, after = draw(st.integers(0, 4)), draw(st.integers(0, 8))
    return inside - before * step, before + after + 1, step


def inner_items(extent: int) -> st.SearchStrategy[Any]:
    """Draw an index of an axis that lies inside."""
    low = st.integers(0, extent - 1)
    part = low.flatmap(
        lambda a: st.builds(slice, st.just(a), st.integers(a + 1, extent), st.integers(1, 2))
    )
    return st.just(slice(None)) | part | low


# Tensor maps of the emulator: an array, a box of it and the box's corner, often outside.


@st.composite
def tensor_boxes(draw: st.DrawFn) -> tuple[TensorMap, np.ndarray[Any, Any], tuple[int, ...]]:
    """Draw a map of a 16-bit array, the array, and a corner with the fastest dimension first."""
    rank = draw(st.integers(1, 4))
    outer = [draw(st.integers(1, 5)) for _ in range(rank - 1)]
    shape = (*outer, 8 * draw(st.integers(1, 4)))
    box = (*(draw(st.integers(1, 4)) for _ in outer), 8 * draw(st.integers(1, 3)))
    steps = (*(draw(st.integers(1, 3)) for _ in outer), 1)
    array = np.arange(1, math.prod(shape) + 1, dtype=np.uint16).reshape(shape)
    corner = tuple(draw(st.integers(-6, n + 2)) for n in reversed(shape))
    return TensorMap.of(array, box, element_strides=steps), array, corner


# Accesses by indices, in a view of rows: the shape of the array and whether it is turned, the
# indices, the bounds of the view, and a window (start, size, step) of the columns.

IndexedCase = tuple[tuple[int, int], bool, list[int], tuple[int, int], WindowTriple]


@st.composite
def indexed_cases(draw: st.DrawFn) -> IndexedCase:
    """Generate an access whose parts may lie inside or outside of one another."""
    shape = (draw(st.integers(1, 20)), draw(st.sampled_from([1, 7, 16, 32, 40])))
    ids = draw(st.lists(st.integers(-3, 24), min_size=1, max_size=24))
    bounds = (draw(st.integers(-4, 12)), draw(st.integers(0, 24)))
    window = (draw(st.integers(-9, 36)), draw(st.sampled_from([1, 4, 8, 13, 32])))
    return shape, draw(st.booleans()), ids, bounds, (*window, draw(st.integers(1, 3)))
