"""Bodies of functions: registers, variables, labels, scopes, instructions and their operands.

Invariant: a name declared in an inner scope `{ }` is renamed `name@n`, so that names are unique in
a function and the rest of the emulator knows nothing of scopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from astdsl.emulator.expressions import Scopes, number, parse_operand
from astdsl.emulator.faults import KernelLine
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.syntax import (
    Function,
    Immediate,
    Initial,
    Instruction,
    Masked,
    Module,
    Symbol,
    Variable,
)
from astdsl.emulator.tokens import Tokens

VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
# Types of instructions, whose values live in registers of bits (PTX ISA 5.2.3, 5.2.4).
INSTRUCTION_TYPES = ("bf16", "tf32", "bf16x2", "f32x2", "u16x2", "s16x2")
SPACES = (".global", ".const", ".shared", ".local", ".param")


def skip_statement(tokens: Tokens) -> None:
    """Read up to and with the next `;`."""
    while tokens.next() != ";":
        pass


def parse_variables(tokens: Tokens, *, parameter: bool = False) -> list[Variable]:
    """Read a variable declaration, with its `;` unless it is a parameter of a function."""
    space = tokens.next()
    if space not in SPACES and not (parameter and space == ".reg"):
        raise tokens.error(f"`{space}` is not a state space")
    type_name, vector, align_bytes = _declared_type(tokens)
    if type_name == "pred" and space != ".reg":
        raise tokens.error("predicates live in registers")
    own = TYPES[type_name].bytes * vector
    # `.ptr .global .align 16` describes what a parameter points at, not the parameter.
    if parameter and type_name.endswith("64"):
        align_bytes = own
    found = []
    while True:
        found.append(_variable(tokens, space[1:], type_name, vector, max(align_bytes, own)))
        if parameter or not tokens.take(","):
            break
    if not parameter:
        tokens.expect(";")
    return found


def _declared_type(tokens: Tokens) -> tuple[str, int, int]:
    """Read the type, vector length and alignment of a declaration."""
    align_bytes, vector, type_name = 0, 1, ""
    while tokens.peek().startswith("."):
        word = tokens.next()
        if word == ".align":
            align_bytes = int(tokens.next())
        elif word in VECTORS:
            vector = VECTORS[word]
        elif word == ".attribute":
            tokens.skip_parentheses()
        elif word[1:] in TYPES:
            type_name = word[1:]
        elif word not in (".ptr", *SPACES):
            raise tokens.error(f"`{word}` is not known in a declaration")
    if not type_name:
        raise tokens.error("a declaration needs a type")
    return type_name, vector, align_bytes


def _variable(tokens: Tokens, space: str, type_name: str, vector: int, align: int) -> Variable:
    name = tokens.next()
    if tokens.peek() == "<":
        raise tokens.error("parameterised variable names are for registers only")
    lengths: list[int] = []
    while tokens.take("["):
        # An array whose first length is left out has as many rows as its initial value.
        lengths.append(-1 if tokens.peek() == "]" else number(tokens.next()).value)
        tokens.expect("]")
    shape = [*lengths, vector] if vector > 1 or not lengths else lengths
    initial: tuple[Initial, ...] = ()
    if tokens.take("="):
        initial = tuple(_initial(tokens, shape[1:]))
    count = math.prod(shape)
    if count < 0:
        count = len(initial) or -1
    return Variable(space, type_name, name, count, align, bool(lengths), initial)


def _initial(tokens: Tokens, row: Sequence[int]) -> list[Initial]:
    """Read a value, or a list of them; lists in it that end early have zeros (PTX ISA 5.4.4)."""
    if not tokens.take("{"):
        return [_initial_value(tokens)]
    values: list[Initial] = []
    while not tokens.take("}"):
        is_list = tokens.peek() == "{"
        found = _initial(tokens, row[1:])
        if is_list:
            found += [Immediate(0)] * (math.prod(row) - len(found))
        values += found
        tokens.take(",")
    return values


def _initial_value(tokens: Tokens) -> Initial:
    """Read a number, the address of a variable or function, or a byte of one: `0xFF00(...)`."""
    if tokens.peek()[0].isdigit() and tokens.peek(1) == "(":
        mask = number(tokens.next()).value
        tokens.expect("(")
        value = _initial_value(tokens)
        tokens.expect(")")
        if isinstance(value, Masked):
            raise tokens.error("a mask of a mask is not modelled in an initial value")
        return Masked(mask, value)
    if tokens.peek() == "generic" and tokens.peek(1) == "(":
        # Global and constant variables have one address, which is generic.
        tokens.next()
        tokens.next()
        operand = parse_operand(tokens, Scopes())
        tokens.expect(")")
    else:
        operand = parse_operand(tokens, Scopes())
    if not isinstance(operand, Immediate | Symbol):
        raise tokens.error("an initial value is a number or a name")
    while tokens.peek() in ("+", "-"):
        sign = 1 if tokens.next() == "+" else -1
        operand = _moved(operand, sign * number(tokens.next()).value)
    return operand


def _moved(operand: Immediate | Symbol, by: int) -> Immediate | Symbol:
    if isinstance(operand, Symbol):
        return Symbol(operand.name, operand.offset + by)
    return Immediate(operand.value + by)


class _Body:
    """The state of reading one body: the function being filled, scopes, the current `.loc`."""

    def __init__(self, tokens: Tokens, function: Function, module: Module) -> None:
        self.tokens = tokens
        self.function = function
        self.module = module
        self.scopes = Scopes(function)
        self.kernel_line: KernelLine | None = None
        self.last_label = ""
        self.used_bytes: int | None = None


def parse_body(tokens: Tokens, function: Function, module: Module) -> None:
    """Read `{ ... }` into the function."""
    tokens.expect("{")
    body = _Body(tokens, function, module)
    _declare_labels(body)
    while True:
        word = tokens.peek()
        if word == "}" and body.scopes.depth == 1:
            tokens.next()
            return
        statement = _STATEMENTS.get(word)
        if statement is not None:
            statement(body)
        elif tokens.peek(1) == ":":
            _label(body)
        else:
            _instruction(body)


def _open(body: _Body) -> None:
    body.tokens.next()
    body.scopes.enter()
    _declare_labels(body)


def _close(body: _Body) -> None:
    body.tokens.next()
    body.scopes.leave()


def _declare_labels(body: _Body) -> None:
    """Find the labels of a scope ahead of their uses (jumps forward), up to its closing brace."""
    if body.scopes.depth == 1:
        return
    tokens, depth, ahead = body.tokens, 0, 0
    while True:
        word = tokens.peek(ahead)
        if word == "":
            raise tokens.error("a scope is not closed")
        if word == "}" and depth == 0:
            return
        depth += (word == "{") - (word == "}")
        if depth == 0 and tokens.peek(ahead + 1) == ":":
            body.scopes.declare(word)
        ahead += 1


def _registers(body: _Body) -> None:
    tokens = body.tokens
    tokens.next()
    type_name = tokens.next()[1:]
    if f".{type_name}" in VECTORS:
        raise tokens.error("vector registers are not modelled; declare their elements")
    if type_name not in TYPES or type_name in INSTRUCTION_TYPES:
        raise tokens.error(f"`.{type_name}` is not a register type")
    while True:
        _register_names(body, type_name)
        if not tokens.take(","):
            break
    tokens.expect(";")


def _register_names(body: _Body, type_name: str) -> None:
    """Declare `name`, or `name<count>`: name0, name1, ..."""
    tokens, function = body.tokens, body.function
    name = tokens.next()
    if not tokens.take("<"):
        unique = body.scopes.declare(name)
        if unique in function.registers:
            raise tokens.error(f"`{name}` is declared twice")
        function.registers[unique] = type_name
        return
    count = number(tokens.next()).value
    tokens.expect(">")
    if body.scopes.depth == 1:
        if name in function.register_ranges:
            raise tokens.error(f"`{name}<...>` is declared twice")
        function.register_ranges[name] = (type_name, count)
        return
    for i in range(count):
        function.registers[body.scopes.declare(f"{name}{i}")] = type_name


def _variables(body: _Body) -> None:
    for variable in parse_variables(body.tokens):
        name = body.scopes.declare(variable.name)
        body.function.variables.append(
            Variable(
                variable.space,
                variable.type,
                name,
                variable.count,
                variable.align_bytes,
                variable.is_array,
                variable.initial,
            )
        )


def _loc(body: _Body) -> None:
    """Read `.loc file line column [, function_name name [, inlined_at file line column]]`."""
    tokens = body.tokens
    tokens.next()
    file, line, column = (int(tokens.next()) for _ in range(3))
    if line:
        body.kernel_line = (body.module.files.get(file, f"file {file}"), line, column)
    while tokens.take(","):
        if tokens.next() == "function_name":
            tokens.next()
        while tokens.peek().isdigit() or tokens.peek() == "+":
            tokens.next()


def _skip(body: _Body) -> None:
    skip_statement(body.tokens)


def _pragma(body: _Body) -> None:
    """Read a pragma; all but the mask of the next load's bytes are advice."""
    tokens = body.tokens
    while (word := tokens.next()) != ";":
        name, _, mask = word.strip('"').partition(" ")
        if name == "used_bytes_mask":
            body.used_bytes = int(mask, 0)


