"""The driver of passes: runs them in order, checks what they make, times them.

Invariant: a pass is a pure function of modules that returns the same object where it changes
nothing; what it returns is verified before the next one sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeAlias

from astdsl.ir.core import Module
from astdsl.ir.verify import verify

Pass: TypeAlias = Callable[[Module], Module]
# Called after each pass with its name, what it returned, and the seconds that it took.
Observer: TypeAlias = Callable[[str, Module, float], None]


def run_passes(module: Module, passes: Sequence[Pass], observe: Observer | None = None) -> Module:
    """Return the module after all passes; AssertionError, naming the pass, where one breaks it."""
    verify(module)
    for step in passes:
        start = perf_counter()
        changed = step(module)
        seconds = perf_counter() - start
        if changed is not module:
            _verify_after(step, changed)
        module = changed
        if observe is not None:
            observe(name_of(step), module, seconds)
    return module


def name_of(step: Pass) -> str:
    """Return the name by which a pass is asked for, as in `dump --after`."""
    return getattr(step, "__name__", repr(step))


def _verify_after(step: Pass, module: Module) -> None:
    try:
        verify(module)
    except AssertionError as error:
        raise AssertionError(f"{name_of(step)} made a malformed module: {error}") from error
