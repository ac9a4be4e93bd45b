"""The kernels of a file: loaded, listed, and found by name.

Invariant: a file is executed once, as a module that is not `__main__`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from astdsl.errors import BadCommand, did_you_mean
from astdsl.kernel import Kernel, Placed
from astdsl.runtime.boundary import LIBRARIES


def find_kernel(place: str) -> Kernel | Placed:
    """Return the kernel that `FILE`, `FILE:KERNEL` or `FILE:OBJECT.KERNEL` names.

    Raises BadCommand.
    """
    path, name = split_place(place)
    module = load_file(path)
    kernels = kernels_of(module)
    if "." in name and name not in kernels:
        return _attribute(path, module, name)
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


def _attribute(path: str, module: ModuleType, name: str) -> Kernel | Placed:
    """Return the kernel that a dotted name leads to: of a class, or of an object of the module."""
    found: Any = module
    done = ""
    for part in name.split("."):
        owner, said = found, f"`{done}`" if done else f"`{path}`"
        if not hasattr(owner, part):
            known = ", ".join(kernels_of(module)) or "no kernel"
            raise BadCommand(
                f"{said} has no `{part}`",
                help=did_you_mean(part, dir(owner)) or f"it has {known}",
            )
        found = getattr(owner, part)
        done = f"{done}.{part}" if done else part
    if not isinstance(found, Kernel | Placed):
        raise BadCommand(
            f"`{name}` is a {type(found).__name__}, not a kernel",
            help="put `@kernel` before the function",
        )
    if isinstance(owner, type) and _takes_an_object(owner, found):
        raise BadCommand(
            f"`{name}` is a method: its first argument is an object of `{owner.__name__}`",
            help=f"name it by an object of the file: with `made = {owner.__name__}(...)` in it, "
            f"`{path}:made.{part}`",
        )
    return found


def _takes_an_object(owner: type, kernel: Kernel | Placed) -> bool:
    """Whether a kernel of a class has a first parameter that is no array and no scalar."""
    function = function_of(kernel)
    first = next(iter(inspect.signature(function).parameters.values()), None)
    is_plain = any(kind.__dict__.get(function.__name__) is kernel for kind in owner.__mro__)
    return is_plain and first is not None and first.annotation is first.empty


def split_place(place: str) -> tuple[str, str]:
    """Split `FILE:KERNEL` or `FILE:OBJECT.KERNEL`; the kernel is empty where none is named."""
    if Path(place).exists():
        return place, ""
    path, colon, name = place.rpartition(":")
    *_, last = parts = name.split(".")
    is_name = all(part.isidentifier() for part in parts) and (len(parts) == 1 or last != "py")
    return (path, name) if colon and is_name else (place, "")


def load_file(path: str) -> ModuleType:
    """Execute a Python file as a module. Raises BadCommand where it cannot be read."""
    file = Path(path).resolve()
    if not file.is_file():
        raise BadCommand(f"there is no file `{path}`", help="write `FILE.py` or `FILE.py:KERNEL`")
    # A file may be called like a module that others import.
    name = f"{file.stem}_of_user" if file.stem in {*sys.modules, *LIBRARIES} else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadCommand(f"`{path}` is not a Python file", help="its name must end in `.py`")
    module = importlib.util.module_from_spec(spec)
    # What the file imports from its folder is found, and its dataclasses find their module.
    sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as end:
        raise BadCommand(
            f"`{path}` ends the program while it is loaded: {end!r}",
            help='put what runs its kernels below `if __name__ == "__main__":`',
        ) from None
    return module


def kernels_of(module: ModuleType) -> dict[str, Kernel | Placed]:
    """Return a module's kernels by name: its own, or if it has none those that it imports.

    Those of its classes have dotted names; methods that take an object are not among them.
    """
    found = {n: k for n, k in vars(module).items() if isinstance(k, Kernel | Placed)}
    for kind in [v for v in vars(module).values() if isinstance(v, type)]:
        if kind.__module__ == module.__name__:
            found |= _kernels_of_class(kind)
    own = {n: k for n, k in found.items() if function_of(k).__module__ == module.__name__}
    return own or found


def _kernels_of_class(kind: type) -> dict[str, Kernel | Placed]:
    made = {f"{kind.__name__}.{name}": getattr(kind, name) for name in vars(kind)}
    return {
        name: value
        for name, value in made.items()
        if isinstance(value, Kernel | Placed) and not _takes_an_object(kind, value)
    }


def function_of(kernel: Kernel | Placed) -> FunctionType:
    """Return the function that a kernel was made of."""
    function: FunctionType = inspect.unwrap(kernel)
    return function
