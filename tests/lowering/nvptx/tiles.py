"""Runs operations on tiles through rules, LLVM and the emulator, and through the reference.

A program is one block of threads: inputs are read from global memory straight into the registers
of a layout, results written back from theirs, so that nothing but the rules is under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from astdsl.emulator import device
from astdsl.ir import ops
from astdsl.ir.builder import Builder as IrBuilder
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.evaluate import evaluate_pure
from astdsl.ir.types import TileType
from astdsl.lowering.layout.families import Families
from astdsl.lowering.layout.inference import Inference, coalesced
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.layout.shared import SharedPlan
from astdsl.lowering.nvptx import pipeline, rules
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    NOTHING,
    Emitter,
    Scratch,
    as_memory,
    as_register,
)
from astdsl.lowering.nvptx.llvm import LaunchBounds, Module, Parameter
from astdsl.lowering.nvptx.values import LV
from astdsl.lowering.target import SM_90A, Target
from astdsl.lowering.windows import Forms
from astdsl.source import NOWHERE
from tests.lowering.nvptx.numbers import is_nan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
FAMILIES = rules.FAMILIES
THREADS = 128


class Tiles:
    """Builds a block of operations on input tiles."""

    def __init__(self, inputs: Sequence[TileType]) -> None:
        self.inputs = tuple(map(Value, inputs))
        self.builder = IrBuilder(self.inputs)
        self.results: list[Value] = []

    def make(self, op: type[Op], /, *operands: Value, **fields: Any) -> Value:
        """Append an operation and return its result; operands fill its fields in order."""
        names = [n for n, role in op.fields.items() if role == "operand" and n not in fields]
        given = dict(zip(names, operands, strict=False))
        return self.builder.add(op(span=NOWHERE, **given, **fields)).result

    def make_all(self, op: type[Op], /, **fields: Any) -> tuple[Value, ...]:
        """Append an operation of several results and return them."""
        return self.builder.add(op(span=NOWHERE, **fields)).results

    def constant(self, value: float, dtype: DType, shape: tuple[int, ...]) -> Value:
        """Append a constant."""
        return self.make(ops.Constant, value=value, type=TileType(shape, dtype))

    def give(self, value: Value) -> None:
        """Make a value a result of the program."""
        self.results.append(value)


Build: TypeAlias = Callable[..., None]


@dataclass(frozen=True)
class Compared:
    """The results of a program by the emulator and by the reference, in the order given."""

    emulated: list[Array]
    expected: list[Array]
    ptx: str

    def agree(self) -> None:
        """Refuse results that differ in a bit, NaNs being all alike."""
        for number, (found, wanted) in enumerate(zip(self.emulated, self.expected, strict=True)):
            same = bits_of(found) == bits_of(wanted)
            assert same.all(), f"result {number}: {found[~same][:8]} is not {wanted[~same][:8]}"

    def agree_within(self, units: float) -> None:
        """Refuse results that differ by more than `units` in the last place of their type."""
        for number, (found, wanted) in enumerate(zip(self.emulated, self.expected, strict=True)):
            same = (bits_of(found) == bits_of(wanted)) | (distance(found, wanted) <= units)
            assert same.all(), f"result {number}: {found[~same][:8]} is not {wanted[~same][:8]}"


def bits_of(x: Array) -> Array:
    """Return the bits of an array as integers, one pattern for every NaN."""
    if x.dtype.kind not in "biu":
        x = np.where(is_nan(x), np.array(np.nan, x.dtype), x)
    return x.reshape(-1).view(f"u{x.dtype.itemsize}").reshape(x.shape)


def distance(found: Array, wanted: Array) -> Array:
    """Return the difference of floats in units of the last place of the wanted ones."""
    info: Any = ml_dtypes.finfo(wanted.dtype)  # type: ignore[no-untyped-call]
    wide = wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.maximum(np.abs(wide), float(info.smallest_normal))))
        difference = np.abs(found.astype(np.float64) - wide) / 2.0 ** (exponent - info.nmant)
    return np.where(np.isnan(difference), np.inf, difference)


def run(
    build: Build,
    *arrays: Array,
    dtypes: Sequence[DType],
    layouts: Sequence[Layout | None] = (),
    threads: int = THREADS,
    approx_math: bool = False,
    target: Target = SM_90A,
) -> Compared:
    """Run `build(tiles, *inputs)` both ways; a layout that is None is the coalesced one."""
    tiles = Tiles([TileType(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)])
    build(tiles, *tiles.inputs)
    block = tiles.builder.finish()
    ptx, shared_bytes = _compiled(tiles, block, layouts, threads, approx_math, target)
    results = [np.zeros(v.tile.shape, v.tile.dtype.numpy) for v in tiles.results]
    # A scalar's array has one element, which NumPy keeps in no memory of its own.
    given = [np.ascontiguousarray(a) for a in (*arrays, *results)]
    device.run(ptx, "k", (1,), (threads,), given, shared_bytes=shared_bytes)
    emulated = [a.reshape(r.shape) for a, r in zip(given[len(arrays) :], results, strict=True)]
    return Compared(emulated, _evaluated(tiles, block, arrays), ptx)


def ptx_of(build: Build, *inputs: TileType, target: Target) -> tuple[str, int]:
    """Return the PTX of a program for a target, and the bytes of shared memory that it needs."""
    tiles = Tiles(inputs)
    build(tiles, *tiles.inputs)
    return _compiled(tiles, tiles.builder.finish(), (), THREADS, False, target)


def _evaluated(tiles: Tiles, block: Block, arrays: Sequence[Array]) -> list[Array]:
    values: dict[Value, Any] = dict(zip(tiles.inputs, arrays, strict=True))
    for op in block.ops:
        made = evaluate_pure(op, [values[v] for v in op.operands])
        values.update(zip(op.results, made if isinstance(made, tuple) else (made,), strict=True))
    return [np.asarray(values[v]) for v in tiles.results]


def _compiled(
    tiles: Tiles,
    block: Block,
    layouts: Sequence[Layout | None],
    threads: int,
    approx_math: bool,
    target: Target = SM_90A,
) -> tuple[str, int]:
    inference = Inference(threads, target, Families(block))
    chosen = [*layouts, *[None] * (len(tiles.inputs) - len(layouts))]
    for value, layout in zip(tiles.inputs, chosen, strict=True):
        inference.place(value, layout or coalesced(value.tile, threads))
    inference.block(block)
    module = Module()
    names = [f"p{k}" for k in range(len(tiles.inputs) + len(tiles.results))]
    # Of a pointer that it knows to be aligned, LLVM also reads what lies between and behind.
    parameters = [
        Parameter.array(name, align=value.tile.dtype.bytes)
        for name, value in zip(names, (*tiles.inputs, *tiles.results), strict=True)
    ]
    builder = module.kernel("k", parameters, LaunchBounds(threads=threads))
    plan = SharedPlan()
    emitter = Emitter(
        builder, target, threads, inference.placements, plan, Forms(), approx_math=approx_math
    )
    pointers = [builder.parameters[name] for name in names]
    for value, pointer in zip(tiles.inputs, pointers, strict=False):
        _read(emitter, value, pointer)
    # Places of a scratch were asked for, not the scratch.
    emitter.scratch_reads = NOTHING
    emitter.block(block)
    for value, pointer in zip(tiles.results, pointers[len(tiles.inputs) :], strict=True):
        _write(emitter, value, pointer)
    builder.ret()
    return pipeline.generate(module.text(), target), plan.total_bytes


def _places(emitter: Emitter, value: Value, layout: Layout, pointer: LV) -> list[LV]:
    rank = len(layout.shape)
    return Scratch(emitter, value.tile).places(pointer, layout, (0,) * rank, (1,) * rank)


def _read(emitter: Emitter, value: Value, pointer: LV) -> None:
    layout, dtype = emitter.placements[value], value.tile.dtype
    assert isinstance(layout, Layout), "inputs are held"
    kind = MEMORY_TYPES[dtype.name]
    loaded = [
        as_register(emitter.builder, emitter.builder.load(kind, place, dtype.bytes), dtype)
        for place in _places(emitter, value, layout, pointer)
    ]
    emitter.define(value, layout, loaded)


def _write(emitter: Emitter, value: Value, pointer: LV) -> None:
    dtype = value.tile.dtype
    layout = emitter.settled(value, coalesced(value.tile, emitter.threads))
    registers = emitter.get(value, layout)
    places = _places(emitter, value, layout, pointer)
    with emitter.guarded(emitter.is_owner(layout)):
        for k, (register, place) in enumerate(zip(registers, places, strict=True)):
            with emitter.guarded(emitter.is_inside(layout, k)):
                element = as_memory(emitter.builder, register, dtype)
                emitter.builder.store(element, place, dtype.bytes)
