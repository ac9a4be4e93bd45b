"""Lowering of indexed accesses: gathers, scatters, atomic updates.

Invariant: an element that is left out is never touched. Rows along the contiguous axis are read and
written by wide accesses where the window is inside, each with the predicate of its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import DType, f32
from astdsl.ir.types import GMEM
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.asm.atomics import WORD_BYTES, add_floats, atomic, guarded_words
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.elements import GlobalElements, SharedElements, elements_of, owned
from astdsl.lowering.nvptx.function import (
    Emitter,
    Scratch,
    as_memory,
    as_register,
    element,
    llvm_type,
    lowers,
    lowers_tile,
)
from astdsl.lowering.nvptx.rules.arith import PLAIN
from astdsl.lowering.nvptx.rules.memory import (
    choose,
    in_arms,
    load_guarded,
    store_guarded,
    store_vector,
)
from astdsl.lowering.nvptx.values import LV, i1, vector, zero


@lowers_tile(ops.Gather)
def _gather(emitter: Emitter, op: ops.Gather, layout: Layout) -> Sequence[LV]:
    elements = elements_of(emitter, op, layout)
    if isinstance(elements, SharedElements):
        return _gather_shared(emitter, elements, op)
    width = elements.vector
    if width == 1:
        return load_guarded(emitter, elements, op)
    inside = elements.all_inside()
    if inside is None:
        return _gather_wide(emitter, elements, width, op.fill)
    return choose(
        emitter,
        inside,
        lambda: _gather_wide(emitter, GlobalElements(emitter, op, layout), width, op.fill),
        lambda: load_guarded(emitter, GlobalElements(emitter, op, layout), op),
        width,
    )


def _gather_shared(emitter: Emitter, elements: SharedElements, op: ops.Gather) -> list[LV]:
    builder, dtype = emitter.builder, elements.dtype
    found = []
    for k in range(elements.layout.register_count):
        loaded = builder.load(elements.type, elements.address(k), dtype.bytes)
        value, inside = as_register(builder, loaded, dtype), elements.inside(k)
        fill = element(dtype, op.fill)
        found.append(value if inside is None else builder.select(inside, value, fill))
    return found


def _gather_wide(
    emitter: Emitter, elements: GlobalElements, width: int, fill: float | int | bool
) -> list[LV]:
    builder, dtype = emitter.builder, elements.dtype
    count = width * dtype.bytes // WORD_BYTES
    outside = builder.pack([as_memory(builder, element(dtype, fill), dtype)] * width)
    words = builder.unpack(builder.cast("bitcast", outside, vector(count, "i32")))
    found: list[LV] = []
    for first in range(0, elements.layout.register_count, width):
        hit = elements.hit(first) or i1(True)
        loaded = builder.asm(guarded_words(count), *words, elements.address(first), hit)
        row = builder.cast("bitcast", builder.pack(loaded), vector(width, elements.type))
        found += [as_register(builder, e, dtype) for e in builder.unpack(row)]
    return found


@lowers(ops.Scatter)
def _scatter(emitter: Emitter, op: ops.Scatter) -> None:
    layout = emitter.settled(op.value, emitter.default_layout(op.value.tile))
    registers = emitter.get(op.value, layout)
    elements = elements_of(emitter, op, layout)
    if isinstance(elements, SharedElements):
        _scatter_shared(emitter, elements, registers)
        return
    owner, width = emitter.is_owner(layout), elements.vector
    if width == 1:
        store_guarded(emitter, elements, registers, owner)
        return
    inside = elements.all_inside()
    if inside is None:
        _scatter_wide(emitter, elements, registers, width)
        return
    in_arms(
        emitter,
        inside,
        lambda: _scatter_wide(emitter, GlobalElements(emitter, op, layout), registers, width),
        lambda: store_guarded(emitter, GlobalElements(emitter, op, layout), registers, owner),
    )


def _scatter_wide(
    emitter: Emitter, elements: GlobalElements, registers: Sequence[LV], width: int
) -> None:
    owner = emitter.is_owner(elements.layout)
    for first in range(0, len(registers), width):
        # Made outside of the guard, what it is computed from serves the next rows too.
        place, keep = elements.address(first), emitter.both(owner, elements.hit(first))
        with emitter.guarded(keep):
            store_vector(emitter, elements.dtype, registers[first : first + width], place)


def _scatter_shared(emitter: Emitter, elements: SharedElements, registers: Sequence[LV]) -> None:
    builder, dtype = emitter.builder, elements.dtype
    for k, keep in enumerate(owned(emitter, elements, range(len(registers)))):
        place = elements.address(k)
        with emitter.guarded(keep):
            builder.store(as_memory(builder, registers[k], dtype), place, dtype.bytes)


# What the hardware does in one instruction: PTX ISA 9.7.13.5, by kind and dtype.
_SIGNED = {"i32": "s32", "u32": "u32", "i64": "s64", "u64": "u64"}
_WORDS = {"i32": "b32", "u32": "b32", "i64": "b64", "u64": "b64"}
_BITS = {16: "b16", 32: "b32", 64: "b64"}
_SUMS = {"i32": "u32", "u32": "u32", "i64": "u64", "u64": "u64", "f32": "f32", "f64": "f64"}
_NATIVE: dict[str, dict[str, str]] = {
    "add": _SUMS | {"f16": "noftz.f16", "bf16": "noftz.bf16"},
    "max": _SIGNED,
    "min": _SIGNED,
    "and": _WORDS,
    "or": _WORDS,
    "xor": _WORDS,
}
_AS_ARITHMETIC: dict[str, type[Op]] = {
    "add": ops.Add,
    "max": ops.Maximum,
    "min": ops.Minimum,
    "and": ops.BitAnd,
    "or": ops.BitOr,
    "xor": ops.BitXor,
}


class _Updates:
    """Writes the updates of one atomic operation, element by element."""

    def __init__(self, emitter: Emitter, op: ops.Atomic) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.op = op
        self.dtype: DType = op.ref.ref.dtype
        self.type = llvm_type(self.dtype)
        self.integer = f"i{self.dtype.bits}"
        self.is_shared = op.ref.ref.space != GMEM

    def update(self, place: LV, value: LV, other: LV | None, keep: LV) -> LV:
        """Write one update where `keep` holds; return the value before, 0 where it does not."""
        address = self.builder.shared_address(place) if self.is_shared else place
        native = _NATIVE.get(self.op.kind, {}).get(self.dtype.name)
        if native is not None:
            row = self._row(f"{self.op.kind}.{native}", self.type)
            (old,) = self.builder.asm(row, zero(self.type), address, value, keep)
            return old
        if self.op.kind == "exchange" and self.dtype.bits > _SMALLEST_EXCHANGE_BITS:
            row = self._row(f"exch.{_BITS[self.dtype.bits]}", self.integer)
            operands = (zero(self.integer), address, self._bits(value), keep)
            return self._from_bits(self.builder.asm(row, *operands)[0])
        if self.op.kind == "cas":
            assert other is not None, "cas compares"
            return self._from_bits(self._swap(address, self._bits(other), self._bits(value), keep))
        return self._loop(address, value, keep)

    def _row(self, operation: str, type: str) -> AsmRow:
        op = self.op
        return atomic(operation, type, is_shared=self.is_shared, order=op.order, scope=op.scope)

    def _swap(self, address: LV, compared: LV, value: LV, keep: LV) -> LV:
        row = self._row(f"cas.{_BITS[self.dtype.bits]}", self.integer)
        (old,) = self.builder.asm(row, zero(self.integer), address, compared, value, keep)
        return old

    def _loop(self, address: LV, value: LV, keep: LV) -> LV:
        """Try to swap in the new value until nobody came between.

        The first try guesses that memory holds 0, and learns what it holds.
        """
        builder = self.builder
        before = builder.current
        head, after = builder.block("retry"), builder.block("updated")
        builder.cond_br(keep, head, after)
        builder.position(head)
        with self.emitter.scope():
            guess = builder.phi(self.integer)
            guess.add(zero(self.integer), before)
            new = self._new(self._from_bits(guess.value), value)
            seen = self._swap(address, guess.value, self._bits(new), i1(True))
            guess.add(seen, builder.current)
            last = builder.current
            builder.cond_br(builder.icmp("eq", seen, guess.value), after, head)
        builder.position(after)
        result = builder.phi(self.integer)
        result.add(zero(self.integer), before)
        result.add(seen, last)
        return self._from_bits(result.value)

    def _new(self, old: LV, value: LV) -> LV:
        if self.op.kind == "exchange":
            return value
        rule: Callable[..., LV] = PLAIN[_AS_ARITHMETIC[self.op.kind]]
        return rule(self.emitter, self.dtype, old, value)

    def _bits(self, value: LV) -> LV:
        return self.builder.cast("bitcast", value, self.integer)

    def _from_bits(self, bits: LV) -> LV:
        return self.builder.cast("bitcast", bits, self.type)


_SMALLEST_EXCHANGE_BITS = 16


@lowers_tile(ops.Atomic)
def _atomic(emitter: Emitter, op: ops.Atomic, layout: Layout) -> Sequence[LV]:
    values = emitter.get(op.value, layout)
    others = [emitter.get(v, layout) for v in op.compare]
    elements = elements_of(emitter, op, layout)
    if op.order in ("release", "acq_rel"):
        # What every thread wrote before is released by the threads that update.
        emitter.synchronise()
    if isinstance(elements, GlobalElements) and _adds_in_rows(emitter, op, elements):
        before = _add_rows(emitter, op, elements, values)
    else:
        before = _each_update(emitter, op, elements, (values, *others))
    if op.order in ("acquire", "acq_rel"):
        emitter.synchronise()
    if emitter.is_owner(layout) is None or op.result not in emitter.used:
        return before
    scratch = Scratch(emitter, op.window_type)
    scratch.write(before, layout)
    return scratch.read(layout)


def _each_update(
    emitter: Emitter,
    op: ops.Atomic,
    elements: GlobalElements | SharedElements,
    operands: Sequence[Sequence[LV]],
) -> list[LV]:
    """Write the updates one by one; return the values before."""
    updates, before = _Updates(emitter, op), []
    for k, keep in enumerate(owned(emitter, elements, range(elements.layout.register_count))):
        value, *other = (registers[k] for registers in operands)
        place, keeps = elements.address(k), keep or i1(True)
        before.append(updates.update(place, value, other[0] if other else None, keeps))
    return before


def _adds_in_rows(emitter: Emitter, op: ops.Atomic, elements: GlobalElements) -> bool:
    """Whether neighbours can be added to together: nobody asks what was there before."""
    is_sum = op.kind == "add" and op.ref.ref.dtype is f32 and op.result not in emitter.used
    return is_sum and op.order in ("relaxed", "release") and elements.vector > 1


def _add_rows(
    emitter: Emitter, op: ops.Atomic, elements: GlobalElements, values: Sequence[LV]
) -> list[LV]:
    """Add neighbours together where the whole window is inside, each by itself elsewhere.

    What was there before, which nobody asks for, is given as zeros.
    """
    inside, layout = elements.all_inside(), elements.layout

    def together() -> None:
        here, owner = GlobalElements(emitter, op, layout), emitter.is_owner(layout)
        row = add_floats(here.vector, order=op.order, scope=op.scope)
        for first in range(0, len(values), here.vector):
            keep = emitter.both(owner, here.hit(first)) or i1(True)
            added = values[first : first + here.vector]
            emitter.builder.asm(row, here.address(first), *added, keep)

    def each() -> None:
        _each_update(emitter, op, GlobalElements(emitter, op, layout), (values,))

    if inside is None:
        together()
    else:
        in_arms(emitter, inside, together, each)
    return [zero(value.type) for value in values]
