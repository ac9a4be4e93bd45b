"""Integer and floating-point arithmetic (PTX ISA 9.7.1-9.7.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.isa import Execute, executes

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands


def elementwise(ops: Operands, function: Any, type_name: str, n_sources: int) -> Execute:
    """Return a step that applies a NumPy function of one or two operands of one type."""
    reads = [ops.source(arg, type_name) for arg in ops.args[1 : 1 + n_sources]]
    target = ops.target(ops.args[0], type_name)
    write = ops.destination(ops.args[0], type_name)

    def unary(m: Machine, lanes: Lanes) -> None:
        out = target(m, lanes)
        if out is not None:
            function(reads[0](m, lanes), out=out)
        else:
            write(m, lanes, function(reads[0](m, lanes)))

    def binary(m: Machine, lanes: Lanes) -> None:
        out = target(m, lanes)
        if out is not None:
            function(reads[0](m, lanes), reads[1](m, lanes), out=out)
        else:
            write(m, lanes, function(reads[0](m, lanes), reads[1](m, lanes)))

    return unary if n_sources == 1 else binary


@executes("add")
def prepare_add(ops: Operands) -> Execute:
    """`add.type d, a, b`."""
    ops.allow("rn", "sat", "ftz")
    return elementwise(ops, np.add, ops.modifiers[-1], 2)


@executes("or")
def prepare_or(ops: Operands) -> Execute:
    """`or.type d, a, b`."""
    return elementwise(ops, np.bitwise_or, ops.modifiers[-1], 2)
@executes("and")
def prepare_and(ops: Operands) -> Execute:
    return elementwise(ops, np.bitwise_and, ops.modifiers[-1], 2)
@executes("shl")
def prepare_shl(ops: Operands) -> Execute:
    return elementwise(ops, np.left_shift, ops.modifiers[-1], 2)
@executes("setp.lt")
def prepare_setp(ops: Operands) -> Execute:
    t=ops.modifiers[-1]
    a,b=ops.source(ops.args[1],t),ops.source(ops.args[2],t)
    w=ops.destination(ops.args[0],"pred")
    return lambda m,lanes: w(m,lanes,a(m,lanes)<b(m,lanes))
@executes("mul.wide")
def prepare_mulw(ops: Operands) -> Execute:
    a,b=ops.source(ops.args[1],"s32"),ops.source(ops.args[2],"s32")
    w=ops.destination(ops.args[0],"s64")
    return lambda m,lanes: w(m,lanes,a(m,lanes).astype(np.int64)*b(m,lanes))
@executes("mov")
def prepare_mov(ops: Operands) -> Execute:
    t=ops.modifiers[-1]
    a=ops.source(ops.args[1],t)
    w=ops.destination(ops.args[0],t)
    return lambda m,lanes: w(m,lanes,a(m,lanes))
