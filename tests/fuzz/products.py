"""Random products in pipelines: every dtype, operand, option of the schedule, use of the sums."""

from __future__ import annotations

from tests.fuzz.program import FLOATS, HEADER, Argument, Draw, Program
from tests.fuzz.statements import indented

PAIRS = (
    ("f16", "f16"), ("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f64", "f64"),
    ("f8e4m3", "f8e4m3"), ("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e5m2"),
    ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"),
)  # fmt: skip
LAYOUTS = ((6.0, "C"), (1.0, "F"), (1.0, "padded"), (0.5, "odd"))
INNER = ((5.0, "tile(k, bk)"), (0.6, "ds(k * bk + 1, bk)"), (0.4, "ds(K - k * bk - bk, bk)"),
         (0.3, "k * bk : (k + 1) * bk"))  # fmt: skip
READS = ((5.0, "{0}[{1}]"), (1.0, "load({0}.at[{1}], stages={2})"),
         (0.5, "load({0}.at[{1}], fill={3})"))  # fmt: skip
WORK = ((6.0, "{0}"), (0.8, "({0} + {0})"), (0.6, "where({0} > 1, {0}, 1)"),
        (0.6, "minimum({0}, 2)"), (0.5, "({0})[:, ::-1]"), (0.5, "({0})[::-1]"),
        (0.5, "({0}).astype(f32).astype({1})"))  # fmt: skip
GUARDS = ((5.0, ""), (1.0, "k % 2 == 0"), (0.6, "k > 0"), (0.5, "i + k != 1"), (0.3, "n > 2"))
ORDERS = ("", "", "", ", order=partial(planar_snake, minor_dim=1, tile_width=2)", ", stages=2")


