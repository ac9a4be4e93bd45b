"""Time kernels on the emulator, compiled and prepared before.

Run it on an idle machine: `python -m bench.emulating`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astdsl import kernel
from bench import common, kernels

LIMIT_S = 0.3
SIZE = 512
TARGETS = ("sm_90a", "sm_100a")


def figures(repeats: int, size: int) -> list[common.Figure]:
    """Return the least times of a square matmul, and of an add of twice its extent."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((size, size)).astype(np.float16) for _ in "ab")
    x, y = (random.standard_normal((2 * size, 2 * size)).astype(np.float32) for _ in "xy")
    found = []
    for target in TARGETS:
        matmul = kernel(kernels.matmul).on("emulator", target=target)
        seconds = common.least(lambda: matmul(a, b), repeats)  # noqa: B023
        what = f"emulator, matmul {size}x{size}x{size} f16, {target}"
        found.append(common.Figure(what, seconds, "s", LIMIT_S if target == TARGETS[0] else None))
    add = kernel(kernels.add).on("emulator", target=TARGETS[0])
    seconds = common.least(lambda: add(x, y), repeats)
    found.append(common.Figure(f"emulator, add {2 * size}x{2 * size} f32", seconds, "s", LIMIT_S))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = common.options(__doc__)
    options.add_argument("--size", type=int, default=SIZE, help="the limits are for the default")
    chosen = options.parse_args(arguments)
    return common.show(figures(chosen.repeats, chosen.size), as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
