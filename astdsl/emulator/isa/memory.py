"""Loads, stores and address arithmetic (PTX ISA 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.clocks import scope_number
from astdsl.emulator.deadlock import Polls
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.layout import size_bytes
from astdsl.emulator.ledger import Strength
from astdsl.emulator.memory import RANK_SHIFT, WINDOW_SHIFT, WINDOWS
from astdsl.emulator.native.shared import SharedMove, plain_access
from astdsl.emulator.operands import is_sink
from astdsl.emulator.scalars import UNSIGNED, one_a_lane
from astdsl.emulator.syntax import Address, Operand, Symbol, Vector
from astdsl.emulator.undefined import mark, undefined_mask

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.memory import Loaded
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array, Scalar

Load = Callable[["Machine", "Lanes", str, "Array", Any, int], "Loaded"]
SPACES = ("global", "shared", "local", "param", "const")
WIDTHS = ("v2", "v4", "v8")
# Orders, scopes and cache hints: every access of the emulator is seen by all at once.
_HINTS = (
    "weak", "relaxed", "acquire", "release", "volatile", "mmio", "nc", "unified", "ca", "cg", "cs",
    "lu", "cv", "wb", "wt", "cta", "cluster", "gpu", "sys", "L1::evict_normal", "L1::evict_first",
    "L1::evict_last", "L1::evict_unchanged", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B",
    "L2::evict_last", "L2::evict_first", "L2::evict_normal", "L2::cache_hint", "shared::cta",
    "shared::cluster", "param::entry", "param::func",
)  # fmt: skip


def space_of(ops: Operands, address: Operand) -> str:
    """Return the state space that an access names, "" for a generic one."""
    for word in ops.modifiers:
        space = word.partition("::")[0]
        if space in SPACES:
            base = address.base if isinstance(address, Address) else None
            # Parameters of device functions and of calls live in local memory here.
            if space == "param" and isinstance(base, Symbol):
                found = ops.site.symbol(base.name)
                return found[0] if found else space
            return space
    base = address.base if isinstance(address, Address) else None
    found = ops.site.symbol(base.name) if isinstance(base, Symbol) else None
    return found[0] if found else ""


def strength_of(ops: Operands) -> Strength | None:
    """Return how a strong access orders others; None of a weak one (PTX ISA 8.2.2, 8.7)."""
    words = ("acquire", "release", "acq_rel", "relaxed", "volatile", "mmio")
    if not any(ops.has(word) for word in words):
        return None
    both = ops.has("acq_rel")
    scope = scope_number(ops.modifiers)
    return Strength(ops.has("acquire") or both, ops.has("release") or both, scope)


@contextmanager
def strongly(m: Machine, scope: int) -> Iterator[None]:
    """Let the accesses inside count as strong, of a scope."""
    if m.guard is None:
        yield
        return
    m.guard.scope = scope
    try:
        yield
    finally:
        m.guard.scope = None


def element_count(ops: Operands) -> int:
    """Return how many elements a vector access moves."""
    return next((int(word[1:]) for word in ops.modifiers if word in WIDTHS), 1)


def _elements(ops: Operands, operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise ops.refuse(f"{count} registers are needed, not {len(elements)}")
    return elements


def _storage(scalar: Scalar) -> tuple[np.dtype[np.generic], int]:
    """Return the unsigned type and count that move one element; 16-byte ones go as two words."""
    return (UNSIGNED[64], 2) if scalar.bits == 128 else (UNSIGNED[scalar.bits], 1)


@executes("ld", "ldu", tracks=True)
def prepare_load(ops: Operands) -> Execute:
    """`ld{.space}{.vec}.type d, [a]`; narrow values are extended by their type."""
    ops.allow(*SPACES, *WIDTHS, *_HINTS)
    scalar, count = ops.last_type(), element_count(ops)
    space, address = space_of(ops, ops.args[1]), ops.address(ops.args[1])
    elements = _elements(ops, ops.args[0], count)
    writes = [ops.destination(element, scalar.name) for element in elements]
    places: list[Place | None] = [None if is_sink(e) else ops.place(e) for e in elements]
    dtype, words = _storage(scalar)

    load, parts = _loader(ops.instruction.used_bytes, scalar, count)

    load = _ordered(ops, load, scalar.bytes * count)
    move = _plain_move(ops, ops.args[1], places, loads=True)

    def execute(m: Machine, lanes: Lanes) -> None:
        if move is not None and move.execute(m, lanes):
            return
        at = address(m, lanes)
        values, undefined = load(m, lanes, space, at, dtype, count * words)
        if words == 2:
            values = values.reshape(-1, count, 2)
        typed = values.view(scalar.dtype) if scalar.count == 1 else values
        if count == 1:
            writes[0](m, lanes, typed[:, 0] if words == 2 else _packed(typed, scalar))
        else:
            for i, write in enumerate(writes):
                write(m, lanes, _packed(typed[:, i], scalar))
        if undefined is not None or m.undefined:
            for i, place in enumerate(places):
                mask = undefined
                if mask is not None and count > 1:
                    _, mask = parts[i](m, lanes, space, at + i * scalar.bytes, dtype, words)
                if place is not None:
                    mark(m, place, lanes, mask)

    return execute


def _plain_move(
    ops: Operands, address: Operand, places: Sequence[Place | None], *, loads: bool
) -> SharedMove | None:
    """Return what moves the registers of a weak access of shared memory at once, if anything.

    Those of neighbouring instructions are joined (`native.runs`).
    """
    plain = space_of(ops, address) == "shared" and strength_of(ops) is None
    if plain and ops.instruction.used_bytes is None:
        base = ops.shared_base(address)
        ops.access = plain_access(places, ops.last_type().bits, base, loads=loads)
    return None if ops.access is None else SharedMove([ops.access])


def _ordered(ops: Operands, load: Load, width: int) -> Load:
    """Return a load that keeps the record of accesses as the instruction says."""
    strength = strength_of(ops)
    if strength is None and not ops.has("nc"):
        return load

    def constant(m: Machine, lanes: Lanes, space: str, at: Array, dtype: Any, count: int) -> Loaded:
        m.memory.globals.note_constant(m, lanes, at, width)
        return load(m, lanes, space, at, dtype, count)

    if strength is None:
        return constant

    def strong(m: Machine, lanes: Lanes, space: str, at: Array, dtype: Any, count: int) -> Loaded:
        with strongly(m, strength.scope):
            found = load(m, lanes, space, at, dtype, count)
        m.state(Polls).note_memory(m, lanes, space, at)
        if m.guard is not None:
            m.guard.signal(lanes, space, at, strength, reads=True)
        return found

    return strong


def _loader(used_bytes: int | None, scalar: Scalar, count: int) -> tuple[Load, list[Load]]:
    """Return what loads a vector, and what loads each element of it alone."""
    if used_bytes is None:
        return _load_all, [_load_all] * count
    parts = [_UsedBytes(used_bytes >> i * scalar.bytes).load for i in range(count)]
    return _UsedBytes(used_bytes).load, list(parts)


def _load_all(
    m: Machine, lanes: Lanes, space: str, addresses: Array, dtype: np.dtype[np.generic], count: int
) -> Loaded:
    return m.memory.load(m, lanes, space, addresses, dtype, count)


@dataclass(frozen=True, slots=True)
class _UsedBytes:
    """Loads only the bytes of a mask: others may be unwritten, or lie outside of everything.

    LLVM joins loads over gaps and says so; no fault of hardware depends on such bytes, since an
    aligned access does not cross the border of an allocation's last 16 bytes.
    """

    mask: int

    def load(
        self,
        m: Machine,
        lanes: Lanes,
        space: str,
        addresses: Array,
        dtype: np.dtype[np.generic],
        count: int,
    ) -> Loaded:
        """Load as `Memory.load` does; bytes that do not matter are zero."""
        width = dtype.itemsize
        raw = np.zeros((lanes.n, width * count), np.uint8)
        undefined = None
        for start, size in self._parts(width, count):
            part, missing = m.memory.load(m, lanes, space, addresses + start, UNSIGNED[8 * size])
            raw[:, start : start + size] = part.view(np.uint8).reshape(-1, size)
            if missing is not None:
                undefined = missing if undefined is None else undefined | missing
        values = raw.view(dtype)
        return (values if count > 1 else values[:, 0]), undefined

    def _parts(self, width: int, count: int) -> list[tuple[int, int]]:
        """Return (offset, size) of what is loaded: whole elements, or single bytes of one."""
        every = (1 << width) - 1
        parts = []
        for start in range(0, width * count, width):
            used = self.mask >> start & every
            if used == every:
                parts.append((start, width))
            else:
                parts += [(start + i, 1) for i in range(width) if used >> i & 1]
        return parts


def _packed(values: Array, scalar: Scalar) -> Array:
    if scalar.count == 1 or scalar.bits == 128:
        return values
    return np.ascontiguousarray(values).view(scalar.dtype).reshape(-1, scalar.count)


@executes("st", tracks=True)
def prepare_store(ops: Operands) -> Execute:
    """`st{.space}{.vec}.type [a], b`; wide registers are stored by their low part."""
    ops.allow(*SPACES, *WIDTHS, *_HINTS)
    scalar, count = ops.last_type(), element_count(ops)
    space, address = space_of(ops, ops.args[0]), ops.address(ops.args[0])
    raw = "b128" if scalar.bits == 128 else f"b{scalar.bits}"
    ops.reads.clear()
    reads = [ops.source(element, raw) for element in _elements(ops, ops.args[1], count)]
    places = tuple(ops.reads)
    dtype, words = _storage(scalar)

    strength = strength_of(ops)
    elements = ops.elements(ops.args[1])
    registers = [ops.registers(each) for each in elements]
    stored = [each[0] if each else None for each in registers]
    move = _plain_move(ops, ops.args[0], stored, loads=False)

    def execute(m: Machine, lanes: Lanes) -> None:
        if move is not None and move.execute(m, lanes):
            return
        undefined = undefined_mask(m, lanes, places) if m.undefined else None
        if count == 1 and words == 1:
            values = one_a_lane(reads[0](m, lanes), lanes.n)
        else:
            values = np.empty((lanes.n, count * words), dtype)
            for i, read in enumerate(reads):
                values[:, i * words : (i + 1) * words] = np.reshape(read(m, lanes), (-1, words))
        at = address(m, lanes)
        if strength is None:
            m.memory.store(m, lanes, space, at, values, undefined)
            return
        with strongly(m, strength.scope):
            m.memory.store(m, lanes, space, at, values, undefined)
        if m.guard is not None:
            m.guard.signal(lanes, space, at, strength, reads=False)

    return execute


_BULK_STEP_BYTES = 8
_MOST_BULK_BYTES = 1 << 24


@executes("st.bulk")
def prepare_bulk_store(ops: Operands) -> Execute:
    """`st.bulk{.weak}{.shared::cta} [a], size, 0`: zeros in shared memory (PTX ISA 9.7.9.13)."""
    ops.allow("bulk", "weak", "shared::cta")
    if ops.immediate(ops.args[2]) != 0:
        raise ops.refuse("the initial value must be 0")
    space, address = space_of(ops, ops.args[0]), ops.address(ops.args[0])
    registers = ops.registers(ops.args[1])
    size = ops.source(ops.args[1], f"u{registers[0][0]}" if registers else "u32")
    ops.sensitive += ops.reads

    def execute(m: Machine, lanes: Lanes) -> None:
        sizes = one_a_lane(size(m, lanes), lanes.n).astype(np.int64)
        _check_bulk(m, lanes, sizes)
        steps = sizes // _BULK_STEP_BYTES
        first = np.repeat(np.cumsum(steps) - steps, steps)
        places = np.repeat(one_a_lane(address(m, lanes), lanes.n), steps)
        places = places + _BULK_STEP_BYTES * (np.arange(len(first)) - first)
        if len(places):
            every = Lanes.listed(np.repeat(lanes.index, steps))
            m.memory.store(m, every, space, places, np.zeros(len(places), np.uint64))

    return execute


def _check_bulk(m: Machine, lanes: Lanes, sizes: Array) -> None:
    wrong = (sizes % _BULK_STEP_BYTES != 0) | (sizes < 0) | (sizes > _MOST_BULK_BYTES)
    if wrong.any():
        text = f"st.bulk of {int(sizes[np.argmax(wrong)])} bytes; they are a multiple of "
        text += f"{_BULK_STEP_BYTES}, up to {_MOST_BULK_BYTES}"
        raise m.fault("E221", text, lanes.first(wrong))


@executes("cvta")
def prepare_cvta(ops: Operands) -> Execute:
    """`cvta{.to}.space.size d, a`: between a state space and generic addresses."""
    ops.allow("to", *SPACES, "shared::cta", "shared::cluster", "param::entry")
    space = next(w.partition("::")[0] for w in ops.modifiers if w.partition("::")[0] in SPACES)
    window = WINDOWS.get(space, 0)
    shift = np.uint64(window)
    read, write = ops.source(ops.args[1], "u64"), ops.destination(ops.args[0], "u64")

    def execute(m: Machine, lanes: Lanes) -> None:
        value = read(m, lanes)
        write(m, lanes, value - shift if ops.has("to") else value + shift)

    return execute


@executes("isspacep")
def prepare_isspacep(ops: Operands) -> Execute:
    """`isspacep.space p, a`: whether a generic address lies in a space (PTX ISA 9.7.9.19).

    Kernel parameters are global, constants are not; `.shared` is that of the own block.
    """
    space, _, part = ops.modifiers[0].partition("::")
    if space not in SPACES:
        raise ops.refuse(f"`.{space}` is not a space of `isspacep`")
    read, write = ops.source(ops.args[1], "u64"), ops.destination(ops.args[0], "pred")
    windows = (0, WINDOWS["param"]) if space == "global" else (WINDOWS.get(space, 0),)
    numbers = [np.uint64(window >> WINDOW_SHIFT) for window in windows]

    def execute(m: Machine, lanes: Lanes) -> None:
        addresses = read(m, lanes)
        inside = np.isin(addresses >> np.uint64(WINDOW_SHIFT), numbers)
        if space == "shared" and part != "cluster" and m.launch.cluster_size > 1:
            ranks = addresses >> np.uint64(RANK_SHIFT) & np.uint64(0xFF)
            inside &= ranks == np.asarray(m.special["%cluster_ctarank"])[lanes.sel]
        elif space in ("const", "global"):
            inside &= _constant(m, addresses) == (space == "const")
        write(m, lanes, inside)

    return execute


def _constant(m: Machine, addresses: Array) -> Array:
    """Say which generic addresses are those of constant variables."""
    found = np.zeros(np.shape(addresses), np.bool_)
    places = zip(m.program.layout.variables, m.memory.variable_addresses, strict=True)
    for variable, start in places:
        if variable.space == "const":
            found |= (addresses >= start) & (addresses < start + size_bytes(variable))
    return found