def _branch_targets(body: _Body) -> None:
    tokens = body.tokens
    tokens.next()
    names = []
    while not tokens.take(";"):
        names.append(body.scopes.resolve(tokens.next()))
        tokens.take(",")
    body.function.branch_targets[body.last_label] = tuple(names)


def _label(body: _Body) -> None:
    name = body.scopes.resolve(body.tokens.next())
    body.tokens.next()
    body.last_label = name
    if name in body.function.labels:
        raise body.tokens.error(f"label `{name}` stands in two places")
    body.function.labels[name] = len(body.function.instructions)


_STATEMENTS: dict[str, Callable[[_Body], None]] = {
    "{": _open,
    "}": _close,
    ".reg": _registers,
    ".local": _variables,
    ".shared": _variables,
    ".param": _variables,
    ".global": _variables,
    ".const": _variables,
    ".loc": _loc,
    ".pragma": _pragma,
    ".callprototype": _skip,
    ".calltargets": _skip,
    ".branchtargets": _branch_targets,
    ";": _skip,
}


def _instruction(body: _Body) -> None:
    tokens = body.tokens
    line = tokens.line()
    predicate, negated = None, False
    if tokens.take("@"):
        negated = tokens.take("!")
        predicate = body.scopes.resolve(tokens.next())
    opcode = tokens.next()
    if not opcode[0].isalpha():
        raise tokens.error(f"`{opcode}` is not an instruction")
    operands = []
    while not tokens.take(";"):
        operands.append(parse_operand(tokens, body.scopes))
        if not tokens.take(",") and tokens.peek() != ";":
            raise tokens.error(f"`{tokens.peek()}` is not expected among operands")
    place = (line, body.kernel_line, body.used_bytes)
    body.used_bytes = None
    body.function.instructions.append(
        Instruction(opcode, tuple(operands), predicate, negated, *place)
    )
