"""What may be said of a run besides its program: words, seeds, flags and counts.

Invariant: what is neither is refused by its name before anything else happens, so that no run
takes `check="no"` for yes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard, get_args

import numpy as np

from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.machine import Sums

__all__ = ["CHOICES", "is_integer", "require_options", "told"]

# What may be chosen: words, and whether an integer seeds a random choice.
CHOICES = {
    "completion": (("late", "early"), True),
    "order": (("min-pc", "max-pc", "round-robin"), True),
    "fp8_accumulate": (get_args(Sums), False),
}
_LONGEST = 40


def is_integer(value: object) -> TypeGuard[int]:
    """Say whether a value counts something: an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def told(value: object) -> str:
    """Return what a value is, for reports: itself if it is short, else its kind."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"a {type(value).__name__}"


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_count(value: object) -> bool:
    return is_integer(value) and value >= 0


def _is_crew(value: object) -> bool:
    return is_integer(value) and value >= 0 and value % WARP_THREADS == 0


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


# What each other one is, by its name.
_OTHERS: dict[str, tuple[Callable[[object], bool], str]] = {
    "ptx": (lambda value: isinstance(value, str), "PTX as a string"),
    "kernel": (lambda value: isinstance(value, str), "the name of a kernel"),
    "args": (_is_list, "a list of arguments"),
    "uninitialised": (_is_list, "a list of arrays"),
    "shared_bytes": (_is_count, "a number of bytes, 0 or more"),
    "check": (_is_flag, "True or False"),
    "strict": (lambda value: value is None or _is_flag(value), "True, False or None"),
    "exclusive": (_is_flag, "True or False"),
    "crew_threads": (_is_crew, f"a number of threads, a multiple of {WARP_THREADS}"),
}


def require_options(**given: object) -> None:
    """Refuse what an option of `run` cannot be, by its name."""
    for name, value in given.items():
        if name in CHOICES:
            _require_choice(name, value)
            continue
        fits, what = _OTHERS[name]
        if not fits(value):
            raise DeviceFault(
                "E203", f"{name} is {what}, not {told(value)}", help=f"pass {what} as `{name}`"
            )


def _require_choice(name: str, value: object) -> None:
    """Refuse what is neither a word of `CHOICES` nor, where those may be, a seed."""
    words, takes_seeds = CHOICES[name]
    is_seed = takes_seeds and type(value) is int and value >= 0
    if not is_seed and not (isinstance(value, str) and value in words):
        known = f"{', '.join(words)} or a seed" if takes_seeds else " or ".join(words)
        text = f"{name} is {known}, not {told(value)}"
        raise DeviceFault("E203", text, help="choose one of them")
