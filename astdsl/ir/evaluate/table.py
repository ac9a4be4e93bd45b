"""The table of what every operation means, filled by the family modules at import.

Invariant: an operation without effect has a function `(op, *operand values) -> result`; one with
an effect has `(op, frame) -> result`, or a generator that yields while it has to wait. The result
is None for an operation without results, and a tuple where there are several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from astdsl.ir.core import Op

Array: TypeAlias = NDArray[Any]
Meaning = TypeVar("Meaning", bound=Callable[..., Any])

EVALUATORS: dict[type[Op], Callable[..., Any]] = {}


def evaluates(*kinds: type[Op]) -> Callable[[Meaning], Meaning]:
    """Enter a function as the meaning of operations; a second one for an operation is a bug."""

    def enter(function: Meaning) -> Meaning:
        for kind in kinds:
            assert kind not in EVALUATORS, f"{kind.__name__} has two meanings"
            EVALUATORS[kind] = function
        return function

    return enter


def full(shape: tuple[int, ...], value: Any, dtype: np.dtype[Any]) -> Array:
    """Return an array with one number everywhere, without storing it more than once."""
    return np.broadcast_to(np.asarray(value, dtype), shape)
