"""What the scripts of this folder share: how a figure is timed, calibrated and printed.

A figure is the least of five in a fresh process after a warm-up. The time of a fixed loop of
Python is printed with it: on another machine, or on one that does other work, compare the two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import NoReturn

from astdsl.errors import DeviceUnavailable

REPEATS = 5
REFERENCE_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, and the most that it may be; without a limit it is only told."""

    what: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the limit is kept."""
        return self.at_most is None or self.value <= self.at_most

    def line(self) -> str:
        """Return the figure as a row of a table."""
        limit = "" if self.at_most is None else f"{self.at_most:g}"
        ratio = f"{self.value / self.at_most:.2f}" if self.at_most else ""
        return f"{self.what:<58} {self.value:>9.4g} {self.unit:<9} {limit:>7} {ratio:>6}"


def least(action: Callable[[], object], repeats: int) -> float:
    """Return the least wall time of an action in seconds, after one run that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        action()
        times.append(perf_counter() - start)
    return min(times)


def run(main: Callable[[], int]) -> NoReturn:
    """End the program by the status of a script, or by a sentence where a tool is missing."""
    try:
        sys.exit(main())
    except DeviceUnavailable as missing:
        sys.exit(str(missing))


def reference_loop() -> int:
    """Do a fixed amount of work in Python."""
    total = 0
    for number in range(REFERENCE_STEPS):
        total += number * 3 % 7
    return total


def options(about: str | None) -> argparse.ArgumentParser:
    """Return the options that every script has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timings of which the least")
    return parser


def show(figures: Iterable[Figure], *, as_json: bool) -> int:
    """Print figures and what they were measured on; return 1 if a limit is not kept, else 0."""
    found = list(figures)
    loop_ms = least(reference_loop, REPEATS) * 1e3
    machine = {
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "reference_loop_ms": round(loop_ms, 1),
    }
    if as_json:
        rows = [asdict(figure) | {"met": figure.is_met} for figure in found]
        print(json.dumps({"machine": machine, "figures": rows}, indent=2))
    else:
        print(f"{'':<58} {'':>9} {'':<9} {'at most':>7} {'ratio':>6}")
        print("\n".join(figure.line() for figure in found))
        print(", ".join(f"{name} {value}" for name, value in machine.items()), file=sys.stderr)
    return int(not all(figure.is_met for figure in found))
