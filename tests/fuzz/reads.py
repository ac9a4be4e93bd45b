"""Random reads of arrays: windows that may lie outside, what indices pick, constants besides."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tests.fuzz.program import FLOATS, Argument, Draw, Scope, Shape, Window, bits


def cast(text: str, dtype: str) -> str:
    """Return a conversion."""
    return f"({text}).astype({dtype})"


def tile_of(scalar: str, shape: Shape) -> str:
    """Return a tile that holds a scalar everywhere."""
    return f"broadcast_to({scalar}, {shape!r})"


class Reads(ABC):
    """Draws reads."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    @abstractmethod
    def expression(self, scope: Scope, shape: Shape, dtype: str, depth: int = 3) -> str:
        """Return an expression of a shape and a dtype."""

    def constant(self, dtype: str) -> str:
        """Return a number that a dtype holds."""
        if dtype == "bool":
            return self.draw.pick(["True", "False"])
        if dtype in FLOATS:
            special = ["-0.0", "float('inf')", "float('-inf')", "float('nan')"]
            plain = ["0.0", "1.0", "-1.5", "2.0", "0.5", "-3.0", "7.0"]
            return self.draw.pick(special if self.draw.chance(0.15) else plain)
        low, high = (0, 2 ** bits(dtype) - 1)
        if dtype[0] == "i":
            low, high = -(2 ** (bits(dtype) - 1)), 2 ** (bits(dtype) - 1) - 1
        if self.draw.chance(0.15):
            return str(self.draw.pick([low, high, high - 1, low + 1]))
        return str(self.draw.number(max(low, -4), 9))

    def start(self, scope: Scope, dim: str | int) -> str:
        """Return where a window may begin, outside of the array too."""
        draw = self.draw
        starts = [str(draw.number(0, 5)), f"{dim} - {draw.number(0, 9)}"]
        if scope.indices:
            index = draw.pick(scope.indices)
            starts += [f"{index} * {draw.number(1, 9)} - {draw.number(0, 3)}", f"{index} - 1"]
            starts += [index, f"-{index}", f"{index} // 2", f"({index} * 5) % 11"]
        return draw.pick(starts)

    def load(self, scope: Scope, shape: Shape, dtype: str) -> str:
        """Return a window of an array that has a shape, empty if no array has."""
        draw = self.draw
        wide = [a for a, n in enumerate(shape) if n > 1]
        arrays = [a for a in scope.arrays if a.rank >= len(wide) and a.role != "ids"]
        if not arrays:
            return ""
        array = draw.pick([a for a in arrays if a.dtype == dtype] or arrays)
        ones = [a for a in range(len(shape)) if a not in wide]
        kept = sorted([*wide, *ones[: array.rank - len(wide)]])
        places = sorted(draw.random.sample(range(array.rank), len(kept)))
        keys = [
            self.along(scope, array.dims[p], shape[kept[places.index(p)]] if p in places else 0)
            for p in range(array.rank)
        ]
        text = self.read(scope, array, keys, places, shape, kept)
        if len(kept) < len(shape):
            added = ", ".join(":" if a in kept else "None" for a in range(len(shape)))
            text = f"{text}[{added}]" if kept else tile_of(text, shape)
        return text if array.dtype == dtype else cast(text, dtype)

    def along(self, scope: Scope, dim: str | int, size: int) -> str:
        """Return a window of so many elements along a dim, an integer if of none."""
        draw = self.draw
        fitting = [w for w in scope.windows if w.size == size]
        exact = [w for w in fitting if w.dim == dim]
        drawn: list[Window] = exact * 4 + fitting
        if drawn and draw.chance(0.7):
            return draw.pick(drawn).text
        if not size:
            return self.start(scope, dim)
        step = f", {draw.number(2, 3)}" * draw.chance(0.2)
        return f"ds({self.start(scope, dim)}, {size}{step})"

    def read(
        self, scope: Scope, array: Argument, keys: list[str], places: list[int], shape: Shape,
        kept: list[int],
    ) -> str:  # fmt: skip
        """Return a read of a window, with what a read may have."""
        draw = self.draw
        if places and len(places) == array.rank and draw.chance(0.12):
            axis = draw.number(0, len(places) - 1)
            which = self.expression(scope, (shape[kept[axis]],), draw.pick(["i32", "u8"]), 1)
            keys[places[axis]] = f"({which}) % {draw.number(2, 40)} - {draw.number(0, 2)}"
            return f"{array.name}[{', '.join(keys)}]"
        number, window = self.constant(array.dtype), ", ".join(keys)
        if len(keys) == 2 and draw.chance(0.1):
            turned = f"{array.name}.T[{keys[1]}, {keys[0]}]"
            return f"{turned}.T" if len(places) == 2 else turned
        if places and draw.chance(0.35):
            return f"{array.name}[{window}].filled({number})"
        forms = ["{0}[{1}]"] * 8 + ["load({0}.at[{1}], fill={2})", "{0}.at[{1}][...]"]
        forms += ["load({0}.at[{1}], stages={3})"] * scope.is_in_pipeline
        return draw.pick(forms).format(array.name, window, number, draw.number(1, 4))
