"""Random kernels of warpgroups, or of a block, that meet at barriers and pass on shared memory.

Each phase makes its buffers and barriers anew: what every warpgroup writes a part of, what one
hands to the others or copies for them, what goes round a loop, what leaves by TMA.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tests.fuzz.expressions import HELPERS, MOST_ELEMENTS, Maker
from tests.fuzz.kernels import ATOMIC
from tests.fuzz.layouts import SHAPES
from tests.fuzz.program import (
    HEADER,
    NUMBERS,
    Argument,
    Draw,
    Name,
    Program,
    Scope,
    Shape,
    Window,
    bits,
)
from tests.fuzz.statements import Lines, Statements, indented

Phase = Callable[[Scope], Lines]
COPIED = ("f32", "f16", "bf16", "i32", "u8", "i8", "i16", "u32", "f8e4m3")
MULTIPLIED = ("f16", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8", "f32")


class Warpgroups(Statements):
    """Draws kernels that are written for each warpgroup."""

    settles = 0.95

    def __init__(self, seed: int) -> None:
        super().__init__(Draw(seed))
        self.seed = seed
        draw = self.draw
        self.warpgroups = draw.pick([1, 1, 2, 2, 3, 3, 4])
        # A block that is written as one: every statement is executed once.
        self.is_block = self.warpgroups == 1 and draw.chance(0.6)
        self.rows, self.columns = draw.pick([4, 8, 16]), draw.pick([8, 16, 32])
        self.made: Lines = []

    @property
    def every(self) -> int:
        """How many rows the warpgroups have together."""
        return self.rows * self.warpgroups

    def program(self) -> Program:
        """Return a kernel of a few phases that ends with a store of every warpgroup."""
        draw = self.draw
        sizes = {"M": draw.pick([1, 17, 32, 64, 96]), "N": draw.pick([1, 8, 16, 33, 32, 32])}
        self.dims = list(sizes)
        inputs = [Argument(f"x{k}", "In", draw.pick(COPIED if k < 2 else NUMBERS), dims,
                           layout="padded")
                  for k, dims in enumerate(draw.random.sample([("M", "N"), ("M", "N"), ("N",),
                                                               ("M",)], 3))]  # fmt: skip
        self.inputs = sorted(inputs, key=lambda a: -a.rank)
        outputs = [Argument(f"o{k}", "Out", draw.pick(COPIED), ("M", "N"), layout="padded")
                   for k in range(2)]  # fmt: skip
        scope = Scope()
        scope.names = [Name("n", (), "i32", True)]
        scope.arrays = list(inputs)
        scope.indices = ["w"]
        scope.windows = [Window(f"ds(w * {self.rows}, {self.rows})", self.rows, "M")]
        self.is_grid = draw.chance(0.6)
        scope.indices += ["i"] * self.is_grid
        lines: Lines = []
        phases: list[tuple[float, Phase]] = [
            (3, self.exchanged), (2, self.handed), (2, self.copied), (1.5, self.round),
            (1, self.counted), (3, self.between), (1, self.shared), (2.5, self.ring),
            (1, self.dealt), (2, self.multiplied),
        ]  # fmt: skip
        for _ in range(draw.number(1, 4)):
            self.budget = 40
            lines += draw.weighted(phases)(scope)
        for output in outputs:
            self.budget = 30
            lines += draw.weighted([(2, self.stored), (1, self.sent)])(scope, output)
        number = "n // 99" if self.is_block else "warpgroup_id()"
        lines = [f"w = {number}", *self.made, *lines]
        if self.is_grid:
            lines = [f"with parallel(cdiv(M, {self.every})) as i:", *indented(lines)]
        return self.written(lines, [*inputs, *outputs], sizes)

    def written(self, lines: Lines, arrays: list[Argument], sizes: dict[str, int]) -> Program:
        """Return the program of a body."""
        inputs: dict[str, Argument | int] = {a.name: a for a in arrays if a.is_input}
        parameters = inputs | {"n": self.draw.number(0, 5)}
        parameters |= {a.name: a for a in arrays if not a.is_input}
        signature = [p.signature() if isinstance(p, Argument) else f"{name}: i32"
                     for name, p in parameters.items()]  # fmt: skip
        matrix = next(a.name for a in arrays if a.rank == 2)
        lines = [f"M, N = {matrix}.shape", *lines]
        head = "".join(HELPERS[name] for name in self.helpers)
        option = f"(warpgroups={self.warpgroups})" * (not self.is_block)
        text = f"{HEADER}{head}@kernel{option}\n"
        text += f"def k({', '.join(signature)}):\n"
        text += "\n".join(indented(lines)) + "\n"
        program = Program(text, parameters, sizes, self.seed)
        program.notes["warpgroups"] = str(self.warpgroups)
        return program

    def shape(self, scope: Scope) -> Shape:
        """Return a shape, often one that has a layout."""
        return self.draw.pick(SHAPES) if self.draw.chance(0.35) else super().shape(scope)

    def more_makers(self, shape: Shape) -> list[tuple[float, Maker]]:
        """Return expressions that other kernels have not: tiles in stated layouts."""
        return [(0.8, self.laid_out)] * (0 < prod(shape) <= MOST_ELEMENTS and len(shape) > 0)

    # What the phases are made of.

    def buffer(self, shape: Shape, dtype: str) -> str:
        """Return the name of a new buffer."""
        name, options = self.fresh("s"), ""
        if len(shape) > 1 and self.draw.chance(0.3):
            options = self.transforms(shape, bits(dtype))
        self.made.append(f"{name} = SMEM({shape}, {dtype}{options})")
        return name

    def transforms(self, shape: Shape, width: int) -> str:
        """Return the option of a physical layout: tiles whose rows are as long as a swizzle."""
        swizzle = self.draw.pick([32, 64, 128])
        rows, columns = self.draw.pick([4, 8]), swizzle * 8 // width
        if shape[-2] % rows or shape[-1] % columns:
            return ""
        swizzled = f", SwizzleTransform({swizzle})" * (rows == 8 and self.draw.chance(0.6))
        return f", transforms=(TilingTransform(({rows}, {columns})){swizzled},)"

    def barrier(self, arrivals: int, slots: int = 0) -> str:
        """Return the name of a new barrier, or of one for each slot."""
        name = self.fresh("b")
        options = [f"num_arrivals={arrivals}"] * (arrivals != 1)
        options += [f"num_barriers={slots}"] * (slots > 0)
        self.made.append(f"{name} = Barrier({', '.join(options)})")
        return name

    def meet(self) -> Lines:
        """Return lines after which every warpgroup has come."""
        name = self.barrier(self.warpgroups)
        return [f"barrier_arrive({name})", f"barrier_wait({name})"]

    def window(self, first: str = "w") -> str:
        """Return the rows of an output that a warpgroup has."""
        start = f"{first} * {self.rows}"
        return f"ds(i * {self.every} + {start}, {self.rows})" if self.is_grid else (
            f"ds({start}, {self.rows})"
        )  # fmt: skip

    def inside_of(self, scope: Scope, shape: Shape, dtype: str, depth: int = 2) -> str:
        """Return an expression of which nothing lies outside."""
        return self.whole(self.expression(scope, shape, dtype, depth), shape, dtype)

    def reading(self, scope: Scope, name: str, shape: Shape, dtype: str) -> Lines:
        """Return a read of a buffer, or of a part of it, to a new name."""
        draw, made = self.draw, Name(self.fresh(), shape, dtype)
        if draw.chance(0.5) or len(shape) != 2:
            scope.names.append(made)
            return [f"{made.name} = {name}[...]"]
        keys, extents = [], []
        for n in shape:
            size = draw.pick([0, n, n // 2, n // 2])
            low = draw.pick([str(n - max(size, 1)), "0", f"w % {n - max(size, 1) + 1}"])
            keys.append(f"ds({low}, {size})" if size else low)
            extents += [size] * (size > 0)
        made.shape = tuple(extents)
        scope.names.append(made)
        turned = len(extents) == 2 and draw.chance(0.2)
        if turned:
            made.shape = made.shape[::-1]
            return [f"{made.name} = transpose_ref({name}, (1, 0))[{', '.join(keys[::-1])}]"]
        return [f"{made.name} = {name}[{', '.join(keys)}]"]

    # Phases.

    def between(self, scope: Scope) -> Lines:
        """Return statements of every warpgroup, which branch on its number too."""
        return self.statements(scope, self.draw.number(1, 3), 2)

    def exchanged(self, scope: Scope) -> Lines:
        """Return a buffer of which every warpgroup writes a part, and reads all."""
        draw, dtype = self.draw, self.draw.pick(NUMBERS)
        own: Shape = (self.rows, self.columns)
        shape: Shape = (self.every, self.columns)
        key = f"ds(w * {self.rows}, {self.rows}), :"
        if draw.chance(0.3):
            own = own[::-1]
            shape, key = shape[::-1], f":, ds(w * {self.rows}, {self.rows})"
        elif draw.chance(0.3):
            shape, key = (self.warpgroups, *own), "w"
        name = self.buffer(shape, dtype)
        lines = [f"{name}[{key}] = {self.inside_of(scope, own, dtype)}", *self.meet()]
        return [*lines, *self.reading(scope, name, shape, dtype)]

    def handed(self, scope: Scope) -> Lines:
        """Return a buffer that one warpgroup writes and the others read."""
        draw, dtype = self.draw, self.draw.pick(NUMBERS)
        shape: Shape = draw.pick([(self.rows, self.columns), (self.columns,), (64, 8), (128,)])
        name, full, one = self.buffer(shape, dtype), self.barrier(1), draw.number(
            0, self.warpgroups - 1
        )  # fmt: skip
        inner = Scope(scope)
        lines = self.statements(inner, draw.number(0, 2), 1)
        lines += [f"{name}[...] = {self.inside_of(inner, shape, dtype)}", f"barrier_arrive({full})"]
        lines = [f"if w == {one}:", *indented(lines), f"barrier_wait({full})"]
        return [*lines, *self.reading(scope, name, shape, dtype)]

    def copied(self, scope: Scope) -> Lines:
        """Return a window that one warpgroup copies for all of them."""
        draw = self.draw
        array = draw.pick([a for a in self.inputs if a.rank == 2])
        if array.dtype not in COPIED:
            return self.handed(scope)
        full, one = self.barrier(1), draw.number(0, self.warpgroups - 1)
        shape = (self.rows, 16 if draw.chance(0.5) else self.columns)
        name = self.buffer(shape, array.dtype)
        start = draw.pick(["0", "n", *(["i"] if self.is_grid else [])])
        copy = f"copy_gmem_to_smem({array.name}.at[ds({start}, {shape[0]}), ds(0, {shape[1]})], "
        copy += f"{name}, {full})"
        lines = [copy]
        if draw.chance(0.4) and not self.is_block:
            lines = [f"if warp_id() == {draw.number(0, 3)}:", *indented(lines)]
        lines = [f"if w == {one}:", *indented(lines), f"barrier_wait({full})"]
        return [*lines, *self.reading(scope, name, shape, array.dtype)]

    def round(self, scope: Scope) -> Lines:
        """Return a loop in which the warpgroups write a buffer and read it, and carry a tile."""
        draw, dtype = self.draw, self.draw.pick(NUMBERS)
        own, shape = (self.rows, self.columns), (self.every, self.columns)
        name, index, carried = self.buffer(shape, dtype), self.fresh("q"), self.fresh()
        made = Name(carried, draw.pick([own, shape, (), (self.columns,)]), draw.pick(NUMBERS))
        lines = [f"{carried} = {self.inside_of(scope, made.shape, made.dtype)}"]
        scope.names.append(made)
        inner = self.inside(scope, index)
        body = [
            f"{name}[ds(w * {self.rows}, {self.rows}), :] = {self.inside_of(inner, own, dtype)}"
        ]
        body += [*self.meet(), *self.reading(inner, name, shape, dtype), *self.meet()]
        body += self.statements(inner, draw.number(0, 1), 1)
        body += [f"{carried} = {self.inside_of(inner, made.shape, made.dtype)}"]
        trips = draw.pick(["0", "1", "2", "3", "n % 3", "n % 4", "n + 1"])
        return [*lines, f"for {index} in range({trips}):", *indented(body)]

    def ring(self, scope: Scope) -> Lines:
        """Return a ring of slots that one warpgroup fills, and the others read and carry tiles."""
        draw, others = self.draw, self.warpgroups - 1
        array = draw.pick([a for a in self.inputs if a.rank == 2])
        if not others or array.dtype not in COPIED:
            return self.round(scope)
        slots, steps = draw.number(1, 3), draw.pick(["0", "1", "2", "5", "n", "n % 3 + 1"])
        shape, one, index = (self.rows, 16), draw.number(0, others), self.fresh("q")
        name = self.buffer((slots, *shape), array.dtype)
        full, empty = self.barrier(1, slots), self.barrier(others, slots)
        slot, inner = f"{index} % {slots}", self.inside(scope, index)
        if draw.chance(0.6):
            window = f"ds({index} * {draw.pick([1, 4, self.rows])}, {self.rows}), ds(0, 16)"
            fill = [f"copy_gmem_to_smem({array.name}.at[{window}], {name}.at[{slot}], "]
            fill[0] += f"{full}[{slot}])"
        else:
            fill = [f"{name}[{slot}] = {self.inside_of(inner, shape, array.dtype)}"]
            fill += [f"barrier_arrive({full}[{slot}])"]
        fill = [f"if {index} >= {slots}:", f"    barrier_wait({empty}[{slot}])", *fill]
        fill = [f"for {index} in range({steps}):", *indented(fill)]
        if draw.chance(0.4) and "copy" in fill[-1]:
            fill = [f"if warp_id() == {draw.number(0, 3)}:", *indented(fill)]
        made = Name(self.fresh(), draw.pick([shape, (), (16,)]), draw.pick(NUMBERS))
        lines = [f"{made.name} = {self.inside_of(scope, made.shape, made.dtype)}"]
        scope.names.append(made)
        inner.names += [made, Name(f"{name}[{slot}]", shape, array.dtype, True)] * 2
        body = [f"barrier_wait({full}[{slot}])", *self.statements(inner, draw.number(0, 1), 1)]
        body += [f"{made.name} = {self.inside_of(inner, made.shape, made.dtype, 3)}"]
        body += [f"barrier_arrive({empty}[{slot}])"]
        read = [f"for {index} in range({steps}):", *indented(body)]
        return [*lines, f"if w == {one}:", *indented(fill), "else:", *indented(read)]

    def multiplied(self, scope: Scope) -> Lines:
        """Return a product of matrices that one warpgroup puts into shared memory."""
        draw, dtype = self.draw, self.draw.pick(MULTIPLIED)
        other = draw.pick(["i8", "u8"]) if dtype[1:] == "8" else dtype
        sums = "i32" if dtype[1:] == "8" else "f32"
        rows, inner, columns = draw.pick([16, 64, 64]), draw.pick([16, 32, 64]), draw.pick([8, 16])
        count = draw.pick([1, self.warpgroups])
        left, right = (rows * count, inner), (inner, columns)
        turned = [draw.chance(0.3), draw.chance(0.4)]
        pairs = zip((left, right), (dtype, other), turned, strict=True)
        lines, operands = [], []
        for shape, kind, is_turned in pairs:
            held = shape[::-1] if is_turned else shape
            name = self.buffer(held, kind)
            value = f"({self.tame(scope, held, kind, 1)}).filled({draw.number(0, 2)})"
            lines.append(f"{name}[...] = {value}")
            part = "" if shape is right or count == 1 else f"ds(w * {rows}, {rows})"
            part = f"{':, ' * is_turned}{part}" if part else "..."
            operands.append(f"{name}[{part}]{'.T' * is_turned}")
        lines += ["commit_smem()"] * draw.chance(0.6)
        lines = [f"if w == {draw.number(0, self.warpgroups - 1)}:", *indented(lines), *self.meet()]
        made = Name(self.fresh("acc"), (rows, columns), sums)
        options = f", precision={draw.pick(['tf32', 'tf32x3'])!r}" * (
            dtype == "f32" and draw.chance(0.8)
        )
        product = f"dot({', '.join(operands)}{options})"
        if draw.chance(0.5):
            scope.names.append(made)
            return [*lines, f"{made.name} = {product}"]
        lines += [f"{made.name} = ({self.tame(scope, made.shape, sums, 1)}).filled(1)"]
        scope.names.append(made)
        head = draw.pick(["for {0} in range({1}):", "with pipeline({1}) as {0}:"])
        head = head.format(self.fresh("q"), draw.pick(["2", "3", "n", "n % 3"]))
        return [*lines, head, f"    {made.name} += {product}"]

    def dealt(self, scope: Scope) -> Lines:
        """Return a grid whose steps the warpgroups share, each carrying a tile of its own."""
        draw, info = self.draw, self.fresh("q")
        made = Name(self.fresh(), self.shape(scope), draw.pick(NUMBERS))
        lines = [f"{made.name} = {self.inside_of(scope, made.shape, made.dtype)}"]
        scope.names.append(made)
        inner = self.inside(scope, f"{info}.index[1]")
        inner.indices.append(f"{info}.local_index")
        body = self.statements(inner, draw.number(0, 1), 1)
        body += [f"{made.name} = {self.inside_of(inner, made.shape, made.dtype)}"]
        axes = '"wg"' if not self.is_block else "None"
        tiling = f", tiling=({draw.number(1, 2)}, {draw.number(1, 3)})" * draw.chance(0.3)
        grid = f"({draw.pick(['1', '2', 'n % 3'])}, {draw.pick(['1', '3', 'n'])})"
        loop = f"for {info} in nd_loop({grid}, collective_axes={axes}{tiling}):"
        return [*lines, loop, *indented(body)]

    def counted(self, scope: Scope) -> Lines:
        """Return counters in shared memory, which every warpgroup updates."""
        draw, dtype = self.draw, self.draw.pick(["i32", "u32", "i64", "u64"])
        name = self.buffer((self.columns,), dtype)
        lines = [
            "if w == 0:",
            f"    {name}[...] = {self.inside_of(scope, (self.columns,), dtype, 1)}",
        ]
        value = self.inside_of(scope, (self.columns,), dtype)
        lines += [*self.meet(), f"atomic_{draw.pick(ATOMIC)}({name}.at[...], {value})"]
        return [*lines, *self.meet(), *self.reading(scope, name, (self.columns,), dtype)]

    def shared(self, scope: Scope) -> Lines:
        """Return a buffer that each warpgroup has for itself, read and written in place."""
        dtype, own = self.draw.pick(NUMBERS), (self.rows, self.columns)
        name, mine = self.buffer((self.warpgroups, *own), dtype), self.fresh("r")
        lines = [f"{mine} = {name}.at[w]", f"{mine}[...] = {self.inside_of(scope, own, dtype)}"]
        inner = Scope(scope)
        update = f"{mine}[...] {self.draw.pick(['+=', '*=', '-='])} "
        lines += [
            *self.reading(inner, mine, own, dtype),
            update + self.inside_of(inner, own, dtype),
        ]
        if self.draw.chance(0.5):
            lines[-1:] = [f"if {self.test(scope)}:", f"    {lines[-1]}"]
        return [*lines, *self.reading(scope, mine, own, dtype)]

    def stored(self, scope: Scope, output: Argument) -> Lines:
        """Return a store of every warpgroup, of some in branches of their own."""
        draw, shape = self.draw, (self.rows, self.columns)
        if draw.chance(0.5):
            value = self.expression(scope, shape, output.dtype)
            return [f"{output.name}[{self.window()}, ds(0, {self.columns})] = {value}"]
        lines, by_number = [], draw.chance(0.5)
        for number in range(self.warpgroups):
            inner = Scope(scope)
            body = self.statements(inner, draw.number(0, 2), 1)
            value = self.expression(inner, shape, output.dtype)
            window = self.window(str(number) if by_number else "w")
            body += [f"{output.name}[{window}, ds(0, {self.columns})] = {value}"]
            lines += [f"{'el' * (number > 0)}if w == {number}:", *indented(body)]
        return lines

    def sent(self, scope: Scope, output: Argument) -> Lines:
        """Return a store by TMA from a buffer of every warpgroup."""
        shape = (self.rows, max(16, self.columns))
        name = self.buffer((self.warpgroups, *shape), output.dtype)
        target = f"{output.name}.at[{self.window()}, ds(0, {shape[1]})]"
        return [
            f"{name}[w] = {self.inside_of(scope, shape, output.dtype)}",
            "commit_smem()",
            f"copy_smem_to_gmem({name}.at[w], {target})",
            "wait_smem_to_gmem(0)",
        ]


def warpgroups(seed: int) -> Program:
    """Return the kernel of a seed."""
    return Warpgroups(seed).program()
