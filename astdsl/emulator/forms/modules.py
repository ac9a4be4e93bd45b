"""What `ptxas` refuses of a module, whatever its instructions are.

Sources: PTX ISA 5.4 (initial values, alignment), 11.1 (versions and targets), 11.4 (directives).
Invariant: what is refused here is refused before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from astdsl.emulator.faults import Unsupported
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.syntax import Function, Immediate, Module, Variable

_VERSION = re.compile(r"(\d+)\.(\d+)$")
# The first version of PTX that has a target.
_TARGETS = {
    "sm_90": (7, 8), "sm_90a": (8, 0), "sm_100": (8, 6), "sm_100a": (8, 6), "sm_100f": (8, 8),
    "sm_101": (8, 6), "sm_101a": (8, 6), "sm_101f": (8, 8), "sm_103": (8, 8), "sm_103a": (8, 8),
    "sm_103f": (8, 8), "sm_110": (9, 0), "sm_110a": (9, 0), "sm_110f": (9, 0),
    "sm_120": (8, 7), "sm_120a": (8, 7), "sm_120f": (8, 8), "sm_121": (8, 8), "sm_121a": (8, 8),
    "sm_121f": (8, 8),
}  # fmt: skip
# Directives of a kernel that contradict each other, and those that need another.
_EXCLUSIVE = (("maxntid", "reqntid"), ("reqnctapercluster", "maxclusterrank"))
_MOST_CONSTANT_BYTES = 64 * 1024
_MOST_PARAMETER_BYTES = 32764


def version_of(module: Module) -> tuple[int, int]:
    """Return the version of PTX that a module names."""
    found = _VERSION.match(module.version)
    if found is None:
        raise Unsupported(f"`.version {module.version}` is no version of PTX")
    return int(found[1]), int(found[2])


def check_module(module: Module, kernel: Function) -> None:
    """Refuse a module, or a kernel of it, that no assembler takes."""
    if not module.version or not module.target:
        raise Unsupported("a module begins with `.version` and `.target`")
    least = _TARGETS.get(module.target, (0, 0))
    if version_of(module) < least:
        needed = ".".join(map(str, least))
        raise Unsupported(f".target {module.target} needs .version {needed}, not {module.version}")
    for wrong in (*_directives(kernel), *_variables(module), *_sizes(module, kernel)):
        raise Unsupported(f"kernel `{kernel.name}`: {wrong}")


def _directives(kernel: Function) -> Iterator[str]:
    for one, other in _EXCLUSIVE:
        if one in kernel.directives and other in kernel.directives:
            yield f".{one} and .{other} contradict each other"
    needed = {"reqntid", "reqnctapercluster"}
    if "blocksareclusters" in kernel.directives and not needed <= set(kernel.directives):
        yield ".blocksareclusters needs .reqntid and .reqnctapercluster"
    for name, numbers in kernel.directives.items():
        least = 0 if name == "reqnctapercluster" else 1
        if len(numbers) > 3 or any(number < least for number in numbers):
            yield f".{name} has one to three positive numbers, not {numbers}"
    names = [parameter.name for parameter in kernel.parameters]
    if len(set(names)) < len(names):
        yield "two of its parameters have one name"
    if kernel.results:
        yield "a kernel has no results"
    for parameter in kernel.parameters:
        if parameter.space != "param":
            yield f"its parameter `{parameter.name}` must be a .param"


def _variables(module: Module) -> Iterator[str]:
    every = [*module.variables, *(v for f in module.functions.values() for v in f.variables)]
    for variable in every:
        yield from _variable(variable)


def _variable(variable: Variable) -> Iterator[str]:
    name, align = variable.name, variable.align_bytes
    if align & (align - 1):
        yield f"the alignment of `{name}`, {align}, is no power of two"
    if not variable.initial:
        return
    if variable.space not in ("global", "const"):
        yield f"`{name}` lies in .{variable.space} memory, which has no initial values"
    if len(variable.initial) > variable.count:
        yield f"`{name}` has {variable.count} elements, but {len(variable.initial)} initial values"
    is_float = TYPES[variable.type].is_float
    literals = [value for value in variable.initial if isinstance(value, Immediate)]
    if any((value.kind == "int") == is_float for value in literals) and variable.type[0] != "b":
        yield f"initial values of `{name}` are no .{variable.type}"


def _sizes(module: Module, kernel: Function) -> Iterator[str]:
    def size(variables: list[Variable]) -> int:
        return sum(max(v.count, 0) * TYPES[v.type].bytes for v in variables)

    constants = size([v for v in module.variables if v.space == "const"])
    if constants > _MOST_CONSTANT_BYTES:
        yield f"{constants} bytes of .const memory are more than {_MOST_CONSTANT_BYTES}"
    parameters = size(kernel.parameters)
    if parameters > _MOST_PARAMETER_BYTES:
        yield f"{parameters} bytes of parameters are more than {_MOST_PARAMETER_BYTES}"
