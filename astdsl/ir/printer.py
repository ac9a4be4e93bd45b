"""The text form of the IR: what goldens and `dump` show, and what the parser reads back.

Invariant: one operation a line, regions indented, every name unique in the module. Only the roles
of fields are known here, no operation. The grammar is in the parser's docstring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from astdsl.ir.core import ATTRIBUTE, OPERAND, REGION, Block, Module, Op, Param, Value
from astdsl.records import dataclass, field
from astdsl.source import Span

INDENT = "  "
# Operations with more operand fields than this name each of them in print.
POSITIONAL_FIELDS = 3
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_]")


def print_module(module: Module, spans: bool = False) -> str:
    """Return the module as text; with `spans`, every operation ends in `@"file":line:col-...`."""
    return _Printer(spans).module(module)


def print_op(op: Op) -> str:
    """Return one operation as text, for messages; its operands have the names of their hints."""
    printer = _Printer(spans=False)
    printer.op(op, "")
    return "\n".join(printer.lines)


@dataclass(slots=True)
class _Names:
    names: dict[Value, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    anonymous: int = 0

    def of(self, value: Value) -> str:
        return self.names.get(value) or self.define(value, value.hint)

    def define(self, value: Value, hint: str) -> str:
        name = self._unique(_UNPRINTABLE.sub("_", hint)) if hint else self._number()
        self.taken.add(name)
        self.names[value] = f"%{name}"
        return self.names[value]

    def _number(self) -> str:
        self.anonymous += 1
        return str(self.anonymous - 1)

    def _unique(self, name: str) -> str:
        base = f"_{name}" if name[0].isdigit() else name
        name, count = base, 0
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        return name


@dataclass(slots=True)
class _Printer:
    spans: bool
    lines: list[str] = field(default_factory=list)
    names: _Names = field(default_factory=_Names)

    def module(self, module: Module) -> str:
        self.lines.append(f"kernel {module.name}{self._span(module.span)}")
        if module.target:
            self.lines.append(f"{INDENT}target {json.dumps(module.target)}")
        if module.warpgroups:
            self.lines.append(f"{INDENT}warpgroups {module.warpgroups}")
        if module.approx_math:
            self.lines.append(f"{INDENT}approx_math {module.approx_math}")
        for name, text in module.constants:
            self.lines.append(f"{INDENT}constant {name} = {json.dumps(text)}")
        for param in module.params:
            self._param(param)
        self.lines.append("{")
        self._body(module.body, INDENT)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def _param(self, param: Param) -> None:
        name = self.names.define(param.value, param.name)
        initial = "" if param.initial is None else f" = {attribute_text(param.initial)}"
        where = self._span(param.span)
        self.lines.append(f"{INDENT}{param.role} {name}: {param.value.type}{initial}{where}")

    def _body(self, block: Block, indent: str) -> None:
        for op in block.ops:
            self.op(op, indent)

    def op(self, op: Op, indent: str) -> None:
        """Append the lines of one operation."""
        operands = [(n, v) for n, v in op.values_of(OPERAND)]
        is_named = len(operands) > POSITIONAL_FIELDS
        parts = [self._operands(n, v, is_named) for n, v in operands]
        head = ", ".join(parts) if not is_named else " ".join(filter(None, parts))
        # Operands are named before the results, whose hints may be the same.
        results = ", ".join(self._defined(v) for v in op.results)
        words = [f"{results} =" if results else "", type(op).__name__, head, *self._attributes(op)]
        self.lines.append(indent + " ".join(filter(None, words)) + self._span(op.span))
        for name, blocks in op.values_of(REGION):
            for block in blocks if isinstance(blocks, tuple) else (blocks,):
                self._region(name, block, indent)

    def _region(self, name: str, block: Block, indent: str) -> None:
        args = ", ".join(self._defined(v) for v in block.args)
        self.lines[-1] += f" {name}{f'({args})' if args else ''} {{"
        self._body(block, indent + INDENT)
        self.lines.append(f"{indent}}}")

    def _defined(self, value: Value) -> str:
        return f"{self.names.define(value, value.hint)}: {value.type}"

    def _operands(self, name: str, value: Any, is_named: bool) -> str:
        is_list = isinstance(value, tuple)
        text = f"[{self._list(value)}]" if is_list else self.names.of(value)
        if not is_named:
            return text
        return f"{name}={text}" if value != () else ""

    def _list(self, values: Iterable[Value]) -> str:
        return ", ".join(self.names.of(v) for v in values)

    def _attributes(self, op: Op) -> Iterable[str]:
        kind = type(op)
        defaults = kind.defaults | kind.implied(op.attributes)
        for name, value in op.values_of(ATTRIBUTE):
            # An attribute `type` is the type of the result, which is printed with its name.
            if name in ("span", "type") or is_default(defaults, name, value):
                continue
            yield f"{name}={attribute_text(value)}"

    def _span(self, span: Span) -> str:
        if not self.spans:
            return ""
        return " @" + " < ".join(span_text(s) for s in (span, *span.stack))


def is_default(defaults: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether a field need not be printed: it prints as its default does."""
    return name in defaults and attribute_text(defaults[name]) == attribute_text(value)


def attribute_text(value: Any) -> str:
    """Return an attribute as text: a number, string, dtype, type, None, or a tuple of those."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"({', '.join(attribute_text(v) for v in value)})"
    return str(value) if hasattr(value, "__dataclass_fields__") else repr(value)


def span_text(span: Span) -> str:
    """Return a span as `"file":line:column-line:column`, columns counted from 0."""
    place = f"{span.line}:{span.column}-{span.end_line}:{span.end_column}"
    return f"{json.dumps(span.file)}:{place}"
