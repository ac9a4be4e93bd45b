"""PTX that nvcc made of C++ of ours (nvcc/calls.cu) runs to NumPy's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.peers.test_stored import SCHEDULES

PTX = (Path(__file__).parent / "nvcc" / "calls.ptx").read_text()
BLOCKS, THREADS = 3, 64
LANES = BLOCKS * THREADS
Array = np.ndarray[Any, Any]


def _tables(i: int, choice: int) -> float:
    functions: list[Callable[[float], float]] = [lambda x: x + 1, lambda x: 2 * x, lambda x: -x]
    x = float(i)
    for k in range(4):
        x = functions[(choice + k) % 3](x) + functions[(choice + 2) % 3](x)
    return x


def _virtual_calls(i: int, choice: int) -> int:
    return sum([k + i, k * (i + 1)][(choice + k) & 1] for k in range(5))


def _packed_rows(i: int, choice: int) -> int:
    return [97 + 20 + 3, 98 + 40 + 5][choice & 1]


def _ackermann(m: int, n: int) -> int:
    if not m:
        return n + 1
    return _ackermann(m - 1, _ackermann(m, n - 1) if n else 1)


def _prints(i: int, choice: int) -> int:
    return 3 if i < 2 else 0


EXPECTED: dict[str, Callable[[int, int], float]] = {
    "tables": _tables,
    "virtual_calls": _virtual_calls,
    "packed_rows": _packed_rows,
    "recursion": lambda i, choice: _ackermann(choice, i & 3),
    "prints": _prints,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("entry", EXPECTED)
def test_a_kernel_of_nvcc_runs_without_a_report(entry: str, schedule: str, capsys: Any) -> None:
    choice = np.random.default_rng(5).integers(0, 3, LANES).astype(np.int32)
    out = np.zeros(LANES, np.float32 if entry == "tables" else np.int32)
    run(PTX, entry, (BLOCKS,), (THREADS,), [out, choice], **SCHEDULES[schedule])
    assert out.tolist() == [EXPECTED[entry](i, int(choice[i])) for i in range(LANES)]
    told = f"{choice[0]} of 0.00\n{choice[1]} of 0.50\n"
    assert sorted(capsys.readouterr().out.splitlines()) == (
        sorted(told.splitlines()) if entry == "prints" else []
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_take_turns_behind_a_lock(schedule: str) -> None:
    out, expected = np.zeros(1, np.int32), 0
    run(PTX, "locked", (8,), (THREADS,), [out, np.full(1, 2, np.int32)], **SCHEDULES[schedule])
    for _ in range(8):
        expected = expected * 3 + 2
    assert out.tolist() == [expected]
