"""Random kernels around what Python has: containers that are carried, `match`, bodies as functions.

What a container holds is read and given anew in loops, pipelines and branches; `nd_loop` and
`emit_pipeline` run functions of their steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tests.fuzz.expressions import MOST_ELEMENTS
from tests.fuzz.kernels import Kernels, Launch
from tests.fuzz.program import Argument, Name, Program, Scope
from tests.fuzz.statements import Lines, Statement, indented


@dataclass(frozen=True)
class Holder:
    """How a container is made of two tiles, how each is read, how it is changed."""

    made: str
    parts: tuple[str, str]
    changes: tuple[str, ...] = ()


ITEMS = ("{0}[0] = {1}", "{0}[1] = {2}", "{0}[:] = {0}[0], {2}")
FIELDS = ("{0}.first", "{0}.second")
HOLDERS = (
    Holder("Pair({0}, {1})", FIELDS, ("{0} = {0}._replace(first={1})", "{0} = Pair(*{0})")),
    Holder("Held({0}, {1})", FIELDS, ("{0} = dataclasses.replace({0}, second={2})",
                                      "{0} = {0}.with_first({1})")),
    Holder("Slots({0}, {1})", FIELDS, ("{0}.first = {1}", "{0} = dataclasses.replace({0})")),
    Holder("({0}, {1})", ("{0}[0]", "{0}[1]"), ("{0} = ({1}, *{0}[1:])",)),
    Holder("[{0}, {1}]", ("{0}[0]", "{0}[1]"), ITEMS),
    Holder('{{"a": {0}, "b": {1}}}', ('{0}["a"]', '{0}["b"]'),
           ('{0}["a"] = {1}', '{0} |= {{"b": {2}}}', '{0} = {{**{0}, "a": {1}}}')),
    Holder('Pair([{0}], {{"b": {1}}})', ("{0}.first[0]", '{0}.second["b"]'),
           ("{0}.first[0] = {1}", '{0}.second["b"] = {2}')),
    Holder("Held(Pair({0}, 1), ({1},))", ("{0}.first.first", "{0}.second[0]"),
           ("{0} = Held({0}.first._replace(first={1}), {0}.second)",)),
)  # fmt: skip
CLASSES = """\
import dataclasses, typing
class Pair(typing.NamedTuple):
    first: object
    second: object
@dataclasses.dataclass(frozen=True)
class Held:
    first: object
    second: object
    def with_first(self, t):
        return dataclasses.replace(self, first=t)
@dataclasses.dataclass(slots=True)
class Slots:
    first: object
    second: object
