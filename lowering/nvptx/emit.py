"""From a scheduled kernel to LLVM text, and the plan of its launches.

Invariant: the order of `Entry.slots` is the order of the entry's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import SCRATCH, Block, Module, Op, Param, Value, walk
from astdsl.ir.launch import (
    Check,
    DimSlot,
    Entry,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    Report,
    ScalarSlot,
    Scratch,
    Slot,
    StrideSlot,
)
from astdsl.ir.rewrite import free_values
from astdsl.ir.types import RefType
from astdsl.lowering.buffers import check_budget, plan_shared
from astdsl.lowering.host import HostExpressions
from astdsl.lowering.layout.inference import infer_layouts
from astdsl.lowering.layout.registers import splat
from astdsl.lowering.layout.shared import SharedPlan
from astdsl.lowering.nvptx import rules  # noqa: F401  (registers the rules)
from astdsl.lowering.nvptx.entry import enter, leave
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    Emitter,
    Log,
    MapKey,
    RefArgument,
    as_register,
)
from astdsl.lowering.nvptx.llvm import LaunchBounds, Parameter
from astdsl.lowering.nvptx.llvm import Module as LlvmModule
from astdsl.lowering.nvptx.values import LV, i64
from astdsl.lowering.target import Target
from astdsl.lowering.tensor_maps import pieces
from astdsl.lowering.windows import Forms
from astdsl.source import NOWHERE


@dataclass(frozen=True, slots=True)
class Emitted:
    """The LLVM text of a kernel, how to launch it, and the shared memory of each launch."""

    text: str
    plan: LaunchPlan
    shared: tuple[SharedPlan, ...]


def emit(module: Module, target: Target) -> Emitted:
    """Write a module of launches as LLVM text, each an entry of its own."""
    launches = [op for op in module.body.ops if isinstance(op, ops.Launch)]
    assert launches, "a scheduled module has launches"
    allocations = [op for op in module.body.ops if isinstance(op, ops.AllocGmem)]
    params = (*module.params, *(_scratch_param(k, op) for k, op in enumerate(allocations)))
    host = HostExpressions(module)
    llvm = LlvmModule()
    name = kernel_name(module.name)
    names = [name] if len(launches) == 1 else [f"{name}_{n}" for n in range(1, len(launches) + 1)]
    reports: dict[Op, int] = {
        op: number
        for number, op in enumerate(op for op in walk(module.body) if isinstance(op, _REPORTS))
    }
    emitted = [
        _Launch(module, launch, params, target).emit(llvm, each, host, reports)
        for launch, each in zip(launches, names, strict=True)
    ]
    plan = LaunchPlan(
        target=target.name,
        entries=tuple(entry for entry, _ in emitted),
        scratch=tuple(_scratch(op, host) for op in allocations),
        checks=tuple(
            Check(
                host[op.condition],
                op.pieces,
                op.span,
                tuple((host[v], v.tile.dtype) for v in op.values),
            )
            for op in module.body.ops
            if isinstance(op, ops.Assert)
        ),
        reports=tuple(map(_report, reports)),
    )
    return Emitted(llvm.text(), plan, tuple(shared for _, shared in emitted))


# What a running block may say.
_REPORTS = (ops.Print, ops.DeviceAssert)
_LOG = "log."


def _report(op: Op) -> Report:
    assert isinstance(op, _REPORTS), f"{op} says nothing"
    types = tuple((v.tile.shape, v.tile.dtype) for v in op.values)
    return Report(op.pieces, types, op.span, is_assertion=isinstance(op, ops.DeviceAssert))


def _scratch_param(number: int, op: ops.AllocGmem) -> Param:
    # No parameter that a user names has a dot in its name.
    return Param(value=op.result, name=f"{op.label}.{number}", role=SCRATCH, span=op.span)


def _scratch(op: ops.AllocGmem, host: HostExpressions) -> Scratch:
    dims = iter(op.dims)
    shape = tuple(host[next(dims)] if n is None else n for n in op.shape)
    return Scratch(op.label or "scratch", shape, op.dtype, op.span)


class _Launch:
    """One launch of a module; `params` are the kernel's, then its scratch."""

    def __init__(
        self, module: Module, launch: ops.Launch, params: Sequence[Param], target: Target
    ) -> None:
        self.module = module
        self.launch = launch
        self.params = params
        self.target = target
        self.program = _program(module, launch)
        self.threads = launch.warpgroups * target.threads_per_warpgroup
        self.runners = launch.warpgroups if launch.per_warpgroup else 0
        self.shared = plan_shared(self.program, target, max(1, self.runners))

    def emit(
        self, llvm: LlvmModule, name: str, host: HostExpressions, reports: Mapping[Op, int]
    ) -> tuple[Entry, SharedPlan]:
        """Write the entry `name`; `reports` numbers what blocks may say."""
        if self.runners > 1:
            # Only when all is written is it known how far the scratches are apart.
            self._write(LlvmModule(), name, reports)
            self.shared.scratch_stride_bytes = self.shared.scratch_bytes
        slots = self._write(llvm, name, reports)
        # Only now is it known what tiles that change their layout pass through.
        buffers = [op for op in walk(self.program) if isinstance(op, ops.AllocSmem)]
        check_budget(self.shared, buffers, self.target)
        entry = Entry(
            name=name,
            slots=slots,
            grid=host[ops.yielded(self.launch.grid)[0]],
            threads=self.threads,
            shared_bytes=self.shared.total_bytes,
        )
        return entry, self.shared

    def _write(self, llvm: LlvmModule, name: str, reports: Mapping[Op, int]) -> tuple[Slot, ...]:
        """Write the entry into a module; return its parameters."""
        program, target = self.program, self.target
        threads = self.threads // max(1, self.runners)
        given = [param.value for param in self.params]
        placements = infer_layouts(program, threads, target, given)
        parameters = _Parameters(self.params, program, self.shared)
        says = not reports.keys().isdisjoint(walk(program))
        if says:
            parameters.add_log(len(self.params))
        builder = llvm.kernel(name, parameters.declared, self._bounds())
        if self.module.span is not NOWHERE:
            builder.debug(self.module.span.file, self.module.span.line)
        emitter = Emitter(
            builder, target, threads, placements, self.shared, Forms(program),
            warpgroups=self.runners, approx_math=self.module.approx_math,
        )  # fmt: skip
        emitter.used = frozenset(v for op in walk(program) for v in op.operands)
        parameters.define(emitter)
        if says:
            emitter.log = Log(builder.parameters[_LOG], reports)
        _body(emitter, program)
        return tuple(parameters.slots)

    def _bounds(self) -> LaunchBounds:
        """Return what the entry promises: for `setmaxnreg`, enough to know its registers."""
        trades = any(isinstance(op, ops.SetMaxRegisters) for op in walk(self.program))
        return LaunchBounds(threads=self.threads, blocks_per_multiprocessor=int(trades))


