"""Launch plans as JSON, for the cache on disk and for saved kernels.

Invariant: what is read back is checked field by field, so that a file can hold nothing but a plan;
`plan_of(data_of(p)) == p`. Host expressions are numbers and the rows of `HOST_OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astdsl.ir.dtypes import BY_NAME, DType
from astdsl.ir.launch import (
    HOST_OPERATIONS,
    Check,
    DimSlot,
    Entry,
    HostExpression,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    Report,
    ScalarSlot,
    Scratch,
    Slot,
    StrideSlot,
)
from astdsl.source import Span

SWIZZLES = (0, 32, 64, 128)
# How many operands a row has, by its text.
_ARITIES = {name: row.count("{") for name, row in HOST_OPERATIONS.items()}
_LEAVES = {"dim": 2, "scalar": 1}


class BadData(ValueError):
    """The data describe no launch plan; the message says where."""


def data_of(plan: LaunchPlan) -> dict[str, Any]:
    """Return a plan as what JSON holds."""
    return {
        "target": plan.target,
        "entries": [
            {
                "name": e.name,
                "slots": [_data_of_slot(s) for s in e.slots],
                "grid": _data_of_expression(e.grid),
                "threads": e.threads,
                "shared_bytes": e.shared_bytes,
            }
            for e in plan.entries
        ],
        "scratch": [
            {
                "name": s.name,
                "shape": [_data_of_expression(x) for x in s.shape],
                "dtype": s.dtype.name,
                "span": data_of_span(s.span),
            }
            for s in plan.scratch
        ],
        "checks": [
            {
                "condition": _data_of_expression(c.condition),
                "pieces": list(c.pieces),
                "values": [[_data_of_expression(x), dtype.name] for x, dtype in c.values],
                "span": data_of_span(c.span),
            }
            for c in plan.checks
        ],
        "reports": [
            {
                "pieces": list(r.pieces),
                "values": [[list(shape), dtype.name] for shape, dtype in r.values],
                "span": data_of_span(r.span),
                "is_assertion": r.is_assertion,
            }
            for r in plan.reports
        ],
    }


def plan_of(data: Any) -> LaunchPlan:
    """Return the plan that data describe. Raises BadData."""
    fields = fields_of(data, "target", "entries", "scratch", "checks", "reports")
    return LaunchPlan(
        target=text(fields["target"]),
        entries=items(fields["entries"], _entry),
        scratch=items(fields["scratch"], _scratch),
        checks=items(fields["checks"], _check),
        reports=items(fields["reports"], _report),
    )


def data_of_span(span: Span) -> list[Any]:
    """Return a span, with its stack, as a list."""
    place = [span.file, span.line, span.column, span.end_line, span.end_column]
    return [*place, [data_of_span(s) for s in span.stack]]


def span_of(data: Any) -> Span:
    """Return the span that a list describes. Raises BadData."""
    file, *numbers, stack = sequence(data, 6)
    line, column, end_line, end_column = map(count, numbers)
    return Span(text(file), line, column, end_line, end_column, items(stack, span_of))


def fields_of(data: Any, *names: str) -> dict[str, Any]:
    """Return an object that has exactly these fields. Raises BadData."""
    if not isinstance(data, dict) or set(data) != set(names):
        raise BadData(f"expected an object with {', '.join(names)}")
    return data


def items(data: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a list's elements, each read by `read`. Raises BadData."""
    if not isinstance(data, list):
        raise BadData("expected a list")
    return tuple(map(read, data))


def sequence(data: Any, length: int) -> list[Any]:
    """Return a list of this length. Raises BadData."""
    if not isinstance(data, list) or len(data) != length:
        raise BadData(f"expected a list of {length}")
    return data


def text(data: Any) -> str:
    """Return a string. Raises BadData."""
    if not isinstance(data, str):
        raise BadData("expected a string")
    return data


def count(data: Any) -> int:
    """Return an integer that is not negative. Raises BadData."""
    if type(data) is not int or data < 0:
        raise BadData("expected a count")
    return data


def dtype_of(data: Any) -> DType:
    """Return the dtype of a name. Raises BadData."""
    found = BY_NAME.get(text(data))
    if found is None:
        raise BadData(f"{data!r} is no dtype")
    return found


