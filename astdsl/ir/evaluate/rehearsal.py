"""A rehearsal: what the threads of a block do with barriers and copies, without any data.

A hand-written kernel is run by the reference's own rules on the shapes of one call, while tiles and
what memory holds stay unknown. Where something unknown decides what is waited for or copied, the
rehearsal of that block ends: it is left to the reference and the emulator.

Invariant: what is reported happens on these shapes whatever the data are, in some order in which
the warpgroups of a block may run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import PURE, Module, Op, walk
from astdsl.ir.evaluate import tensor
from astdsl.ir.evaluate.control import run_block, run_once, run_ops, run_region, steps_of
from astdsl.ir.evaluate.memory import (
    mark_stored,
    read,
    require_visible,
    slot_place,
    window,
    write,
)
from astdsl.ir.evaluate.state import BlockState, Frame, Memory, Place, Reading, Run
from astdsl.ir.evaluate.table import EVALUATORS, Array
from astdsl.ir.evaluate.tensor import operand, operand_place
from astdsl.ir.evaluate.threads import run_alone
from astdsl.ir.evaluate.tmem import load_place, start_copy, start_product, store_place
from astdsl.ir.ops.control import SPREAD
from astdsl.ir.types import GMEM, RefType, TileType

# Operations run before a kernel is compiled: a tenth of a second. Beyond, a block is left to the
# reference and the emulator.
MOST_OPERATIONS = 8_000
# More shared memory than any target has; such a kernel is refused when it is lowered.
MOST_SHARED_BYTES = 1 << 20
ORDERS = ("ascending", "descending")


class _Undecided(Exception):
    """Something unknown decides what the threads do."""


class _Unknown:
    """A value that only data would tell."""

    __array_ufunc__ = None

    def _undecided(self) -> NoReturn:
        raise _Undecided

    __bool__ = __int__ = __index__ = __float__ = _undecided


UNKNOWN = _Unknown()


def rehearse(
    module: Module, shapes: Mapping[str, tuple[int, ...]], most_operations: int = MOST_OPERATIONS
) -> None:
    """Report what a hand-written kernel does wrong with its barriers, copies and buffers.

    `shapes` are those of its arrays, by name. Raises ProtocolError, UnwrittenRead and BadWindow.
    """
    if not is_by_hand(module):
        return
    frame = Frame(values={}, meanings=_Meanings(most_operations).table)
    for param in module.params:
        kind = param.value.type
        if isinstance(kind, RefType):
            data = _nothing(shapes[param.name], kind.dtype.numpy)
            frame.values[param.value] = Memory(data=data, name=param.name, span=param.span)
        else:
            frame.values[param.value] = UNKNOWN
    with np.errstate(all="ignore"):  # numbers overflow and divide by 0 as the language says
        _blocks(module, frame)


def is_by_hand(module: Module) -> bool:
    """Whether a traced kernel has barriers or copies of its own."""
    return any(isinstance(op, _BY_HAND) for op in walk(module.body))


_BY_HAND = (ops.AllocBarrier, ops.AllocTmem, ops.Copy, ops.MatrixMultiply, ops.TensorMultiply)


def _nothing(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of a shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _blocks(module: Module, frame: Frame) -> None:
    """Rehearse the first and the last block of each grid; without one, the only block."""
    try:
        run_alone(run_once(module.body.ops, frame))
        own = tuple(op for op in module.body.ops if frame.values.keys().isdisjoint(op.results))
        own = tuple(op for op in own if not isinstance(op, ops.Assert))
        grids = [op for op in own if isinstance(op, ops.Pipeline) and SPREAD in op.axes]
        blocks = [(grid, at) for grid in grids for at in _ends(list(steps_of(grid, frame)))]
    except _Undecided:
        return
    if not grids:
        _block(module, frame, lambda inner: run_ops(own, inner))
    for grid, at in blocks:
        before = tuple(op for op in own[: own.index(grid)] if op not in grids)
        _block(module, frame, _step(grid, before, at))


def _ends(steps: Sequence[Any]) -> Sequence[Any]:
    return steps if len(steps) < 2 else [steps[0], steps[-1]]


def _step(
    grid: ops.Pipeline, before: tuple[Op, ...], at: tuple[tuple[int, int], ...]
) -> Callable[[Frame], Run]:
    indices = tuple(np.int64(index) for _, index in at)

    def run(frame: Frame) -> Run:
        yield from run_ops(before, frame)
        carried = tuple(frame[v] for v in grid.initial)
        yield from run_region(grid.body, (*indices, *carried), frame)

    return run


def _block(module: Module, frame: Frame, run: Callable[[Frame], Run]) -> None:
    """Rehearse a block; the warpgroups of one that has several begin in two orders."""
    try:
        if not module.warpgroups:
            frame.block = BlockState()
            run_alone(run(frame))
            frame.block.finish()
            return
        for order in ORDERS[: module.warpgroups]:
            frame.order = order
            run_block(frame, module.warpgroups, run)
    except _Undecided:
        return


class _Meanings:
    """The reference's meanings, with what takes data left out, each run counted."""

    def __init__(self, most_operations: int) -> None:
        self.left = most_operations
        self.relevant: dict[Op, bool] = {}
        self.scalar: dict[Op, bool] = {}
        self.table = {kind: self._meaning(kind) for kind in EVALUATORS}

    def _meaning(self, kind: type[Op]) -> Callable[..., Any]:
        exact = EVALUATORS[kind]
        if kind in _WITHOUT_DATA:
            meaning = _WITHOUT_DATA[kind]
        elif kind in _EXACT:
            meaning = exact
        elif kind in _REGIONS:
            meaning = self._region(exact)
        elif kind.effect == PURE:
            return self._pure(exact)
        else:
            meaning = _undecided

        def counted(op: Op, frame: Frame) -> Any:
            self.spend()
            return meaning(op, frame)

        return counted

    def spend(self) -> None:
        """Count an operation."""
        self.left -= 1
        if self.left < 0:
            raise _Undecided

    def _pure(self, exact: Callable[..., Any]) -> Callable[..., Any]:
        """Compute scalars that are known; tiles are not."""

        def meaning(op: Op, *operands: Any) -> Any:
            self.spend()
            if isinstance(op, ops.Select) and type(operands[0]) is np.bool_:
                return operands[1] if operands[0] else operands[2]
            if UNKNOWN not in operands and self._is_scalar(op):
                return exact(op, *operands)
            return _unknowns(op)

        return meaning

    def _is_scalar(self, op: Op) -> bool:
        if op not in self.scalar:
            values = (*op.operands, *op.results)
            self.scalar[op] = all(_is_scalar(v.type) for v in values)
        return self.scalar[op]

    def _region(self, exact: Callable[..., Any]) -> Callable[..., Any]:
        """Run branches and loops that matter; one that does not may be unknown."""

        def meaning(op: Op, frame: Frame) -> Any:
            decided = all(frame[v] is not UNKNOWN for v in _deciding(op))
            if self._matters(op) or (decided and not isinstance(op, ops.While)):
                return exact(op, frame)
            return _unknowns(op)

        return meaning

    def _matters(self, op: Op) -> bool:
        if op not in self.relevant:
            inside = (x for region in op.regions for x in walk(region))
            self.relevant[op] = any(not _is_beside(x) for x in inside)
        return self.relevant[op]


