"""Where everything of a kernel lives: registers, variables of each space, functions, parameters.

Invariant: places are given on first use and never change; functions are numbered one after the
other, the kernel first; a variable's place is (space, offset), of global and constant variables
(“global”, number of the variable).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from astdsl.emulator.reach import reachable
from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.syntax import Function, Module, Variable

MIN_DYNAMIC_ALIGN_BYTES = 16
# What a thread may allocate in its frames (`cudaLimitStackSize` is 1 KiB, unless it is changed).
STACK_BYTES = 16384
STACK_ALIGN_BYTES = 16
# What the ISA calls the only bit of the condition code register.
_CARRY = "CC.CF"


def align(offset: int, to: int) -> int:
    """Return the offset rounded up to a multiple of `to`."""
    return -(-offset // to) * to


@dataclass(slots=True)
class Layout:
    """See the module docstring; `shared_bytes` is static, dynamic shared memory starts there."""

    functions: list[Function]
    starts: dict[str, int]
    register_counts: dict[int, int] = field(default_factory=dict)
    shared_bytes: int = 0
    dynamic_start: int = 0
    local_bytes: int = 0
    # Where the stack of `alloca` begins, which grows down from the end of local memory.
    stack_start: int | None = None
    parameter_bytes: int = 0
    parameters: list[tuple[Variable, int]] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    module_symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    function_symbols: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    recursive_calls: set[tuple[str, str]] = field(default_factory=set)
    _places: dict[tuple[str, str], Place] = field(default_factory=dict)
    _local_sizes: dict[int, int] = field(default_factory=dict)

    def place(self, function: Function, name: str) -> Place | None:
        """Return the place of a register of a function, None when it declares no such register."""
        found = self._places.get((function.name, name))
        if found is None:
            declared = function.register_type(name)
            if declared is None:
                return None
            found = self._take(function, name, TYPES[declared].bits)
        return found

    def carry(self, function: Function) -> Place:
        """Return the place of the carry flag, as a function sees it (PTX ISA 9.7.2)."""
        found = self._places.get((function.name, _CARRY))
        return self._take(function, _CARRY, 1) if found is None else found

    def _take(self, function: Function, name: str, bits: int) -> Place:
        row = self.register_counts.get(bits, 0)
        self.register_counts[bits] = row + 1
        self._places[function.name, name] = (bits, row)
        return bits, row

    def register_name(self, place: Place) -> str:
        """Return what the text calls the register at a place."""
        return next(name for (_, name), each in self._places.items() if each == place)

    def own_registers(self, function: Function) -> list[Place]:
        """Return the places of a function's registers."""
        return [place for (name, _), place in self._places.items() if name == function.name]

    def own_locals(self, function: Function) -> list[tuple[int, int]]:
        """Return (offset, size in bytes) of a function's variables in local memory."""
        return [
            (offset, self._local_sizes[offset])
            for (name, _), (space, offset) in self.function_symbols.items()
            if name == function.name and space == "local"
        ]

    def symbol(self, function: Function, name: str) -> tuple[str, int] | None:
        """Return the place of a variable as a function sees it."""
        return self.function_symbols.get((function.name, name)) or self.module_symbols.get(name)


def size_bytes(variable: Variable) -> int:
    """Return the size of a variable in bytes."""
    return max(variable.count, 0) * TYPES[variable.type].bytes


def lay_out(module: Module, kernel: Function) -> Layout:
    """Lay out a kernel with the functions that it calls."""
    reach = reachable(module, kernel)
    functions = reach.functions
    layout = Layout(functions, {}, recursive_calls=reach.recursive_calls)
    start = 0
    for function in functions:
        layout.starts[function.name] = start
        start += len(function.instructions) + 1
        layout.module_symbols[function.name] = ("function", layout.starts[function.name])
    for variable in reach.variables:
        _module_variable(layout, variable)
    for function in functions:
        for variable in function.variables:
            _function_variable(layout, function, variable)
    _dynamic_shared(layout, reach.variables)
    _kernel_parameters(layout, kernel)
    for function in functions:
        if not function.is_entry:
            _function_parameters(layout, function)
    if any(_uses_stack(function) for function in functions):
        layout.stack_start = align(layout.local_bytes, STACK_ALIGN_BYTES)
        layout.local_bytes = layout.stack_start + STACK_BYTES
    return layout


def _uses_stack(function: Function) -> bool:
    return any(each.opcode.startswith("alloca") for each in function.instructions)


def _function_parameters(layout: Layout, function: Function) -> None:
    for variable in (*function.parameters, *function.results):
        if variable.space != "reg":
            layout.function_symbols[function.name, variable.name] = _local(layout, variable)


def _module_variable(layout: Layout, variable: Variable) -> None:
    if variable.space == "shared":
        if variable.count >= 0:
            layout.module_symbols[variable.name] = ("shared", _shared(layout, variable))
        return
    layout.module_symbols[variable.name] = ("global", len(layout.variables))
    layout.variables.append(variable)


def _function_variable(layout: Layout, function: Function, variable: Variable) -> None:
    key = (function.name, variable.name)
    if variable.space == "shared":
        layout.function_symbols[key] = ("shared", _shared(layout, variable))
    elif variable.space in ("local", "param"):
        layout.function_symbols[key] = _local(layout, variable)
    else:
        layout.function_symbols[key] = ("global", len(layout.variables))
        layout.variables.append(variable)


def _shared(layout: Layout, variable: Variable) -> int:
    offset = align(layout.shared_bytes, variable.align_bytes)
    layout.shared_bytes = offset + size_bytes(variable)
    return offset


def _local(layout: Layout, variable: Variable) -> tuple[str, int]:
    offset = align(layout.local_bytes, variable.align_bytes)
    # No two variables at one place, though one be empty.
    layout.local_bytes = offset + max(size_bytes(variable), 1)
    layout._local_sizes[offset] = size_bytes(variable)
    return ("local", offset)


def _dynamic_shared(layout: Layout, variables: list[Variable]) -> None:
    """Place the extern arrays, which all begin where static shared memory ends (PTX ISA 5.1.7)."""
    extern = [v for v in variables if v.space == "shared" and v.count < 0]
    to = max([MIN_DYNAMIC_ALIGN_BYTES, *(v.align_bytes for v in extern)])
    layout.dynamic_start = align(layout.shared_bytes, to)
    for variable in extern:
        layout.module_symbols[variable.name] = ("shared", layout.dynamic_start)


def _kernel_parameters(layout: Layout, kernel: Function) -> None:
    offset = 0
    for variable in kernel.parameters:
        offset = align(offset, variable.align_bytes)
        layout.parameters.append((variable, offset))
        layout.function_symbols[kernel.name, variable.name] = ("param", offset)
        offset += size_bytes(variable)
    layout.parameter_bytes = offset
