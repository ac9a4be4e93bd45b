"""What of a module a kernel can reach: functions, variables, and which calls may come back.

Invariant: an address that is taken may be called by every call through a register; a variable that
nothing names does not exist for the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from astdsl.emulator.faults import Unsupported
from astdsl.emulator.syntax import (
    Address,
    Function,
    Group,
    Instruction,
    Masked,
    Module,
    Operand,
    Register,
    Symbol,
    Variable,
)

__all__ = ["PROVIDED", "Reach", "reachable"]

# Functions of CUDA's device runtime, which come without a body (isa/runtime.py).
PROVIDED = ("vprintf", "__assertfail", "malloc", "free")


@dataclass(slots=True)
class Reach:
    """Functions (the kernel first), variables of the module, and (caller, callee) pairs.

    `recursive_calls` are those that may come back to the caller.
    """

    functions: list[Function]
    variables: list[Variable]
    recursive_calls: set[tuple[str, str]]


@dataclass(slots=True)
class _Names:
    """What a body names, with PTX lines: what it calls, and everything else."""

    called: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    calls_through_register: bool = False


def reachable(module: Module, kernel: Function) -> Reach:
    """Find what a kernel names, directly or not. Raises `Unsupported` for a missing body."""
    search = _Search(module)
    search.visit_function(kernel)
    calls = search.calls()
    reached = {name: _closure(calls, name) for name in search.functions}
    edges = ((caller, callee) for caller, callees in calls.items() for callee in callees)
    back = {edge for edge in edges if edge[0] in reached[edge[1]]}
    variables = [each for each in module.variables if each.name in search.variables]
    return Reach(list(search.functions.values()), variables, back)


class _Search:
    def __init__(self, module: Module) -> None:
        self.functions: dict[str, Function] = {}
        self.variables: set[str] = set()
        self._module = module
        self._by_name = {each.name: each for each in module.variables}
        self._direct: dict[str, set[str]] = {}
        self._through_register: set[str] = set()
        self._taken: set[str] = set()

    def calls(self) -> dict[str, set[str]]:
        """Return what each function may call."""
        return {
            name: direct | self._taken if name in self._through_register else direct
            for name, direct in self._direct.items()
        }

    def visit_function(self, function: Function) -> None:
        """Follow what a function names; names of its own hide those of the module."""
        self.functions[function.name] = function
        names = _names(function.instructions)
        own = {each.name for each in (*function.variables, *function.parameters)}
        self._direct[function.name] = {n for n in names.called if self._is_function(n)}
        if names.calls_through_register:
            self._through_register.add(function.name)
        for name, line in names.called.items():
            self._visit(name, line)
        for name, line in names.taken.items():
            if name not in own:
                self._take(name, line)
        for variable in function.variables:
            self._visit_initial(variable)

    def _is_function(self, name: str) -> bool:
        function = self._module.functions.get(name)
        return function is not None and (function.has_body or name not in PROVIDED)

    def _take(self, name: str, line: int | None) -> None:
        if self._is_function(name):
            self._taken.add(name)
        self._visit(name, line)

    def _visit(self, name: str, line: int | None) -> None:
        variable = self._by_name.get(name)
        if variable is not None and name not in self.variables:
            self.variables.add(name)
            self._visit_initial(variable)
        if not self._is_function(name) or name in self.functions:
            return
        function = self._module.functions[name]
        if not function.has_body:
            raise Unsupported(f"function `{name}` is declared but has no body here", line)
        self.visit_function(function)

    def _visit_initial(self, variable: Variable) -> None:
        for each in variable.initial:
            value = each.value if isinstance(each, Masked) else each
            if isinstance(value, Symbol):
                self._take(value.name, None)


def _names(instructions: Iterable[Instruction]) -> _Names:
    found = _Names()
    for instruction in instructions:
        operands = list(instruction.operands)
        if instruction.opcode.partition(".")[0] == "call":
            target = operands.pop(1 if isinstance(operands[0], Group) else 0)
            if isinstance(target, Register) and target.name.startswith("%"):
                found.calls_through_register = True
            for name in _symbols((target,)):
                found.called.setdefault(name, instruction.ptx_line)
        for name in _symbols(operands):
            found.taken.setdefault(name, instruction.ptx_line)
    return found


def _symbols(operands: Iterable[Operand]) -> Iterator[str]:
    """Give the names in operands, those inside of addresses and lists included."""
    for each in operands:
        if isinstance(each, Symbol | Register):
            yield each.name
        elif isinstance(each, Address):
            yield from _symbols((each.base, *each.extra))
        elif isinstance(each, Group):
            yield from _symbols(each.elements)


def _closure(calls: dict[str, set[str]], start: str) -> set[str]:
    """Return what a function calls, directly or not, itself included."""
    found, todo = {start}, [start]
    while todo:
        new = calls[todo.pop()] - found
        found |= new
        todo += new
    return found