def _unknowns(op: Op) -> Any:
    return UNKNOWN if len(op.results) == 1 else (UNKNOWN,) * len(op.results)


def _is_scalar(kind: Any) -> bool:
    return not isinstance(kind, TileType) or kind.shape == ()


def _is_beside(op: Op) -> bool:
    """Whether an operation does nothing to barriers, copies or shared memory."""
    is_global = isinstance(op, _ACCESSES) and op.ref.ref.space == GMEM
    return op.effect == PURE or is_global or isinstance(op, (*_REGIONS, *_IGNORED))


def _deciding(op: Op) -> tuple[Any, ...]:
    """Return the values that decide which way a branch or loop goes."""
    if isinstance(op, ops.If):
        return (op.condition,)
    if isinstance(op, ops.For):
        return (op.low, op.high, op.step)
    return (*op.lows, *op.highs, *op.steps) if isinstance(op, ops.Pipeline) else ()


def _undecided(op: Op, frame: Frame) -> NoReturn:
    raise _Undecided


def _ignore(op: Op, frame: Frame) -> Any:
    return _unknowns(op) if op.results else None


def _load(op: ops.Load, frame: Frame) -> Any:
    memory: Memory = frame[op.ref]
    if op.ref.ref.space != GMEM:
        read(op, memory, window(op, memory, frame)[0], frame)
    return UNKNOWN


def _store(op: ops.Store, frame: Frame) -> None:
    memory: Memory = frame[op.ref]
    if op.ref.ref.space != GMEM:
        place, _ = window(op, memory, frame)
        write(op, memory, place, np.zeros((), memory.data.dtype), frame)
        mark_stored(op, memory, place, frame)


def _indexed(op: Any, frame: Frame) -> Any:
    if op.ref.ref.space != GMEM:
        raise _Undecided
    return _ignore(op, frame)


def _alloc_gmem(op: ops.AllocGmem, frame: Frame) -> Any:
    runtime = iter(frame.numbers(op.dims))
    shape = tuple(max(0, next(runtime)) if n is None else n for n in op.shape)
    return Memory(_nothing(shape, op.dtype.numpy), op.label or "scratch", op.span)


