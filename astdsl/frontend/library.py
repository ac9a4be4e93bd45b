"""Which functions are never rewritten: those of Python's library, of NumPy and of this package.

Invariant: a module is told by the first part of its name.
"""

from __future__ import annotations

import sys

KERNELS = "astdsl.stdlib"
LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "astdsl"})


def module_of(value: object) -> str:
    """Return the name of the module that a function, class or object comes from."""
    space = getattr(value, "__globals__", None)
    if isinstance(space, dict):
        return str(space.get("__name__", ""))
    return str(getattr(value, "__module__", None) or getattr(value, "__name__", None) or "")


def is_library(value: object) -> bool:
    """Whether a function or module is not the user's."""
    name = module_of(value)
    return name.partition(".")[0] in LIBRARIES and not name.startswith(KERNELS)
