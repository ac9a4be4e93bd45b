"""Random products of operands that are scaled by blocks, and of batches, rows and columns."""

from __future__ import annotations

from tests.fuzz.products import GUARDS, PAIRS, WORK
from tests.fuzz.program import HEADER, Argument, Draw, Program
from tests.fuzz.statements import Lines, indented

# Operands, their scales, and how many elements along k a scale is of.
FORMATS = (
    ("f8e4m3", "f8e4m3", "f8e8m0", 32), ("f8e5m2", "f8e4m3", "f8e8m0", 32),
    ("f4e2m1", "f4e2m1", "f8e8m0", 32), ("f4e2m1", "f8e4m3", "f8e8m0", 32),
    ("f4e2m1", "f4e2m1", "f8e4m3", 16), ("f4e2m1", "f4e2m1", "f8e4m3", 16),
    ("f4e2m1", "f4e2m1", "f8e8m0", 16), ("f8e4m3", "f8e5m2", "f8e4m3", 16),
)  # fmt: skip
SCALED_WORK = ((8.0, "{0}"), (0.6, "({0})[::-1]"), (0.5, "({0}).astype(f32).astype({1})"),
               (0.4, "where(({0}).astype(f32) > 1, {0}, {0})"))  # fmt: skip
# Axes of the operands and of the result: g and h are batches.
AXES = (
    ("gmk", "gkn", "gmn"), ("gmk", "gkn", "gmn"), ("gmk", "kn", "gmn"), ("mk", "gkn", "gmn"),
    ("ghmk", "hkn", "ghmn"), ("hmk", "gokn", "ghmn"), ("k", "kn", "n"), ("mk", "k", "m"),
    ("k", "k", ""), ("mk", "kn", "mn"),
)  # fmt: skip


