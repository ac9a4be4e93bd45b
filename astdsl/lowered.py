"""A kernel at every stage of its compilation, for looking at, and ready to launch.

Invariant: each stage is made when it is first asked for, so that looking at the IR never loads
LLVM, and looking at PTX never needs an assembler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from astdsl import backend
from astdsl.call import Call
from astdsl.compile import Program
from astdsl.errors import BadArgument, UnsupportedFeature, did_you_mean, in_words
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, walk
from astdsl.ir.dtypes import f4e2m1
from astdsl.ir.launch import HostExpression, LaunchPlan
from astdsl.ir.passes import name_of, run_passes
from astdsl.ir.printer import print_module
from astdsl.ir.types import TileType
from astdsl.lang.nibbles import PER_BYTE
from astdsl.passes import STANDARD
from astdsl.records import dataclass
from astdsl.runtime.classes import classify
from astdsl.runtime.host import compile_host, reads_scalars


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread and one block of a kernel take: of several launches, the most that any does.

    Spilled bytes are summed over launches.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    messages: tuple[str, ...]


class Lowered:
    """A kernel compiled for arguments of given classes, for one target.

    `source` is the rewritten Python, `ir` the typed IR after the standard passes, `schedule` the
    IR in explicit operations; then `llvm`, `ptx`, `cubin` (bytes) and `sass`.
    """

    def __init__(
        self, program: Program, call: Call, target: str, compile: Callable[[], Any]
    ) -> None:
        self._program = program
        self._call = call
        self._compile = compile
        self.target = target

    def __repr__(self) -> str:
        return f"<Lowered {self.module.name} for {self.target}>"

    @property
    def module(self) -> Module:
        """The typed IR as an object."""
        return self._program.module

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays it is compiled for, by parameter."""
        arguments = self._call.request.arguments
        return {a.name: a.geometry.shape for a in arguments if a.geometry}

    @property
    def source(self) -> str:
        """The Python that was run to trace the kernel."""
        return self._program.traced.source

    @property
    def ir(self) -> str:
        """The typed IR after the standard passes."""
        return print_module(self.module)

    @property
    def passes(self) -> tuple[str, ...]:
        """The names of the standard passes, in order."""
        return tuple(map(name_of, STANDARD))

    def after(self, name: str) -> str:
        """Return the typed IR as it is after the pass of this name. Raises BadArgument."""
        if name not in self.passes:
            raise BadArgument(
                f"there is no pass `{name}`",
                help=did_you_mean(name, self.passes) or f"passes are {', '.join(self.passes)}",
            )
        steps = STANDARD[: self.passes.index(name) + 1]
        return print_module(run_passes(self._program.traced.module, steps))

    @property
    def schedule(self) -> str:
        """The IR in explicit operations: phases, slots, barriers."""
        return print_module(self._program.compiled(self.target).scheduled)

    @property
    def llvm(self) -> str:
        """LLVM's text."""
        return self._program.compiled(self.target).llvm

    @property
    def ptx(self) -> str:
        """The PTX."""
        return self._program.code(self.target).ptx

    @property
    def plan(self) -> LaunchPlan:
        """How the PTX is launched."""
        return self._program.code(self.target).plan

    @property
    def cubin(self) -> bytes:
        """The assembled kernel."""
        return self._program.cubin(self.target).image

    @property
    def sass(self) -> str:
        """The machine code. Raises DeviceUnavailable where no disassembler is installed."""
        return backend.disassemble(self._program.cubin(self.target))

    @property
    def resources(self) -> Resources:
        """Registers, spills, stack, shared memory and threads."""
        cubin, plan = self._program.cubin(self.target), self.plan
        return Resources(
            registers=cubin.registers,
            spill_bytes=cubin.spill_bytes,
            stack_bytes=cubin.stack_bytes,
            shared_bytes=max(entry.shared_bytes for entry in plan.entries),
            threads=max(entry.threads for entry in plan.entries),
            messages=cubin.messages,
        )

    def explain(self) -> str:
        """Say what was inferred: classes, constants, blocks, stages, buffers."""
        return "\n".join(self._explanation())

    def _explanation(self) -> Iterator[str]:
        compiled = self._program.compiled(self.target)
        yield f"{self.module.name} for {self.target}"
        yield "arguments"
        for argument in self._call.arguments:
            if argument.geometry is None:
                yield f"  {argument.where.name}: {argument.dtype} scalar"
            else:
                shape, packed = argument.geometry.shape, ""
                if argument.geometry.dtype is not argument.dtype is f4e2m1:
                    shape, packed = (*shape[:-1], shape[-1] * PER_BYTE), ", two to a byte"
                dims = " ".join(map(str, shape)) + packed
                words = classify(argument.geometry).words()
                words += "; copied, its elements are not aligned" if argument.staged else ""
                yield f"  {argument.where.name}: {argument.dtype} {dims}; {words}"
        yield from self._constants()
        yield from _pipelines(self.module)
        yield from self._scratch(compiled.plan)
        launches = [op for op in compiled.scheduled.body.ops if isinstance(op, ops.Launch)]
        each = zip(compiled.plan.entries, launches, compiled.shared, strict=True)
        for entry, launch, shared in each:
            if len(launches) > 1:
                yield f"launch {entry.name} at {launch.span}"
            blocks = self._number(entry.grid, "as many as the scalars ask for,")
            count = launch.warpgroups
            runs = (
                f", each of {in_words(count, 'warpgroup')} by itself"
                if launch.per_warpgroup
                else ""
            )
            yield f"blocks: {blocks} of {entry.threads} threads{runs}"
            yield f"shared memory: {entry.shared_bytes} bytes"
            if shared.tensor_columns:
                yield f"tensor memory: {shared.tensor_columns} columns"
            yield from _buffers(launch.body)
            yield from _products(launch.body)
            yield from (f"conversion of {found}" for found in shared.conversions)
            yield from (f"access of {found}" for found in shared.conflicts)
            yield from (f"layout of {found}" for found in shared.told)

    def _constants(self) -> Iterator[str]:
        request = self._call.request
        if request.constants or self._program.static:
            yield "constants"
        for name, value in request.constants.items():
            yield f"  {name} = {value!r}"
        for (name, axis), extent in sorted(self._program.static.items()):
            yield f"  {name}.shape[{axis}] = {extent}, which the trace needs as a number"

    def _scratch(self, plan: LaunchPlan) -> Iterator[str]:
        for each in plan.scratch:
            dims = " ".join(self._number(extent, "?") for extent in each.shape)
            yield f"scratch {each.name} at {each.span}: {each.dtype} {dims}"

    def _number(self, expression: HostExpression, unknown: str) -> str:
        """Return what the shapes settle as a number; what scalars decide is unknown."""
        if reads_scalars(expression):
            return unknown
        return str(compile_host(expression)(self._call.shapes, ()))

    def timeline(self) -> str:
        """Draw the schedule over time: not in this version."""
        raise UnsupportedFeature(
            "`timeline` is not in this version", help="`.schedule` prints the phases"
        )

    def save(self, path: Any) -> None:
        """Write the compiled kernel to a file, which `astdsl.load` reads."""
        self.compile().save(path)

    def compile(self) -> Any:
        """Return a CompiledKernel, which launches without compiling again."""
        return self._compile()


