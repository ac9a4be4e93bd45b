"""Time PTX on the emulator, with and without checks: ours, and Triton's of tests/peers.

Run it on an idle machine: `python -m bench.emulator`. The limits are those of the default sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import astdsl.emulator.device as emulator
from astdsl import kernel
from bench import common, kernels
from tests.peers.cases import launch
from tests.peers.launches import stored

TARGETS = ("sm_90a", "sm_100a")
HEADS, DEPTH = 4, 64
Run = Callable[[bool], object]


def recorded(function: Any, arguments: Sequence[Any], target: str) -> Run:
    """Return what runs a kernel's launches again, with the arguments of a first call."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    run = emulator.run

    def record(*positional: Any, **options: Any) -> None:
        calls.append((positional, {**options, "uninitialised": ()}))
        run(*positional, **options)

    with patch.object(emulator, "run", record):
        kernel(function).on("emulator", target=target)(*arguments)

    def again(check: bool) -> None:
        for positional, options in calls:
            run(*positional, **{**options, "check": check})

    return again


def _whole(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float16)


def matmuls(size: int) -> Iterator[tuple[str, Run]]:
    """Yield products of square f16 matrices: our PTX and Triton's, for each target."""
    a, b = _whole(size, size), _whole(size, size)
    what = f"{size}x{size}x{size} f16"
    for target in TARGETS:
        yield f"matmul {what}, ours, {target}", recorded(kernels.matmul, (a, b), target)
        made, c = stored(f"matmul-{target}"), np.zeros((size, size), np.float16)
        grid = (size // 128, size // 128)
        yield (
            f"matmul {what}, Triton's, {target}",
            partial(_peer, made, grid, [a, b, c, size]),
        )


def _peer(made: Any, grid: tuple[int, ...], arguments: Sequence[Any], check: bool) -> None:
    launch(made, grid, arguments, has_maps=True, check=check)


def attentions(length: int) -> Iterator[tuple[str, Run]]:
    """Yield Triton's attention for each target."""
    q, k, v = (_whole(HEADS * length, DEPTH) for _ in "qkv")
    for target in TARGETS:
        arguments = [q, k, v, np.zeros_like(q), length]
        run = partial(_peer, stored(f"attention-{target}"), (length // 128, HEADS), arguments)
        yield f"attention S={length}, {HEADS} heads, d {DEPTH}, Triton's, {target}", run


def adds(size: int) -> Iterator[tuple[str, Run]]:
    """Yield our addition of f32 matrices."""
    x = np.ones((size, size), np.float32)
    yield f"add {size}x{size} f32, ours, sm_90a", recorded(kernels.add, (x, x), TARGETS[0])


def _first(size: int) -> Iterator[common.Figure]:
    """Time parsing and preparing a matmul, which a first run does."""
    for target in TARGETS:
        made = stored(f"matmul-{target}")
        action = partial(_prepared, made)
        yield common.Figure(
            f"parse and prepare a matmul, Triton's, {target}", common.least(action, size), "s", 0.3
        )


def _prepared(made: Any) -> object:
    return emulator.prepare(emulator.parse(made.ptx), made.entry)


def figures(scale: int, repeats: int, *, large: bool) -> Iterator[common.Figure]:
    """Yield the table: every figure without checks and with them, and its limits."""
    whole = scale == 1
    rows: list[tuple[Iterator[tuple[str, Run]], float, float, int]] = [
        (matmuls(512 // scale), 0.1, 0.5, repeats),
        (attentions(1024 // scale), 0.4, 2.0, repeats),
        (adds(4096 // scale), 1.0, 4.0, repeats),
    ]
    if large:
        rows.append((matmuls(2048 // scale), 6.0, 20.0, 1))
    for cases, off, on, times in rows:
        for what, run in cases:
            for check, limit in ((False, off), (True, on)):
                seconds = common.least(partial(run, check), times)
                label = f"{what}, checks {'on' if check else 'off'}"
                yield common.Figure(label, seconds, "s", limit if whole else None)
    yield from _first(repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    options = common.options(__doc__)
    options.add_argument("--scale", type=int, default=1, help="divide all extents by this")
    options.add_argument("--large", action="store_true", help="the products of 2048 as well")
    chosen = options.parse_args(arguments)
    found = figures(chosen.scale, chosen.repeats, large=chosen.large)
    return common.show(found, as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