class Scaled:
    """Draws kernels of products; `arrays` are their parameters."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = Draw(seed)
        self.arrays: dict[str, Argument] = {}
        self.tiles: dict[str, int] = {}

    def array(self, name: str, dtype: str, dims: tuple[str | int, ...], **how: str) -> str:
        """Return the name of a new argument."""
        self.arrays[name] = Argument(name, "In", dtype, dims, **how)  # type: ignore[arg-type]
        return name

    def written(self, lines: Lines, output: Argument, sizes: dict[str, int]) -> Program:
        """Return the program of a body."""
        parameters: dict[str, Argument | int] = dict(self.arrays)
        parameters |= {"n": self.draw.number(0, 3), "o": output}
        signature = [p.signature() if isinstance(p, Argument) else f"{name}: i32"
                     for name, p in parameters.items()]  # fmt: skip
        tiles = ", ".join(f"{name}={size}" for name, size in self.tiles.items())
        text = f"{HEADER}@kernel\ndef k({', '.join(signature)}, *, {tiles}):\n"
        return Program(text + "\n".join(indented(lines)) + "\n", parameters, sizes, self.seed)

    def sum(self, product: str, operands: str, shape: str, dtype: str) -> Lines:
        """Return the pipeline that adds up along k; `product` lacks the end of its call."""
        draw = self.draw
        forms = [f"acc += {product})", f"acc = acc + {product})", f"t = {product})\nacc += t"]
        forms += [product.replace(operands, f"{operands}, acc").join(["acc = ", ")"])]
        split = draw.weighted([(3, ""), (1, f", split={draw.number(1, 3)}"),
                               (0.7, ", split='stream'")]) * (shape != "()")  # fmt: skip
        body = draw.pick(forms[:3] if split else forms).split("\n")
        guard = draw.weighted(GUARDS)
        if guard and not split and "i" not in guard.replace("in", ""):
            body = [f"if {guard}:", *indented(body)]
        stages = f", stages={draw.number(1, 4)}" * draw.chance(0.7)
        head = f"with pipeline({draw.pick(['cdiv(K, bk)'] * 4 + ['n'])}{stages}{split}) as k:"
        return [f"acc = zeros({shape}, {dtype})", head, *indented(body)]

    def blocks(self) -> Program:
        """Return a product of operands with scales."""
        draw = self.draw
        left, right, scale, block = draw.pick(FORMATS)
        sizes = {"M": draw.pick([1, 64, 100, 128, 130]), "N": draw.pick([8, 24, 64, 72]),
                 "K": draw.pick([32, 64, 96, 128, 130, 192])}  # fmt: skip
        sizes["G"] = -(-sizes["K"] // block)
        self.tiles = {"bm": draw.pick([16, 64, 128, 128]), "bn": draw.pick([8, 24, 32, 64]),
                      "bk": draw.pick([block, 64, 64, 128])}  # fmt: skip
        x, y = self.operand("a", left, "M"), self.operand("b", right, "N") + ".T"
        options = [self.scales(side, scale, block) for side in "ab"]
        options[draw.number(0, 1)] *= draw.chance(0.8)
        product = f"dot({x}, {y}{''.join(options)}"
        lines = ["M, K = a.shape", "N, _ = b.shape",
                 "with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):"]  # fmt: skip
        kind = draw.pick(["f32", "f32", "f16", "bf16"])
        end = draw.pick(["acc", "acc", "acc + acc.max(axis=1)[:, None]"])
        body = self.sum(product, f"{x}, {y}", "(bm, bn)", "f32")
        lines += indented([*body, f"o[tile(i, bm), tile(j, bn)] = ({end}).astype({kind})"])
        return self.written(lines, Argument("o", "Out", kind, ("M", "N")), sizes)

    def operand(self, name: str, dtype: str, rows: str) -> str:
        """Return a tile of an operand."""
        layout = "packed" if dtype == "f4e2m1" and self.draw.chance(0.6) else "C"
        self.array(name, dtype, (rows, "K"), layout=layout)
        window = {"M": "tile(i, bm)", "N": "tile(j, bn)"}[rows]
        return self.draw.weighted(SCALED_WORK).format(f"{name}[{window}, tile(k, bk)]", dtype)

    def scales(self, side: str, dtype: str, block: int) -> str:
        """Return the option of an operand's scales: a window of them, or of their image."""
        name, rows = f"{side}_scales", {"a": "M", "b": "N"}[side]
        count = self.tiles["bk"] // block
        tile = {"a": "i", "b": "j"}[side]
        height = self.tiles[f"b{rows.lower()}"]
        if height % 128 == 0 and count % 4 == 0 and self.draw.chance(0.5):
            dims = (f"cdiv({rows},128)", "cdiv(G,4)", 32, 16)
            window = f"tile({tile}, {height // 128}), tile(k, {count // 4}), :, :"
            self.array(name, dtype, dims, data="scale")
        else:
            window = f"tile({tile}, b{rows.lower()}), tile(k, {count})"
            self.array(name, dtype, (rows, "G"), data="scale")
        return f", {side}_scale={name}[{window}]"

    def batches(self) -> Program:
        """Return a product of batches of matrices, of rows or of columns."""
        draw = self.draw
        x, y, made = draw.pick(AXES)
        left, right = draw.pick(PAIRS)
        sums = "i32" if left[1:] == "8" else "f64" if left == "f64" else "f32"
        extents = {"g": [1, 2, 3], "h": [1, 2], "m": [1, 16, 40, 64], "n": [8, 16, 33],
                   "k": [1, 16, 40, 64]}  # fmt: skip
        sizes = {axis.upper(): draw.pick(extents[axis]) for axis in extents}
        self.tiles = {"bg": draw.pick([1, 2]), "bh": draw.pick([1, 2]),
                      "bm": draw.pick([16, 32, 64]), "bn": draw.pick([8, 16, 24]),
                      "bk": draw.pick([8, 16, 32])}  # fmt: skip
        tiles = [self.batch(name, axes, dtype)
                 for name, axes, dtype in (("a", x, left), ("b", y, right))]  # fmt: skip
        operands = ", ".join(tiles)
        options = f", precision={draw.pick(['tf32', 'tf32x3'])!r}" * (left == "f32")
        shape = f"({''.join(f'b{axis}, ' for axis in made)})"
        lines = self.sum(f"dot({operands}{options}", operands, shape, sums)
        lines = [line.replace("(K, bk)", f"(a.shape[{len(x) - 1}], bk)") for line in lines]
        window = ", ".join(f"tile({axis}_, b{axis})" for axis in made)
        kind = draw.pick([sums, sums, "f32", "f16"])
        output = Argument("o", "Out", kind, tuple(axis.upper() for axis in made) or (1,))
        lines.append(f"o[{window or '0'}] = acc.astype({kind})")
        if made:
            axes = ", ".join(f"cdiv(o.shape[{a}], b{axis})" for a, axis in enumerate(made))
            names = ", ".join(f"{axis}_" for axis in made)
            names = f"({names})" if len(made) > 1 else names
            lines = [f"with pipeline({axes}) as {names}:", *indented(lines)]
        return self.written(lines, output, sizes)

    def batch(self, name: str, axes: str, dtype: str) -> str:
        """Return a tile of an operand along some axes; o is an axis of 1."""
        dims = tuple(1 if axis == "o" else axis.upper() for axis in axes)
        is_turned = len(axes) > 1 and self.draw.chance(0.25)
        self.array(name, dtype, (*dims[:-2], *dims[:-3:-1]) if is_turned else dims)
        windows = {"o": "0:1", "k": "tile(k, bk)"}
        keys = [windows.get(axis, f"tile({axis}_, b{axis})") for axis in axes]
        if not is_turned:  # several matrices must know that zeros lie outside
            work = WORK[:1] if len(axes) > 2 else WORK[:4]
            return self.draw.weighted(work).format(f"{name}[{', '.join(keys)}]", dtype)
        order = (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2)
        return f"transpose({name}[{', '.join([*keys[:-2], *keys[:-3:-1]])}], {order})"


def scaled(seed: int) -> Program:
    """Return the product of a seed."""
    products = Scaled(seed)
    return products.blocks() if products.draw.chance(0.6) else products.batches()
