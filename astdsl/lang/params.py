"""`CompilerParams`: what `@kernel(params=...)` says of the whole kernel.

Invariant: a record of plain values; what a value may be is in `FIELDS`, what this version does not
do in `LATER`. Both are asked at the first call, never where the record is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astdsl.records import dataclass

PARALLEL, SEQUENTIAL = "parallel", "sequential"


@dataclass(frozen=True, slots=True)
class CompilerParams:
    """Say how a kernel is compiled: `@kernel(params=CompilerParams(approx_math=True))`.

    `approx_math` allows approximate instructions (PTX ISA 9.7.3) for `/` and elementary functions
    of f32 and of narrower floats; the reference stays exact. `max_concurrent_steps` is `stages` of
    pipelines that do not state theirs; `dimension_semantics`, a word for each axis ("parallel" or
    "sequential"), is `axes` of outermost ones. `check=False` launches a kernel whose barriers and
    copies are proved wrong. The other fields are those of Pallas, and not in this version.
    """

    approx_math: bool = False
    max_concurrent_steps: int | None = None
    dimension_semantics: tuple[str, ...] | None = None
    reduction_scratch_bytes: int | None = None
    profile_dir: str | None = None
    profile_scope: str = "warpgroup"
    check: bool = True


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 1)


def _are_words(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, tuple) and all(word in (PARALLEL, SEQUENTIAL) for word in value)


# What each field may be, in words, and what to do instead.
FIELDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "approx_math": (
        _is_flag,
        "True or False",
        "`approx_math=True` allows approximate instructions",
    ),
    "max_concurrent_steps": (
        _is_count,
        "None or a number from 1 on",
        "`pipeline(..., stages=n)` states it for one pipeline",
    ),
    "dimension_semantics": (
        _are_words,
        'None or a tuple of "parallel" and "sequential"',
        "`pipeline(..., axes=...)` states it for one pipeline",
    ),
    "check": (
        _is_flag,
        "True or False",
        "`check=False` leaves what is wrong with barriers and copies to the emulator",
    ),
}
LATER = {
    "reduction_scratch_bytes": "leave it out: the compiler takes what reductions need",
    "profile_dir": "leave it out: `lower(...).explain()` says what was chosen",
    "profile_scope": "leave it out: `lower(...).explain()` says what was chosen",
}
DEFAULTS = CompilerParams()
