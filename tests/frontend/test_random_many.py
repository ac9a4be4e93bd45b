"""Random programs give the same numbers as kernels and as Python."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.frontend.tracing import agrees
from tests.strategies import programs

COUNT = itertools.count()


def function_of(source: str) -> Any:
    """Return the function `f` of a source, with its text where Python looks for it."""
    file = f"<program {next(COUNT)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, file, "exec"), space)  # noqa: S102  (drawn just now)
    return space["f"]


@settings(
    max_examples=1500,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(programs(), st.integers(-2, 9), st.integers(-2, 9))
def test_a_program_does_the_same_on_kernel_values_and_on_numbers(
    source: str, n: int, m: int
) -> None:
    agrees(function_of(source), n, m)
