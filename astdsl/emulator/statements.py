"""Bodies of functions: registers, variables, labels, scopes, instructions and their operands.

Invariant: a name declared in an inner scope `{ }` is renamed `name@n`, so that names are unique in
a function and the rest of the emulator knows nothing of scopes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from astdsl.emulator.faults import KernelLine
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.syntax import (
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from astdsl.emulator.tokens import Tokens

VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
SPACES = (".global", ".const", ".shared", ".local", ".param")


def skip_statement(tokens: Tokens) -> None:
    """Read up to and with the next `;`."""
    while tokens.next() != ";":
        pass


def number(word: str) -> Immediate:
    """Return a literal (PTX ISA 4.5)."""
    kind = word[:2].lower()
    if kind == "0f":
        return Immediate(int("0x" + word[2:], 0), "f32")
    if kind == "0d":
        return Immediate(int("0x" + word[2:], 0), "f64")
    if kind != "0x" and ("." in word or "e" in word.lower()):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(word)))[0], "f64")
    digits = word.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return Immediate(int(digits, 8))
    return Immediate(int(digits, 0))


def negative(literal: Immediate) -> Immediate:
    """Return the literal with its sign turned."""
    if literal.kind == "int":
        return Immediate(-literal.value)
    return Immediate(literal.value ^ (1 << (int(literal.kind[1:]) - 1)), literal.kind)


def parse_variables(tokens: Tokens, *, parameter: bool = False) -> list[Variable]:
    """Read a variable declaration, with its `;` unless it is a parameter of a function."""
    space = tokens.next()
    if space not in SPACES and not (parameter and space == ".reg"):
        raise tokens.error(f"`{space}` is not a state space")
    type_name, vector, align_bytes = _declared_type(tokens)
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
    count, is_array = vector, False
    while tokens.take("["):
        is_array = True
        if tokens.take("]"):
            count = -1
            break
        count *= number(tokens.next()).value
        tokens.expect("]")
    initial: tuple[int | Symbol, ...] = ()
    if tokens.take("="):
        initial = tuple(_initial(tokens))
        if count < 0:
            count = len(initial)
    return Variable(space, type_name, name, count, align, is_array, initial)


def _initial(tokens: Tokens) -> list[int | Symbol]:
    if tokens.take("{"):
        values: list[int | Symbol] = []
        while not tokens.take("}"):
            values += _initial(tokens)
            tokens.take(",")
        return values
    operand = parse_operand(tokens, _Scopes())
    if isinstance(operand, Immediate):
        return [operand.value]
    if isinstance(operand, Symbol):
        return [operand]
    raise tokens.error("an initial value is a number or a name")


class _Scopes:
    """The open `{ }` scopes of a body, each with the new names of what it declares."""

    def __init__(self, function: Function | None = None) -> None:
        self._function = function
        self._open: list[dict[str, str]] = [{}]
        self._numbers = [0]
        self._count = 0

    @property
    def depth(self) -> int:
        return len(self._open)

    def is_register(self, name: str) -> bool:
        if name.startswith("%"):
            return True
        return self._function is not None and self._function.register_type(name) is not None

    def enter(self) -> None:
        self._count += 1
        self._open.append({})
        self._numbers.append(self._count)

    def leave(self) -> None:
        self._open.pop()
        self._numbers.pop()

    def declare(self, name: str) -> str:
        if self.depth == 1:
            return name
        renamed = f"{name}@{self._numbers[-1]}"
        self._open[-1][name] = renamed
        return renamed

    def resolve(self, name: str) -> str:
        if self.depth > 1:
            for scope in reversed(self._open):
                renamed = scope.get(name)
                if renamed is not None:
                    return renamed
        return name


class _Body:
    """The state of reading one body: the function being filled, scopes, the current `.loc`."""

    def __init__(self, tokens: Tokens, function: Function, module: Module) -> None:
        self.tokens = tokens
        self.function = function
        self.module = module
        self.scopes = _Scopes(function)
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
    if type_name not in TYPES:
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
        function.registers[body.scopes.declare(name)] = type_name
        return
    count = number(tokens.next()).value
    tokens.expect(">")
    if body.scopes.depth == 1:
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


def parse_operand(tokens: Tokens, scopes: _Scopes) -> Operand:
    """Read one operand (PTX ISA 6)."""
    word = tokens.next()
    special = _OPERANDS.get(word)
    if special is not None:
        return special(tokens, scopes)
    if word[0].isdigit():
        return number(word)
    if not (word[0].isalpha() or word[0] in "%$_"):
        raise tokens.error(f"`{word}` is not an operand")
    name = scopes.resolve(word)
    operand: Operand = Register(name)
    if not scopes.is_register(name):
        operand = _named(tokens, name)
    if tokens.take("|"):
        return Pair(operand, parse_operand(tokens, scopes))
    return operand


def _named(tokens: Tokens, name: str) -> Operand:
    """Read the rest of a variable, function or label: `name + offset`."""
    offset = 0
    while tokens.peek() in ("+", "-") and tokens.peek(1)[0].isdigit():
        sign = 1 if tokens.next() == "+" else -1
        offset += sign * number(tokens.next()).value
    return Symbol(name, offset)


def _elements(tokens: Tokens, scopes: _Scopes, closing: str) -> tuple[Operand, ...]:
    found = []
    while not tokens.take(closing):
        found.append(parse_operand(tokens, scopes))
        tokens.take(",")
    return tuple(found)


def _address(tokens: Tokens, scopes: _Scopes) -> Operand:
    base = parse_operand(tokens, scopes)
    offset = 0
    while tokens.peek() in ("+", "-"):
        sign = 1 if tokens.next() == "+" else -1
        sign = -sign if tokens.take("-") else sign
        offset += sign * number(tokens.next()).value
    extra = _elements(tokens, scopes, "]") if tokens.take(",") else ()
    if not extra:
        tokens.take("]")
    return Address(base, offset, extra)


def _negation(tokens: Tokens, scopes: _Scopes) -> Operand:
    return Negated(parse_operand(tokens, scopes))


def _minus(tokens: Tokens, scopes: _Scopes) -> Operand:
    return negative(number(tokens.next()))


_OPERANDS: dict[str, Callable[[Tokens, _Scopes], Operand]] = {
    "{": lambda tokens, scopes: Vector(_elements(tokens, scopes, "}")),
    "(": lambda tokens, scopes: Group(_elements(tokens, scopes, ")")),
    "[": _address,
    "!": _negation,
    "-": _minus,
}
