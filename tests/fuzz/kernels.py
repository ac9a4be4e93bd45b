"""Random kernels: arrays, and one launch after the other that reads and writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tests.fuzz.expressions import HELPERS, MOST_ELEMENTS
from tests.fuzz.program import HEADER, NUMBERS, Argument, Draw, Name, Program, Scope, Shape, Window
from tests.fuzz.statements import Lines, Statements, indented

ATOMIC = ("add", "max", "min", "and", "or", "xor")
ORDERS = ("", "", ", order='acq_rel'", ", scope='sys'", ", order='release', scope='cta'")
Launch = Callable[[Scope, Argument], Lines]


class Kernels(Statements):
    """Draws kernels; `preamble` stands before them."""

    preamble = ""

    def __init__(self, seed: int) -> None:
        super().__init__(Draw(seed))
        self.seed = seed
        self.arrays: list[Argument] = []

    def program(self) -> Program:
        """Return a kernel of one to three launches that writes all its outputs."""
        draw = self.draw
        sizes = {"M": draw.pick([1, 5, 16, 17, 20, 40]), "N": draw.pick([1, 8, 16, 33, 48])}
        if draw.chance(0.3):
            sizes["R"] = draw.pick([1, 2, 3, 5])
        self.dims = list(sizes)
        self.make_arrays()
        scope = Scope()
        scope.names = [Name("n", (), "i32", True), Name("m", (), "i32", True)]
        lines = [f"{', '.join(map(str, self.arrays[0].dims))} = x0.shape"]
        scratch = [a for a in self.arrays if a.role == "gmem"]
        lines += [f"{a.name} = GMEM(({', '.join(map(str, a.dims))},), {a.dtype})" for a in scratch]
        for _ in range(draw.number(1, 3)):
            self.budget = 50
            lines += self.launch(scope)
        for array in [a for a in self.arrays if a.role in ("Out", "gmem") and not a.written]:
            self.budget = 30
            lines += self.grid(scope, array) if array.role == "Out" else []
        return self.written(lines, sizes)

    def written(self, lines: Lines, sizes: dict[str, int]) -> Program:
        """Return the program of a body."""
        arrays = [a for a in self.arrays if a.role != "gmem"]
        inputs = {a.name: a for a in arrays if a.is_input}
        outputs = {a.name: a for a in arrays if not a.is_input}
        parameters: dict[str, Argument | int] = dict(inputs)
        parameters |= {"n": self.draw.number(0, 5), "m": self.draw.number(-3, 40)}
        parameters |= outputs
        signature = [p.signature() if isinstance(p, Argument) else f"{name}: i32"
                     for name, p in parameters.items()]  # fmt: skip
        head = "".join(HELPERS[name] for name in self.helpers)
        text = f"{HEADER}{self.preamble}{head}@kernel\ndef k({', '.join(signature)}):\n"
        return Program(text + "\n".join(indented(lines)) + "\n", parameters, sizes, self.seed)

    def make_arrays(self) -> None:
        """Draw the arrays: inputs, perhaps a permutation, outputs, perhaps scratch."""
        draw = self.draw
        layouts = [(6.0, "C"), (1.0, "F"), (1.0, "padded"), (0.6, "odd")]
        for k in range(draw.number(1, 3)):
            layout = draw.weighted([*layouts, (0.4, "backwards")])
            data = draw.weighted([(4, "small"), (1.5, "edge")])
            dims = tuple(sorted(self.dims, key="RMN".index)) if k == 0 else self.some_dims()
            dtype = draw.pick(NUMBERS)
            self.arrays.append(Argument(f"x{k}", "In", dtype, dims, layout=layout, data=data))
        if draw.chance(0.5):
            self.arrays.append(Argument("ids", "ids", "i32", (draw.pick("MN"),)))
        for k in range(draw.number(1, 3)):
            role = draw.pick(["Out", "Out", "InOut", "filled"])
            made = Argument(f"o{k}", "Out" if role == "filled" else role, draw.pick(NUMBERS),
                            self.some_dims(), layout=draw.weighted(layouts))  # fmt: skip
            made.initial = draw.number(0, 3) if role == "filled" else None
            made.written = role != "Out"
            self.arrays.append(made)
        for k in range(draw.pick([0, 0, 1, 2])):
            dtype = draw.pick(NUMBERS)
            self.arrays.append(Argument(f"g{k}", "gmem", dtype, self.some_dims(), written=False))

    def some_dims(self) -> tuple[str, ...]:
        """Return dims of an array."""
        every: list[tuple[str, ...]] = [("M", "N"), ("M", "N"), ("M",), ("N",), ("N", "M")]
        return self.draw.pick([*every, *[("R", "M", "N")] * ("R" in self.dims)])

    def readable(self, output: Argument | None = None) -> list[Argument]:
        """Return the arrays that may be read, but for the one that is being written."""
        return [a for a in self.arrays if a.written and a is not output]

    def launch(self, scope: Scope) -> Lines:
        """Return a launch, or statements outside of pipelines."""
        output = self.draw.pick([a for a in self.arrays if not a.is_input])
        kinds: list[tuple[float, Launch]] = [(4, self.grid), (1, self.sequence)]
        if output.role != "gmem":
            kinds += [(1, self.revisited), (0.5, self.flat), (0.5, self.guarded)]
        if output.written and output.role != "gmem":
            kinds += [(0.8, self.plain), (0.7, self.scattered)]
            kinds += [(2, self.updated)] * (output.dtype in ("i32", "u32", "i64", "u64"))
        kinds += self.more_launches(output)
        return self.draw.weighted(kinds)(scope, output)

    def more_launches(self, output: Argument) -> list[tuple[float, Launch]]:
        """Return launches that a kind of kernels has besides."""
        return []

    def cut(self, output: Argument) -> tuple[list[str], list[str], list[Window], Shape]:
        """Return the axes of a pipeline over an output, their indices, its windows, its tile."""
        axes, indices, windows = [], [], []
        for a, dim in enumerate(output.dims):
            index = self.fresh("i")
            indices.append(index)
            if a < output.rank - 1 and (dim == "R" or self.draw.chance(0.12)):
                axes.append(f"{output.name}.shape[{a}]")
                windows.append(Window(index, 0, dim))
                continue
            size = self.draw.pick([8, 12, 16, 20, 32, 33])
            axes.append(f"cdiv({dim}, {size})")
            windows.append(Window(f"tile({index}, {size})", size, dim))
        shape = tuple(w.size for w in windows if w.size)
        return (axes, indices, windows, shape) if prod(shape) <= MOST_ELEMENTS else self.cut(output)

    def opened(
        self, scope: Scope, output: Argument, extra: str = ""
    ) -> tuple[str, str, Shape, Scope]:
        """Return a pipeline's first line, an output's window in it, its shape, and the scope."""
        draw = self.draw
        axes, indices, windows, shape = self.cut(output)
        inner = Scope(scope)
        store = f"{output.name}[{', '.join(w.text for w in windows)}]"
        if extra:
            axes.append(extra)
            indices.append(self.fresh("r"))
            windows += [Window(indices[-1], 0, dim) for dim in self.dims]
        # A name of around that steps assign is carried over them, which puts them in one block.
        inner.names = [replace(n, fixed=n.fixed or draw.chance(0.9)) for n in inner.names]
        inner.indices += indices
        inner.windows += windows
        inner.arrays = self.readable(output)
        options = [f"stages={draw.number(1, 4)}"] * draw.chance(0.3)
        options += ["axes='sequential'"] * draw.chance(0.08)
        if len(axes) == 2 and not extra and not options and draw.chance(0.2):
            options = ["order=partial(planar_snake, minor_dim=1, tile_width=2)"]
        names = indices[0] if len(indices) == 1 else f"({', '.join(indices)})"
        return f"with pipeline({', '.join([*axes, *options])}) as {names}:", store, shape, inner

    def grid(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch that writes each tile of an output once."""
        head, store, shape, inner = self.opened(scope, output)
        lines = []
        if output.written and output.role != "gmem" and self.draw.chance(0.7):
            before = Name(self.fresh(), shape, output.dtype)
            lines.append(f"{before.name} = {store}")
            inner.names.append(before)
        self.may_split = "order" not in head
        lines += self.statements(inner, self.draw.number(0, 4), 2)
        self.may_split = False
        operator = "+=" if lines and lines[0].endswith(store) and self.draw.chance(0.3) else "="
        lines.append(f"{store} {operator} {self.expression(inner, shape, output.dtype)}")
        output.written = True
        return [head, *indented(lines)]

    def guarded(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch under a condition that the host knows."""
        if not output.written:
            return self.grid(scope, output)
        test = self.draw.pick(["n > 1", "M > 16", "n % 2 == 0", "M < N"])
        return [f"if {test}:", *indented(self.grid(scope, output))]

    def revisited(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch that comes to each tile of an output in several steps."""
        head, store, shape, inner = self.opened(scope, output, self.trips(Scope()))
        first = self.constant(output.dtype)
        lines = [f"if {inner.indices[-1]} == 0:", f"    {store} = {first}"]
        if output.written and self.draw.chance(0.5):
            lines = []
        lines += self.statements(inner, self.draw.number(0, 2), 1)
        operator = self.draw.pick(["+=", "+=", "-=", "*="])
        lines.append(f"{store} {operator} {self.expression(inner, shape, output.dtype, 2)}")
        return [head, *indented(lines)]

    def sequence(self, scope: Scope, output: Argument) -> Lines:
        """Return a pipeline whose names are carried from step to step, and used after it."""
        around = Scope(scope)
        around.arrays = self.readable(output)
        lines = self.assign(around, 1)
        head, store, shape, inner = self.opened(around, output)
        body = self.body(around, inner, 1)
        stored = f"{store} = {self.expression(around, shape, output.dtype, 2)}"
        body = [stored, *body] if self.draw.chance(0.5) else [*body, stored]
        output.written = True
        scope.names = around.names
        return [*lines, head, *indented(body)]

    def plain(self, scope: Scope, output: Argument) -> Lines:
        """Return statements outside of pipelines."""
        inner = Scope(scope)
        inner.arrays = self.readable()
        lines = self.statements(inner, self.draw.number(1, 3), 1)
        sizes = [self.draw.pick([0, 1, 3, 8, 16]) for _ in output.dims]
        keys = [f"ds({self.draw.number(0, 9)}, {n})" if n else "0" for n in sizes]
        shape = tuple(n for n in sizes if n)
        value = self.expression(inner, shape, output.dtype)
        scope.names = inner.names
        return [*lines, f"{output.name}[{', '.join(keys)}] = {value}"]

    def flat(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch over an output under one axis."""
        if output.rank != 2 or output.layout != "C":
            return self.grid(scope, output)
        index, view, size = self.fresh("i"), self.fresh("v"), self.draw.pick([8, 16, 32])
        count = " * ".join(map(str, output.dims))
        inner = self.inside(scope, index)
        inner.arrays = self.readable(output)
        lines = self.statements(inner, self.draw.number(0, 2), 1)
        value = self.expression(inner, (size,), output.dtype, 2)
        output.written = True
        return [
            f"{view} = {output.name}.reshape({count})",
            f"with pipeline(cdiv({count}, {size})) as {index}:",
            *indented([*lines, f"{view}[tile({index}, {size})] = {value}"]),
        ]

    def indexed(self, output: Argument, index: str) -> tuple[str, Name, str, Shape] | None:
        """Return a read of indices, their name, a window that they pick, and its shape."""
        ids = [a for a in self.arrays if a.role == "ids" and a.dims[0] == output.dims[0]]
        if not ids:
            return None
        size, name = self.draw.pick([4, 8, 16]), self.fresh("x")
        others = [self.draw.pick([1, 8]) for _ in output.dims[1:]]
        keys = [name, *(f"ds({self.draw.number(0, 5)}, {n})" for n in others)]
        made = Name(name, (size,), "i32", fixed=True)
        read = f"{name} = ids[tile({index}, {size})]"
        return read, made, ", ".join(keys), (size, *others)

    def scattered(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch that scatters by a permutation."""
        index = self.fresh("i")
        picked = self.indexed(output, index)
        if picked is None:
            return self.grid(scope, output)
        read, name, key, shape = picked
        inner = self.inside(scope, index)
        inner.names.append(name)
        inner.arrays = self.readable(output)
        lines = [read, *self.statements(inner, self.draw.number(0, 2), 1)]
        value = self.expression(inner, shape, output.dtype, 2)
        head = f"with pipeline(cdiv({output.dims[0]}, {name.shape[0]})) as {index}:"
        return [head, *indented([*lines, f"{output.name}[{key}] = {value}"])]

    def updated(self, scope: Scope, output: Argument) -> Lines:
        """Return a launch that updates windows by atomics, which steps share."""
        head, store, shape, inner = self.opened(scope, output, self.trips(Scope()))
        lines = self.statements(inner, self.draw.number(0, 2), 1)
        window = store.removeprefix(output.name)
        picked = self.indexed(output, inner.indices[0])
        if picked and self.draw.chance(0.5):
            read, _, key, shape = picked
            lines.append(read)
            window = f"[{key}]"
        value = f"({self.expression(inner, shape, output.dtype, 2)})"
        value += f".filled({self.constant(output.dtype)})" if shape else ""
        call = f"atomic_{self.draw.pick(ATOMIC)}({output.name}.at{window}, {value}"
        return [head, *indented([*lines, f"{call}{self.draw.pick(ORDERS)})"])]


def kernel(seed: int) -> Program:
    """Return the kernel of a seed."""
    return Kernels(seed).program()
