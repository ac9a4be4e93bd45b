"""`astdsl check`: a kernel rehearsed, then run on the emulator in many ways, each compared.

Invariant: without a finding every run agreed with the reference; each finding is told once, with
the way of running that shows it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from astdsl.cli.arguments import add_options, add_seed, at_least, read_arguments
from astdsl.cli.files import find_kernel
from astdsl.cli.render import Screen, as_object
from astdsl.cli.run import Array, Comparison, outputs_of, random_value, require_no_outputs
from astdsl.errors import (
    BadWindow,
    DeviceError,
    KernelError,
    ParallelConflict,
    ProtocolError,
    UnwrittenRead,
)
from astdsl.frontend.signature import Signature
from astdsl.ir.evaluate.rehearsal import rehearse
from astdsl.kernel import Kernel, Placed
from astdsl.lowered import Lowered
from astdsl.runtime.emulation import emulated

HELP = "look for races, deadlocks, accesses out of bounds and wrong results"
# What is found in a kernel; any other error ends the command.
FOUND = (BadWindow, DeviceError, ParallelConflict, ProtocolError, UnwrittenRead)
# When asynchronous work completes, and which threads go first: the ends, then seeds of both.
WAYS = (
    ("late", "min-pc"),
    ("early", "max-pc"),
    ("late", "round-robin"),
    ("early", "min-pc"),
    ("late", "max-pc"),
)
LEAST_RUNS = 2
MOST_OPERATIONS = 400_000
Outputs: TypeAlias = dict[str, Array]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser)
    add_seed(parser)
    parser.add_argument(
        "--runs", type=at_least(1), default=12, help="on the emulator, at most (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="after which no further run begins (%(default)s)"
    )


@dataclass(frozen=True)
class Finding:
    """Something wrong with the kernel: a report or a difference, and how it was found."""

    how: str
    error: KernelError | None = None
    difference: str = ""

    @property
    def text(self) -> str:
        """The report."""
        return self.error.report() if self.error is not None else self.difference

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same for one mistake found in several ways."""
        error = self.error
        return (error.code, error.places[:1]) if error is not None else (self.difference[:20],)


@dataclass(frozen=True)
class Subject:
    """A kernel with what it is called with."""

    kernel: Kernel | Placed
    signature: Signature
    arguments: dict[str, Any]
    constants: dict[str, Any]
    target: str

    def lowered(self) -> Lowered:
        """Compile, which rehearses a kernel that is written by hand."""
        return self.kernel.lower(**self.arguments, **self.constants, target=self.target)

    def outputs(self, device: str, seed: int) -> Outputs:
        """Run on random data, and return by name what the kernel wrote."""
        random = np.random.default_rng(seed)
        given = {n: random_value(v, random) for n, v in self.arguments.items()}
        place = (device, self.target)
        return outputs_of(self.kernel, self.signature, given, self.constants, place)


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Check the kernel; 1 where something is found."""
    kernel = find_kernel(options.place)
    signature = kernel.signature
    arguments, constants = read_arguments(signature, options.arg, options.const)
    require_no_outputs(signature, arguments)
    subject = Subject(kernel, signature, arguments, constants, options.target)
    start = time.monotonic()
    findings: dict[tuple[object, ...], Finding] = {}
    runs = 0
    for found in _findings(subject, options, start + options.seconds):
        runs += 1
        if found is not None:
            findings.setdefault(found.key, found)
    _show(screen, list(findings.values()), runs, time.monotonic() - start)
    return int(bool(findings))


def _findings(
    subject: Subject, options: argparse.Namespace, deadline: float
) -> Iterator[Finding | None]:
    """Yield what each way of looking finds, None where it finds nothing.

    The first is the rehearsal: a kernel that is refused before its launch is not run.
    """
    lowered: list[Lowered] = []
    refused = _caught("before the launch", lambda: lowered.append(subject.lowered()))
    if refused is None:
        refused = _caught("in a rehearsal", lambda: _rehearse(lowered[0]))
    yield refused
    if not lowered:
        return
    for number in range(options.runs):
        if number >= LEAST_RUNS and time.monotonic() > deadline:
            return
        yield _compare(subject, options.seed + number, _way(number))


def _way(number: int) -> tuple[str, str]:
    return WAYS[number] if number < len(WAYS) else (str(number), str(number))


def _rehearse(lowered: Lowered) -> None:
    """Rehearse for longer than a launch could wait, and what asks for no check too."""
    rehearse(lowered.module, lowered.shapes, MOST_OPERATIONS)


def _compare(subject: Subject, seed: int, way: tuple[str, str]) -> Finding | None:
    """Run on the emulator in one way, and on the reference, and compare."""
    got, wanted = Outputs(), Outputs()
    completion, order = way
    how = f"on the emulator, data {seed}, copies complete {completion}, threads go {order}"

    def emulate() -> None:
        with emulated({"completion": completion, "order": order}):
            got.update(subject.outputs("emulator", seed))

    found = _caught(how, emulate)
    if found is None:
        refer = f"on the reference, data {seed}"
        found = _caught(refer, lambda: wanted.update(subject.outputs("reference", seed)))
    if found is not None:
        return found
    wrong = [c for name in got if not (c := Comparison.of(name, got[name], wanted[name])).is_good]
    texts = [f"`{each.name}` is {each.text}" for each in wrong]
    return Finding(how, difference="; ".join(texts)) if texts else None


def _caught(how: str, action: Callable[[], None]) -> Finding | None:
    try:
        action()
    except FOUND as error:
        return Finding(how, error)
    return None


def _show(screen: Screen, findings: list[Finding], runs: int, seconds: float) -> None:
    if screen.as_json:
        screen.show_json(
            {
                "good": not findings,
                "runs": runs - 1,
                "seconds": seconds,
                "findings": [
                    {"how": each.how, "text": each.text}
                    | ({"error": as_object(each.error)} if each.error is not None else {})
                    for each in findings
                ],
            }
        )
        return
    for each in findings:
        screen.show(each.text, "report")
        screen.show(f"  found {each.how}\n")
    what = f"{len(findings)} found" if findings else "nothing found"
    screen.show(f"{what}: rehearsed, and run {runs - 1} times on the emulator, {seconds:.1f} s")
