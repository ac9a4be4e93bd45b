"""Count registers, spills and instructions of assembled kernels; Triton's, if installed, beside.

Nothing is timed. `python -m bench.machine_code`. What Triton takes for a kernel is its limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from astdsl import f8e4m3, f8e5m2, f16, f32, i8, i32, kernel, spec, u8
from astdsl.ir.dtypes import DType
from bench import common, compared
from bench.compiling import ADD, MATMUL, TARGET
from bench.kernels import add, matmul, matmul_of_rows
from bench.sass import functions

REGISTER_LIMIT = 200
TARGETS = ("sm_90a", "sm_100a")
# Operands, result, depth of a step, precision: 128 bytes of each row.
PRODUCTS = (
    (f16, f16, f32, 64, None),
    (f16, f16, f16, 64, None),
    (f8e4m3, f8e5m2, f32, 128, None),
    (i8, u8, i32, 128, None),
    (f32, f32, f32, 32, "tf32"),
    (f32, f32, f32, 32, "tf32x3"),
)


def loop_with(name: str, sass: str) -> int:
    """Return how many instructions the smallest loop with an instruction `name` has."""
    wanted = re.compile(re.escape(name))
    sizes = [
        loop.size
        for code in functions(sass).values()
        for loop in code.loops(least=1)
        if any(map(wanted.search, code.texts[loop.first : loop.last + 1]))
    ]
    assert sizes, f"no loop has {name}"
    return min(sizes)


def costs(
    what: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    target: str = TARGET,
    **constants: Any,
) -> list[common.Figure]:
    """Return what one kernel takes; a product may take so many registers, and nothing may spill."""
    lowered = kernel(function).lower(*arguments, target=target, **constants)
    resources, limit = lowered.resources, REGISTER_LIMIT if "matmul" in what else None
    count = sum(len(code.texts) for code in functions(lowered.sass).values())
    return [
        common.Figure(f"{what}: registers", resources.registers, "", limit),
        common.Figure(f"{what}: spilled", resources.spill_bytes, "bytes", 0),
        common.Figure(f"{what}: SASS instructions", count, ""),
    ]


def figures() -> list[common.Figure]:
    """Return the costs of both kernels, and of a step of the product in its steady state."""
    steady = loop_with("HGMMA", kernel(matmul).lower(MATMUL, MATMUL, target=TARGET).sass)
    return [
        *costs("matmul 128x128x64 f16, 4 stages", matmul, (MATMUL, MATMUL)),
        common.Figure("matmul: SASS instructions of a step, 8 products", steady, ""),
        *costs("add 64x64 f32", add, (ADD, ADD)),
        *(figure for row in PRODUCTS for target in TARGETS for figure in _product(row, target)),
        *compared.figures(TARGETS),
    ]


def _product(row: tuple[DType, DType, DType, int, str | None], target: str) -> list[common.Figure]:
    a, b, c, depth, precision = row
    arguments = spec((512, 512), a), spec((512, 512), b), spec((512, 512), c)
    what = f"matmul 128x128x{depth} {precision or f'{a} {b}'} to {c}, {target}"
    constants = {"bk": depth, "precision": precision, "stages": 2}
    return costs(what, matmul_of_rows, arguments, target, **constants)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = common.options(__doc__).parse_args(arguments)
    return common.show(figures(), as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
