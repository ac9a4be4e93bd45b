"""Other compilers to compare with, where they are installed; none is needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec


def triton_compilations() -> dict[str, Callable[[], object]]:
    """Return what makes Triton compile kernels like ours, by name; nothing without Triton."""
    if find_spec("triton") is None:
        return {}
    found: dict[str, Callable[[], object]] = import_module("bench.triton_kernels").COMPILATIONS
    return found


def triton_machine_code() -> Callable[[str, str], str] | None:
    """Return what gives Triton's PTX of a kernel for a target; None without Triton."""
    if find_spec("triton") is None:
        return None
    found: Callable[[str, str], str] = import_module("bench.triton_code").ptx_of
    return found
