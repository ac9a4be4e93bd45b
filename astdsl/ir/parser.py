r"""Reads the text form of the IR back: `parse_module(print_module(m))` is `m`.

Grammar (an operation's line ends where its regions do not go on; `%0` and the like have no hint):

    module  = "kernel" NAME [span] NL ["target" STRING NL] ["warpgroups" number NL]
              ["approx_math" bool NL] {"constant" NAME "=" STRING NL}
              {role value ["=" literal] [span] NL} "{" NL {op NL} "}"
    value   = "%" NAME ":" type
    op      = [value {"," value} "="] NAME [operand {"," operand}] {NAME "=" (operand | literal)}
              [span] {region}
    operand = "%" NAME | "[" ["%" NAME {"," "%" NAME}] "]"
    region  = NAME ["(" value {"," value} ")"] "{" NL {op NL} "}"
    literal = number | STRING | True | False | None | dtype | type | "(" [literal {"," literal}] ")"
    span    = "@" place {"<" place}
    place   = STRING ":" line ":" column "-" line ":" column

Invariant: what is not in the text is a default of the operation's class, implied by other fields,
or an empty list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from astdsl.ir import dtypes, ops
from astdsl.ir.core import OPERAND, Block, Module, Op, Param, Value
from astdsl.ir.types import (
    AccumulatorType,
    BarrierType,
    CounterType,
    RefType,
    TileType,
    Type,
)
from astdsl.source import NOWHERE, Span

_TOKEN = re.compile(
    r"""[ \t]*(?:
      (?P<newline>\n\s*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<value>%\w+)
    | (?P<type>(?:gmem|smem|tmem|acc|barrier)<[^>]*>|[a-z]\w*\[[0-9x]+\])
    | (?P<number>-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf\b|nan\b))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>[\[\](){}=:,@<-])
    )""",
    re.VERBOSE,
)
_REF = re.compile(
    r"(?P<space>\w+)<(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
    r"(?: strides=(?P<strides>\S*) align=(?P<align>\d+)(?P<tma> tma)?(?P<small> small)?"
    r"(?P<empty> empty)?)?>"
)
_TILE = re.compile(r"(?P<dtype>\w+)(?:\[(?P<shape>[0-9x]+)\])?")
_BARRIER = re.compile(r"barrier<(\d+) arrivals=(\d+)>")
_ACCUMULATOR = re.compile(r"acc<(\w+)\[([0-9x]+)\]>")
_WORDS = {"True": True, "False": False, "None": None}
OPERATIONS: dict[str, type[Op]] = {
    name: kind
    for name, kind in vars(ops).items()
    if isinstance(kind, type) and issubclass(kind, Op)
}


def parse_module(text: str) -> Module:
    """Return the module that a text describes; ValueError, with the line, where it does not."""
    return _Parser(text).module()


def parse_type(text: str) -> Type:
    """Return the type that prints as `text`; ValueError where none does."""
    if text == "counter":
        return CounterType()
    for pattern, make in _TYPES:
        if match := pattern.fullmatch(text):
            return make(match)
    raise ValueError(f"{text} is not a type")


def _dims(text: str | None) -> tuple[int | None, ...]:
    return tuple(None if d == "?" else int(d) for d in text.split("x")) if text else ()


def _static_dims(text: str | None) -> tuple[int, ...]:
    return tuple(int(d) for d in text.split("x")) if text else ()


def _dtype(name: str) -> dtypes.DType:
    if name not in dtypes.BY_NAME:
        raise ValueError(f"{name} is not a dtype")
    return dtypes.BY_NAME[name]


def _ref(match: re.Match[str]) -> Type:
    return RefType(
        shape=_dims(match["shape"]),
        dtype=_dtype(match["dtype"]),
        space=match["space"],
        strides=_dims(match["strides"]),
        tma=match["tma"] is not None,
        align_bytes=int(match["align"] or 1),
        small=match["small"] is not None,
        empty=match["empty"] is not None,
    )


_TYPES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Type]], ...] = (
    (_TILE, lambda m: TileType(_static_dims(m["shape"]), _dtype(m["dtype"]))),
    (_BARRIER, lambda m: BarrierType(int(m[1]), int(m[2]))),
    (_ACCUMULATOR, lambda m: AccumulatorType(_static_dims(m[2]), _dtype(m[1]))),
    (_REF, _ref),
)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._values: dict[str, Value] = {}

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _fail(self, expected: str) -> NoReturn:
        _, text, line = self._tokens[self._at]
        raise ValueError(f"line {line}: expected {expected}, got {text!r}")

    def _next(self, kind: str) -> str:
        if self._kind != kind:
            self._fail(f"a {kind}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _accept(self, text: str) -> bool:
        found = self._text == text and self._kind in ("mark", "name")
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(repr(text))

    def _list(self, close: str, item: Callable[[], Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        while not self._accept(close):
            if found:
                self._expect(",")
            found.append(item())
        return tuple(found)

    def module(self) -> Module:
        """Read a whole module."""
        self._expect("kernel")
        name, span = self._next("name"), self._span()
        self._next("newline")
        target = self._line_of("target", lambda: json.loads(self._next("string")))
        warpgroups = self._line_of("warpgroups", lambda: int(self._next("number")))
        approx_math = self._line_of("approx_math", lambda: _WORDS[self._next("name")])
        constants = []
        while constant := self._line_of("constant", self._constant):
            constants.append(constant)
        params = []
        while not self._accept("{"):
            params.append(self._param())
        body = self._body(tuple(p.value for p in params))
        return Module(
            name=name,
            params=tuple(params),
            body=body,
            span=span,
            target=target or "",
            constants=tuple(constants),
            warpgroups=warpgroups or 0,
            approx_math=bool(approx_math),
        )

    def _line_of(self, word: str, read: Callable[[], Any]) -> Any:
        if not self._accept(word):
            return None
        found = read()
        self._next("newline")
        return found

    def _constant(self) -> tuple[str, str]:
        name = self._next("name")
        self._expect("=")
        return name, json.loads(self._next("string"))

    def _param(self) -> Param:
        role, value = self._next("name"), self._value()
        initial = self._literal() if self._accept("=") else None
        span = self._span()
        self._next("newline")
        return Param(value=value, name=value.hint, role=role, initial=initial, span=span)

    def _value(self) -> Value:
        name = self._next("value")
        self._expect(":")
        hint = "" if name[1:].isdigit() else name[1:]
        value = Value(self._type(), hint)
        self._values[name] = value
        return value

    def _type(self) -> Type:
        if self._kind not in ("type", "name"):
            self._fail("a type")
        self._at += 1
        return parse_type(self._tokens[self._at - 1][1])

    def _body(self, args: tuple[Value, ...]) -> Block:
        """Read operations up to the closing brace."""
        self._next("newline")
        found: list[Op] = []
        while not self._accept("}"):
            found.append(self._op())
            self._next("newline")
        return Block(args=args, ops=tuple(found))

    def _op(self) -> Op:
        declared: list[tuple[str, Value]] = []
        while self._kind == "value":
            name = self._text
            declared.append((name, self._value()))
            self._expect("=" if self._tokens[self._at][1] == "=" else ",")
        kind = OPERATIONS.get(self._text)
        if kind is None or self._kind != "name":
            self._fail("an operation")
        self._at += 1
        fields = dict.fromkeys(kind.many, ()) | self._operands(kind) | self._named(kind)
        if "type" in kind.fields and "type" not in fields:
            fields["type"] = declared[0][1].type
        fields["span"] = self._span()
        fields |= self._regions(kind)
        return self._finished(kind(**kind.implied(fields) | fields), declared)

    def _finished(self, op: Op, declared: list[tuple[str, Value]]) -> Op:
        types = [v.type for v in op.results]
        if types != [v.type for _, v in declared]:
            self._fail(f"{type(op).__name__} giving {', '.join(map(str, types))}")
        for value, (name, written) in zip(op.results, declared, strict=True):
            value.hint = written.hint
            self._values[name] = value
        return op

    def _operand(self) -> Any:
        if self._accept("["):
            return self._list("]", self._used)
        return self._used()

    def _used(self) -> Value:
        name = self._next("value")
        if name not in self._values:
            self._at -= 1
            self._fail("a value made above")
        return self._values[name]

    def _operands(self, kind: type[Op]) -> dict[str, Any]:
        """Read the operands that stand by position."""
        names = [name for name, role in kind.fields.items() if role == OPERAND]
        found: dict[str, Any] = {}
        while self._kind == "value" or self._text == "[":
            if len(found) == len(names):
                self._fail(f"at most {len(names)} operands")
            found[names[len(found)]] = self._operand()
            self._accept(",")
        return found

    def _named(self, kind: type[Op]) -> dict[str, Any]:
        """Read the operands and attributes that are named."""
        found: dict[str, Any] = {}
        while self._kind == "name" and self._tokens[self._at + 1][1] == "=":
            name = self._next("name")
            self._expect("=")
            is_operand = kind.fields.get(name) == OPERAND
            found[name] = self._operand() if is_operand else self._literal()
        return found

    def _regions(self, kind: type[Op]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._kind == "name":
            name = self._next("name")
            args = self._list(")", self._value) if self._accept("(") else ()
            self._expect("{")
            region = self._body(args)
            found[name] = (*found.get(name, ()), region) if name in kind.many else region
        return found

    def _literal(self) -> Any:
        kind, text, _ = self._tokens[self._at]
        if self._accept("("):
            return self._list(")", self._literal)
        self._at += 1
        if kind == "string":
            return json.loads(text)
        if kind == "number":
            return int(text) if text.lstrip("-").isdigit() else float(text)
        if text in _WORDS:
            return _WORDS[text]
        if text in dtypes.BY_NAME:
            return dtypes.BY_NAME[text]
        return parse_type(text)

    def _span(self) -> Span:
        if not self._accept("@"):
            return NOWHERE
        innermost = self._place()
        stack = []
        while self._accept("<"):
            stack.append(self._place())
        return innermost.within(tuple(stack))

    def _place(self) -> Span:
        file = json.loads(self._next("string"))
        numbers = []
        for mark in (":", ":", "-", ":"):
            # `-12` after a column is one token: the dash and the line.
            if mark == "-" and self._kind == "number":
                numbers.append(-int(self._next("number")))
                continue
            self._expect(mark)
            numbers.append(int(self._next("number")))
        line, column, end_line, end_column = numbers
        return Span(file, line, column, end_line, end_column)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Split a text into (kind, text, line), one "end" last."""
    found: list[tuple[str, str, int]] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {line}: cannot read {text[at : at + 20]!r}")
        kind = match.lastgroup
        assert kind is not None, "every branch of a token is named"
        found.append((kind, match[kind], line))
        line += match[0].count("\n")
        at = match.end()
    return [*found, ("end", "", line)]