def expression_of(data: Any) -> HostExpression:
    """Return a host expression: a number, or a list that begins with an operation."""
    if type(data) in (int, float, bool):
        return data  # type: ignore[no-any-return]
    if not isinstance(data, list) or not data:
        raise BadData("expected a number or an operation")
    operation, *operands = data
    if operation in _LEAVES:
        return (operation, *map(count, sequence(operands, _LEAVES[operation])))
    if text(operation) not in _ARITIES:
        raise BadData(f"there is no host operation {operation!r}")
    return (operation, *map(expression_of, sequence(operands, _ARITIES[operation])))


def _data_of_expression(expression: HostExpression) -> Any:
    if isinstance(expression, tuple):
        return [_data_of_expression(x) if isinstance(x, tuple) else x for x in expression]
    return expression


def _entry(data: Any) -> Entry:
    fields = fields_of(data, "name", "slots", "grid", "threads", "shared_bytes")
    return Entry(
        name=text(fields["name"]),
        slots=items(fields["slots"], _slot),
        grid=expression_of(fields["grid"]),
        threads=count(fields["threads"]),
        shared_bytes=count(fields["shared_bytes"]),
    )


def _scratch(data: Any) -> Scratch:
    fields = fields_of(data, "name", "shape", "dtype", "span")
    return Scratch(
        text(fields["name"]),
        items(fields["shape"], expression_of),
        dtype_of(fields["dtype"]),
        span_of(fields["span"]),
    )


def _check(data: Any) -> Check:
    fields = fields_of(data, "condition", "pieces", "values", "span")
    check = Check(
        expression_of(fields["condition"]),
        items(fields["pieces"], text),
        span_of(fields["span"]),
        items(fields["values"], _host_value),
    )
    if len(check.pieces) != len(check.values) + 1:
        raise BadData("a check has text around every value")
    return check


def _host_value(data: Any) -> tuple[HostExpression, DType]:
    expression, dtype = sequence(data, 2)
    return expression_of(expression), dtype_of(dtype)


def _report(data: Any) -> Report:
    fields = fields_of(data, "pieces", "values", "span", "is_assertion")
    is_assertion = fields["is_assertion"]
    report = Report(
        items(fields["pieces"], text),
        items(fields["values"], _value),
        span_of(fields["span"]),
        is_assertion is True,
    )
    if len(report.pieces) != len(report.values) + 1 or type(is_assertion) is not bool:
        raise BadData("a report has text around every value")
    return report


def _value(data: Any) -> tuple[tuple[int, ...], DType]:
    shape, dtype = sequence(data, 2)
    return items(shape, count), dtype_of(dtype)


def _data_of_slot(slot: Slot) -> list[Any]:
    return _SLOTS[_NAMES[type(slot)]][1](slot)


def _slot(data: Any) -> Slot:
    if not isinstance(data, list) or not data or data[0] not in _SLOTS:
        raise BadData("expected a parameter of an entry")
    slot: Slot = _SLOTS[data[0]][2](data)
    return slot


def _map_slot(data: list[Any]) -> MapSlot:
    _, param, order, box, swizzle = sequence(data, 5)
    if swizzle not in SWIZZLES:
        raise BadData(f"there is no swizzle of {swizzle!r} bytes")
    slot = MapSlot(count(param), items(order, count), items(box, count), swizzle)
    if sorted(slot.order) != list(range(len(slot.box))):
        raise BadData("a tensor map has a box for each axis")
    return slot


def _scalar_slot(data: list[Any]) -> ScalarSlot:
    _, param, dtype = sequence(data, 3)
    return ScalarSlot(count(param), dtype_of(dtype))


# Each kind of parameter: its class, how it becomes data, and how data become it.
_SLOTS: dict[str, tuple[type, Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = {
    "pointer": (
        PointerSlot,
        lambda s: ["pointer", s.param],
        lambda d: PointerSlot(*map(count, sequence(d, 2)[1:])),
    ),
    "scalar": (ScalarSlot, lambda s: ["scalar", s.param, s.dtype.name], _scalar_slot),
    "dim": (
        DimSlot,
        lambda s: ["dim", s.param, s.axis],
        lambda d: DimSlot(*map(count, sequence(d, 3)[1:])),
    ),
    "stride": (
        StrideSlot,
        lambda s: ["stride", s.param, s.axis],
        lambda d: StrideSlot(*map(count, sequence(d, 3)[1:])),
    ),
    "map": (
        MapSlot,
        lambda s: ["map", s.param, list(s.order), list(s.box), s.swizzle_bytes],
        _map_slot,
    ),
}
_NAMES = {row[0]: name for name, row in _SLOTS.items()}
