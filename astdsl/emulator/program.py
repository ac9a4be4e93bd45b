"""A kernel made ready to run: every instruction resolved once to a function on (machine, lanes).

Invariant: a program does not depend on grid, block or arguments; it is shared by all launches of
one PTX text. Functions that the kernel calls follow its own instructions in one numbering.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from astdsl.emulator.faults import Unsupported
from astdsl.emulator.forms.check import check_form
from astdsl.emulator.forms.modules import check_module
from astdsl.emulator.isa import Control, Execute, Row
from astdsl.emulator.isa.families import lookup
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.layout import Layout, lay_out
from astdsl.emulator.liveness import Flow, unread, unwritten
from astdsl.emulator.machine import Fences, Machine
from astdsl.emulator.native.runs import Budget, NativeCode
from astdsl.emulator.operands import Operands, Site
from astdsl.emulator.register_waits import watch_loads
from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import all_of
from astdsl.emulator.syntax import Function, Instruction, Module
from astdsl.emulator.touches import watch
from astdsl.emulator.undefined import checked, followed, mark, require_defined
from astdsl.emulator.undefined_bits import anything

# Opcodes that use the async proxy: only programs with one of them pay for the hazard checks.
_ASYNCHRONOUS = ("mbarrier.", "cp.async.bulk", "cp.reduce.async.bulk", "wgmma.", "tcgen05.")


# Instructions that divert lanes and say themselves whether what they write is undefined.
_MARKING = (
    "shfl.", "vote.", "match.", "redux.", "elect.", "mma.", "ldmatrix", "tcgen05.ld", "wgmma.",
    "wmma.",
)  # fmt: skip
_ANSWERS = ("mbarrier.try_wait", "mbarrier.test_wait")
# By which warps of one block wait for each other.
_BARRIERS = ("bar.", "barrier.", *_ANSWERS)
_WAITS_RELAXED = re.compile(r"mbarrier\.t\w+_wait\..*relaxed")
# `bar` is `barrier` with `.aligned` (PTX ISA 9.7.13.1).
_ALIGNED = ("bar.sync", "bar.red", "bar.arrive", "bar.cta.")


@dataclass(slots=True)
class Program:
    """What a machine runs; indices are program counters."""

    kernel: Function
    target: str
    layout: Layout
    instructions: list[Instruction] = field(default_factory=list)
    steps: list[Execute] = field(default_factory=list)
    tracked: list[Execute] = field(default_factory=list)
    controls: list[Control | None] = field(default_factory=list)
    sensitive: list[tuple[Place, ...]] = field(default_factory=list)
    predicates: list[Place | None] = field(default_factory=list)
    # What control instructions write that do not mark undefined bits themselves.
    results: list[tuple[Place, ...]] = field(default_factory=list)
    touched: list[frozenset[Place]] = field(default_factory=list)
    guards: list[Callable[[Machine, Lanes], Lanes] | None] = field(default_factory=list)
    segment_ends: list[int] = field(default_factory=list)
    labelled: list[bool] = field(default_factory=list)
    entry: int = 0
    is_asynchronous: bool = False
    meets_other_blocks: bool = False
    fences: Fences = field(default_factory=Fences)
    cancels_clusters: bool = False
    loads_constants: bool = False
    ends_mbarriers: bool = False
    waits_relaxed: bool = False
    unwritten: tuple[Place, ...] = ()
    # Whether the use of registers is what waits for loads of tensor memory.
    waits_by_registers: bool = False
    # Waits whose answer nobody looks at.
    unread: frozenset[int] = frozenset()
    # Opcodes with the kinds of their operands, of which there are such forms.
    forms: set[Hashable] = field(default_factory=set)
    # By product, what touches its registers on some path from the last fence.
    touches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # By product, those of them that only write its accumulator.
    overwritten: dict[int, frozenset[int]] = field(default_factory=dict)
    native: NativeCode = field(default_factory=lambda: NativeCode((), Budget()))
    _place_texts: dict[int, str] = field(default_factory=dict)

    def place_text(self, pc: int) -> str:
        """Return where an instruction stands, for reports: kernel line and PTX line."""
        found = self._place_texts.get(pc)
        if found is None:
            instruction = self.instructions[pc]
            found = f"PTX line {instruction.ptx_line}"
            if instruction.kernel_line is not None:
                found = "{}:{}:{}, ".format(*instruction.kernel_line) + found
            self._place_texts[pc] = found
        return found

    def active(self, m: Machine, pc: int, lanes: Lanes) -> Lanes:
        """Return the lanes for which the instruction's guard predicate holds."""
        guard = self.guards[pc]
        return lanes if guard is None else guard(m, lanes)

    def is_aligned(self, pc: int) -> bool:
        """Say whether a warp must execute an instruction with all of its lanes."""
        opcode = self.instructions[pc].opcode
        return opcode.startswith(_ALIGNED) or ".aligned" in opcode

    def check_control(self, m: Machine, pc: int, lanes: Lanes) -> None:
        """Refuse an undefined predicate or operand of an instruction that diverts lanes.

        What it writes is defined, unless it says something else itself.
        """
        predicate = self.predicates[pc]
        if predicate is not None:
            require_defined(m, lanes, (predicate,))
        active = self.active(m, pc, lanes)
        if active.n:
            require_defined(m, active, self.sensitive[pc])
            for place in self.results[pc]:
                mark(m, place, active, None)


