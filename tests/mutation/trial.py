"""The judgement of one mutant: refused in words, or the same on the reference and the emulator.

Invariant: what is not one of the good outcomes is a fault of ours, and says what was seen.
"""

from __future__ import annotations

import importlib.util
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import astdsl
from astdsl import KernelError
from astdsl.kernel import Kernel
from tests.mutation.mutants import Mutant

TARGETS = ("sm_90a", "sm_100a")
# Sums are exact, but functions such as `exp` differ by a few units in the last place.
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}

# The codes of what is found while a kernel runs: faults of the device, and of the protocol.
DYNAMIC = ("A501", "A601")
GOOD = ("refused", "reported", "python", "agrees")


@dataclass(frozen=True)
class Verdict:
    """What a mutant came to: a good outcome, or `fault`; `told` is a sentence or the evidence."""

    outcome: str
    told: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing of ours went wrong."""
        return self.outcome in GOOD


def judge(mutant: Mutant, folder: Path) -> Verdict:
    """Import a mutant, run it on both witnesses, and say what came of it."""
    path = folder / f"mutant_{mutant.seed}.py"
    path.write_text(mutant.text, encoding="utf-8")
    warnings.simplefilter("ignore")
    try:
        module = _load(path)
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is judged)
        return _judge_import(error, path)
    made = getattr(module, mutant.subject.kernel, None)
    if made is None:
        return Verdict("python", "the kernel has another name")
    verdict = Verdict("")
    # Memory that nobody writes holds what it held before: only with a given output is that known.
    given = mutant.subject.output_arrays()
    for outputs in [given] if mutant.subject.needs_outputs else [[], given]:
        runs = [_run(made, mutant, device, path, outputs) for device in ("reference", "emulator")]
        verdict = compare(*runs)
        if verdict.outcome != "differs":
            return verdict
    return Verdict("fault", verdict.told)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, f"{path} is Python"
    assert spec.loader is not None, f"{path} is Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _judge_import(error: BaseException, path: Path) -> Verdict:
    """Judge what the file's own statements raised, which Python's traceback places.

    A decorator of ours never raises, and our functions refuse to be called outside a kernel.
    """
    if isinstance(error, KernelError) and error.help:
        return Verdict("refused", error.report().splitlines()[0])
    last = traceback.extract_tb(error.__traceback__)[-1]
    if Path(last.filename) == path:
        return Verdict("python", f"{type(error).__name__}: {error}")
    return _fault("the import raises", error)


def _fault(what: str, error: BaseException) -> Verdict:
    frames = traceback.extract_tb(error.__traceback__)
    where = " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))
    return Verdict("fault", f"{what}: {type(error).__name__}: {str(error)[:300]} at {where}")


@dataclass(frozen=True)
class Run:
    """A run on one witness: the results, or a verdict where there are none."""

    results: tuple[Any, ...] = ()
    verdict: Verdict | None = None


def _run(made: Any, mutant: Mutant, device: str, path: Path, outputs: Sequence[Any]) -> Run:
    arguments = [*mutant.subject.arguments(mutant.seed), *map(np.copy, outputs)]
    target = TARGETS[mutant.seed // 2 % len(TARGETS)]
    try:
        placed = (made if isinstance(made, Kernel) else astdsl.kernel(made)).on(
            device, target=target
        )
        returned = placed(*arguments)
    except KernelError as error:
        return Run(verdict=_judge_report(error, path))
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is judged)
        return Run(verdict=_judge_exception(error, path))
    found = returned if isinstance(returned, tuple) else (returned,)
    return Run(results=(*found, *arguments))


def _judge_report(error: KernelError, path: Path) -> Verdict:
    """Judge a report: it needs places in the file, inside its lines, and a way out."""
    first = error.report().splitlines()[0]
    if not error.places:
        return Verdict("fault", f"no place: {first}")
    if not error.help:
        return Verdict("fault", f"no way out: {first}")
    lines = path.read_text(encoding="utf-8").splitlines()
    spans = [span for span, _ in error.places]
    if not any(Path(span.file) == path for span in spans):
        return Verdict("fault", f"no place in the kernel's file: {first}")
    for span in spans:
        if Path(span.file) == path and not 1 <= span.line <= len(lines):
            return Verdict("fault", f"line {span.line} of {len(lines)}: {first}")
    return Verdict("reported" if error.code in DYNAMIC else "refused", first)


def _judge_exception(error: BaseException, path: Path) -> Verdict:
    """Judge another exception: it must be the user's own, with our frames taken off."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    modules = [Path(f.filename) for f in frames]
    own = [m for m in modules if m == path]
    ours = [m for m in modules if {"astdsl", "lowering"} & set(m.parts) and m != path]
    notes = getattr(error, "__notes__", ())
    if own and not ours and any("in kernel" in note for note in notes):
        return Verdict("python", f"{type(error).__name__}: {error}")
    return _fault("an exception of ours", error)


def compare(reference: Run, emulator: Run) -> Verdict:
    """Compare two witnesses: both refuse, or both give the same.

    Of a race between hand-written copies only the emulator knows.
    """
    a, b = reference.verdict, emulator.verdict
    if a and not a.is_good:
        return Verdict("fault", f"reference: {a.told}")
    if b and not b.is_good:
        return Verdict("fault", f"emulator: {b.told}")
    if b:
        return b
    if a and a.outcome == "reported":
        return a  # a deadlock that some order of the threads runs into
    if a:
        return Verdict("fault", f"the emulator runs what the reference refuses: {a.told}")
    for x, y in zip(reference.results, emulator.results, strict=True):
        if not _same(np.asarray(x), np.asarray(y)):
            return Verdict("differs", _difference(np.asarray(x), np.asarray(y)))
    return Verdict("agrees")


def _same(x: Any, y: Any) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind != "f":
        return bool((x == y).all())
    close = TOLERANCE[x.dtype.itemsize]
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
        scale = np.max(np.abs(a), where=np.isfinite(a), initial=1.0)
        return bool(np.isclose(a, b, rtol=close, atol=close * scale, equal_nan=True).all())


def _difference(x: Any, y: Any) -> str:
    differs = np.argwhere(~((x == y) | ((x != x) & (y != y))))  # noqa: PLR0124 (NaN)
    first = tuple(int(i) for i in differs[0])
    return f"the witnesses differ at {len(differs)} places; {first}: {x[first]} and {y[first]}"