"""
AXES = ("tile", "tile", "tile", "element", "squeezed")


class Structures(Kernels):
    """Draws kernels with containers, `match`, and functions that loops and pipelines run."""

    preamble = CLASSES
    settles = 0.95

    def more(self, depth: int) -> list[tuple[float, Statement]]:
        """Return the statements that other kernels have not."""
        held: list[tuple[float, Statement]] = [(3, self.held), (1, self.unpacked)]
        deep: list[tuple[float, Statement]] = [(2, self.matched), (1.2, self.nd_loop)]
        return held + deep * (depth > 0)

    def more_launches(self, output: Argument) -> list[tuple[float, Launch]]:
        """Return the launches that other kernels have not."""
        return [(4, self.emitted)] * (output.role != "gmem" and output.written)

    def value(self, scope: Scope, name: Name, depth: int = 2) -> str:
        """Return what a name may be given: nothing of it lies outside."""
        found = self.expression(scope, name.shape, name.dtype, depth)
        return self.whole(found, name.shape, name.dtype)

    def parts(self, scope: Scope, holder: Holder, name: str) -> list[Name]:
        """Return the names of what a container holds."""
        first = Name(holder.parts[0].format(name), self.shape(scope), self.number_dtype(), True)
        second = Name(holder.parts[1].format(name), first.shape, first.dtype, True)
        if self.draw.chance(0.5):
            second.shape, second.dtype = self.shape(scope), self.number_dtype()
        return [first, second]

    def number_dtype(self) -> str:
        """Return a dtype of what is held."""
        return self.draw.pick(["f32", "i32", "f16", "i8", "u32", "f64", "bf16"])

    def held(self, scope: Scope, depth: int) -> Lines:
        """Return a container that steps of a loop, or a branch, change."""
        draw, name, holder = self.draw, self.fresh("h"), self.draw.pick(HOLDERS)
        parts = self.parts(scope, holder, name)
        lines = [f"{name} = {holder.made.format(*(self.value(scope, p) for p in parts))}"]
        scope.names += parts
        if depth <= 0:
            return lines
        index, inner = self.fresh("q"), Scope(scope)
        head = draw.pick(["for {0} in range({1}):", "with pipeline({1}) as {0}:", "if {2}:",
                          "for {0} in unroll(range(2)):"])  # fmt: skip
        head = head.format(index, self.trips(scope), self.test(scope))
        inner.indices += [index] * ("if" not in head)
        body = self.changed(inner, holder, name, parts)
        if draw.chance(0.3):
            body = [f"if {self.test(inner)}:", *indented(body)]
        if draw.chance(0.3):
            body += self.changed(inner, holder, name, parts)
        return [*lines, head, *indented(body)]

    def changed(self, scope: Scope, holder: Holder, name: str, parts: list[Name]) -> Lines:
        """Return a change of a container."""
        values = [self.value(scope, p, 1) for p in parts]
        if self.draw.chance(0.45):
            return [self.draw.pick(holder.changes).format(name, *values)]
        same = parts[0].shape == parts[1].shape and parts[0].dtype == parts[1].dtype
        if same and self.draw.chance(0.5):
            values = [p.name for p in parts[::-1]]
        return [f"{name} = {holder.made.format(*values)}"]

    def unpacked(self, scope: Scope, depth: int) -> Lines:
        """Return names that are given together, from what a comprehension or a star makes."""
        x = self.some(scope)
        if x is None:
            return []
        y, z = self.fresh(), self.fresh()
        scope.names += [Name(n, x.shape, x.dtype) for n in (y, z)]
        filled = f".filled({self.constant(x.dtype)})" if x.shape else ""
        form = self.draw.pick([
            "{1}, {2} = [({0} * c).astype({3}){4} for c in (1, 2)]",
            "*{1}, {2} = {0}{4}, {0}\n{1} = {1}[0]",
            "({1}, _), {2} = ({0}{4}, 1), {0}{4}",
            "{1} = {2} = {0}{4}",
            "if all({1} := {0}{4} == {0}):\n    pass\n{1} = {2} = {0}{4}",
        ])  # fmt: skip
        return form.format(x.name, y, z, x.dtype, filled).split("\n")

    def matched(self, scope: Scope, depth: int) -> Lines:
        """Return a `match`."""
        draw = self.draw
        subjects = [f"{i} % 4" for i in scope.indices] + ["n", "n % 3", str(draw.number(0, 3))]
        if draw.chance(0.15):
            subjects = [f"({draw.number(0, 2)}, {draw.number(0, 2)})"]
        subject = draw.pick(subjects)
        lines = []
        for case in draw.random.sample(range(4), draw.number(1, 3)):
            pattern = f"{case} | {case + 4}" if draw.chance(0.2) else str(case)
            if "," in subject:
                pattern = draw.pick([f"({case}, _)", f"(_, {case})", f"[{case}, *_]"])
            guard = f" if {self.test(scope)}" * draw.chance(0.2)
            lines += [f"case {pattern}{guard}:"]
            lines += indented(self.body(scope, Scope(scope), depth - 1))
        if draw.chance(0.6):
            guard = f" if {self.test(scope)}" * draw.chance(0.2)
            lines += [f"case _{guard}:", *indented(self.body(scope, Scope(scope), depth - 1))]
        return [f"match {subject}:", *indented(lines)]

    def nd_loop(self, scope: Scope, depth: int) -> Lines:
        """Return a loop over a grid, as a `for` or as a function of its steps."""
        draw, info = self.draw, self.fresh("s")
        grid = [draw.pick(["1", "2", "3", "n % 3 + 1", "cdiv(M, 16)"])
                for _ in range(draw.number(1, 3))]  # fmt: skip
        options = f", tiling={tuple(draw.number(1, 2) for _ in grid)}" * draw.chance(0.3)
        inner = self.inside(scope, draw.pick([f"{info}.index[{len(grid) - 1}]",
                                              f"{info}.local_index"]))  # fmt: skip
        inner.indices.append(f"{info}.index[0]")
        loop = f"nd_loop(({', '.join(grid)},){options}"
        if draw.chance(0.5):
            return [f"for {info} in {loop}):", *indented(self.body(scope, inner, depth - 1))]
        made = Name(self.fresh(), self.shape(scope), self.number_dtype())
        first, body, carry = self.value(scope, made, 1), self.fresh("f"), self.fresh("c")
        inner.names.append(Name(carry, made.shape, made.dtype))
        lines = self.statements(inner, draw.number(0, 2), depth - 1)
        lines += [f"return {self.value(inner, made)}"]
        scope.names.append(made)
        return [f"def {body}({info}, {carry}):", *indented(lines),
                f"{made.name} = {loop}, init_carry={first})({body})"]  # fmt: skip

    def emitted(self, scope: Scope, output: Argument) -> Lines:
        """Return a pipeline as a function: blocks of inputs, one of the output, perhaps a carry."""
        draw, body, indices = self.draw, self.fresh("f"), self.fresh("i")
        inputs = [a for a in self.readable(output) if a.role != "ids"]
        inputs = draw.random.sample(inputs, draw.number(0, min(2, len(inputs))))
        grid, spec, block = self.block(output, is_output=True)
        inner, names = Scope(scope), [self.fresh("b") for _ in inputs]
        inner.names = [Name(n.name, n.shape, n.dtype, True) for n in inner.names]
        inner.arrays = []
        specs = []
        for array, name in zip(inputs, names, strict=True):
            _, its, read = self.block(array, is_output=False, grid=len(grid))
            read.name = name
            specs.append(its)
            inner.arrays.append(read)
        block.name = self.fresh("b")
        inner.indices += [f"{indices}[{a}]" for a in range(len(grid))]
        shape = tuple(n for n in block.dims if isinstance(n, int))
        made = Name(self.fresh("c"), self.shape(Scope()), self.number_dtype(), True)
        is_carried = draw.chance(0.4)
        inner.names += [made] * is_carried
        lines = self.statements(inner, draw.number(0, 3), 1)
        operator = draw.pick(["=", "=", "+="]) if output.dtype != "bool" else "="
        value = self.expression(inner, shape, output.dtype)
        lines.append(f"{block.name}[...] {operator} {value}")
        taken = [indices, *names, block.name, *[made.name] * is_carried]
        carry = f", init_carry={self.value(scope, made, 1)}" if is_carried else ""
        lines += [f"return {self.value(inner, made)}"] * is_carried
        options = f", max_concurrent_steps={draw.number(1, 4)}" * draw.chance(0.6) + carry
        run = (
            f"emit_pipeline({body}, grid=({', '.join(grid)},), in_specs=[{', '.join(specs)}], "
            f"out_specs=[{spec}]{options})"
        )
        call = f"{run}({', '.join([*(a.name for a in inputs), output.name])})"
        if is_carried and draw.chance(0.5):
            call = f"{made.name} = {call}"
            scope.names.append(made)
        return [f"def {body}({', '.join(taken)}):", *indented(lines), call]

    def block(
        self, array: Argument, *, is_output: bool, grid: int = 0
    ) -> tuple[list[str], str, Argument]:
        """Return the grid that covers an array, its `BlockSpec`, and the block as an array."""
        draw = self.draw
        counts, extents, places, dims = [], [], [], []
        parameters = [f"p{a}" for a in range(array.rank if is_output else grid)]
        for axis, dim in enumerate(array.dims):
            kind = draw.pick(AXES)
            kind = "tile" if kind == "squeezed" and axis == array.rank - 1 else kind
            size = 0 if kind == "squeezed" else draw.pick([4, 8, 12, 16])
            extents.append(draw.pick(["None", "Squeezed"]) if not size
                           else f"Element({size})" if kind == "element" else str(size))  # fmt: skip
            dims += [size] * (size > 0)
            counts.append(f"cdiv({dim}, {size})" if size else str(dim))
            index = draw.pick([parameters[axis]] if is_output else [*parameters, "0", "1"])
            if not is_output and index.startswith("p") and draw.chance(0.3):
                index += draw.pick([" // 2", " + 1", " - 1"])
            places.append(f"({index}) * {size}" if kind == "element" else index)
        if prod(dims) > MOST_ELEMENTS:
            return self.block(array, is_output=is_output, grid=grid)
        fill = f", oob_fill={draw.number(0, 3)}" * (not is_output and draw.chance(0.2))
        spec = f"BlockSpec(({', '.join(extents)},), lambda {', '.join(parameters)}: "
        spec += f"({', '.join(places)},){fill})"
        return counts, spec, Argument("", "In", array.dtype, tuple(dims))


def structure(seed: int) -> Program:
    """Return the kernel of a seed."""
    return Structures(seed).program()