# What PTX has already given a meaning (PTX ISA 4.4), beside names that begin with `%`.
PREDEFINED = {"WARP_SZ"}


def kernel_name(name: str) -> str:
    """Return a PTX identifier for a kernel's name."""
    plain = re.sub(r"[^A-Za-z0-9_]", lambda m: f"_{ord(m[0]):x}_", name)
    is_free = plain[:1].isalpha() and plain not in PREDEFINED
    return plain if is_free else f"kernel_{plain}"


def _program(module: Module, launch: ops.Launch) -> Block:
    """Return what a block runs: the launch's body, behind what it uses of the module's scalars."""
    wanted = set(free_values(launch.body))
    before: list[Op] = []
    for op in reversed(module.body.ops[: module.body.ops.index(launch)]):
        if wanted.intersection(op.results) and not isinstance(op, ops.AllocGmem):
            before.append(op)
            wanted.update(op.operands)
    return Block(args=launch.body.args, ops=(*reversed(before), *launch.body.ops))


def _body(emitter: Emitter, program: Block) -> None:
    builder = emitter.builder
    (block,) = program.args
    number = builder.cast("zext", builder.special_register("ctaid.x"), "i64")
    emitter.placements[block] = splat((), emitter.threads)
    emitter.define(block, splat((), emitter.threads), [number])
    with emitter.run_by(emitter.block_crew):
        enter(emitter, program)
    emitter.block(program)
    with emitter.run_by(emitter.block_crew):
        leave(emitter)


