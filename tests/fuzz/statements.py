"""Random statements: assignments, branches, loops and pipelines with carried names, closures."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tests.fuzz.expressions import MOST_ELEMENTS, Expressions, visible
from tests.fuzz.program import FLOATS, INTEGERS, NUMBERS, Draw, Name, Scope, Shape, Window

Lines = list[str]
Statement = Callable[[Scope, int], Lines]
EXTENTS = (4, 8, 12, 16)


def indented(lines: Lines) -> Lines:
    """Return lines one level deeper."""
    return [f"    {line}" for line in lines]


class Statements(Expressions):
    """Draws statements; `dims` are the names of extents."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.dims: list[str] = []
        self.may_split = False

    def shape(self, scope: Scope) -> Shape:
        """Return a shape of a new name."""
        draw = self.draw
        sizes = [w.size for w in scope.windows if w.size] or [8]
        shapes: list[Shape] = [(), *(n.shape for n in scope.names)]
        shapes += [(draw.pick(sizes),), (draw.pick(sizes), draw.pick(sizes))]
        shapes += [(draw.pick([1, 2, 3, 5, 8, 16, 24]),), (draw.pick([1, 3, 4]), draw.pick([3, 8]))]
        found = draw.pick([(2, 1, 3, 4), (3, 2, 5)] if draw.chance(0.1) else shapes)
        return found if prod(found) <= MOST_ELEMENTS else ()

    def statements(self, scope: Scope, count: int, depth: int) -> Lines:
        """Return some statements; the first makes a name that others may assign."""
        lines = self.assign(scope, depth) if count and not visible(scope.names) else []
        kinds: list[tuple[float, Statement]] = [
            (4, self.assign), (0.7, self.augment), (0.3, self.show), (0.3, self.require),
            (0.3, self.closure), (0.3, self.choose), (0.2, self.swap),
        ]  # fmt: skip
        if depth:
            kinds += [(1.2, self.branch), (0.9, self.loop), (0.5, self.repeat), (0.4, self.leave),
                      (1.5, self.pipeline), (0.8, self.sum), (0.4, self.bump)]  # fmt: skip
        kinds += self.more(depth)
        for _ in range(count):
            lines += self.draw.weighted(kinds)(scope, depth)
        return lines

    def more(self, depth: int) -> list[tuple[float, Statement]]:
        """Return statements that a kind of kernels has besides."""
        return []

    def some(self, scope: Scope, dtypes: tuple[str, ...] = NUMBERS) -> Name | None:
        """Return a name to assign, None where there is none."""
        found = [n for n in visible(scope.names) if n.dtype in dtypes]
        return self.draw.pick(found) if found else None

    def assign(self, scope: Scope, depth: int) -> Lines:
        """Return an assignment of a new name."""
        made = Name(self.fresh(), self.shape(scope), self.draw.pick(NUMBERS))
        value = self.expression(scope, made.shape, made.dtype, self.draw.number(1, 3))
        if made.shape and self.draw.chance(0.4):
            value = f"({value}).filled({self.constant(made.dtype)})"
        scope.names.append(made)
        return [f"{made.name} = {value}"]

    def update(self, scope: Scope, name: Name) -> Lines:
        """Return an assignment of a name that there is."""
        value = self.expression(scope, name.shape, name.dtype, 2)
        if name.shape and self.draw.chance(self.settles):
            value = f"({value}).filled({self.constant(name.dtype)})"
        return [f"{name.name} {self.draw.pick(['=', '=', '+=', '-=', '*='])} {value}"]

    def augment(self, scope: Scope, depth: int) -> Lines:
        """Return an augmented assignment."""
        name = self.some(scope)
        if name is None:
            return []
        operators = ["+=", "-=", "*="]
        operators += ["|=", "^=", ">>=", "//=", "%="] * (name.dtype in INTEGERS)
        value = self.operand(scope, name.shape, name.dtype, 2) if not name.shape else None
        value = value or self.expression(scope, name.shape, name.dtype, 2)
        value = self.whole(value, name.shape, name.dtype)
        return [f"{name.name} {self.draw.pick(operators)} {value}"]

    def show(self, scope: Scope, depth: int) -> Lines:
        """Return a print of a kernel value."""
        name = self.some(scope)
        return [f'print("v", {", ".join([name.name, *scope.indices[-1:]])})'] if name else []

    def require(self, scope: Scope, depth: int) -> Lines:
        """Return an assertion that holds."""
        name = self.some(scope, INTEGERS)
        if name is None:
            return []
        return [f'assert all({name.name} <= 2**64), f"{{{name.name}}} is a number"']

    def closure(self, scope: Scope, depth: int) -> Lines:
        """Return a nested function that reads a name, and its call."""
        name, function, made = self.some(scope), self.fresh("f"), self.fresh()
        if name is None:
            return []
        given = self.expression(scope, name.shape, name.dtype, 1)
        scope.names.append(Name(made, name.shape, name.dtype))
        return [f"def {function}(q):", f"    return ({name.name} + q).astype({name.dtype})",
                f"{made} = {function}({given})"]  # fmt: skip

    def bump(self, scope: Scope, depth: int) -> Lines:
        """Return a nested function that assigns a name of around, called by a loop or a branch."""
        name, function = self.some(scope), self.fresh("f")
        if name is None:
            return []
        given, outer = self.expression(scope, name.shape, name.dtype, 1), self.draw.chance(0.5)
        around = f"for _ in range({self.trips(scope)}):" if outer else f"if {self.test(scope)}:"
        settled = ".filled(0)" if name.shape else ""
        changed = f"({name.name} + q).astype({name.dtype}){settled}"
        return [f"def {function}(q):", f"    nonlocal {name.name}", f"    {name.name} = {changed}",
                around, f"    {function}({given})"]  # fmt: skip

    def choose(self, scope: Scope, depth: int) -> Lines:
        """Return a conditional expression."""
        made = Name(self.fresh(), self.shape(scope), self.draw.pick(NUMBERS))
        x, y = (self.expression(scope, made.shape, made.dtype, 2) for _ in range(2))
        test = self.test(scope)
        scope.names.append(made)
        return [f"{made.name} = {x} if {test} else {y}"]

    def swap(self, scope: Scope, depth: int) -> Lines:
        """Return two names that are swapped."""
        x = self.some(scope)
        if x is None:
            return []
        y = Name(self.fresh(), x.shape, x.dtype)
        value = self.expression(scope, x.shape, x.dtype, 1)
        scope.names.append(y)
        return [f"{y.name} = {value}", f"{x.name}, {y.name} = {y.name}, {x.name}"]

    def test(self, scope: Scope) -> str:
        """Return a condition."""
        draw = self.draw
        tests = [self.expression(scope, (), "bool", 1)]
        if scope.indices:
            i = draw.pick(scope.indices)
            tests += [f"{i} == {draw.number(0, 2)}", f"{i} % 2 == 1", f"{i} > {draw.number(0, 3)}",
                      f"{draw.number(0, 1)} <= {i} < 3", f"{i} != 0 and {i} < 3"]  # fmt: skip
        scalars = [n.name for n in scope.names if not n.shape and n.dtype in INTEGERS]
        if scalars:
            n = draw.pick(scalars)
            tests += [f"{n} > {draw.number(0, 3)}", f"{n} % 2 == 1", f"not {n} < 2 or {n} == 0"]
        return draw.pick(tests)

    def trips(self, scope: Scope) -> str:
        """Return a small number of steps."""
        counts = [str(self.draw.number(0, 3)), str(self.draw.number(1, 4)), "n % 4", "n % 3"]
        counts += [f"cdiv({dim}, {size})" for dim in self.dims for size in (12, 16)]
        counts += [f"{i} % 3" for i in scope.indices[-1:]]
        return self.draw.pick(counts)

    def body(self, outer: Scope, inner: Scope, depth: int) -> Lines:
        """Return what a step does: it assigns names of around, which are carried."""
        lines = (
            self.statements(inner, self.draw.number(0, 2), depth) if self.draw.chance(0.5) else []
        )
        for _ in range(self.draw.number(1, 2)):
            name = self.some(outer)
            lines += self.update(inner, name) if name else []
        name = self.some(outer)
        if name and self.draw.chance(0.2):
            lines += [f"if {self.test(inner)}:", *indented(self.update(inner, name))]
        return lines or ["pass"]

    def branch(self, scope: Scope, depth: int) -> Lines:
        """Return an `if`."""
        lines = [f"if {self.test(scope)}:", *indented(self.body(scope, Scope(scope), depth - 1))]
        if self.draw.chance(0.3):
            lines += [f"elif {self.test(scope)}:"]
            lines += indented(self.body(scope, Scope(scope), depth - 1))
        if self.draw.chance(0.5):
            lines += ["else:", *indented(self.body(scope, Scope(scope), depth - 1))]
        return lines

    def inside(self, scope: Scope, index: str) -> Scope:
        """Return the scope of a loop's body."""
        inner = Scope(scope)
        inner.indices.append(index)
        return inner

    def loop(self, scope: Scope, depth: int) -> Lines:
        """Return a `for`."""
        index = self.fresh("q")
        steps = f"range({self.trips(scope)})"
        if self.draw.chance(0.3):
            steps = self.draw.pick([f"range(1, {self.trips(scope)}, 2)", "unroll(range(2))"])
        body = self.body(scope, self.inside(scope, index), depth - 1)
        return [f"for {index} in {steps}:", *indented(body)]

    def leave(self, scope: Scope, depth: int) -> Lines:
        """Return a `for` that ends early, or leaves out what remains of a step."""
        index, name = self.fresh("q"), self.some(scope)
        if name is None:
            return []
        inner = self.inside(scope, index)
        lines = [f"if {self.test(inner)}:", f"    {self.draw.pick(['break', 'continue'])}"]
        lines = [*self.update(inner, name), *lines, *self.update(inner, name)]
        lines = [f"for {index} in range({self.trips(scope)}):", *indented(lines)]
        if self.draw.chance(0.3):
            lines += ["else:", *indented(self.update(scope, name))]
        return lines

    def repeat(self, scope: Scope, depth: int) -> Lines:
        """Return a `while`."""
        index = self.fresh("w")
        inner = self.inside(scope, index)
        body = [*self.body(scope, inner, depth - 1), f"{index} += 1"]
        head = f"while {index} < {self.draw.number(0, 3)} and ({self.test(scope)}):"
        return [f"{index} = 0", head, *indented(body)]

    def pipeline_scope(self, scope: Scope, index: str) -> Scope:
        """Return the scope of a nested pipeline's body, with windows that its index moves."""
        inner = self.inside(scope, index)
        inner.is_in_pipeline = True
        for dim in self.dims:
            size = self.draw.pick(EXTENTS)
            inner.windows += [Window(f"tile({index}, {size})", size, dim), Window(index, 0, dim)]
        return inner

    def pipeline(self, scope: Scope, depth: int) -> Lines:
        """Return a nested pipeline with carried names."""
        index, other = self.fresh("p"), self.fresh("p")
        options = f", stages={self.draw.number(1, 5)}" * self.draw.chance(0.6)
        inner = self.pipeline_scope(scope, index)
        heads = [f"with pipeline({self.trips(scope)}{options}) as {index}:"]
        if self.draw.chance(0.25):
            inner.indices.append(other)
            axes = f"{self.trips(scope)}, {self.trips(scope)}"
            heads = [f"with pipeline({axes}{options}) as ({index}, {other}):"]
        return [*heads, *indented(self.body(scope, inner, depth - 1))]

    def sum(self, scope: Scope, depth: int) -> Lines:
        """Return a nested pipeline that adds up, in parts on several blocks sometimes."""
        draw, index = self.draw, self.fresh("p")
        made = Name(self.fresh("acc"), self.shape(scope), draw.pick(["f32", "i32", "i64", "f16"]))
        if draw.chance(0.4):
            made.shape, made.dtype = (draw.pick([64, 16, 40]), draw.pick([8, 16, 24])), "f32"
        inner = self.pipeline_scope(scope, index)
        product = len(made.shape) == 2 and made.dtype == "f32" and draw.chance(0.7)
        maker = self.product if product else self.tame
        added = maker(inner, made.shape, made.dtype, 3 if product else 2)
        added = self.whole(added, made.shape, "i8")  # a number whose sums are exact
        options = [f"stages={draw.number(1, 5)}"] * draw.chance(0.6)
        if self.may_split and made.dtype not in set(FLOATS) - {"f32"}:
            options += draw.pick([[], [f"split={draw.number(1, 4)}"], ["split='stream'"]])
        scope.names.append(made)
        return [
            f"{made.name} = zeros({made.shape!r}, {made.dtype})",
            f"with pipeline({', '.join([self.trips(scope), *options])}) as {index}:",
            f"    {made.name} += {added}",
        ]
