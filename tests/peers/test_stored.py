"""PTX that Triton made of kernels of ours runs to NumPy's result, whatever completes when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers.cases import check
from tests.peers.launches import STORED, stored

SCHEDULES: dict[str, dict[str, Any]] = {
    "late": {"completion": "late"},
    "early": {"completion": "early", "order": "max-pc"},
    "seeded": {"completion": 1, "order": 2},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stem", sorted(path.stem for path in STORED.glob("*.ptx")))
def test_a_stored_kernel_runs_without_a_report(stem: str, schedule: str) -> None:
    check(stem.partition("-")[0], stored(stem), **SCHEDULES[schedule])
