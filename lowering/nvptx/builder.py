"""Writes one kernel as LLVM assembly, instruction by instruction.

Invariant: `Builder` holds the cursor, which is the block that is being written and the current
source location; every load, store, call and inline instruction carries that location.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from astdsl.lowering.nvptx import folding
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.blocks import BasicBlock, Guard, Phi, require_type
from astdsl.lowering.nvptx.debug import LineTable
from astdsl.lowering.nvptx.globals import Globals
from astdsl.lowering.nvptx.intrinsics import check_operands, signature
from astdsl.lowering.nvptx.known import Known
from astdsl.lowering.nvptx.values import (
    GENERIC,
    LV,
    SHARED,
    Label,
    element_of,
    is_float,
    lanes_of,
    repeated,
    undefined,
    vector,
)

# No kernel can have this name: Python's have no `$`.
SHARED_ARRAY = LV(SHARED, "@smem$")
"""All shared memory of a block.  Unsized and external: from a sized array LLVM would hoist loads
above the branch that guards them."""

INTEGER_OPERATIONS = frozenset(
    ("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "shl", "lshr", "ashr", "and", "or", "xor")
)
FLOAT_OPERATIONS = frozenset(("fadd", "fsub", "fmul", "fdiv", "frem"))
CASTS = frozenset(
    (
        *("trunc", "zext", "sext", "fptrunc", "fpext", "fptosi", "fptoui", "sitofp", "uitofp"),
        *("bitcast", "ptrtoint", "inttoptr", "addrspacecast"),
    )
)


_VALUE_NAME = re.compile(r"%v\.\d+")


class _Lane(NamedTuple):
    """Where a scalar was taken from, and the line that takes it."""

    vector: LV
    number: int
    line: str


class Builder:
    """Writes one kernel, instruction by instruction, at a cursor.

    Every method that makes a value returns it as an `LV`.  A type that does not fit is our own
    bug, an AssertionError.
    """

    def __init__(self, shared: Globals, name: str, parameters: dict[str, LV]) -> None:
        self.globals = shared
        self.name = name
        self.parameters = parameters
        self._names = 0
        self._blocks: dict[str, BasicBlock] = {}
        self._lanes: dict[str, _Lane] = {}
        # What a widened value was before, by its name and the type it had.
        self._narrow: dict[tuple[str, str], LV] = {}
        self._never_read: dict[str, list[str]] = {}
        self._lines: LineTable | None = None
        self._debug = ""
        self._guard: Guard | None = None
        self._block = self._new_block(Label("entry"), Known())

    def debug(self, file: str, line: int) -> None:
        """Turn line information on: the kernel begins at `line` of `file`."""
        self._lines = LineTable(self.globals.node, self.name, file, line)
        self.globals.add_unit(self._lines.unit)
        self.locate(file, line, 1)

    def locate(self, file: str, line: int, column: int) -> None:
        """Set the source location of what is written from now on; without `debug` a no-op."""
        if self._lines is not None:
            self._debug = f", !dbg {self._lines.location(file, line, column)}"

    def block(self, hint: str = "bb") -> Label:
        """Make a new, empty basic block; the cursor stays.

        The block under the cursor has to dominate it: what is made there is used there.
        """
        return self._make_block(hint, self._block.known.inside()).label

    def position(self, label: Label) -> None:
        """Move the cursor to the end of a block."""
        self._block = self._blocks[label.name]

    @property
    def current(self) -> Label:
        """The block under the cursor; the source of a phi's arm."""
        return self._block.label

    @contextmanager
    def guarded(self, predicate: LV, hint: str = "then") -> Iterator[None]:
        """Write the body for threads where `predicate` holds; go on with all of them."""
        guard = self._reopened(predicate) or self._opened(predicate, hint)
        self._block = guard.body
        yield
        guard.leave_from(self._block)
        self.br(guard.after.label)
        self._block, self._guard = guard.after, guard

    def _opened(self, predicate: LV, hint: str) -> Guard:
        before = self._block
        body = self._make_block(hint, before.known.inside())
        after = self._make_block(f"{hint}.end", before.known)
        self.cond_br(predicate, body.label, after.label)
        return Guard(predicate, before, body, after)

    def _reopened(self, predicate: LV) -> Guard | None:
        """Return the guard that has just been left, to go on in its body: one branch for both.

        What was computed since then moves in front of its branch.
        """
        guard = self._guard
        if guard is None or guard.after is not self._block or guard.predicate != predicate:
            return None
        return guard if guard.reopen() else None

    def text(self) -> str:
        """Print the body of the kernel, from the attributes after its parameters on."""
        debug = f" !dbg {self._lines.subprogram}" if self._lines else ""
        blocks = "\n".join(block.text() for block in self._blocks.values())
        unused = self._unused_lanes(blocks).union(*self._never_read.values())
        if unused:
            blocks = "\n".join(block.text(unused) for block in self._blocks.values())
        return f"{debug} {{\n{blocks}\n}}"

    def _unused_lanes(self, text: str) -> set[str]:
        """Return the lines of the lanes that nothing names: vectors were used whole."""
        if not self._lanes:
            return set()
        named = Counter(_VALUE_NAME.findall(text))
        return {lane.line for name, lane in self._lanes.items() if named[name] == 1}

    def binary(self, operation: str, left: LV, right: LV, flags: str = "") -> LV:
        """Apply or fold an arithmetic instruction; `flags` are LLVM's (``nsw``, ``contract``)."""
        allowed = FLOAT_OPERATIONS if is_float(left.type) else INTEGER_OPERATIONS
        if operation not in allowed:
            raise AssertionError(f"{operation} does not apply to {left.type}")
        require_type(right, left.type, operation)
        folded = folding.binary(operation, left, right)
        if folded is not None:
            return folded
        flags = f" {flags}" if flags else ""
        return self._computed(
            left.type, f"{operation}{flags} {left.type} {left.name}, {right.name}"
        )

    def add(self, left: LV, right: LV) -> LV:
        """Add integers."""
        return self.binary("add", left, right)

    def sub(self, left: LV, right: LV) -> LV:
        """Subtract integers."""
        return self.binary("sub", left, right)

    def mul(self, left: LV, right: LV) -> LV:
        """Multiply integers."""
        return self.binary("mul", left, right)

    def and_(self, left: LV, right: LV) -> LV:
        """Take the bitwise and."""
        return self.binary("and", left, right)

    def or_(self, left: LV, right: LV) -> LV:
        """Take the bitwise or."""
        return self.binary("or", left, right)

    def xor(self, left: LV, right: LV) -> LV:
        """Take the bitwise exclusive or."""
        return self.binary("xor", left, right)

    def shl(self, left: LV, right: LV) -> LV:
        """Shift left; a count of the width or more gives poison."""
        return self.binary("shl", left, right)

    def lshr(self, left: LV, right: LV) -> LV:
        """Shift right, zeros coming in."""
        return self.binary("lshr", left, right)

    def fneg(self, value: LV) -> LV:
        """Flip the sign of floats, also of zeros and NaNs."""
        return self._computed(value.type, f"fneg {value.typed}")

    def icmp(self, condition: str, left: LV, right: LV) -> LV:
        """Compare integers or pointers: ``eq ne slt sle sgt sge ult ule ugt uge``."""
        known = folding.compare(condition, left, right)
        return self._compare("icmp", condition, left, right) if known is None else known

    def fcmp(self, condition: str, left: LV, right: LV) -> LV:
        """Compare floats: ``oeq one olt ...`` are false on NaN, ``une ult ...`` true."""
        return self._compare("fcmp", condition, left, right)

    def select(self, condition: LV, yes: LV, no: LV) -> LV:
        """Choose between two values; neither is skipped."""
        require_type(no, yes.type, "select")
        folded = folding.select(condition, yes, no)
        if folded is not None:
            return folded
        return self._computed(yes.type, f"select {condition.typed}, {yes.typed}, {no.typed}")

    def cast(self, operation: str, value: LV, type: str) -> LV:
        """Convert a value by one of LLVM's cast instructions; to its own type, for free."""
        if operation not in CASTS:
            raise AssertionError(f"{operation} is not a cast")
        if value.type == type:
            return value
        folded = folding.cast(operation, value, type)
        if folded is None and operation == "trunc":
            folded = self._narrow.get((value.name, type))
        if folded is not None:
            return folded
        converted = self._computed(type, f"{operation} {value.typed} to {type}")
        if operation in ("zext", "sext"):
            self._narrow[converted.name, value.type] = value
        return converted

    def shared_address(self, pointer: LV) -> LV:
        """Give the 32-bit address of a place in shared memory, as inline PTX wants it."""
        require_type(pointer, SHARED, "shared_address")
        return self.cast("ptrtoint", pointer, "i32")

    def shared(self, offset_bytes: int) -> LV:
        """Give a pointer to a fixed place in the block's shared memory."""
        if not offset_bytes:
            return SHARED_ARRAY
        return LV(SHARED, f"getelementptr (i8, {SHARED_ARRAY.typed}, i32 {offset_bytes})")

    def variable(self, initial: LV) -> LV:
        """Make a place for a value that changes; LLVM turns it into registers.

        It stands in the entry block, the only one where LLVM does so.
        """
        place = self._fresh(GENERIC, "variable")
        entry = self._blocks["entry"]
        made = [
            f"  {place.name} = alloca {initial.type}",
            f"  store {initial.typed}, {place.typed}",
        ]
        self._never_read[place.name] = made
        entry.lines[:0] = made
        entry.known.variables[place.name] = initial
        return place

    def declare(self, row: AsmRow) -> None:
        """Write a row without operands before everything else, so that all blocks follow it."""
        row.check(())
        self._blocks["entry"].lines.insert(0, f"  call void {row.callee}(){row.attributes}")

    def gep(self, element: str, pointer: LV, index: LV) -> LV:
        """Move a pointer by `index` elements of type `element`."""
        if folding.number_of(index) == 0:
            return pointer
        return self._computed(
            pointer.type, f"getelementptr {element}, {pointer.typed}, {index.typed}"
        )

    def load(self, type: str, pointer: LV, align: int) -> LV:
        """Load a value; `align` in bytes is a promise."""
        return self._value(type, f"load {type}, {pointer.typed}, align {align}{self._debug}")

    def store(self, value: LV, pointer: LV, align: int) -> None:
        """Store a value; `align` in bytes is a promise."""
        self._line(f"store {value.typed}, {pointer.typed}, align {align}{self._debug}")

    def held(self, type: str, variable: LV) -> LV:
        """Return what a variable holds."""
        known = self._block.known
        value = known.variables.get(variable.name)
        if value is None:
            value = self._fresh(type, "held")
            self._block.lines.append(f"  {value.name} = load {type}, {variable.typed}")
            self._never_read.pop(variable.name, None)
            known.variables[variable.name] = value
        known.uses_variables = True
        return value

    def hold(self, variable: LV, value: LV) -> None:
        """Let a variable hold a value from now on."""
        known = self._block.known
        known.variables[variable.name] = value
        known.uses_variables = True
        line = f"  store {value.typed}, {variable.typed}"
        self._block.lines.append(line)
        if variable.name in self._never_read:
            self._never_read[variable.name].append(line)

    def extract(self, vector: LV, lane: int) -> LV:
        """Take one lane out of a vector."""
        if not 0 <= lane < lanes_of(vector.type):
            raise AssertionError(f"{vector.type} has no lane {lane}")
        return self._value(element_of(vector.type), f"extractelement {vector.typed}, i32 {lane}")

    def insert(self, into: LV, value: LV, lane: int) -> LV:
        """Replace one lane of a vector."""
        require_type(value, element_of(into.type), "insert")
        return self._computed(into.type, f"insertelement {into.typed}, {value.typed}, i32 {lane}")

    def pack(self, values: Sequence[LV]) -> LV:
        """Make a vector out of scalars, or of the vectors whose lanes they are."""
        if values[0].is_constant and values.count(values[0]) == len(values):
            return repeated(values[0], len(values))
        whole = self.vectors(values)
        if len(whole) == 1:
            return whole[0]
        if len(whole) == 2 and whole[0].type == whole[1].type:
            left, right = whole
            return self.shuffle(left, right, range(len(values)))
        packed = undefined(vector(len(values), values[0].type))
        for lane, value in enumerate(values):
            packed = self.insert(packed, value, lane)
        return packed

    def together(self, values: Sequence[LV], width: int) -> list[LV]:
        """Make vectors of `width` neighbours each; width 1 leaves scalars."""
        if width == 1:
            return list(values)
        return [self.pack(values[k : k + width]) for k in range(0, len(values), width)]

    def unpack(self, value: LV) -> list[LV]:
        """Split a vector into scalars; those that are never used cost nothing."""
        kind, first = element_of(value.type), self._names + 1
        self._names += lanes_of(value.type)
        lanes = [LV(kind, f"%v.{number}") for number in range(first, self._names + 1)]
        made = [
            _Lane(value, number, f"  {lane.name} = extractelement {value.typed}, i32 {number}")
            for number, lane in enumerate(lanes)
        ]
        self._lanes.update(zip([lane.name for lane in lanes], made, strict=True))
        self._write([lane.line for lane in made])
        return lanes

    def vectors(self, values: Sequence[LV]) -> list[LV]:
        """Return the vectors whose lanes `values` are, one after the other and each in full.

        Nothing if some value is no lane, or not in its vector's order.
        """
        found: list[LV] = []
        expected, count = 0, 0
        for value in values:
            lane = self._lanes.get(value.name)
            if lane is None or lane.number != expected:
                return []
            if expected == 0:
                found.append(lane.vector)
                count = lanes_of(lane.vector.type)
            elif lane.vector != found[-1]:
                return []
            expected = (expected + 1) % count
        return [] if expected else found

    def splat(self, value: LV, lanes: int) -> LV:
        """Make a vector with `value` in every lane."""
        if value.is_constant:
            return repeated(value, lanes)
        first = self.insert(undefined(vector(lanes, value.type)), value, 0)
        return self.shuffle(first, first, (0,) * lanes)

    def shuffle(self, left: LV, right: LV, lanes: Sequence[int]) -> LV:
        """Pick lanes from two vectors; the lanes of `right` count on from those of `left`."""
        require_type(right, left.type, "shuffle")
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self._computed(
            vector(len(lanes), element_of(left.type)),
            f"shufflevector {left.typed}, {right.typed}, <{len(lanes)} x i32> <{mask}>",
        )

    def phi(self, type: str, name: str = "phi") -> Phi:
        """Begin a phi at the head of the current block."""
        phi = Phi(self._fresh(type, name))
        self._block.phis.append(phi)
        return phi

    def br(self, target: Label) -> None:
        """Go to a block."""
        self._end(f"br label %{target.name}")

    def back_br(self, header: Label) -> None:
        """Go back to the head of a loop that LLVM must not unroll."""
        self._end(f"br label %{header.name}, !llvm.loop {self.globals.loop_node()}")

    def cond_br(self, condition: LV, yes: Label, no: Label, *, is_likely: bool = False) -> None:
        """Go to one of two blocks; LLVM moves nothing out of `no` if it `is_likely` skipped."""
        require_type(condition, "i1", "cond_br")
        weights = f", !prof {self.globals.likely_node()}" if is_likely else ""
        self._end(f"br i1 {condition.name}, label %{yes.name}, label %{no.name}{weights}")

    def ret(self) -> None:
        """End the kernel for this thread."""
        self._end("ret void")

    def unreachable(self) -> None:
        """End a block that nobody leaves (after a trap)."""
        self._end("unreachable")

    def asm(self, row: AsmRow, *operands: LV) -> tuple[LV, ...]:
        """Write an inline-PTX row and give its results, one for each output."""
        row.check(operands)
        given = ", ".join(operand.typed for operand in operands)
        types = row.result_types
        result = self.globals.result_type(types)
        call = f"call {result} {row.callee}({given}){row.attributes}{self._debug}"
        if not types:
            self._line(call)
            return ()
        if len(types) == 1:
            return (self._value(result, call),)
        aggregate = self._value(result, call)
        return tuple(
            self._value(type, f"extractvalue {aggregate.typed}, {number}")
            for number, type in enumerate(types)
        )

    def intrinsic(self, name: str, *operands: LV, result: str | None = None, flags: str = "") -> LV:
        """Call an intrinsic of the table; its overload follows from the first operand.

        Conversions (``llvm.fptosi.sat``) are told their `result` type as well.
        """
        found = signature(name, operands[0].type if operands else None, result)
        check_operands(found, [operand.type for operand in operands])
        self.globals.declare(found.name, found.declaration)
        return self._call(found.name, found.result, operands, flags)

    def call(self, name: str, result: str, *operands: LV) -> LV:
        """Call a function that the module defines (libdevice); it only computes."""
        return self._call(name, result, operands, "")

    def special_register(self, name: str) -> LV:
        """Read a special register: ``tid.x``, ``ctaid.y``, ``laneid``."""
        return self.intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}")

    def _call(self, name: str, result: str, operands: Sequence[LV], flags: str) -> LV:
        given = ", ".join(operand.typed for operand in operands)
        flags = f"{flags} " if flags else ""
        return self._computed(result, f"call {flags}{result} @{name}({given})", self._debug)

    def _compare(self, operation: str, condition: str, left: LV, right: LV) -> LV:
        require_type(right, left.type, operation)
        lanes = lanes_of(left.type)
        result = "i1" if element_of(left.type) == left.type else vector(lanes, "i1")
        return self._computed(
            result, f"{operation} {condition} {left.type} {left.name}, {right.name}"
        )

    def _make_block(self, hint: str, known: Known) -> BasicBlock:
        self._names += 1
        return self._new_block(Label(f"{hint}.{self._names}"), known)

    def _new_block(self, label: Label, known: Known) -> BasicBlock:
        block = self._blocks[label.name] = BasicBlock(label, known)
        return block

    def _fresh(self, type: str, name: str) -> LV:
        self._names += 1
        return LV(type, f"%{name}.{self._names}")

    def _computed(self, type: str, text: str, debug: str = "") -> LV:
        """Return what an instruction computes from its operands alone; written once."""
        block = self._block
        value = block.known.find(text)
        if value is None:
            self._names += 1
            value = block.known.made[text] = LV(type, f"%v.{self._names}")
            block.lines.append(f"  {value.name} = {text}{debug}")
        return value

    def _value(self, type: str, text: str) -> LV:
        self._names += 1
        name = f"%v.{self._names}"
        self._line(f"{name} = {text}")
        return LV(type, name)

    def _line(self, text: str) -> None:
        self._write([f"  {text}"])

    def _write(self, lines: Sequence[str]) -> None:
        block = self._block
        if block.ended:
            raise AssertionError(f"block {block.label.name} has ended: {lines[0]}")
        block.lines += lines
        block.is_movable = False

    def _end(self, text: str) -> None:
        self._line(text)
        self._block.ended = True
