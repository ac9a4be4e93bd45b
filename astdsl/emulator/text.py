"""From PTX text to a `Module` (PTX ISA section 4).

Invariant: what is accepted is read whole; a directive or a construct that is not known is an error
with its line, never skipped, except debug sections, `.pragma` and what the grammar lets be ignored.
"""

from __future__ import annotations

from astdsl.emulator.faults import PtxSyntaxError
from astdsl.emulator.statements import parse_body, parse_variables, skip_statement
from astdsl.emulator.syntax import Function, Module, Variable
from astdsl.emulator.tokens import Tokens

LINKAGE = (".visible", ".extern", ".weak", ".common")
TARGET_DIRECTIVES = (
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".reqnctapercluster",
    ".maxclusterrank",
)
FLAG_DIRECTIVES = (".explicitcluster", ".noreturn", ".blocksareclusters", ".unique")


def parse(text: str) -> Module:
    """Read a PTX text; raises `PtxSyntaxError` with the line.

    It may end as the driver's do, with a byte 0: so does what NVRTC returns.
    """
    tokens = Tokens(text.rstrip("\0"))
    module = Module()
    _find_files(tokens, module)
    while not tokens.at_end():
        word = tokens.peek()
        handler = _TOP.get(word)
        if handler is not None:
            handler(tokens, module)
        elif word in LINKAGE or word in (".entry", ".func", ".global", ".const", ".shared"):
            _declaration(tokens, module)
        else:
            raise tokens.error(f"`{word}` is not expected here")
    return module


def _find_files(tokens: Tokens, module: Module) -> None:
    """Collect `.file` first: LLVM prints it after the code that refers to it."""
    for at, word in enumerate(tokens.words):
        if word == ".file" and tokens.words[at + 2].startswith('"'):
            module.files[int(tokens.words[at + 1])] = unquote(tokens.words[at + 2])


def unquote(text: str) -> str:
    """Return a quoted PTX string's text; octal escapes are UTF-8 bytes."""
    raw = text[1:-1].encode().decode("unicode_escape").encode("latin-1", "replace")
    return raw.decode("utf-8", "replace")


def _version(tokens: Tokens, module: Module) -> None:
    tokens.next()
    module.version = tokens.next()


def _target(tokens: Tokens, module: Module) -> None:
    tokens.next()
    module.target = tokens.next()
    while tokens.take(","):
        tokens.next()


def _address_size(tokens: Tokens, module: Module) -> None:
    tokens.next()
    if tokens.next() != "64":
        raise tokens.error("only .address_size 64 is modelled")


def _file(tokens: Tokens, module: Module) -> None:
    tokens.next()
    tokens.next()
    tokens.next()
    while tokens.take(","):
        tokens.next()


def _section(tokens: Tokens, module: Module) -> None:
    while tokens.next() != "{":
        pass
    while tokens.next() != "}":
        pass


def _skip(tokens: Tokens, module: Module) -> None:
    skip_statement(tokens)


_TOP = {
    ".version": _version,
    ".target": _target,
    ".address_size": _address_size,
    ".file": _file,
    ".section": _section,
    ".pragma": _skip,
    ".alias": _skip,
    ";": _skip,
}


def _declaration(tokens: Tokens, module: Module) -> None:
    while tokens.peek() in LINKAGE:
        tokens.next()
    if tokens.peek() in (".entry", ".func"):
        _function(tokens, module)
        return
    module.variables += parse_variables(tokens)


def _function(tokens: Tokens, module: Module) -> None:
    is_entry = tokens.next() == ".entry"
    results: list[Variable] = []
    while tokens.peek() in FLAG_DIRECTIVES or tokens.peek() == ".attribute":
        if tokens.next() == ".attribute":
            tokens.skip_parentheses()
    if tokens.peek() == "(":
        results = _parameters(tokens)
    function = Function(tokens.next(), is_entry, [], results)
    if tokens.peek() == "(":
        function.parameters = _parameters(tokens)
    for variable in (*function.parameters, *results):
        if variable.space == "reg":
            function.registers[variable.name] = variable.type
    _directives(tokens, function)
    if not tokens.take(";"):
        function.has_body = True
        parse_body(tokens, function, module)
    known = module.functions.get(function.name)
    if known is None or not known.has_body:
        module.functions[function.name] = function


def _parameters(tokens: Tokens) -> list[Variable]:
    tokens.expect("(")
    found: list[Variable] = []
    while not tokens.take(")"):
        found += parse_variables(tokens, parameter=True)
        tokens.take(",")
    return found


def _directives(tokens: Tokens, function: Function) -> None:
    while tokens.peek() not in ("{", ";"):
        word = tokens.next()
        if word in FLAG_DIRECTIVES:
            function.directives[word[1:]] = ()
        elif word in TARGET_DIRECTIVES:
            numbers = [int(tokens.next())]
            while tokens.take(","):
                numbers.append(int(tokens.next()))
            function.directives[word[1:]] = tuple(numbers)
        elif word == ".pragma":
            skip_statement(tokens)
        else:
            raise PtxSyntaxError(f"directive `{word}` is not known", tokens.line())
