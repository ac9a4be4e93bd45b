"""Random calls of elementary functions, exact and with `approx_math`, judged by their errors.

A program writes arguments and results alike: arguments are the same bits for every witness, and a
result is as close to the truth as the documentation says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.kernels import Kernels
from tests.fuzz.layouts import layout
from tests.fuzz.program import NUMPY, Argument, Array, Name, Program, Scope, Shape, Window
from tests.fuzz.statements import Lines, indented
from tests.fuzz.trial import Finding, compare, judge

LONG = np.longdouble
RESULTS = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class Function:
    """A call, what it means, its errors in ulp by dtype, and where it is called."""

    call: str
    meaning: Callable[..., Any]
    ulps: tuple[float, float, float, float]
    domain: tuple[float, float]
    near: tuple[float, float] = (-8, 8)
    is_approximate: bool = True


def _each(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """Return a function of `math` for arrays, which is of f64 and within an ulp of the truth."""
    return lambda x: np.array([f(float(v)) for v in x.ravel()], LONG).reshape(x.shape)


ERRORS = (1.0, 2.0, 0.6, 0.6)
ALL, NOT_NEGATIVE = (-1e30, 1e30), (0, 1e30)
FUNCTIONS = (
    Function("exp({0})", np.exp, ERRORS, (-200, 200)),
    Function("exp2({0})", np.exp2, ERRORS, (-300, 300)),
    Function("log({0})", np.log, (1, 1, 0.6, 0.6), NOT_NEGATIVE, (0, 100)),
    Function("log2({0})", np.log2, (2, 1, 0.6, 0.6), NOT_NEGATIVE, (0, 100)),
    Function("sqrt({0})", np.sqrt, (0.5, 0.5, 0.5, 0.5), NOT_NEGATIVE, (0, 100)),
    Function("rsqrt({0})", lambda x: 1 / np.sqrt(x), (2, 2, 0.6, 0.6), NOT_NEGATIVE, (0, 100)),
    Function("tanh({0})", np.tanh, (2, 2, 0.6, 0.6), ALL),
    Function("erf({0})", _each(math.erf), (3, 2, 0.6, 0.6), ALL, is_approximate=False),
    Function("sin({0})", np.sin, (2, 2, 0.6, 0.6), (-1000, 1000), (-3, 3)),
    Function("cos({0})", np.cos, (2, 2, 0.6, 0.6), (-1000, 1000), (-3, 3)),
    Function("sigmoid({0})", lambda x: 1 / (1 + np.exp(-x)), (3, 4, 0.6, 0.6), (-80, 80)),
    Function("({0} / {1})", np.divide, (0.5, 0.5, 0.5, 0.5), ALL),
    Function("({0} ** {1})", np.power, (2, 4, 1, 1), (0.01, 30), (0.01, 30)),
)  # fmt: skip
# Of `approx_math`: relative to the result, and absolute.
RELATIVE, ABSOLUTE = 2.0**-9, 2.0**-19
CONTEXTS = (
    "{0}", "for _ in range(n % 2 + 1):\n    {0}", "with pipeline(2, stages=2) as q:\n    {0}",
    "if i % 2 == 0:\n    {0}\nelse:\n    {1}", "for _ in unroll(range(2)):\n    {0}",
)  # fmt: skip
MOVES = (
    "{0}", "{0}", "{0}[::-1]", "({0}).T.T", "where({0} == {0}, {0}, {0})", "{0}.filled(1)",
    "stack(({0}.filled(1), {0}.filled(1)), axis=0)[1]", "layout_cast({0}, {1})",
)  # fmt: skip


class Elementary(Kernels):
    """Draws kernels of elementary functions."""

    settles = 0.95

    def program(self) -> Program:
        """Return a kernel that calls one to three functions."""
        draw = self.draw
        sizes = {"M": draw.pick([1, 16, 17, 40]), "N": draw.pick([8, 16, 33])}
        self.dims = list(sizes)
        data = [draw.pick(["small", "edge"]) for _ in range(2)]
        self.arrays = [Argument(f"x{k}", "In", draw.pick([*RESULTS, *RESULTS, "i32", "u8"]),
                                ("M", "N"), data=data[k]) for k in range(2)]  # fmt: skip
        rows, columns = draw.pick([(8, 8), (16, 16), (4, 33), (64, 8)])
        scope = Scope()
        scope.names = [Name("n", (), "i32", True)]
        scope.indices = ["i", "j"]
        scope.windows = [Window(f"tile(i, {rows})", rows, "M"),
                         Window(f"tile(j, {columns})", columns, "N")]  # fmt: skip
        scope.arrays = list(self.arrays)
        self.is_fast = draw.chance(0.5)
        calls, lines = [], []
        for number in range(draw.number(1, 3)):
            self.budget = 20
            function = draw.pick([f for f in FUNCTIONS if f.is_approximate or not self.is_fast])
            dtype = draw.pick([*RESULTS, "f32"])
            lines += self.called(scope, function, dtype, number, (rows, columns))
            calls.append(f"{FUNCTIONS.index(function)}")
        head = f"with pipeline(cdiv(M, {rows}), cdiv(N, {columns})) as (i, j):"
        program = self.written(["M, N = x0.shape", head, *indented(lines)], sizes)
        option = "(approx_math=True)" * self.is_fast
        program.text = program.text.replace("@kernel\n", f"@kernel{option}\n")
        program.notes = {"calls": " ".join(calls), "fast": "yes" * self.is_fast}
        return program

    def called(
        self, scope: Scope, function: Function, dtype: str, number: int, shape: Shape
    ) -> Lines:
        """Return a call, and stores of its arguments and its result."""
        draw = self.draw
        names = [f"a{number}", f"b{number}", f"r{number}"]
        outputs = [f"p{number}", f"q{number}", f"o{number}"]
        steps = []
        for _ in range(2):
            low, high = function.near if self.is_fast or draw.chance(0.5) else function.domain
            arguments = [self.argument(scope, shape, dtype, low, high) for _ in range(2)]
            made = [f"{name} = {x}" for name, x in zip(names, arguments, strict=False)]
            steps.append("; ".join([*made, f"{names[2]} = {function.call.format(*names)}"]))
        context = draw.pick(CONTEXTS).format(*steps).split("\n")
        move, stated = draw.pick(MOVES), layout(draw, shape)
        if len(context) > 1 and "if" not in context[0]:
            context = [*(f"{name} = full({shape}, 1, {dtype})" for name in names), *context]
        for name, output in zip(names, outputs, strict=True):
            self.arrays.append(Argument(output, "Out", dtype, ("M", "N")))
            window = ", ".join(w.text for w in scope.windows)
            context.append(f"{output}[{window}] = {move.format(name, stated)}")
        return context

    def argument(self, scope: Scope, shape: Shape, dtype: str, low: float, high: float) -> str:
        """Return an argument of a function, inside its domain."""
        value = self.expression(scope, shape, dtype, 2)
        factor = self.draw.pick([0.37, 1.0, 0.0625, 3.1])
        value = f"({self.helper('settled')}({value}) * {factor})"
        return f"clip({value}, {low}, {high}).filled({max(low, 1)})"


def ulp(x: Array, dtype: str) -> Array:
    """Return the distance of neighbouring numbers of a dtype around x."""
    info: Any = ml_dtypes.finfo(NUMPY[dtype])  # type: ignore[no-untyped-call]
    _, exponent = np.frexp(x)
    places = np.maximum(exponent - 1, int(info.minexp)) - info.nmant
    return np.asarray(np.ldexp(LONG(1), places))


def close(program: Program) -> Callable[[Sequence[Array], Sequence[Array], str], None]:
    """Return what compares results: arguments bit by bit, values with the truth."""
    calls = [FUNCTIONS[int(c)] for c in program.notes["calls"].split()]

    def compared(found: Sequence[Array], expected: Sequence[Array], witness: str) -> None:
        for number, function in enumerate(calls):
            group = slice(3 * number, 3 * number + 3)
            first, second, result = found[group]
            compare(found[group][:2], expected[group][:2], witness)
            arguments = [first, second][: function.call.count("{")]
            _require_close(function, arguments, result, witness, program)

    return compared


def _require_close(
    function: Function, arguments: list[Array], result: Array, witness: str, program: Program
) -> None:
    dtype = next(p for p in RESULTS if result.dtype == NUMPY[p])
    wide = [x.astype(np.float64).astype(LONG) for x in arguments]
    with np.errstate(all="ignore"):
        truth = function.meaning(*wide)
        unit = ulp(truth, dtype)
        bound = function.ulps[RESULTS.index(dtype)] * unit * 1.01
        if program.notes["fast"]:
            bound = np.maximum(bound + unit, np.maximum(abs(truth) * RELATIVE, ABSOLUTE))
        given = result.astype(np.float64).astype(LONG)
        info: Any = ml_dtypes.finfo(NUMPY[dtype])  # type: ignore[no-untyped-call]
        most = np.asarray(float(info.max), LONG)
        is_close = abs(given - truth) <= bound
        is_close |= (given == truth) | np.isnan(given) & np.isnan(truth)
        is_close |= (abs(truth) + bound > most) & (abs(given) >= most - ulp(most, dtype) * 4) & (
            np.sign(given) == np.sign(truth)
        )  # fmt: skip
    if not is_close.all():
        at = tuple(np.argwhere(~is_close)[0])
        values = [x[at] for x in arguments]
        told = f"{witness}: {function.call} of {values} in {dtype} is {result[at]}"
        raise Finding("an error is too large", f"{told}, not {truth[at]} within {bound[at]}")


def elementary(seed: int) -> Program:
    """Return the kernel of a seed."""
    return Elementary(seed).program()


def judge_elementary(program: Program) -> str:
    """Return what `judge` does, of values that are close to the truth."""
    return judge(program, close(program))
