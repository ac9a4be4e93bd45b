"""Random kernels of views that end at run time, gathers and scatters, and folds in pipelines."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tests.fuzz.expressions import MOST_ELEMENTS, Maker
from tests.fuzz.kernels import ATOMIC, Kernels, Launch
from tests.fuzz.layouts import SHAPES
from tests.fuzz.program import Argument, Name, Program, Scope, Shape, Window
from tests.fuzz.statements import Lines, Statement, indented

# What a step of a nested pipeline makes of what was before (0) and a tile (1).
FOLDS = (
    "{0} = maximum({0}, {1})", "{0} = {0} + {1}", "{0} = where({1} > {0}, {1}, {0})",
    "{0} = minimum({0}, {1}) + 1",
)  # fmt: skip


class Views(Kernels):
    """Draws kernels that work on views; `at` holds where groups of rows begin, in order."""

    settles = 0.95

    def make_arrays(self) -> None:
        """Draw the arrays; the last input says where groups begin."""
        super().make_arrays()
        self.arrays.insert(0, Argument("at", "bounds", "i32", (5,)))
        self.arrays.sort(key=lambda a: a.name != "x0")

    def readable(self, output: Argument | None = None) -> list[Argument]:
        """Return the arrays that may be read, but for the one that is being written."""
        return [a for a in super().readable(output) if a.role != "bounds"]

    def more(self, depth: int) -> list[tuple[float, Statement]]:
        """Return the statements that other kernels have not."""
        return [(1.5, self.viewed), *[(2.5, self.folded)] * (depth > 0)]

    def more_makers(self, shape: Shape) -> list[tuple[float, Maker]]:
        """Return expressions that other kernels have not."""
        return [(0.4, self.laid_out), (0.6, self.gathered)] * (0 < len(shape) <= 3)

    def more_launches(self, output: Argument) -> list[tuple[float, Launch]]:
        """Return the launches that other kernels have not."""
        is_written = output.written and output.role != "gmem"
        return [(4, self.grouped), (3, self.regrouped)] * is_written

    def shape(self, scope: Scope) -> Shape:
        """Return a shape, sometimes one that has a layout."""
        return self.draw.pick(SHAPES) if self.draw.chance(0.15) else super().shape(scope)

    def gathered(self, scope: Scope, shape: Shape, dtype: str, depth: int) -> str:
        """Return what indices pick of an array, along some axis; some lie outside."""
        arrays = [a for a in scope.arrays if a.rank == len(shape) and a.role != "ids"]
        if not arrays:
            return self.leaf(scope, shape, dtype)
        array, axis = self.draw.pick(arrays), self.draw.number(0, len(shape) - 1)
        keys = [self.along(scope, dim, n) for dim, n in zip(array.dims, shape, strict=True)]
        which = self.expression(scope, (shape[axis],), self.draw.pick(["i32", "i8", "i64"]), 1)
        keys[axis] = f"({which}) % {self.draw.number(2, 40)} - {self.draw.number(0, 2)}"
        tile = f"{array.name}[{', '.join(keys)}]"
        return f"({tile}).astype({dtype})"

    def bounds(self, scope: Scope, group: str = "") -> str:
        """Return a range of rows that only a run knows."""
        draw = self.draw
        group = group or draw.pick([str(draw.number(0, 3)), *scope.indices[-1:]])
        group = group if group.isdigit() else f"{group} % 4"
        return draw.pick([f"at[{group}] : at[{group} + 1]"] * 4 + ["n : m", f"at[{group}] : m"])

    def view(self, scope: Scope, array: Argument, group: str = "") -> tuple[Lines, Argument]:
        """Return a view of some of an array's rows, or columns, and its name."""
        axis = self.draw.number(0, array.rank - 1) if not group else 0
        name = self.fresh("v")
        keys = [":"] * axis + [self.bounds(scope, group)] + [":"] * (array.rank - axis - 1)
        dims = list(array.dims)
        dims[axis] = f"{name}.shape[{axis}]"
        return [f"{name} = {array.name}.at[{', '.join(keys)}]"], replace(
            array, name=name, dims=tuple(dims)
        )

    def viewed(self, scope: Scope, depth: int) -> Lines:
        """Return a view of an array, which may be read from then on."""
        arrays = [a for a in scope.arrays if a.role != "ids"]
        if not arrays:
            return []
        lines, made = self.view(scope, self.draw.pick(arrays))
        scope.arrays = [*scope.arrays, made]
        return lines

    def folded(self, scope: Scope, depth: int) -> Lines:
        """Return a nested pipeline that scans, finds places and adds up, carried over its steps."""
        draw, index = self.draw, self.fresh("p")
        inner = self.pipeline_scope(scope, index)
        shape: Shape = draw.pick([(8,), (16,), (4, 8), (3,)])
        kind = draw.pick(["f32", "i32", "f16", "i64", "i8"])
        best, made = Name(self.fresh(), shape, kind), Name(self.fresh(), shape, "i32")
        larger = (*shape, draw.pick([3, 8, 16]))
        tile = f"({self.tame(inner, larger, kind, 2)}).filled({self.constant(kind)})"
        lines = [f"t = {tile}"]
        lines += [f"t = cumsum(t, axis={draw.number(0, len(shape))}).astype({kind})"] * (
            draw.chance(0.6)
        )
        folded = f"t.{draw.pick(['max', 'min', 'sum'])}(axis={len(shape)}).astype({kind})"
        lines += [f"{made.name} += t.{draw.pick(['argmax', 'argmin'])}(axis={len(shape)})",
                  draw.pick(FOLDS).format(best.name, folded)]  # fmt: skip
        if draw.chance(0.3):
            lines = [*lines[:-2], f"if {self.test(inner)}:", *indented(lines[-2:])]
        options = f", stages={draw.number(1, 4)}" * draw.chance(0.5)
        scope.names += [best, made]
        return [
            f"{best.name} = full({shape}, {draw.number(-3, 3)}, {kind})",
            f"{made.name} = zeros({shape}, i32)",
            f"with pipeline({self.trips(scope)}{options}) as {index}:",
            *indented(lines),
        ]

    def grouped(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch over groups of rows: a window of a view each, in a nested pipeline."""
        draw, group, index = self.draw, self.fresh("i"), self.fresh("j")
        inner = self.inside(scope, group)
        inner.names = [replace(n, fixed=True) for n in inner.names]
        inner.arrays = self.readable(output)
        lines, view = self.view(inner, output, group)
        for array in [a for a in inner.arrays if a.dims[0] == output.dims[0]][:1]:
            more, made = self.view(inner, array, group)
            lines += more
            inner.arrays = [*inner.arrays, made]
        size = draw.pick([4, 8, 16])
        steps = self.inside(inner, index)
        steps.windows += [Window(f"tile({index}, {size})", size, view.dims[0])]
        others = [draw.pick([8, 16]) for _ in output.dims[1:]]
        body = self.statements(steps, draw.number(0, 2), 1)
        value = self.expression(steps, (size, *others), output.dtype)
        keys = ", ".join([f"tile({index}, {size})", *(f"ds(0, {n})" for n in others)])
        operator = draw.pick(["=", "=", "+="])
        body += [f"{view.name}[{keys}] {operator} {value}"]
        loop = draw.pick(["with pipeline(cdiv({0}.shape[0], {1})) as {2}:",
                          "for {2} in range(cdiv({0}.shape[0], {1})):"])  # fmt: skip
        lines += [loop.format(view.name, size, index), *indented(body)]
        return [f"with pipeline(4, axes='sequential') as {group}:", *indented(lines)]

    def regrouped(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch that scatters or adds into a view, by indices that a tile holds."""
        draw, index = self.draw, self.fresh("i")
        inner = self.inside(scope, index)
        inner.names = [replace(n, fixed=True) for n in inner.names]
        inner.arrays = self.readable(output)
        lines, view = self.view(inner, output, draw.pick(["0", "1", "2", "3"]))
        size, name = draw.pick([4, 8]), self.fresh("x")
        others = [draw.pick([1, 8]) for _ in output.dims[1:]]
        keys = ", ".join([name, *(f"ds({draw.number(0, 5)}, {n})" for n in others)])
        shape = (size, *others)
        if prod(shape) > MOST_ELEMENTS:
            return self.grouped(scope, output)
        places = f"(arange({size}) * {draw.pick([1, 3, 5, 7])} + {index} * {size})"
        lines += [f"{name} = {places} % {draw.pick([16, 32, 41])} - 1"]
        lines += self.statements(inner, draw.number(0, 2), 1)
        value = f"({self.expression(inner, shape, output.dtype, 2)}).filled({draw.number(0, 3)})"
        if output.dtype in ("i32", "u32", "i64", "u64") and draw.chance(0.6):
            store = f"atomic_{draw.pick(ATOMIC)}({view.name}.at[{keys}], {value})"
        else:
            store = f"{view.name}[{keys}] = {value}"
        head = f"with pipeline({draw.pick(['1', '2', 'n % 3'])}, axes='sequential') as {index}:"
        return [head, *indented([*lines, store])]


def view(seed: int) -> Program:
    """Return the kernel of a seed."""
    return Views(seed).program()
