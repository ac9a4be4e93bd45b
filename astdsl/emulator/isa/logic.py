"""Comparison, selection, logic, shifts, bit fields, moves.

Source: PTX ISA 9.7.1.14-9.7.1.22, 9.7.6-9.7.8, 9.7.9.1. Invariant: results depend on bits alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.steps import ufunc_step, value_step
from astdsl.emulator.operands import is_sink
from astdsl.emulator.scalars import UNSIGNED, Scalar
from astdsl.emulator.syntax import Pair
from astdsl.emulator.undefined_bits import ALL_BITS, anything, bitwise, compared, extremes

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.undefined import Flow

_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@executes(*_BITWISE, bits=bitwise)
def prepare_bitwise(ops: Operands) -> Execute:
    """`{and,or,xor}.type d, a, b`."""
    ops.allow()
    return ufunc_step(ops, _BITWISE[ops.instruction.opcode.split(".")[0]], ops.last_type().name, 2)


@executes("not", bits=extremes)
def prepare_not(ops: Operands) -> Execute:
    """`not.type d, a`."""
    ops.allow()
    return ufunc_step(ops, np.invert, ops.last_type().name, 1)


@executes("cnot", bits=extremes)
def prepare_cnot(ops: Operands) -> Execute:
    """`cnot.type d, a`: 1 if a is zero, else 0."""
    ops.allow()
    name = ops.last_type().name
    return value_step(ops, lambda a: np.equal(a, 0), name, [name])


def _lop3_bits(ops: Operands) -> Flow:
    return bitwise(ops) if len(ops.args) == 5 else anything(ops)


@executes("lop3", bits=_lop3_bits)
def prepare_lop3(ops: Operands) -> Execute:
    """`lop3{.or,.and}.b32 d{|p}, a, b, c, immLut{, q}`: any function of three bits, by its table.

    With a predicate, p = (d != 0) or, and, q (PTX ISA 9.7.8.6).
    """
    ops.allow("or", "and")
    if len(ops.args) not in (5, 6) or (len(ops.args) == 6) != (ops.has("or") or ops.has("and")):
        raise ops.refuse("a predicate goes with .or or .and, and they with it")
    table = int(ops.immediate(ops.args[4]))

    def function(a: Any, b: Any, c: Any) -> Any:
        result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for row in range(8):
            if table >> row & 1:
                x = a if row & 4 else ~a
                y = b if row & 2 else ~b
                z = c if row & 1 else ~c
                result |= x & y & z
        return result

    if len(ops.args) == 5:
        return value_step(ops, function, "b32", ["b32"] * 3)
    both = ops.args[0]
    if not isinstance(both, Pair):
        raise ops.refuse("the results are written d|p")
    reads = [ops.source(arg, "b32") for arg in ops.args[1:4]]
    other = ops.source(ops.args[5], "pred")
    join = np.logical_or if ops.has("or") else np.logical_and
    write = None if is_sink(both.first) else ops.destination(both.first, "b32")
    say = ops.destination(both.second, "pred")

    def execute(m: Machine, lanes: Lanes) -> None:
        found = function(*(np.asarray(read(m, lanes)) for read in reads))
        says = join(found != 0, other(m, lanes))
        if write is not None:
            write(m, lanes, found)
        say(m, lanes, says)

    return execute


# Comparison and selection.

_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def comparison(ops: Operands, word: str, scalar: Scalar, *, flush: bool) -> Callable[..., Any]:
    """Return a comparison by name; with a NaN, ordered ones are false, `...u` ones true."""
    if not scalar.is_float:
        if word not in _ORDERED:
            raise ops.refuse(f"comparison .{word} is not for integers")
        return _ORDERED[word]
    found = _float_comparison(ops, word)
    if scalar.kind == "bf":
        return lambda a, b: found(numerics.bf16_to_f32(a), numerics.bf16_to_f32(b))
    if flush and scalar.element_bits < 64:
        return lambda a, b: found(numerics.flush(a), numerics.flush(b))
    return found


def _float_comparison(ops: Operands, word: str) -> Callable[..., Any]:
    if word == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if word == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if word == "ne":
        return lambda a, b: np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    if word in ("eq", "lt", "le", "gt", "ge"):
        return _ORDERED[word]
    ordered = _ORDERED.get(word[:2])
    if ordered is None or word[2:] != "u":
        raise ops.refuse(f"comparison .{word} is not known")
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


_COMPARISONS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _compared(ops: Operands) -> tuple[Callable[[Machine, Lanes], Any], Any]:
    """Return what compares the two operands, and what combines that with the predicate operand."""
    ops.allow(*_COMPARISONS, *_BITWISE, "ftz")
    scalar = ops.last_type()
    compare = comparison(ops, ops.modifiers[0], scalar, flush=ops.has("ftz"))
    first, second = (ops.source(arg, scalar.name) for arg in ops.args[1:3])
    logic = next((_BITWISE[word] for word in ops.modifiers[1:] if word in _BITWISE), None)
    if logic is None:
        return (lambda m, lanes: compare(first(m, lanes), second(m, lanes))), None
    third = ops.source(ops.args[3], "pred")

    def combined(found: Any, m: Machine, lanes: Lanes) -> Any:
        other = third(m, lanes)
        if np.ndim(found) == 2:
            other = np.reshape(other, (-1, 1))
        return logic(found, other)

    return (lambda m, lanes: compare(first(m, lanes), second(m, lanes))), combined


@executes("setp", bits=compared)
def prepare_setp(ops: Operands) -> Execute:
    """`setp.cmp{.logic}{.ftz}.type p{|q}, a, b{, {!}c}`; packed types set p (low) and q (high)."""
    compare, combine = _compared(ops)
    writes = [ops.destination(each, "pred") for each in ops.pair(ops.args[0])]
    packed = ops.last_type().count == 2

    def execute(m: Machine, lanes: Lanes) -> None:
        found = compare(m, lanes)
        results = [found, ~found] if len(writes) == 2 and not packed else [found]
        if combine is not None:
            results = [combine(result, m, lanes) for result in results]
        if packed:
            results = [results[0][:, 0], results[0][:, 1]]
        for write, result in zip(writes, results, strict=False):
            write(m, lanes, result)

    return execute


@executes("set", bits=compared)
def prepare_set(ops: Operands) -> Execute:
    """`set.cmp{.logic}{.ftz}.dtype.stype d, a, b{, {!}c}`: all ones (or 1.0) where true."""
    compare, combine = _compared(ops)
    result = ops.type(ops.modifiers[-2])
    if ops.last_type().count > result.count:
        # Each half of the integer tells of one element (PTX ISA 9.7.7.1).
        result = ops.type("u16x2")
    write = ops.destination(ops.args[0], result.name)
    if result.kind == "f":
        true: Any = result.dtype.type(1)
    elif result.kind == "bf":
        true = np.uint16(0x3F80)
    else:
        true = np.array(-1).astype(result.dtype)[()]

    def execute(m: Machine, lanes: Lanes) -> None:
        found = compare(m, lanes)
        if combine is not None:
            found = combine(found, m, lanes)
        write(m, lanes, np.where(found, true, true.dtype.type(0)))

    return execute


@executes("selp", bits=bitwise)
def prepare_selp(ops: Operands) -> Execute:
    """`selp.type d, a, b, c`: a if c, else b; only the chosen one need be defined."""
    ops.allow()
    return _select(ops, ops.source(ops.args[3], "pred"))


def _slct_bits(ops: Operands) -> Flow:
    """Let the sign of an integer decide, which is one bit."""
    return bitwise(ops) if ops.modifiers[-1] == "s32" else extremes(ops, {3: ALL_BITS})


@executes("slct", bits=_slct_bits)
def prepare_slct(ops: Operands) -> Execute:
    """`slct{.ftz}.dtype.{s32,f32} d, a, b, c`: a if c >= 0, else b."""
    ops.allow("ftz")
    selector = ops.source(ops.args[3], ops.modifiers[-1])
    seen = numerics.flush if ops.has("ftz") else np.asarray
    return _select(ops, lambda m, lanes: np.greater_equal(seen(selector(m, lanes)), 0), place=-2)


def _select(ops: Operands, choice: Any, place: int = -1) -> Execute:
    name = f"b{ops.type(ops.modifiers[place]).bits}"
    first, second = (ops.source(arg, name) for arg in ops.args[1:3])
    write = ops.destination(ops.args[0], name)

    def execute(m: Machine, lanes: Lanes) -> None:
        chosen = choice(m, lanes)
        value = np.where(chosen, first(m, lanes), second(m, lanes))
        write(m, lanes, value)

    return execute


# Moves.


@executes("mov", bits=extremes)
def prepare_mov(ops: Operands) -> Execute:
    """`mov.type d, a`: registers, immediates, addresses; packs and unpacks `{...}` vectors."""
    ops.allow()
    scalar = ops.last_type()
    name = f"b{scalar.bits}" if scalar.kind != "pred" and not ops.is_literal(ops.args[1]) else ""
    name = name or scalar.name
    if ops.is_vector(ops.args[0]):
        return _unpack(ops, scalar)
    if ops.is_vector(ops.args[1]):
        return _pack(ops, scalar)
    return value_step(ops, lambda a: a, name, [name])


def _pack(ops: Operands, scalar: Scalar) -> Execute:
    elements = ops.elements(ops.args[1])
    n = len(elements)
    part = ops.type(f"b{scalar.bits // n}")
    reads = [ops.source(element, part.name) for element in elements]
    write = ops.destination(ops.args[0], f"b{scalar.bits}")

    def execute(m: Machine, lanes: Lanes) -> None:
        whole = np.empty((lanes.n, n), part.dtype)
        for i, read in enumerate(reads):
            whole[:, i] = read(m, lanes)
        if scalar.bits == 128:
            write(m, lanes, whole.view(np.uint64))
        else:
            write(m, lanes, whole.view(UNSIGNED[scalar.bits])[:, 0])

    return execute


def _unpack(ops: Operands, scalar: Scalar) -> Execute:
    elements = ops.elements(ops.args[0])
    n = len(elements)
    part = ops.type(f"b{scalar.bits // n}")
    read = ops.source(ops.args[1], f"b{scalar.bits}")
    writes = [ops.destination(element, part.name) for element in elements]

    def execute(m: Machine, lanes: Lanes) -> None:
        whole = np.array(np.atleast_1d(read(m, lanes)))
        parts = whole.view(part.dtype).reshape(-1, n)
        for i, write in enumerate(writes):
            write(m, lanes, parts[:, i])

    return execute
