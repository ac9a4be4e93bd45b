"""`wmma`: products of fragments whose layout a program may not know (PTX ISA 9.7.14.4).

Invariant: lane l holds elements l n, l n + 1, ... of a matrix, counted by rows, n of them as many
as its registers have room for; beyond the last element they begin again, so that elements of
float16 are held twice. Which element is where is unspecified, but the same for load and store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import matrix
from astdsl.emulator.global_memory import misaligned
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.isa.memory import space_of
from astdsl.emulator.isa.warp import WHOLE_WARP, Warps, collective
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.scalars import UNSIGNED, any_of, one_a_lane
from astdsl.emulator.syntax import Immediate
from astdsl.emulator.undefined import Undefined, bits_read, mark

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array

_SHAPES = {"m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16)}
_BYTES = {"f16": 2, "bf16": 2, "s8": 1, "u8": 1, "f32": 4, "s32": 4}
# Operand type -> types of C and D.
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "s8": ("s32",), "u8": ("s32",)}
_RESULT_TYPES: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "s32": np.int32}
_SPACES = ("global", "shared", "shared::cta")
_SHAPE = re.compile(r"m\d+n\d+k\d+")


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A matrix of rows and columns in the registers of a warp."""

    rows: int
    columns: int
    type: str
    # Operands of float16 take eight registers, whatever their shape.
    is_operand: bool

    @property
    def n_registers(self) -> int:
        """Return how many 32-bit registers a lane has."""
        if self.is_operand and self.type == "f16":
            return 8
        return self.rows * self.columns * _BYTES[self.type] // (4 * WARP_THREADS)

    @property
    def per_register(self) -> int:
        """Return how many elements a register has."""
        return 4 // _BYTES[self.type]

    def element(self, lane: Array, register: int, part: int) -> tuple[Array, Array]:
        """Return row and column of an element of each lane."""
        held = self.n_registers * self.per_register
        number = lane * held + register * self.per_register + part
        row, column = np.divmod(number % (self.rows * self.columns), self.columns)
        return row, column

    def gather(self, m: Machine, lanes: Lanes, warps: Warps, reads: list[Getter]) -> Array:
        """Return the matrix of each warp, as raw elements [warps, rows, columns]."""
        words = np.stack([warps.spread(read(m, lanes), np.uint32) for read in reads], axis=-1)
        raw = np.ascontiguousarray(words).view(UNSIGNED[8 * _BYTES[self.type]])
        size = self.rows * self.columns
        found: Array = raw.reshape(warps.n, -1)[:, :size].reshape(-1, self.rows, self.columns)
        return found


def _fragment(ops: Operands, which: str, name: str) -> _Fragment:
    shape = next((word for word in ops.modifiers if _SHAPE.fullmatch(word)), "")
    if shape not in _SHAPES or name not in (_RESULTS if which in "ab" else _RESULT_TYPES):
        raise ops.refuse(
            "wmma is modelled for " + ", ".join(_SHAPES) + " of .f16, .bf16, .s8 and .u8"
        )
    m, n, k = _SHAPES[shape]
    rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    return _Fragment(rows, columns, name, which in "ab")


def _require_whole(m: Machine, lanes: Lanes, warps: Warps) -> None:
    if not warps.complete:
        raise m.fault("E214", "wmma needs all 32 lanes of the warp", int(lanes.index[0]))


class _Place:
    """Where a fragment lies in memory: an address, the stride of its rows or columns."""

    def __init__(self, ops: Operands, which: str, name: str, rest: tuple[Any, ...]) -> None:
        fragment = self.fragment = _fragment(ops, which, name)
        shape = next(word for word in ops.modifiers if _SHAPE.fullmatch(word))
        ops.allow("load", "store", "sync", "aligned", "row", "col", which, shape, name, *_SPACES)
        self.space, self._address = space_of(ops, rest[0]), ops.address(rest[0])
        self._by_rows = ops.has("row")
        default = fragment.columns if self._by_rows else fragment.rows
        self._stride = ops.source(rest[1] if len(rest) > 1 else Immediate(default), "s32")

    def addresses(self, m: Machine, lanes: Lanes, register: int, part: int) -> Array:
        """Return the address of one element of each lane."""
        base = one_a_lane(self._address(m, lanes), lanes.n)
        align = 4 * self.fragment.n_registers
        if register == part == 0 and (base % align).any():
            raise misaligned(m, lanes, self.space or "generic", base, align)
        lane = m.thread_of[lanes.sel] & (WARP_THREADS - 1)
        row, column = self.fragment.element(lane, register, part)
        stride = one_a_lane(self._stride(m, lanes), lanes.n).astype(np.int64)
        place = row * stride + column if self._by_rows else column * stride + row
        found: Array = base + place * _BYTES[self.fragment.type]
        return found


