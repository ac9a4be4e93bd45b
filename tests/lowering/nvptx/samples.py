"""Every inline-PTX row, and modules that use all rows or all intrinsics, for the tests.

Run as a program it prints the PTX of one such module: LLVM ends the process on what it cannot
lower, so the tests run it as a child.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from astdsl.lowering.nvptx import asm, libdevice, pipeline
from astdsl.lowering.nvptx.asm import (
    arith,
    atomics,
    barriers,
    control,
    copies,
    memory,
    tcgen05,
    warp,
    wgmma,
)
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.intrinsics import every_signature
from astdsl.lowering.nvptx.llvm import LaunchBounds, Module, Parameter
from astdsl.lowering.nvptx.values import (
    LV,
    constant,
    element_of,
)
from astdsl.lowering.target import TARGETS, Target

ROOMS: tuple[ModuleType, ...] = tuple(
    importlib.import_module(f"{asm.__name__}.{room.name}")
    for room in pkgutil.iter_modules(asm.__path__)
)
THREADS = 128


def constant_rows() -> Iterator[AsmRow]:
    """List the rows that take no parameters."""
    for room in ROOMS:
        yield from (value for value in vars(room).values() if isinstance(value, AsmRow))


def made_rows() -> Iterator[AsmRow]:
    """Make rows by every function that makes them, over their parameters."""
    for named in (barriers.bar_sync, barriers.bar_and):
        yield from (named(1, 128), barriers.of_own_group(named, 3, 1, 128))
    yield from (control.set_max_registers(168, increase=flag) for flag in (False, True))
    for source in ("float", "double"):
        yield from (arith.to_integer(source, each) for each in ("s32", "u32", "s64", "u64"))
    for rank in range(1, copies.MAXIMUM_RANK + 1):
        yield from (copies.tma_load(rank), copies.tma_store(rank))
    yield from (copies.bulk_wait(n, read=read) for n in (0, 1, 7) for read in (False, True))
    for columns in tcgen05.ALLOCATIONS:
        yield from (tcgen05.alloc(columns), tcgen05.dealloc(columns))
    for name, shape in tcgen05.SHAPES.items():
        for count in shape.counts:
            yield from (tcgen05.load(count, name), tcgen05.store(count, name))
            yield tcgen05.wait_load(shape.registers * count)
    yield from map(warp.shuffle, warp.SHUFFLE_MODES)
    yield from map(warp.redux, (*warp.REDUX_OPERATIONS, *warp.REDUX_OF_FLOATS))
    yield from map(warp.vote, ("any", "all", "uni"))
    for matrices in warp.MATRICES:
        for transpose in (False, True):
            yield warp.load_matrix(matrices, transpose=transpose)
            yield warp.store_matrix(matrices, transpose=transpose)
    yield from map(wgmma.wait, (0, 1))
    yield from (row(d) for d in ACCUMULATORS.values() for row in (wgmma.read, wgmma.write))
    for type in ("half", "bfloat", "float", "double", "i16", "i32", "i64"):
        yield from (memory.guarded_load(type), memory.guarded_store(type))
    yield from _atomics()
    yield from map(atomics.guarded_words, (1, 2, 4))
    yield from _products()


def _atomics() -> Iterator[AsmRow]:
    operations = (
        ("add.f32", "float"),
        ("add.f64", "double"),
        ("add.noftz.f16", "half"),
        ("add.noftz.bf16", "bfloat"),
        ("max.s64", "i64"),
        ("xor.b32", "i32"),
        ("exch.b32", "i32"),
        ("cas.b16", "i16"),
    )
    for (operation, type), is_shared in itertools.product(operations, (False, True)):
        yield atomics.atomic(operation, type, is_shared=is_shared, order="acq_rel", scope="gpu")
    for count in (2, 4):
        yield atomics.add_floats(count, order="release", scope="gpu")


F16, BF16 = wgmma.Types("f32", "f16", "f16"), wgmma.Types("f32", "bf16", "bf16")
OTHER_TYPES = (
    wgmma.Types("f16", "f16", "f16"),
    wgmma.Types("f32", "tf32", "tf32"),
    wgmma.Types("f32", "e4m3", "e5m2"),
    wgmma.Types("f16", "e5m2", "e5m2"),
    wgmma.Types("s32", "s8", "u8"),
)
ACCUMULATORS = {
    d: wgmma.Accumulator(number, type, wgmma.registers(256, d))
    for number, (d, type) in enumerate(wgmma.REGISTERS.items())
}


def multiply(n: int, types: wgmma.Types, **options: bool) -> AsmRow:
    """Make the row of one instruction that adds to the first registers of an accumulator."""
    count = wgmma.registers(n, types.d)
    return wgmma.mma(ACCUMULATORS[types.d].names(0, count), n, types, **options)


def unused_makers() -> set[str]:
    """Name the functions that make rows and have made none in this process."""
    return {
        f"{room.__name__}.{name}"
        for room in ROOMS
        for name, value in vars(room).items()
        if hasattr(value, "cache_info") and not value.cache_info().currsize
    }


def _products() -> Iterator[AsmRow]:
    yield from (multiply(n, F16) for n in range(8, 257, 8))
    yield from map(tcgen05.mma, tcgen05.KINDS)
    yield tcgen05.mma("f16", a_in_tensor_memory=True)
    yield from map(tcgen05.scaled_mma, tcgen05.SCALED_KINDS)
    for types in OTHER_TYPES:
        for n in filter(lambda n: wgmma.has_columns(types, n), range(8, 257, 8)):
            yield multiply(n, types)
        yield multiply(64, types, a_in_registers=True)
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            yield multiply(64, BF16, transpose_a=transpose_a, transpose_b=transpose_b)
    yield from (multiply(64, F16, a_in_registers=True, transpose_b=flag) for flag in (False, True))
    halves = ((0, 0), (0, 2), (1, 0), (1, 2))
    steps = [wgmma.Step(32 * half, 64, 4 * half + k, k, k > 0) for half, k in halves]
    yield wgmma.product(ACCUMULATORS["f32"], tuple(steps), F16)
    yield wgmma.product(ACCUMULATORS["f32"], tuple(steps), F16, a_in_registers=True)


def rows_for(target: Target) -> list[AsmRow]:
    """List the rows that `target` has."""
    rows = [*constant_rows(), *made_rows()]
    return [row for row in rows if row.requires is None or target.has(row.requires)]


def module_of_rows(rows: list[AsmRow]) -> str:
    """Write a module with one kernel for each row, its operands loaded from memory."""
    module = Module()
    for number, row in enumerate(rows):
        builder = begin_kernel(module, f"row_{number}")
        for accumulator in ACCUMULATORS.values():
            builder.declare(wgmma.declare(accumulator))
        operands = [operand(builder, type, place) for place, type in enumerate(row.operand_types)]
        keep(builder, builder.asm(row, *operands))
        builder.ret()
    return module.text()


def module_of_intrinsics() -> str:
    """Write a module with one kernel for each intrinsic."""
    module = Module()
    for number, signature in enumerate(every_signature()):
        builder = begin_kernel(module, f"intrinsic_{number}")
        operands = [
            constant(type, 0) if place in signature.immediates else operand(builder, type, place)
            for place, type in enumerate(signature.operands)
        ]
        module.globals.declare(signature.name, signature.declaration)
        keep(builder, (builder.call(signature.name, signature.result, *operands),))
        builder.ret()
    return module.text()


def module_of_functions(target: Target) -> str:
    """Write a module with one kernel for each function of libdevice."""
    module = Module()
    for number, (name, type) in enumerate(libdevice.FUNCTIONS):
        builder = begin_kernel(module, f"function_{number}")
        arity = libdevice.FUNCTIONS[name, type].arity
        operands = [operand(builder, type, place) for place in range(arity)]
        keep(builder, (libdevice.call(builder, name, *operands, target=target),))
        builder.ret()
    return module.text()


def begin_kernel(module: Module, name: str) -> Builder:
    """Begin a kernel with an array to read, one to write, and a tensor map."""
    parameters = [Parameter.array("x"), Parameter.array("y"), Parameter.tensor_map("map")]
    bounds = LaunchBounds(threads=THREADS, blocks_per_multiprocessor=1, registers_per_thread=168)
    return module.kernel(name, parameters, bounds)


def operand(builder: Builder, type: str, place: int) -> LV:
    """Make a value of a type that LLVM cannot know."""
    if type == "ptr":
        return builder.parameters["map"]
    if type.startswith("ptr"):
        return builder.parameters["x"]
    address = builder.gep("i8", builder.parameters["x"], constant("i64", 16 * place))
    if element_of(type) == "i1":
        word = builder.load("i32", address, 4)
        return builder.icmp("ne", word, constant("i32", 0))
    return builder.load(type, address, 16)


def keep(builder: Builder, results: tuple[LV, ...]) -> None:
    """Store results, so that nothing is removed."""
    for place, result in enumerate(results):
        value = builder.cast("zext", result, "i32") if result.type == "i1" else result
        address = builder.gep("i8", builder.parameters["y"], constant("i64", 16 * place))
        builder.store(value, address, 16)


WRITERS: dict[str, Callable[[Target], str]] = {
    "rows": lambda target: module_of_rows(rows_for(target)),
    "intrinsics": lambda _target: module_of_intrinsics(),
    "functions": module_of_functions,
}

if __name__ == "__main__":
    chosen = TARGETS[sys.argv[2]]
    sys.stdout.write(pipeline.generate(WRITERS[sys.argv[1]](chosen), chosen))