class Products:
    """Draws kernels of products."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = Draw(seed)
        self.arrays: dict[str, Argument] = {}

    def program(self) -> Program:
        """Return a kernel that multiplies two matrices."""
        draw = self.draw
        sizes = {"M": draw.pick([1, 17, 64, 70, 100]), "N": draw.pick([8, 16, 33, 40, 72]),
                 "K": draw.pick([1, 16, 40, 64, 100, 130])}  # fmt: skip
        left, right = draw.pick(PAIRS)
        self.sums = "i32" if left[1:] == "8" else "f64" if left == "f64" else "f32"
        x, y = self.operand("a", left, ("M", "K")), self.operand("b", right, ("K", "N"))
        kind = draw.pick([self.sums, self.sums, "f32", "f16", "i32", "bf16", "i64"])
        role = draw.pick(["Out", "Out", "InOut"])
        self.arrays["o"] = Argument("o", role, kind, ("M", "N"), layout=draw.weighted(LAYOUTS))
        if draw.chance(0.35):
            dtype = draw.pick(["f32", "f16", "i32", "f64"])
            self.arrays["bias"] = Argument("bias", "In", dtype, ("N",), annotation=" | None")
        lines = [f"M, K = {self.extents('a')}", f"N = {self.extents('b')}[1]"]
        lines += [f"with pipeline(cdiv(M, bm), cdiv(N, bn){draw.pick(ORDERS)}) as (i, j):"]
        lines += indented([*self.steps(x, y, left), *self.end(kind)])
        inputs = {a.name: a for a in self.arrays.values() if a.is_input}
        n = draw.number(0, 4)
        parameters: dict[str, Argument | int] = {**inputs, "n": n, "o": self.arrays["o"]}
        signature = [p.signature() if isinstance(p, Argument) else f"{name}: i32"
                     for name, p in parameters.items()]  # fmt: skip
        tiles = f"bm={draw.pick([16, 64, 64, 128, 48])}, bn={draw.pick([8, 16, 24, 32, 64])}, "
        tiles += f"bk={draw.pick([16, 32, 32, 64, 33, 8])}"
        text = f"{HEADER}@kernel\ndef k({', '.join(signature)}, *, {tiles}):\n"
        return Program(text + "\n".join(indented(lines)) + "\n", parameters, sizes, self.seed)

    def operand(self, name: str, dtype: str, dims: tuple[str, str]) -> str:
        """Return an operand's tile: as it is read, transposed or computed."""
        draw = self.draw
        is_turned = draw.chance(0.3)
        held = dims[::-1] if is_turned else dims
        self.arrays[name] = Argument(name, "In", dtype, held, layout=draw.weighted(LAYOUTS))
        windows = {"M": "tile(i, bm)", "N": "tile(j, bn)", "K": self.inner}
        if name == "a" and not is_turned and draw.chance(0.15):
            self.arrays["ids"] = Argument("ids", "ids", "i32", ("M",))
            windows["M"] = "ids[tile(i, bm)]"
        window = ", ".join(windows[d] for d in held)
        form = "{0}[{1}]" if "ids" in window else draw.weighted(READS)
        tile = form.format(name, window, draw.number(1, 5), draw.number(0, 2))
        return draw.weighted(WORK).format(tile + ".T" * is_turned, dtype)

    @property
    def inner(self) -> str:
        """The window along the axis that is summed; the same of both operands."""
        if not hasattr(self, "window"):
            self.window = self.draw.weighted(INNER)
        return self.window

    def extents(self, name: str) -> str:
        """Return a matrix's shape as it is multiplied."""
        return f"{name}.shape" if self.arrays[name].dims[-1] != {"a": "M", "b": "K"}[name] else (
            f"{name}.shape[::-1]"
        )  # fmt: skip

    def steps(self, x: str, y: str, dtype: str) -> list[str]:
        """Return the pipeline that adds up."""
        draw = self.draw
        options = f", precision={draw.pick(['tf32', 'tf32x3'])!r}" * (dtype == "f32")
        product = f"dot({x}, {y}{options})" if options or draw.chance(0.3) else f"({x} @ {y})"
        split = draw.weighted([(2, ""), (1, f", split={draw.number(1, 4)}"),
                               (1.2, ", split='stream'")])  # fmt: skip
        forms = ["acc += {0}", "acc = acc + {0}", "t = {0}\nacc += t"]
        forms += ["acc -= {0}", f"acc = dot({x}, {y}, acc{options})"] * (not split)
        body = draw.pick(forms).format(product).split("\n")
        guard = draw.weighted(GUARDS)
        body = [f"if {guard}:", *indented(body)] if guard and not split else body
        is_counting = not split and draw.chance(0.25)
        counted = ["count += 1", "top = maximum(top, acc.filled(-50).max(axis=1))"]
        body += counted * is_counting
        stages = f", stages={draw.number(1, 5)}" * draw.chance(0.7)
        trips = draw.pick(["cdiv(K, bk)", "cdiv(K, bk)", "cdiv(K, bk)", "n"])
        lines = [f"with pipeline({trips}{stages}{split}) as k:", *indented(body)]
        around = draw.pick([""] * 6 + ["for q in range(n % 3):", "with pipeline(n % 3 + 1) as q:"])
        if around and not split:
            lines = [around, *indented(lines)]
        begin = [f"acc = zeros((bm, bn), {self.sums})"]
        begin += [f"top, count = full((bm,), -99, {self.sums}), 0"] * is_counting
        end = [f"acc += where(top > 3, 1, 2)[:, None].astype({self.sums}) + count"] * is_counting
        return [*begin, *lines, *end]

    def end(self, dtype: str) -> list[str]:
        """Return what is made of the sums."""
        draw = self.draw
        lines = []
        if "bias" in self.arrays:
            test = draw.pick(["if bias is not None:", "if n > 1:"])
            lines += [test, f"    acc += bias[tile(j, bn)].astype({self.sums})"]
        value = draw.pick(["acc", "acc", "maximum(acc, 0)", "acc + acc.sum(axis=1)[:, None]"])
        is_update = self.arrays["o"].role == "InOut" and dtype not in FLOATS and draw.chance(0.5)
        store = "o[tile(i, bm), tile(j, bn)]"
        return [*lines, f"{store} {'+=' if is_update else '='} ({value}).astype({dtype})"]


def product(seed: int) -> Program:
    """Return the product of a seed."""
    return Products(seed).program()
