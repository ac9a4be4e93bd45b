"""Programs whose launches are recorded, so that changed texts can be run in their place.

Invariant: a program is recorded through whatever launches it (a kernel of ours, a peer's stored
PTX, text written by hand), after its results were compared with NumPy's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np

import astdsl.emulator.device as emulator
from astdsl.emulator import DeviceFault
from astdsl.emulator.arguments import Unwritten
from tests.emulator.written import Launch
from tests.peers import cases
from tests.peers.launches import stored

Array = np.ndarray[Any, Any]
Run = Callable[..., None]
WRONG = "a wrong result"


@dataclass(frozen=True)
class Subject:
    """What launches through the `run` that it is given, and compares what was computed.

    Between schedules results may differ by `tolerance`: NumPy's sums depend on how many blocks
    come to a product together.
    """

    launch: Callable[[Run], None]
    tolerance: float = 0.0


@dataclass
class Program:
    """A subject's launches, its arrays before them, and what they hold after them."""

    name: str
    ptx: str
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    arrays: list[Array]
    before: list[Array]
    after: list[Array]
    tolerance: float

    @cached_property
    def strict(self) -> bool:
        """Whether the program leaves out no fence that some compilers leave out."""
        return not self._run(self.ptx, {"strict": True})

    def trial(self, ptx: str, schedule: dict[str, Any]) -> str:
        """Run a changed text under a schedule; return what is wrong with it, "" for nothing.

        Fences that the program has must not be missing, not even the only one of a kind.
        """
        strict = {"strict": True} if self.strict else {}
        return self._run(ptx, {**schedule, **strict})

    def executes(self, line: int) -> bool:
        """Say whether any thread comes to a line, its guard included."""
        text = self.ptx.splitlines()
        guard = re.match(r"\s*(@!?%?\w+ )?", text[line])
        text[line] = f"{guard[1] or ''}trap; {text[line]}" if guard else text[line]
        return self._run("\n".join(text) + "\n", {}) == "E212"

    def _run(self, ptx: str, schedule: dict[str, Any]) -> str:
        for array, start in zip(self.arrays, self.before, strict=True):
            array[...] = start
        # What one launch writes the next may read: they share these.
        fresh: dict[int, Unwritten] = {}
        try:
            for (_, *rest), options in self.calls:
                unwritten = [
                    fresh.setdefault(id(each), Unwritten(each.array))
                    for each in options.get("uninitialised", ())
                ]
                emulator.run(ptx, *rest, **{**options, "uninitialised": unwritten, **schedule})
        except DeviceFault as fault:
            return fault.code
        return "" if all(map(self._same, self.arrays, self.after)) else WRONG

    def _same(self, found: Array, expected: Array) -> bool:
        if not self.tolerance or found.dtype.kind not in "fV":
            return np.array_equal(found, expected)
        return np.allclose(found, expected, self.tolerance, self.tolerance, equal_nan=True)


def record(name: str, subject: Subject) -> Program:
    """Run a subject once, and keep what it passed to the emulator."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    before: list[Array] = []
    arrays: list[Array] = []
    run = emulator.run

    def keep(*positional: Any, **options: Any) -> None:
        calls.append((positional, options))
        for array in _arrays(positional[4]):
            if not any(array is known for known in arrays):
                arrays.append(array)
                before.append(array.copy())
        run(*positional, **options)

    subject.launch(keep)
    after = [array.copy() for array in arrays]
    return Program(name, calls[0][0][0], calls, arrays, before, after, subject.tolerance)


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for argument in arguments:
        each = (argument,) if isinstance(argument, np.ndarray) else getattr(argument, "arrays", ())
        yield from (array for array in each if array.flags.writeable)


def ours(
    known: Any, target: str, arguments: Sequence[Any], expected: Any, *, tolerance: float = 0.0,
    **constants: Any,
) -> Subject:  # fmt: skip
    """Return a kernel of ours as a subject; `expected` are its results, in order."""

    def launch(run: Run) -> None:
        # A kernel of its own, whose launchers call the `run` of now.
        kernel = type(known)(known.__wrapped__, known._options)
        with patch.object(emulator, "run", run):
            found = kernel.on("emulator", target=target)(*arguments, **constants)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        found = found if isinstance(found, tuple) else (found,)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)

    return Subject(launch)


def peer(stem: str) -> Subject:
    """Return a stored kernel of a peer as a subject."""
    name = stem.partition("-")[0]

    def launch(run: Run) -> None:
        with patch.object(cases, "run", run):
            cases.check(name, stored(stem))

    return Subject(launch, cases.CASES[name].tolerance)


def written(make: Callable[[], Launch]) -> Subject:
    """Return a kernel written as text as a subject."""

    def launch(run: Run) -> None:
        made = make()
        blocks, threads = (made.blocks,), (made.threads,)
        run(made.ptx, "k", blocks, threads, made.arguments, **made.options)
        assert np.array_equal(made.arguments[0], made.expected), made.arguments[0]

    return Subject(launch)
