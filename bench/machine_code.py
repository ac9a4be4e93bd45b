"""Count registers, spills and instructions of assembled kernels, for sm_90a.

Nothing is timed. `python -m bench.machine_code`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from astdsl import kernel
from bench import common
from bench.compiling import ADD, MATMUL, TARGET
from bench.kernels import add, matmul

REGISTER_LIMIT = 200
_LINE = re.compile(r"^(?P<label>\.L\w+):|^\s+/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?);", re.MULTILINE)
_BRANCH = re.compile(r"BRA\S* `\((\.L\w+)\)")


def instructions(sass: str) -> tuple[list[str], dict[str, int]]:
    """Return the instructions in order, and the number of the one behind each label."""
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in _LINE.finditer(sass):
        if line["label"]:
            labels[line["label"]] = len(found)
        else:
            found.append(line["text"])
    return found, labels


def loop_with(name: str, sass: str) -> int:
    """Return how many instructions the smallest loop with an instruction `name` has."""
    found, labels = instructions(sass)
    sizes = []
    for last, text in enumerate(found):
        target = _BRANCH.search(text)
        first = labels.get(target[1], last) if target else last
        if first < last and any(name in each for each in found[first:last]):
            sizes.append(last + 1 - first)
    assert sizes, f"no loop has {name}"
    return min(sizes)


def costs(what: str, function: Callable[..., Any], arguments: Sequence[Any]) -> list[common.Figure]:
    """Return what one kernel takes; a product may take so many registers, and nothing may spill."""
    lowered = kernel(function).lower(*arguments, target=TARGET)
    resources, limit = lowered.resources, REGISTER_LIMIT if "matmul" in what else None
    count = len(instructions(lowered.sass)[0])
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
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = common.options(__doc__).parse_args(arguments)
    return common.show(figures(), as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
