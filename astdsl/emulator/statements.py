"""Bodies of functions: registers, variables, labels, scopes, instructions and their operands.

Invariant: a name declared in an inner scope `{ }` is renamed `name@n`, so that names are unique in
a function and the rest of the emulator knows nothing of scopes.
"""

from __future__ import annotations

from collections.abc import Callable

from astdsl.emulator.expressions import Scopes, number, parse_operand
from astdsl.emulator.faults import KernelLine
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.syntax import Function, Immediate, Instruction, Module, Symbol, Variable
from astdsl.emulator.tokens import Tokens

VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
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
    operand = parse_operand(tokens, Scopes())
    if isinstance(operand, Immediate):
        return [operand.value]
    if isinstance(operand, Symbol):
        return [operand]
    raise tokens.error("an initial value is a number or a name")


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
