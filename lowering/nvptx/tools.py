"""Where NVIDIA's command-line tools are found: installed packages, ``$CUDA_HOME``, ``PATH``.

Invariant: nothing is guessed beyond these places, and a tool that is missing is an error that
says how to get it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from astdsl.errors import DeviceUnavailable


@cache
def find_tool(name: str) -> str | None:
    """Find an executable such as ``ptxas``; None if it is nowhere."""
    for folder in _folders():
        found = shutil.which(name, path=folder)
        if found:
            return found
    return shutil.which(name)


def find_file(pattern: str, package: str) -> Path:
    """Find a file of the NVIDIA packages, below ``nvidia/``, or of a toolkit in ``$CUDA_HOME``.

    Raises DeviceUnavailable, naming the `package` that holds it.
    """
    for root in _package_roots():
        for found in sorted(root.glob(f"*/{pattern}")):
            return found
    home = os.environ.get("CUDA_HOME")
    if home and (found := Path(home) / pattern).is_file():
        return found
    raise DeviceUnavailable(
        f"{Path(pattern).name} is not installed", help=f"pip install {package}, or set CUDA_HOME"
    )


def _folders() -> Iterator[str]:
    for root in _package_roots():
        yield from (str(folder) for folder in sorted(root.glob("*/bin")))
    home = os.environ.get("CUDA_HOME")
    if home:
        yield str(Path(home) / "bin")


def _package_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    locations = spec.submodule_search_locations if spec else None
    return [Path(location) for location in locations or ()]