class _Parameters:
    """The kernel's parameters: what its body uses of each argument, and no more."""

    def __init__(self, params: Sequence[Param], program: Block, shared: SharedPlan) -> None:
        self.declared: list[Parameter] = []
        self.slots: list[Slot] = []
        self._numbers: list[tuple[Value, Slot, str]] = []
        used = {v for op in walk(program) for v in op.operands}
        maps = _maps(program, shared)
        self._changed = _changed(program)
        for number, param in enumerate(params):
            if param.value in used:
                self._param(number, param, maps.get(param.value, {}))

    def _param(self, number: int, param: Param, maps: dict[MapKey, None]) -> None:
        if not isinstance(param.value.type, RefType):
            dtype = param.value.tile.dtype
            scalar = Parameter.scalar(param.name, MEMORY_TYPES[dtype.name])
            self._add(param.value, ScalarSlot(number, dtype), scalar)
            return
        ref = param.value.type
        read_only = param.value not in self._changed
        array = Parameter.array(param.name, align=ref.align_bytes, read_only=read_only)
        self._add(param.value, PointerSlot(number), array)
        for axis in range(ref.rank):
            if ref.shape[axis] is None:
                dim = Parameter.scalar(f"{param.name}.dim{axis}", "i64")
                self._add(param.value, DimSlot(number, axis), dim)
            if ref.strides[axis] is None:
                stride = Parameter.scalar(f"{param.name}.stride{axis}", "i64")
                self._add(param.value, StrideSlot(number, axis), stride)
        for key in maps:
            tensor_map = Parameter.tensor_map(f"{param.name}.map{len(self.declared)}")
            self._add(param.value, MapSlot(number, *key), tensor_map)

    def _add(self, value: Value, slot: Slot, parameter: Parameter) -> None:
        self._numbers.append((value, slot, parameter.name))
        self.slots.append(slot)
        self.declared.append(parameter)

    def add_log(self, number: int) -> None:
        """Declare the log, the parameter after all others."""
        self.slots.append(PointerSlot(number))
        self.declared.append(Parameter.array(_LOG))

    def define(self, emitter: Emitter) -> None:
        """Tell the emitter where each argument is."""
        found: dict[Value, list[tuple[Slot, LV]]] = {}
        for value, slot, name in self._numbers:
            found.setdefault(value, []).append((slot, emitter.builder.parameters[name]))
        for value, numbers in found.items():
            if isinstance(value.type, RefType):
                emitter.arguments[value] = _argument(value.type, numbers)
            else:
                _define_scalar(emitter, value, numbers[0][1])


def _define_scalar(emitter: Emitter, value: Value, number: LV) -> None:
    layout = splat((), emitter.threads)
    emitter.placements[value] = layout
    emitter.define(value, layout, [as_register(emitter.builder, number, value.tile.dtype)])


def _argument(ref: RefType, numbers: list[tuple[Slot, LV]]) -> RefArgument:
    dims = {s.axis: v for s, v in numbers if isinstance(s, DimSlot)}
    strides = {s.axis: v for s, v in numbers if isinstance(s, StrideSlot)}
    (pointer,) = (v for s, v in numbers if isinstance(s, PointerSlot))
    maps = {(s.order, s.box, s.swizzle_bytes): v for s, v in numbers if isinstance(s, MapSlot)}
    return RefArgument(
        pointer,
        tuple(dims.get(a) or i64(_known(n)) for a, n in enumerate(ref.shape)),
        tuple(strides.get(a) or i64(_known(n)) for a, n in enumerate(ref.strides)),
        dict(maps),
    )


def _known(number: int | None) -> int:
    # What is not known has a slot, and the slot's value is taken.
    return number or 0


def _changed(program: Block) -> set[Value]:
    """Return the arrays that a launch does more with than read them."""
    reads = (ops.Load, ops.Gather, ops.CopyIn, ops.Dim)
    return {v for op in walk(program) if not isinstance(op, reads) for v in op.operands}


def _maps(program: Block, shared: SharedPlan) -> dict[Value, dict[MapKey, None]]:
    """Return the tensor maps that copies of each array use, in order of first use."""
    found: dict[Value, dict[MapKey, None]] = {}
    for op in walk(program):
        if isinstance(op, ops.Copy):
            key = pieces(op, shared.layouts[op.buffer]).key
            found.setdefault(op.ref, {})[key] = None
    return found
