"""The kernels of a file: loaded, listed, and found by name.

Invariant: a file is executed once, as a module that is not `__main__`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType

from astdsl.errors import BadCommand, did_you_mean
from astdsl.kernel import Kernel, Placed


def find_kernel(place: str) -> Kernel | Placed:
    """Return the kernel that `FILE` or `FILE:KERNEL` names. Raises BadCommand."""
    path, name = split_place(place)
    kernels = kernels_of(load_file(path))
    known = ", ".join(kernels)
    if not kernels:
        raise BadCommand(f"`{path}` has no kernel", help="put `@kernel` before a function of it")
    if not name and len(kernels) > 1:
        first = next(iter(kernels))
        raise BadCommand(
            f"`{path}` has several kernels: {known}", help=f"name one: `{path}:{first}`"
        )
    if name and name not in kernels:
        raise BadCommand(
            f"`{path}` has no kernel `{name}`",
            help=did_you_mean(name, kernels) or f"it has {known}",
        )
    return kernels[name or next(iter(kernels))]


def split_place(place: str) -> tuple[str, str]:
    """Split `FILE:KERNEL`; the kernel is empty where none is named."""
    if Path(place).exists():
        return place, ""
    path, colon, name = place.rpartition(":")
    return (path, name) if colon and name.isidentifier() else (place, "")


def load_file(path: str) -> ModuleType:
    """Execute a Python file as a module. Raises BadCommand where it cannot be read."""
    file = Path(path).resolve()
    if not file.is_file():
        raise BadCommand(f"there is no file `{path}`", help="write `FILE.py` or `FILE.py:KERNEL`")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadCommand(f"`{path}` is not a Python file", help="its name must end in `.py`")
    module = importlib.util.module_from_spec(spec)
    # What the file imports from its folder is found, and its dataclasses find their module.
    sys.path.insert(0, str(file.parent))
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def kernels_of(module: ModuleType) -> dict[str, Kernel | Placed]:
    """Return a module's kernels by name: its own, or if it has none those that it imports."""
    found = {n: k for n, k in vars(module).items() if isinstance(k, Kernel | Placed)}
    own = {n: k for n, k in found.items() if function_of(k).__module__ == module.__name__}
    return own or found


def function_of(kernel: Kernel | Placed) -> FunctionType:
    """Return the function that a kernel was made of."""
    function: FunctionType = inspect.unwrap(kernel)
    return function
