"""Lowering of PTX that a kernel's author writes, once for each register.

Invariant: the trace has checked that the text names every operand and nothing else.
"""

from __future__ import annotations

import re

from astdsl.ir import ops
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.nvptx.function import Emitter, llvm_type, lowers
from astdsl.lowering.nvptx.values import LV


@lowers(ops.InlinePtx)
def _inline_ptx(emitter: Emitter, op: ops.InlinePtx) -> None:
    layout = _layout(emitter, op)
    xs = [emitter.get(x, layout) for x in op.xs]
    row = _row(op)
    found: list[list[LV]] = [[] for _ in op.results]
    for register in range(layout.register_count):
        made = emitter.builder.asm(row, *(x[register] for x in xs))
        for registers, value in zip(found, made, strict=True):
            registers.append(value)
    for result, registers in zip(op.results, found, strict=True):
        emitter.define(result, layout, registers)


def _layout(emitter: Emitter, op: ops.InlinePtx) -> Layout:
    """Return the layout of the results; without results, of the first operand that has one."""
    placements = [emitter.placements[v] for v in (*op.results, *op.xs)]
    held = (placement for placement in placements if isinstance(placement, Layout))
    first = next(held, None)
    return first or emitter.default_layout(op.xs[0].tile)


def _row(op: ops.InlinePtx) -> AsmRow:
    outputs = {f"r{k}": llvm_type(dtype) for k, dtype in enumerate(op.dtypes)}
    inputs = {f"x{k}": llvm_type(x.tile.dtype) for k, x in enumerate(op.xs)}
    names = [*outputs, *inputs]
    text = re.sub(r"\$(\d+)", lambda found: f"${names[int(found[1])]}", op.text)
    return AsmRow(name="inline_ptx", text=text, effect=Effect.ACTS, outputs=outputs, inputs=inputs)
