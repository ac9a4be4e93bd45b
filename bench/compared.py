"""The machine code of kernels beside that of the same kernels in Triton, from the same assembler.

Invariant: both do the same work in a step; where their blocks differ, instructions are counted for
as much as a block of the peer's does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from astdsl import f8e4m3, f16, f32, i32, kernel, spec
from astdsl.lowering.nvptx.assemble import Assembler, disassemble
from astdsl.lowering.target import TARGETS
from astdsl.stdlib import attention, elementwise, matmul, normalisation
from bench import common, kernels, peers
from bench.sass import cost
from examples import histogram as histogram_example
from examples import split_k as split_k_example

_WARP_THREADS = 32
_ENTRY = re.compile(r"\.entry (\w+)\(.*?\.(?:max|req)ntid (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel of ours for some arguments; a step of ours does as much as `steps` of the peer's."""

    made: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    steps: int = 1


def _half(*shape: int) -> Any:
    return spec(shape, f16)


def _single(*shape: int) -> Any:
    return spec(shape, f32)


_A, _ROWS, _ROW = _half(4096, 4096), _single(4096, 1024), _single(1024)
_SMALL = spec((4096, 4096), f8e4m3)
_HEADS = _half(4, 16, 4096, 64)
CASES: dict[str, Callable[[], Case]] = {
    "add": lambda: Case(kernel(kernels.add), (_ROWS, _ROWS), {}),
    "softmax": lambda: Case(kernel(kernels.softmax), (_ROWS,), {}, 4),
    "layer norm": lambda: Case(normalisation.layer_norm, (_ROWS, _ROW, _ROW), {}, 4),
    "sums of rows": lambda: Case(kernel(kernels.row_sums), (_single(4096, 4096),), {}),
    "sums of columns": lambda: Case(kernel(kernels.column_sums), (_ROWS,), {}),
    "transpose": lambda: Case(elementwise.transpose, (_ROWS,), {}),
    "histogram": lambda: Case(
        histogram_example.histogram, (spec((1 << 20,), i32), spec((256,), i32)), {}
    ),
    "matmul": lambda: Case(matmul.matmul, (_A, _A, _A), {}),
    "matmul, 256 wide": lambda: Case(matmul.matmul, (_A, _A, _A), {"bn": 256, "stages": 3}),
    "matmul and GELU": lambda: Case(kernel(kernels.matmul_gelu), (_A, _A, _single(4096)), {}),
    "matmul and GELU, f8": lambda: Case(
        kernel(kernels.matmul_gelu), (_SMALL, _SMALL, _single(4096)), {"bk": 128}
    ),
    "split-K": lambda: Case(split_k_example.split_k, (_A, _A), {"bm": 128, "bn": 128}),
    "stream-K": lambda: Case(kernel(kernels.matmul_streamed), (_A, _A), {}),
    "stream-K, 256 wide": lambda: Case(kernel(kernels.matmul_streamed), (_A, _A), {"bn": 256}),
    "attention": lambda: Case(attention.attention, (_HEADS,) * 3, {"bq": 128}),
}


@dataclass(frozen=True, slots=True)
class _Code:
    registers: int
    spilled: int
    instructions: float
    waits: int


def figures(targets: tuple[str, ...]) -> Iterator[common.Figure]:
    """Yield what each kernel takes on each target; the limit is what the peer's takes."""
    ptx_of = peers.triton_machine_code()
    for name, make in CASES.items():
        case = make()
        for target in targets:
            lowered = case.made.lower(*case.arguments, target=target, **case.constants)
            own = _code(lowered.ptx, target, case.steps)
            other = None if ptx_of is None else _code(ptx_of(name, target), target)
            yield from _rows(f"{name}, {target}", own, other)


def _rows(what: str, own: _Code, other: _Code | None) -> Iterator[common.Figure]:
    for field, label, unit in (
        ("registers", "registers", ""),
        ("spilled", "spilled", "bytes"),
        ("instructions", "warp instructions of a step", ""),
        ("waits", "barriers, waits and fences", ""),
    ):
        limit = None if other is None else getattr(other, field)
        yield common.Figure(f"{what}: {label}", getattr(own, field), unit, limit)


def _code(ptx: str, target: str, steps: int = 1) -> _Code:
    """Return what PTX costs once it is assembled; its step stands for `steps` of the peer's."""
    with Assembler(TARGETS[target]) as assembler:
        cubin = assembler.assemble(ptx)
    found = cost(disassemble(cubin))
    warps = int(dict(_ENTRY.findall(ptx))[found.name]) // _WARP_THREADS
    return _Code(
        cubin.registers, cubin.spill_bytes, found.step * warps / steps, round(found.waits / steps)
    )
