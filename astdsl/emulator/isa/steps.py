"""Steps that families share: apply a function of the operands, in place where that pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

After = Callable[[Any], None]


def ufunc_step(
    ops: Operands, ufunc: Any, type_name: str, n_sources: int, after: After | None = None
) -> Execute:
    """Return a step that applies a ufunc to operands of one type, straight into the destination.

    `after` may correct the result in place (canonical NaNs).
    """
    reads = [ops.source(arg, type_name) for arg in ops.args[1 : 1 + n_sources]]
    target = ops.target(ops.args[0], type_name)
    write = ops.destination(ops.args[0], type_name)
    apply = _unary(ufunc, reads) if n_sources == 1 else _binary(ufunc, reads)

    def execute(m: Machine, lanes: Lanes) -> None:
        out = target(m, lanes)
        if out is not None:
            apply(m, lanes, out)
            if after is not None:
                after(out)
            return
        result = apply(m, lanes, None)
        if after is not None and result.ndim:
            after(result)
        write(m, lanes, result)

    return execute


def _unary(ufunc: Any, reads: list[Any]) -> Any:
    read = reads[0]
    return lambda m, lanes, out: ufunc(read(m, lanes), out=out)


def _binary(ufunc: Any, reads: list[Any]) -> Any:
    first, second = reads
    return lambda m, lanes, out: ufunc(first(m, lanes), second(m, lanes), out=out)


def value_step(
    ops: Operands, function: Callable[..., Any], result_type: str, source_types: list[str]
) -> Execute:
    """Return a step that writes a function of the operands, each read as its own type."""
    args = ops.args[1 : 1 + len(source_types)]
    reads = [ops.source(arg, name) for arg, name in zip(args, source_types, strict=True)]
    write = ops.destination(ops.args[0], result_type)
    if len(reads) == 1:
        read = reads[0]
        return lambda m, lanes: write(m, lanes, function(read(m, lanes)))
    if len(reads) == 2:
        first, second = reads
        return lambda m, lanes: write(m, lanes, function(first(m, lanes), second(m, lanes)))
    return lambda m, lanes: write(m, lanes, function(*[read(m, lanes) for read in reads]))
