"""What the witnesses say of a program: they agree, or all refuse it in words.

Invariant: whatever else happens is a `Finding`, whose kind names what differs or where it fell.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from astdsl import KernelError
from astdsl.ir.evaluate import evaluate
from astdsl.ir.verify import verify
from astdsl.lowering.compiler import find_target
from astdsl.lowering.schedule.kernel import schedule
from astdsl.lowering.schedule.stream_k import settle_streams
from tests.fuzz import plain
from tests.fuzz.program import Argument, Array, Program
from tests.fuzz.refusals import is_right

TARGETS = ("sm_90a", "sm_100a")
NUMBER = itertools.count()
Same = Callable[[Sequence[Array], Sequence[Array], str], None]


class Finding(Exception):
    """A disagreement of the witnesses, or a crash of one; `told` is the evidence."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind, self.told = kind, told


def kernel_of(text: str) -> Any:
    """Return the kernel `k` of a text."""
    file = f"<fuzz {next(NUMBER)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType("fuzz")
    sys.modules["fuzz"] = module
    exec(compile(text, file, "exec"), module.__dict__)  # noqa: S102  (written just now)
    return module.k


@contextlib.contextmanager
def findings(stage: str) -> Iterator[None]:
    """Turn what is no report for a user into a finding."""
    try:
        yield
    except (KernelError, Finding, plain.Unknown):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        kind = f"crash on {stage}: {type(error).__name__}"
        raise Finding(kind, f"{str(error)[:300]} at {where}") from error


def run(program: Program, text: str, device: str, **options: Any) -> tuple[list[Array], list[str]]:
    """Run a program on a device; return what it writes, and the lines that it prints, sorted."""
    given, printed = program.arguments(), io.StringIO()
    with findings(device), contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel_of(text).on(device, **options)(*given)
    return program.outputs(given), sorted(printed.getvalue().splitlines())


def judge(program: Program, same: Same | None = None) -> str:
    """Return "agrees" or the code that refuses a program; raise Finding.

    `same` compares results, bit by bit if there is none: then Python is a witness too.
    """
    agree = same or compare
    rng = random.Random(program.seed)  # noqa: S311 (the same for the same seed)
    try:
        expected, printed = run(program, program.text, "reference", target=TARGETS[0])
    except KernelError as error:
        return refused(error, program)
    if same is None:
        compare_with_plain(program, expected)
    agree(expected, expected, "the reference")
    target = rng.choice(TARGETS)
    try:
        if schedules(program, target, rng, expected, agree):  # its parts are the target's
            expected, printed = run(program, program.text, "reference", target=target)
        options = emulator_options(rng)
        found, lines = run(program, program.text, "emulator", target=target, **options)
    except KernelError as error:
        if error.code < "A5":  # refused by one target
            return refused(error, program)
        raise Finding(f"{target} reports {error.code}", str(error)) from error
    agree(found, expected, f"emulator for {target}, {options}")
    if lines != printed:
        raise Finding("printed otherwise", f"{target}: {lines[:4]}, not {printed[:4]}")
    return "agrees"


def refused(error: KernelError, program: Program) -> str:
    """Return the code of a refusal that is right; raise Finding for another."""
    if not is_right(error, program.text):
        raise Finding(f"refused by {error.code}", str(error))
    return error.code


def schedules(
    program: Program, target: str, rng: random.Random, expected: list[Array], agree: Same
) -> bool:
    """Compare the schedule for a target with the program; whether it has streams, which differ."""
    given = program.arguments()
    with findings("schedule"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = kernel_of(program.text).lower(*given, target=target).module
        streams = settle_streams(module, find_target(target)) is not module
        scheduled = schedule(module, find_target(target))
        verify(scheduled)
        for value, parameter in zip(given, program.parameters.values(), strict=True):
            if isinstance(parameter, Argument) and parameter.initial is not None:
                value[...] = parameter.initial
        orders: list[str | int] = ["ascending", "descending", rng.randint(0, 99)]
        order = rng.choice(orders)
        with contextlib.redirect_stdout(io.StringIO()):
            evaluate(scheduled, given, order=order)
    if streams and target != TARGETS[0]:
        expected, _ = run(program, program.text, "reference", target=target)
    agree(program.outputs(given), expected, f"schedule for {target}, {order} blocks")
    return streams


def compare(found: Sequence[Array], expected: Sequence[Array], witness: str) -> None:
    """Demand the same bits, but for the payload of a NaN."""
    for number, (x, y) in enumerate(zip(found, expected, strict=True)):
        same = x == y
        if x.dtype.kind not in "biu":
            a, b = x.astype(np.float64), y.astype(np.float64)
            same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        if not same.all():
            at = np.argwhere(~same)[:3].tolist()
            pairs = [(x[tuple(p)], y[tuple(p)]) for p in at]
            raise Finding(
                f"{witness.split(maxsplit=1)[0]} differs",
                f"{witness}: result {number} at {at}: {pairs}",
            )


def compare_with_plain(program: Program, expected: Sequence[Array]) -> None:
    """Demand what Python and NumPy make of the text, where they know; signs of zeros apart."""
    given = program.arguments()
    try:
        with findings("plain Python"):
            plain.run(program, given)
    except plain.Unknown:
        return
    found, wanted = (
        [np.where(a == 0, np.zeros_like(a), a) for a in arrays]
        for arrays in (program.outputs(given), expected)
    )
    compare(found, wanted, "plain Python")


def emulator_options(rng: random.Random) -> dict[str, Any]:
    """Draw when asynchronous work completes, and which threads go first."""
    completion = rng.choice(["late", "early", rng.randint(0, 99)])
    order = rng.choice(["min-pc", "max-pc", "round-robin", rng.randint(0, 99)])
    return {"completion": completion, "order": order}