def prepare(module: Module, kernel: str) -> Program:
    """Make a kernel ready; refuses by name and line what is not modelled (`Unsupported`)."""
    function = module.functions.get(kernel)
    if function is None or not function.is_entry:
        entries = ", ".join(f.name for f in module.functions.values() if f.is_entry) or "none"
        raise Unsupported(f"there is no kernel `{kernel}` in this PTX; its kernels: {entries}")
    check_module(module, function)
    layout = lay_out(module, function)
    program = Program(function, module.target, layout)
    prepared: list[Operands] = []
    for each in layout.functions:
        start = layout.starts[each.name]
        for instruction in (*each.instructions, _implied_return(each)):
            site = Site(layout, each, start, len(program.steps))
            prepared.append(Operands(instruction, site))
            _append(program, prepared[-1])
    _cut(program)
    flows = _flows(prepared)
    program.unwritten = _unwritten(program, prepared, flows)
    program.unread = frozenset(_unread(program, prepared, flows))
    watched = watch(program, prepared) | watch_loads(program, prepared)
    program.native = NativeCode(prepared, Budget(), watched)
    program.fences = Fences(
        _has(program, "tcgen05.fence"),
        _has(program, "fence.mbarrier_init"),
        any(_has(program, opcode) for opcode in _BARRIERS),
        accumulators=True,
        loads=_has(program, "tcgen05.wait::ld"),
    )
    program.cancels_clusters = _has(program, "clusterlaunchcontrol.try_cancel")
    program.loads_constants = _has(program, "ld.global.nc")
    program.ends_mbarriers = _has(program, "mbarrier.inval")
    program.waits_relaxed = any(_WAITS_RELAXED.match(i.opcode) for i in program.instructions)
    return program


def _has(program: Program, opcode: str) -> bool:
    return any(each.opcode.startswith(opcode) for each in program.instructions)


def _implied_return(function: Function) -> Instruction:
    """End a body that runs off its end, as `ret` does (PTX ISA 9.7.12.6)."""
    line = function.instructions[-1].ptx_line if function.instructions else 0
    return Instruction("ret", (), None, False, line, None)


def _append(program: Program, ops: Operands) -> None:
    instruction = ops.instruction
    row = lookup(instruction.opcode)
    if row is None:
        raise ops.refuse("this opcode is not known to the emulator")
    check_form(ops, program.target, program.forms)
    body: Any = row.prepare(ops)
    step: Execute | None = None
    control: Control | None = None
    predicate = None
    if instruction.predicate is not None:
        predicate = ops.register_place(instruction.predicate)
        if predicate[0] != 1:
            raise ops.refuse(f"its guard {instruction.predicate} is not a predicate")
    if row.control:
        control = body
        if predicate is not None and control is not None:
            control = _guarded_control(control, predicate, instruction.negated)
        track: Execute | None = None
    else:
        step = body
        if step is None:
            raise AssertionError(f"no step for {instruction.opcode}")
        track = _tracked(row, ops, step)
        if predicate is not None:
            step = _guarded(step, predicate, instruction.negated)
            track = checked(_guarded(track, predicate, instruction.negated), (predicate,))
    program.instructions.append(instruction)
    program.steps.append(step or _unreachable)
    program.tracked.append(track or _unreachable)
    program.controls.append(control)
    program.sensitive.append(tuple(ops.sensitive))
    program.predicates.append(predicate)
    marks = instruction.opcode.startswith(_MARKING) or not row.control
    program.results.append(() if marks else tuple(ops.writes))
    program.touched.append(frozenset((*ops.reads, *ops.writes, *ops.sensitive)))
    guard = None if predicate is None else _active(predicate, instruction.negated)
    program.guards.append(guard)
    program.meets_other_blocks |= _meets_other_blocks(ops)
    program.is_asynchronous |= instruction.opcode.startswith(_ASYNCHRONOUS)


def _tracked(row: Row, ops: Operands, step: Execute) -> Execute:
    """Return a step that follows undefined bits, for where there are any."""
    if not row.tracks:
        flow = (row.bits or anything)(ops)
        step = followed(step, ops.looked_at(), tuple(ops.writes), flow)
    return checked(step, tuple(ops.sensitive)) if ops.sensitive else step