@controls("wmma.load")
def prepare_load(ops: Operands) -> Control:
    """`wmma.load.{a,b,c}.sync.aligned.layout.shape{.ss}.type r, [p]{, stride}`."""
    which, name = ops.modifiers[1], ops.modifiers[-1]
    place = _Place(ops, which, name, tuple(ops.args[1:]))
    fragment, elements = place.fragment, ops.elements(ops.args[0])
    if len(elements) != fragment.n_registers:
        raise ops.refuse(f"{fragment.n_registers} registers are needed, not {len(elements)}")
    writes = [ops.destination(element, "b32") for element in elements]
    places = [ops.registers(element) for element in elements]
    dtype = UNSIGNED[8 * _BYTES[name]]

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _require_whole(m, lanes, warps)
        for k, (write, to) in enumerate(zip(writes, places, strict=True)):
            parts = [
                m.memory.load(m, lanes, place.space, place.addresses(m, lanes, k, part), dtype)
                for part in range(fragment.per_register)
            ]
            words = np.stack([values for values, _ in parts], axis=-1)
            write(m, lanes, np.ascontiguousarray(words).view(np.uint32)[:, 0])
            if m.undefined or any(bits is not None for _, bits in parts):
                masks = [np.zeros_like(v) if bits is None else bits for v, bits in parts]
                undefined = np.ascontiguousarray(np.stack(masks, axis=-1)).view(np.uint32)[:, 0]
                for each in to:
                    mark(m, each, lanes, undefined)

    return collective(ops, WHOLE_WARP, body, tracks=True)


@controls("wmma.store")
def prepare_store(ops: Operands) -> Control:
    """`wmma.store.d.sync.aligned.layout.shape{.ss}.type [p], r{, stride}`."""
    place = _Place(ops, "d", ops.modifiers[-1], (ops.args[0], *ops.args[2:]))
    fragment, elements = place.fragment, ops.elements(ops.args[1])
    if len(elements) != fragment.n_registers:
        raise ops.refuse(f"{fragment.n_registers} registers are needed, not {len(elements)}")
    reads = [ops.source(element, "b32") for element in elements]
    places = [ops.registers(element) for element in elements]
    dtype = UNSIGNED[8 * _BYTES[fragment.type]]

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _require_whole(m, lanes, warps)
        for k, read in enumerate(reads):
            parts = _parts(read(m, lanes), lanes.n, dtype)
            found = bits_read(m, lanes, [(each, 32) for each in places[k]])
            bits = _parts(0 if found is None else found[0][places[k][0]], lanes.n, dtype)
            for part in range(fragment.per_register):
                at = place.addresses(m, lanes, k, part)
                undefined = None
                if found is not None and any_of(bits[part]):
                    undefined = Undefined(bits[part], found[1])
                m.memory.store(m, lanes, place.space, at, parts[part], undefined)

    return collective(ops, WHOLE_WARP, body, tracks=True)


def _parts(words: Any, n: int, dtype: Any) -> Array:
    """Return the elements of a register, [part, lanes]."""
    word = np.array(one_a_lane(words, n), np.uint32)
    return np.ascontiguousarray(word[:, None].view(dtype).T)


@controls("wmma.mma")
def prepare_mma(ops: Operands) -> Control:
    """`wmma.mma.sync.aligned.alayout.blayout.shape{.rnd}.dtype{.atype.btype}.ctype d, a, b, c`."""
    types = [word for word in ops.modifiers if word in _BYTES]
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or types[1] not in _RESULTS or types[0] not in _RESULTS[types[1]]:
        raise ops.refuse("wmma multiplies .f16, .bf16, .s8 and .u8")
    to, a_type, b_type, c_type = types
    a, b = _fragment(ops, "a", a_type), _fragment(ops, "b", b_type)
    c, d = _fragment(ops, "c", c_type), _fragment(ops, "d", to)
    shape = next(word for word in ops.modifiers if _SHAPE.fullmatch(word))
    ops.allow("mma", "sync", "aligned", "row", "col", "satfinite", shape, *types)
    reads: list[list[Getter]] = [ops.sources(arg, "b32") for arg in ops.args[1:]]
    writes = ops.destinations(ops.args[0], "b32")
    if [*map(len, reads), len(writes)] != [x.n_registers for x in (a, b, c, d)]:
        raise ops.refuse("the number of registers does not fit the shape")
    dtype, saturate = np.dtype(_RESULT_TYPES[to]), ops.has("satfinite")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _require_whole(m, lanes, warps)
        raw = [x.gather(m, lanes, warps, r) for x, r in zip((a, b, c), reads, strict=True)]
        left = matrix.widen(raw[0].view(np.uint8), a_type)
        right = matrix.widen(raw[1].view(np.uint8), b_type).transpose(0, 2, 1)
        old = raw[2].view(_RESULT_TYPES[c_type])
        product = matrix.multiply(left, np.ascontiguousarray(right))
        new = np.ascontiguousarray(matrix.accumulate(old, product, dtype, saturate))
        words = new.reshape(warps.n, WARP_THREADS, -1).view(np.uint32)
        for k, write in enumerate(writes):
            write(m, lanes, warps.gather(np.ascontiguousarray(words[:, :, k])))

    return collective(ops, WHOLE_WARP, body)