def _pipelines(module: Module) -> Iterator[str]:
    for op in walk(module.body):
        if isinstance(op, ops.Pipeline):
            stages = str(op.stages) if op.stages else "automatic"
            count, axes = in_words(len(op.axes), "axis"), ", ".join(op.axes)
            parts = (
                ", streamed"
                if op.streams
                else f", {in_words(op.split, 'part')}"
                if op.split
                else ""
            )
            yield f"pipeline at {op.span}: {count} ({axes}), stages {stages}{parts}"


def _products(block: Block) -> Iterator[str]:
    """Say of each product where it is computed."""
    for op in walk(block):
        if isinstance(op, (ops.MatrixMultiply, ops.SharedDot)):
            kinds = [
                v.tile.dtype if isinstance(v.type, TileType) else v.ref.dtype for v in (op.a, op.b)
            ]
            by = "the threads" if isinstance(op, ops.SharedDot) else "the tensor core"
            scaled = ""
            if isinstance(op, ops.ScaledMultiply):
                kinds = [f4e2m1, f4e2m1] if op.packed else kinds
                scaled = f", scaled by {op.a_scale.ref.dtype} for each {op.block} along k,"
            yield f"product of {kinds[0]} and {kinds[1]}{scaled} by {by} at {op.span}"


def _buffers(block: Block) -> Iterator[str]:
    for op in walk(block):
        if isinstance(op, ops.AllocSmem):
            size = op.result.ref.dtype.bits
            for extent in op.shape:
                size *= extent
            shape = "x".join(map(str, op.shape))
            yield f"  {size // 8} bytes: {op.dtype}[{shape}] {op.label} at {op.span}"