def _meets_other_blocks(ops: Operands) -> bool:
    """Say whether an instruction may wait for, or signal to, other blocks in global memory."""
    base = ops.instruction.opcode.partition(".")[0]
    if any(word.startswith(("shared", "local", "param")) for word in ops.modifiers):
        return False
    flags = any(ops.has(word) for word in ("acquire", "relaxed", "volatile", "mmio"))
    return base in ("atom", "red") or (base == "ld" and flags)


def _flows(prepared: list[Operands]) -> list[Flow]:
    found = []
    for ops in prepared:
        surely = ops.writes if ops.instruction.predicate is None else ()
        found.append(Flow(frozenset(_read_by(ops)), frozenset(surely)))
    return found


def _unread(program: Program, prepared: list[Operands], flows: list[Flow]) -> Iterator[int]:
    """Yield the waits for mbarriers whose answer nothing reads."""
    for function in program.layout.functions:
        start = program.layout.starts[function.name]
        own = flows[start : start + len(function.instructions)]
        opcodes = [instruction.opcode for instruction in function.instructions]
        for pc in [pc for pc, opcode in enumerate(opcodes) if opcode.startswith(_ANSWERS)]:
            if all(unread(function, pc, place, own) for place in prepared[start + pc].writes):
                yield start + pc


def _unwritten(program: Program, prepared: list[Operands], flows: list[Flow]) -> tuple[Place, ...]:
    """Return the kernel's registers that begin as undefined, as one may read them unwritten."""
    left_alone = _padding(prepared)
    for pc, ops in enumerate(prepared):
        if program.controls[pc] is not None and not ops.instruction.opcode.startswith(_MARKING):
            left_alone.update(ops.writes)
    kernel = program.layout.functions[0]
    return tuple(place for place in unwritten(kernel, flows) if place not in left_alone)


def _read_by(ops: Operands) -> set[Place]:
    found = {*ops.reads, *ops.sensitive, *ops.holds}
    if ops.instruction.predicate is not None:
        found.add(ops.register_place(ops.instruction.predicate))
    return found


def _padding(prepared: list[Operands]) -> set[Place]:
    """Return the registers that only fill up wider ones: never written, read to pack alone.

    LLVM packs a value and nothing so, and takes the value out again.
    """
    packed: set[Place] = set()
    other: set[Place] = set()
    for ops in prepared:
        packs = _packed_by(ops)
        packed |= packs
        other |= _read_by(ops) - packs
        other.update(ops.writes)
    return packed - other


def _packed_by(ops: Operands) -> set[Place]:
    """Return the registers that an instruction packs into a wider one, or whose bytes it picks."""
    opcode, last = ops.instruction.opcode, ops.args[-1] if ops.args else None
    if last is not None and opcode.startswith("mov.b") and ops.is_vector(last):
        return set(ops.reads)
    if last is not None and opcode.startswith("prmt."):
        return set(ops.reads) - set(ops.registers(last))
    return set()


def _unreachable(m: Machine, lanes: Lanes) -> None:
    raise AssertionError("a control instruction was run as a plain one")


def _active(predicate: Place, negated: bool) -> Callable[[Machine, Lanes], Lanes]:
    row = predicate[1]

    def active(m: Machine, lanes: Lanes) -> Lanes:
        mask = m.views[1, "pred"][row, lanes.sel]
        if negated:
            mask = ~mask
        return lanes if all_of(mask) else lanes.where(mask)

    return active


def _guarded(body: Execute, predicate: Place, negated: bool) -> Execute:
    active = _active(predicate, negated)

    def execute(m: Machine, lanes: Lanes) -> None:
        some = active(m, lanes)
        if some.n:
            body(m, some)

    return execute


def _guarded_control(body: Control, predicate: Place, negated: bool) -> Control:
    active = _active(predicate, negated)

    def execute(m: Machine, lanes: Lanes) -> Lanes | None:
        some = active(m, lanes)
        if some is lanes:
            return body(m, lanes)
        if not some.n:
            return None
        idle = lanes.minus(some)
        rest = body(m, some)
        return idle.union(some if rest is None else rest)

    return execute


def _cut(program: Program) -> None:
    """Find for each place where straight-line code from there must stop: control, or a label."""
    n = len(program.steps)
    targets = {0}
    for function in program.layout.functions:
        start = program.layout.starts[function.name]
        targets.add(start)
        targets.update(start + offset for offset in function.labels.values())
    ends = [n] * (n + 1)
    for pc in range(n - 1, -1, -1):
        if program.controls[pc] is not None:
            ends[pc] = pc
        elif pc + 1 in targets:
            ends[pc] = pc + 1
        else:
            ends[pc] = ends[pc + 1]
    program.segment_ends = ends
    program.labelled = [pc in targets for pc in range(n + 1)]
    program.controls.append(None)
