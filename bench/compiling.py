"""Time compiling from source to PTX and to a cubin, for sm_90a; Triton, if installed, beside it.

Every timing makes the kernel anew: nothing is taken from a cache of compiled kernels, except by the
rows that say so. Run it on an idle machine: `python -m bench.compiling`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from astdsl import f16, f32, kernel, spec
from astdsl.store import FOLDER_VARIABLE, SWITCH
from bench import common, kernels, peers

TARGET = "sm_90a"
ADD = spec((1024, 1024), f32)
MATMUL = spec((512, 512), f16)

ROWS: tuple[tuple[str, Callable[..., Any], tuple[Any, ...], float, float], ...] = (
    ("add, 64x64 f32", kernels.add, (ADD, ADD), 30, 50),
    ("matmul, 128x128x64 f16, 4 stages", kernels.matmul, (MATMUL, MATMUL), 150, 250),
)


def figures(repeats: int) -> list[common.Figure]:
    """Return what each kernel takes, and what Triton takes for one like it."""
    found = []
    for what, function, arguments, ptx_limit_ms, cubin_limit_ms in ROWS:

        def lowered(function: Any = function, arguments: Any = arguments) -> Any:
            return kernel(function).lower(*arguments, target=TARGET)

        with mock.patch.dict(os.environ, {SWITCH: "0"}):
            to_ptx = common.least(lambda: lowered().ptx, repeats) * 1e3
            to_cubin = common.least(lambda: lowered().cubin, repeats) * 1e3
        with _own_folder():
            kept = common.least(lambda: lowered().cubin, repeats) * 1e3
        found.append(common.Figure(f"{what}: source to PTX", to_ptx, "ms", ptx_limit_ms))
        found.append(common.Figure(f"{what}: source to cubin", to_cubin, "ms", cubin_limit_ms))
        found.append(common.Figure(f"{what}: source to cubin, kept on disk", kept, "ms"))
    return found + [
        common.Figure(f"Triton, {what}: source to cubin", common.least(action, repeats) * 1e3, "ms")
        for what, action in peers.triton_compilations().items()
    ]


@contextmanager
def _own_folder() -> Iterator[None]:
    """Keep compiled kernels in a folder of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, {SWITCH: "1", FOLDER_VARIABLE: folder}):
            yield


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = common.options(__doc__).parse_args(arguments)
    return common.show(figures(chosen.repeats), as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