def _alloc_smem(op: ops.AllocSmem, frame: Frame) -> Any:
    if math.prod(op.shape) * op.dtype.bits > 8 * MOST_SHARED_BYTES:
        raise _Undecided
    return EVALUATORS[ops.AllocSmem](op, frame)


def _copy_out(op: ops.CopyOut, frame: Frame) -> None:
    """Read a slot asynchronously; that the array is written is left out."""
    if any(not frame[p] for p in op.predicate):
        return
    memory: Memory = frame[op.buffer]
    place = slot_place(op, memory, frame.numbers(op.slot))
    read(op, memory, place, frame)
    require_visible(op, memory, place)
    reading = Reading(op.span, [(memory, place)])
    reading.begin()
    frame.issuer.copies.append(reading)


def _multiply_scaled(op: ops.ScaledMultiply, frame: Frame) -> None:
    _multiply(op, frame, tensor.scale_images(op, frame)[1])


def _multiply(
    op: ops.MatrixMultiply, frame: Frame, scales: Sequence[tuple[Memory, Place]] = ()
) -> None:
    accumulator = frame[op.accumulator]
    sources = list(scales)
    for value, slot, part in (
        (op.a, op.a_slot, op.a_window),
        (op.b, op.b_slot, op.b_window),
    ):
        if isinstance(value.type, TileType):
            continue
        memory: Memory = frame[value]
        place = operand_place(op, memory, frame.numbers(slot), part)
        operand(op, memory, place, frame, is_transposed=False)
        sources.append((memory, place))
    accumulator.is_written = True
    tensor.start_product(op, accumulator, sources, frame)


def _tmem_load(op: ops.TmemLoad, frame: Frame) -> Any:
    load_place(op, frame)
    return UNKNOWN


def _tmem_store(op: ops.TmemStore, frame: Frame) -> None:
    memory: Memory = frame[op.ref]
    store_place(op, np.zeros((), memory.data.dtype), frame)


def _tensor_multiply(op: ops.TensorMultiply, frame: Frame) -> None:
    start_product(op, frame, bool(frame[op.accumulate]))


def _copy_scales(op: ops.CopyScales, frame: Frame) -> None:
    start_copy(op, frame)


def _inline_ptx(op: ops.InlinePtx, frame: Frame) -> Any:
    """Take what a text gives to be unknown; what it does is not looked at."""
    del frame
    return _unknowns(op) if op.results else None


_REGIONS = (ops.If, ops.For, ops.While, ops.Pipeline)
_ACCESSES = (ops.Load, ops.Store, ops.Indexed)
_IGNORED = (
    ops.Assert, ops.DeviceAssert, ops.InlinePtx, ops.Prefetch, ops.Print, ops.PrintLayout,
    ops.Yield,
)  # fmt: skip
_EXACT = (
    ops.AccumulatorRead, ops.AccumulatorWrite, ops.AllocAccumulator, ops.AllocBarrier,
    ops.AllocTmem, ops.BarrierArrive, ops.BarrierWait, ops.BlockBarrier, ops.CommitGroup,
    ops.CopyIn, ops.Counter, ops.CounterAdd, ops.CounterRead, ops.Multiprocessors, ops.Overlap,
    ops.Phase, ops.ProductWait, ops.ProxyFence, ops.SetMaxRegisters, ops.StateLayout,
    ops.TensorCommit, ops.TmemCommit, ops.TmemWaitLoad, ops.WaitGroup, ops.WarpId, ops.WarpgroupId,
    ops.Warps,
)  # fmt: skip
_WITHOUT_DATA: dict[type[Op], Callable[[Any, Frame], Any]] = {
    ops.Load: _load,
    ops.Store: _store,
    ops.Gather: _indexed,
    ops.Scatter: _indexed,
    ops.AllocGmem: _alloc_gmem,
    ops.AllocSmem: _alloc_smem,
    ops.CopyOut: _copy_out,
    ops.MatrixMultiply: _multiply,
    ops.ScaledMultiply: _multiply_scaled,
    ops.Assert: _ignore,
    ops.Atomic: _indexed,
    ops.DeviceAssert: _ignore,
    ops.InlinePtx: _inline_ptx,
    ops.Prefetch: _ignore,
    ops.Print: _ignore,
    ops.PrintLayout: _ignore,
    ops.TensorMultiply: _tensor_multiply,
    ops.ScaledTensorMultiply: _tensor_multiply,
    ops.CopyScales: _copy_scales,
    ops.TmemLoad: _tmem_load,
    ops.TmemStore: _tmem_store,
}
