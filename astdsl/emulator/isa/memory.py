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
from astdsl.emulator.scalars import SIGNED, UNSIGNED, any_of, one_a_lane
from astdsl.emulator.syntax import Address, Operand, Symbol, Vector
from astdsl.emulator.undefined import Read, Undefined, bits_read, mark

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

    used = ops.instruction.used_bytes
    every: Load = _load_all if used is None else _UsedBytes(used).load
    load = _ordered(ops, every, scalar.bytes * count)
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
            for place, bits in zip(places, _split(undefined, count, words), strict=True):
                if place is not None:
                    mark(m, place, lanes, bits if bits is None else extended(bits, scalar, place))

    return execute


def _split(undefined: Array | None, count: int, words: int) -> list[Array | None]:
    """Return the undefined bits of each element of a vector, (n,), or (n, 2) of 16-byte ones."""
    if undefined is None:
        return [None] * count
    if words == 1:
        return [*undefined.T] if count > 1 else [undefined]
    return [*undefined.reshape(-1, count, words).swapaxes(0, 1)]


def extended(bits: Array, scalar: Scalar, place: Place) -> Array:
    """Return undefined bits of a value as those of the register that it is extended to."""
    if place[0] == scalar.bits:
        return bits
    source = bits.view(SIGNED[scalar.bits]) if scalar.kind == "s" else bits
    found: Array = source.astype(UNSIGNED[place[0]])
    return found


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
        m.state(Polls).note_memory(m, lanes, space, at, found[0])
        if m.guard is not None:
            m.guard.signal(lanes, space, at, strength, reads=True)
        return found

    return strong


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
        undefined = np.zeros_like(raw)
        for start, size in self._parts(width, count):
            part, missing = m.memory.load(m, lanes, space, addresses + start, UNSIGNED[8 * size])
            raw[:, start : start + size] = part.view(np.uint8).reshape(-1, size)
            if missing is not None:
                undefined[:, start : start + size] = missing.view(np.uint8).reshape(-1, size)
        values, bits = raw.view(dtype), undefined.view(dtype) if any_of(undefined) else None
        if count > 1:
            return values, bits
        return values[:, 0], None if bits is None else bits[:, 0]

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
    reads = [ops.source(element, raw) for element in _elements(ops, ops.args[1], count)]
    dtype, words = _storage(scalar)

    strength = strength_of(ops)
    elements = ops.elements(ops.args[1])
    registers = [ops.registers(each) for each in elements]
    stored = [each[0] if each else None for each in registers]
    given = Stored(stored, scalar.bits)
    move = _plain_move(ops, ops.args[0], stored, loads=False)

    def execute(m: Machine, lanes: Lanes) -> None:
        if move is not None and move.execute(m, lanes):
            return
        undefined = given.undefined(m, lanes) if m.undefined else None
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


class Stored:
    """Registers that are stored, so many bits of each: what of them is undefined."""

    def __init__(self, places: Sequence[Place | None], width: int) -> None:
        self._places = places
        self._width = width
        self._reads: list[Read] = [(place, width) for place in places if place is not None]

    def undefined(self, m: Machine, lanes: Lanes) -> Undefined | None:
        """Return the undefined bits of what is stored, (n,) or (n, elements), None for none."""
        found = bits_read(m, lanes, self._reads)
        if found is None:
            return None
        dtype = UNSIGNED[min(self._width, 64)]
        none = np.zeros((lanes.n, self._width // dtype.itemsize // 8), dtype)
        columns = [
            none if place is None or place not in found[0] else found[0][place].astype(dtype)
            for place in self._places
        ]
        bits = np.concatenate([column.reshape(none.shape) for column in columns], axis=1)
        return Undefined(bits if bits.shape[1] > 1 else bits[:, 0], found[1])


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
