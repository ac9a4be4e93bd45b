"""Random expressions of a shape and a dtype, exact whatever the order of their sums.

Invariant: what is summed is an integer or a float between -3 and 3 without a fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tests.fuzz.layouts import layout
from tests.fuzz.program import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    Draw,
    Name,
    Scope,
    Shape,
    bits,
)
from tests.fuzz.reads import Reads, cast, tile_of

MOST_ELEMENTS = 1100
EVERYWHERE = 0.9
HELPERS = {
    "larger": "def larger(p, q):\n    return maximum(p, q)\n",
    "last": "def last(p, q):\n    return q\n",
    "differing": "def differing(p, q):\n    return p ^ q\n",
    "best": "def best(p, q):\n    t = q[0] > p[0]\n"
    "    return where(t, q[0], p[0]), where(t, q[1], p[1])\n",
    "then": "def then(p, q):\n    return p[0] * q[0], p[1] * q[0] + q[1]\n",
    "settled": "def settled(p):\n    return where(isnan(p), 0.0, p)\n",
}
FLOAT_FORMS = (
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} / {1})", "minimum({0}, {1})",
    "max({0}, {1})", "clip({0}, {2}, {1})", "({0} + {1} * {1})",
)  # fmt: skip
INTEGER_FORMS = (
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} & {1})", "({0} | {1})", "({0} ^ {1})",
    "({0} << {1})", "({0} >> {1})", "({0} // {1})", "({0} % {1})", "minimum({0}, {1})",
    "max({0}, {1})", "clip({0}, {2}, {1})", "({0} ** {1})", "({0} ** 3)", "cdiv({0}, {1})",
)  # fmt: skip
MIXED_FORMS = ("+", "-", "*")
FLOAT_UNARY = ("-{}", "abs({})", "floor({})", "ceil({})", "round({})", "sqrt({})", "({} ** 2)")
INTEGER_UNARY = ("-{}", "abs({})", "(~{})", "({} ** 2)", "round({})")
PRODUCTS = {"i32": ("i8", "u8"), "f64": ("f64",), "f32": ("f16", "bf16", "f32", "f8e4m3", "f8e5m2")}
Maker = Callable[[Scope, Shape, str, int], str]


class Expressions(Reads):
    """Draws expressions; `budget` bounds how many, `helpers` are the functions they call.

    `settles`: how often nothing lies outside of what a name is given that there is; above
    `EVERYWHERE` also of what loses where that is.
    """

    settles = 0.7

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.budget = 0
        self.count = 0
        self.helpers: list[str] = []

    def fresh(self, prefix: str = "t") -> str:
        """Return a new name."""
        self.count += 1
        return f"{prefix}_{self.count}"  # `i8` is a dtype

    def helper(self, name: str) -> str:
        """Return the name of a helper function, which the program then has."""
        if name not in self.helpers:
            self.helpers.append(name)
        return name

    def whole(self, text: str, shape: Shape, dtype: str) -> str:
        """Return a tile of which nothing lies outside, in the kinds that settle everywhere."""
        if not shape or self.settles <= EVERYWHERE:
            return text
        return f"({text}).filled({self.constant(dtype)})"

    def expression(self, scope: Scope, shape: Shape, dtype: str, depth: int = 3) -> str:
        """Return an expression of a shape and a dtype."""
        self.budget -= 1
        if depth <= 0 or self.budget < 0:
            return self.leaf(scope, shape, dtype)
        if dtype == "bool":
            return self.condition_tile(scope, shape, depth)
        makers: list[tuple[float, Maker]] = [
            (4, self.leaf), (3, self.binary), (1.5, self.unary), (1.5, self.select),
            (1.2, self.mixed), (0.3, self.bitcast),
        ]  # fmt: skip
        if shape:
            makers += [(1, self.broadcast), (0.6, self.sliced), (0.6, self.scanned),
                       (0.5, self.taken), (0.5, self.joined), (0.4, self.reshaped)]  # fmt: skip
        if len(shape) > 1:
            makers += [(0.8, self.transposed), (0.4, self.stacked)]
        if prod(shape) <= MOST_ELEMENTS // 2 and len(shape) <= 3:
            makers += [(1.5, self.reduced)]
        if len(shape) == 2 and dtype in PRODUCTS:
            makers += [(0.35, self.product)]
        makers += self.more_makers(shape)
        return self.draw.weighted(makers)(scope, shape, dtype, depth)

    def laid_out(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a tile in a stated layout."""
        tile = self.expression(scope, shape, dtype, depth - 1)
        return f"layout_cast({tile}, {layout(self.draw, shape)})"

    def more_makers(self, shape: Shape) -> list[tuple[float, Maker]]:
        """Return expressions that a kind of kernels has besides."""
        return []

    def leaf(self, scope: Scope, shape: Shape, dtype: str, depth: int = 0) -> str:
        """Return a name, what an array holds, or a constant."""
        draw = self.draw
        names = [n for n in scope.names if n.shape == shape]
        same = [n for n in names if n.dtype == dtype] or names
        kinds = [(0.6, "constant"), (3.0 * bool(same), "name"), (2.5 * bool(scope.arrays), "load")]
        kind = draw.weighted([*kinds, (0.4 * bool(scope.indices and dtype != "bool"), "index")])
        if kind == "name":
            name = draw.pick(same)
            return name.name if name.dtype == dtype else cast(name.name, dtype)
        if kind == "load" and (loaded := self.load(scope, shape, dtype)):
            return loaded
        if kind == "index":
            return cast(f"full({shape!r}, 0, i32) + {draw.pick(scope.indices)} % 7", dtype)
        if shape and dtype != "bool" and draw.chance(0.4):
            axis = draw.number(0, len(shape) - 1)
            return cast(f"iota({shape!r}, {axis}) % {draw.number(2, 9)}", dtype)
        return f"full({shape!r}, {self.constant(dtype)}, {dtype})"

    def condition_tile(self, scope: Scope, shape: Shape, depth: int) -> str:
        """Return an expression of bools."""
        draw, dtype = self.draw, self.draw.pick(NUMBERS)
        kind = draw.weighted([(5, "compare"), (1, "logic"), (0.7, "not"), (0.6, "nan"),
                              (0.5, "any"), (0.5, "cast")])  # fmt: skip
        if kind == "any" and len(shape) < 3:
            axis = draw.number(0, len(shape))
            larger = (*shape[:axis], draw.pick([1, 2, 3, 5, 8]), *shape[axis:])
            inner = self.expression(scope, larger, "bool", depth - 1)
            return f"{draw.pick(['any', 'all'])}({inner}, axis={axis})"
        if kind in ("logic", "not"):
            x, y = (self.expression(scope, shape, "bool", depth - 1) for _ in range(2))
            return f"({x} {draw.pick('&|^')} {y})" if kind == "logic" else f"(~{x})"
        if kind == "nan":
            tile = self.expression(scope, shape, draw.pick(FLOATS), depth - 1)
            return f"{draw.pick(['isnan', 'isinf'])}({tile})"
        tile = self.expression(scope, shape, dtype, depth - 1)
        if kind == "cast":
            return cast(tile, "bool")
        other = self.constant(dtype)
        if draw.chance(0.6):
            other = self.expression(scope, shape, dtype, depth - 1)
        return f"({tile} {draw.pick(['<', '<=', '>', '>=', '==', '!='])} {other})"

    def operand(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return an operand: a number, a tile that broadcasts, or a tile."""
        if self.draw.chance(0.25):
            return self.constant(dtype)
        if shape and self.draw.chance(0.15):
            shape = tuple(1 if self.draw.chance(0.5) else n for n in shape)
            shape = shape[self.draw.number(0, len(shape)) :]
        return self.expression(scope, shape, dtype, depth)

    def binary(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return an operation on two tiles."""
        form = self.draw.pick(FLOAT_FORMS if dtype in FLOATS else INTEGER_FORMS)
        x = self.expression(scope, shape, dtype, depth - 1)
        y = self.operand(scope, shape, dtype, depth - 1)
        return form.format(x, y, self.constant(dtype))

    def unary(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return an operation on one tile."""
        form = self.draw.pick(FLOAT_UNARY if dtype in FLOATS else INTEGER_UNARY)
        return f"({form.format(self.expression(scope, shape, dtype, depth - 1))})"

    def select(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a choice between two tiles."""
        condition = self.expression(scope, shape, "bool", depth - 1)
        x = self.expression(scope, shape, dtype, depth - 1)
        return f"where({condition}, {x}, {self.operand(scope, shape, dtype, depth - 1)})"

    def mixed(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a conversion, of an operation between dtypes too."""
        first, second = self.draw.pick(NUMBERS), self.draw.pick(NUMBERS)
        x = self.expression(scope, shape, first, depth - 1)
        # Neither has signed integers beside u64 a dtype, nor have two floats of 8 bits.
        if self.draw.chance(0.5) or "u64" in (first, second) or first[:2] == second[:2] == "f8":
            return cast(x, dtype)
        y = self.expression(scope, shape, second, depth - 1)
        return cast(f"{x} {self.draw.pick(MIXED_FORMS)} {y}", dtype)

    def bitcast(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return the bits of another dtype; the payload of a NaN is unspecified."""
        alike = [n for n in NUMBERS if bits(n) == bits(dtype) and n != dtype]
        source = self.draw.pick(alike)
        tile = self.expression(scope, shape, source, depth - 1)
        tile = f"{self.helper('settled')}({tile})" if source in FLOATS else tile
        return f"bitcast({tile}, {dtype})"

    def broadcast(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a tile that repeats along an axis."""
        axis = self.draw.number(0, len(shape) - 1)
        if self.draw.chance(0.5):
            ones = tuple(1 if a == axis else n for a, n in enumerate(shape))
            tile = self.expression(scope, ones, dtype, depth - 1)
            return f"broadcast_to({tile}, {shape!r})"
        tile = self.expression(scope, shape[:axis] + shape[axis + 1 :], dtype, depth - 1)
        key = ", ".join("None" if a == axis else ":" for a in range(len(shape)))
        return (
            f"broadcast_to(({tile})[{key}], {shape!r})" if len(shape) > 1 else tile_of(tile, shape)
        )

    def sliced(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a part of a larger tile."""
        axis, extra = self.draw.number(0, len(shape) - 1), self.draw.number(0, 3)
        size, low = shape[axis], self.draw.number(0, extra)
        extent, key = self.draw.pick([
            (size + extra, f"{low}:{low + size}"), (2 * size, "::2"), (size, "::-1"),
        ])  # fmt: skip
        larger = (*shape[:axis], extent, *shape[axis + 1 :])
        keys = ", ".join([*[":"] * axis, key])
        return f"({self.expression(scope, larger, dtype, depth - 1)})[{keys}]"

    def tame(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return an expression whose sums are exact."""
        tile = self.expression(scope, shape, dtype, depth)
        if dtype in INTEGERS:
            return tile
        return f"clip(round({self.helper('settled')}({tile})), -3, 3)"

    def scanned(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a scan along an axis."""
        axis = self.draw.number(0, len(shape) - 1)
        source = self.draw.pick([dtype, "i32", "i8", "f16", "f32"])
        if self.draw.chance(0.5):
            return cast(f"cumsum({self.tame(scope, shape, source, depth - 1)}, axis={axis})", dtype)
        x = self.expression(scope, shape, source, depth - 1)
        y = self.expression(scope, shape, "i32", depth - 1)
        if self.draw.chance(0.4):
            return cast(f"scan({x}, {axis}, {self.helper('larger')})", dtype)
        pair = f"({x}, {y})" if self.draw.chance(0.5) else f"({cast(x, 'i32')}, {y})"
        combine = "best" if pair.startswith(f"({x},") else "then"
        return cast(
            f"scan({pair}, {axis}, {self.helper(combine)})[{self.draw.number(0, 1)}]", dtype
        )

    def taken(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return what indices pick of a tile: of constants, an index, or a tile of them."""
        draw = self.draw
        axis, extent = draw.number(0, len(shape) - 1), draw.pick([1, 2, 3, 7, 16])
        larger = (*shape[:axis], extent, *shape[axis + 1 :])
        if scope.indices and draw.chance(0.3):
            deeper = (*shape[:axis], extent, *shape[axis:])
            tile = self.whole(self.expression(scope, deeper, dtype, depth - 1), deeper, dtype)
            return f"take({tile}, {draw.pick(scope.indices)} % {extent}, axis={axis})"
        tile = self.whole(self.expression(scope, larger, dtype, depth - 1), larger, dtype)
        if shape[axis] <= 8 and draw.chance(0.5):
            places = [draw.number(-extent, extent - 1) for _ in range(shape[axis])]
            return f"({tile})[{':, ' * axis}{places}]"
        kind = draw.pick(["i32", "u8", "i64"])
        which = self.expression(scope, (shape[axis],), kind, depth - 1)
        which = self.whole(which, (shape[axis],), kind)
        return f"take({tile}, {which} % {extent}, axis={axis})"

    def joined(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return two tiles side by side, or one of equal parts."""
        axis = self.draw.number(0, len(shape) - 1)
        size = shape[axis]

        def part(extent: int) -> str:
            other = (*shape[:axis], extent, *shape[axis + 1 :])
            return self.whole(self.expression(scope, other, dtype, depth - 1), other, dtype)

        if size < 2 or self.draw.chance(0.3):
            return f"split({part(size * 2)}, 2, axis={axis})[{self.draw.number(0, 1)}]"
        low = self.draw.number(1, size - 1)
        return f"concat(({part(low)}, {part(size - low)}), axis={axis})"

    def stacked(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return tiles along an axis of their own."""
        axes = [a for a, n in enumerate(shape) if n <= 3]
        if not axes:
            return self.transposed(scope, shape, dtype, depth)
        axis = self.draw.pick(axes)
        other = shape[:axis] + shape[axis + 1 :]
        parts = [self.whole(self.expression(scope, other, dtype, depth - 1), other, dtype)
                 for _ in range(shape[axis])]  # fmt: skip
        return f"stack(({', '.join(parts)},), axis={axis})"

    def reshaped(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a tile of another shape in this one."""
        count = prod(shape)
        shapes = [(count,), (1, count), (count, 1)]
        shapes += [(n, count // n) for n in (2, 3, 4, 8, 16) if count % n == 0]
        tile = self.expression(scope, self.draw.pick(shapes), dtype, depth - 1)
        return f"reshape(({tile}).filled({self.constant(dtype)}), {shape!r})"

    def transposed(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a tile with its axes in another order."""
        order = self.draw.random.sample(range(len(shape)), len(shape))
        source = [0] * len(shape)
        for extent, place in zip(shape, order, strict=True):
            source[place] = extent
        tile = self.expression(scope, tuple(source), dtype, depth - 1)
        return f"({tile}).T" if order == [1, 0] else f"transpose({tile}, {tuple(order)})"

    def reduced(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a reduction of a tile with one axis more."""
        draw = self.draw
        axis, extent = draw.number(0, len(shape)), draw.pick([1, 2, 3, 5, 7, 8, 16, 33])
        larger = (*shape[:axis], extent, *shape[axis:])
        where = axis if draw.chance(0.7) else axis - len(larger)
        source = draw.pick([dtype, dtype, *NUMBERS])
        kind = draw.pick(["sum", "mean", "prod", "min", "max", "argmax", "argmin", "one", "two"])
        if kind in ("sum", "mean"):
            source = draw.pick(["f32", "f16", "bf16"]) if kind == "mean" else source
            tile = self.tame(scope, larger, source, depth - 1)
            return cast(f"{kind}({tile}, axis={where})", dtype)
        if kind == "prod":
            source = source if source in INTEGERS else "i32"
        tile = self.expression(scope, larger, source, depth - 1)
        if kind == "one":
            combine = draw.pick(["larger", "last", *["differing"] * (source in INTEGERS)])
            return cast(f"reduce({tile}, {where}, {self.helper(combine)})", dtype)
        if kind == "two":
            other = self.expression(scope, larger, "i32", depth - 1)
            pair = f"reduce(({tile}, {other}), {where}, {self.helper('best')})"
            return cast(f"{pair}[{draw.number(0, 1)}]", dtype)
        return cast(f"{kind}({tile}, axis={where})", dtype)

    def product(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return a product of matrices."""
        draw = self.draw
        inner = draw.pick([1, 3, 8, 16, 16, 32, 33, 64])
        left = draw.pick(PRODUCTS[dtype])
        right = draw.pick(["i8", "u8"]) if dtype == "i32" else left

        def operand(rows: int, columns: int, kind: str) -> str:
            if draw.chance(0.3):
                return f"({self.tame(scope, (columns, rows), kind, depth - 2)}).T"
            return self.tame(scope, (rows, columns), kind, depth - 2)

        x, y = operand(shape[0], inner, left), operand(inner, shape[1], right)
        if draw.chance(0.5):
            return f"({x} @ {y})"
        options = f", {self.tame(scope, shape, dtype, depth - 1)}" * draw.chance(0.5)
        if left == "f32" and draw.chance(0.7):
            options += f", precision={draw.pick(['tf32', 'tf32x3'])!r}"
        return f"dot({x}, {y}{options})"


def visible(names: list[Name]) -> list[Name]:
    """Return the names that may be assigned."""
    return [n for n in names if not n.fixed]
