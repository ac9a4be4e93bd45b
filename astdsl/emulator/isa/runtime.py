"""Functions of CUDA's device runtime that PTX calls and nobody defines: printf, assert, malloc.

Invariant: `RUNTIME` has a row for each name of `reach.PROVIDED`. What `malloc` gives counts as
unwritten, lives until `free` or the end of the launch, and is given to no other after it.
Source: CUDA C++ Programming Guide, "Formatted Output", "Assertion", "Dynamic Global Memory
Allocation and Operations"; PTX Interoperability, "System Calls".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.global_memory import Allocation
from astdsl.emulator.reach import PROVIDED
from astdsl.emulator.scalars import SIGNED, UNSIGNED, Array, any_of

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine

__all__ = ["RUNTIME", "Provided", "undefined_argument"]

# What `malloc` may give at a time (`cudaLimitMallocHeapSize`).
HEAP_BYTES = 8 << 20
_HEAP_ALIGN = 16
_SPEC = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?P<precision>\.(?:\*|\d+)?)?"
    r"(?P<size>hh|h|ll|l|z|j|t)?(?P<kind>[cdiouxXpeEfFgGaAs%])"
)
_WORD, _LONG = 4, 8
_LONG_SIZES = ("ll", "l", "z", "j", "t")
_CUT_BITS = {"hh": 8, "h": 16}


class Provided(NamedTuple):
    """The sizes of what a function takes and gives, and what it does."""

    argument_bytes: tuple[int, ...]
    result_bytes: tuple[int, ...]
    execute: Callable[..., Any]


def undefined_argument(m: Machine, lanes: Lanes, mask: Array) -> DeviceFault:
    """Return the fault of an undefined value that a function of the runtime is given."""
    return m.fault(
        "E230",
        "an undefined value is given to a function of the device runtime",
        lanes.first(mask),
        help="write it before it is used",
    )


# printf and assert.


def _print(m: Machine, lanes: Lanes, formats: Array, buffers: Array) -> Array:
    """`vprintf(format, buffer)`: print each lane's text; give how many values it has."""
    counts = np.zeros(lanes.n, np.int32)
    for k, (template, buffer) in enumerate(zip(formats.tolist(), buffers.tolist(), strict=True)):
        if not template:
            counts[k] = -1
            continue
        values = _Values(m, lanes.where(np.arange(lanes.n) == k), buffer)
        text = _text(m, values.lane, template)
        sys.stdout.write(_SPEC.sub(values.format, text))
        counts[k] = values.count
    return counts.view(np.uint32)


class _Values:
    """The values behind one lane's format, taken one after the other."""

    def __init__(self, m: Machine, lane: Lanes, address: int) -> None:
        self.lane = lane
        self.count = 0
        self._m = m
        self._address = address
        self._offset = 0

    def format(self, found: re.Match[str]) -> str:
        """Return the text of one specification."""
        kind = found["kind"]
        if kind == "%":
            return "%"
        width = self._measure(found["width"] or "")
        precision = found["precision"] or ""
        if precision:
            precision = "." + (self._measure(precision[1:]) or "0")
        value = _KINDS[kind](self, found["size"] or "")
        letter = {"i": "d", "u": "d", "p": "s", "a": "s", "A": "s"}.get(kind, kind)
        flags = found["flags"] if letter != "s" else found["flags"].replace("0", "")
        if kind in "aA":
            precision = ""
        text: str = f"%{flags}{width}{precision}{letter}" % value
        return text

    def _measure(self, text: str) -> str:
        return str(self.integer("")) if text == "*" else text

    def _next(self, size: int) -> Array:
        self._offset = -(-self._offset // size) * size
        address = np.array([self._address + self._offset])
        self._offset += size
        self.count += 1
        loaded, undefined = self._m.memory.load(
            self._m, self.lane, "generic", address, UNSIGNED[8 * size]
        )
        if undefined is not None:
            raise undefined_argument(self._m, self.lane, np.ones(1, np.bool_))
        return loaded

    def integer(self, size: str) -> int:
        """Take a signed integer."""
        width = _LONG if size in _LONG_SIZES else _WORD
        cut = SIGNED[_CUT_BITS.get(size, 8 * width)]
        return int(self._next(width).astype(cut)[0])

    def natural(self, size: str) -> int:
        """Take an unsigned integer."""
        width = _LONG if size in _LONG_SIZES else _WORD
        cut = UNSIGNED[_CUT_BITS.get(size, 8 * width)]
        return int(self._next(width).astype(cut)[0])

    def real(self, size: str) -> float:
        """Take a float64."""
        return float(self._next(_LONG).view(np.float64)[0])

    def real_digits(self, size: str) -> str:
        """Take a float64 as hexadecimal digits."""
        return self.real(size).hex()

    def character(self, size: str) -> str:
        """Take a character."""
        return chr(self.natural("hh"))

    def pointer(self, size: str) -> str:
        """Take a pointer."""
        return f"{self.natural('l'):#x}"

    def string(self, size: str) -> str:
        """Take a text."""
        address = self.natural("l")
        return _text(self._m, self.lane, address) if address else "(null)"


_KINDS: dict[str, Callable[[_Values, str], Any]] = {
    **dict.fromkeys("di", _Values.integer),
    **dict.fromkeys("ouxX", _Values.natural),
    **dict.fromkeys("eEfFgG", _Values.real),
    **dict.fromkeys("aA", _Values.real_digits),
    "c": _Values.character,
    "p": _Values.pointer,
    "s": _Values.string,
}


def _text(m: Machine, lane: Lanes, address: int) -> str:
    """Return the text that begins at a generic address, up to its zero."""
    return bytes(_octets(m, lane, address)).decode("utf-8", "replace")


def _octets(m: Machine, lane: Lanes, address: int) -> Iterator[int]:
    while True:
        loaded, _ = m.memory.load(m, lane, "generic", np.array([address]), UNSIGNED[8])
        if not loaded[0]:
            return
        yield int(loaded[0])
        address += 1


def _fail(
    m: Machine, lanes: Lanes, texts: Array, files: Array, numbers: Array, names: Array, _: Array
) -> None:
    """`__assertfail(assertion, file, line, function, character size)`."""
    lane = lanes.where(np.arange(lanes.n) == 0)
    text, file, name = (_text(m, lane, int(each[0])) for each in (texts, files, names))
    raise m.fault(
        "E212",
        f"thread {int(m.thread_of[lane.index[0]])}: the assertion `{text}` of `{name}` "
        f"({file}:{int(numbers[0])}) does not hold",
        int(lane.index[0]),
    )


# malloc and free.


class _Heap:
    """What is allocated, by address; batches of a launch share the memory, not this table."""

    def __init__(self, m: Machine) -> None:
        self.used_bytes = 0
        self.blocks: dict[int, Allocation] = {}

    def allocate(self, m: Machine, size: int) -> int:
        """Return the address of some bytes, 0 where there are none left."""
        if not size or self.used_bytes + size > HEAP_BYTES:
            return 0
        raw = np.zeros(size + _HEAP_ALIGN, np.uint8)
        skip = -int(raw.ctypes.data) % _HEAP_ALIGN
        data = raw[skip : skip + size]
        allocation = Allocation(int(data.ctypes.data), data, f"what malloc({size}) gave")
        allocation.track()
        self.blocks[allocation.low] = m.memory.globals.add(allocation)
        self.used_bytes += size
        return allocation.low

    def free(self, m: Machine, address: int) -> bool:
        """Take back what `allocate` gave; say whether it had."""
        allocation = self.blocks.pop(address, None)
        if allocation is None:
            return False
        m.memory.globals.remove(allocation)
        self.used_bytes -= allocation.data.size
        return True


def _allocate(m: Machine, lanes: Lanes, sizes: Array) -> Array:
    heap = m.state(_Heap)
    return np.array([heap.allocate(m, size) for size in sizes.tolist()], np.uint64)


def _free(m: Machine, lanes: Lanes, addresses: Array) -> None:
    heap = m.state(_Heap)
    gone = [address != 0 and not heap.free(m, address) for address in addresses.tolist()]
    if any_of(gone):
        lane = lanes.first(np.array(gone))
        address = int(addresses[np.argmax(gone)])
        text = f"free({address:#x}): malloc did not give that, or it has been freed"
        raise m.fault("E220", text, lane)


RUNTIME = dict(
    zip(
        PROVIDED,
        (
            Provided((8, 8), (4,), _print),
            Provided((8, 8, 4, 8, 8), (), _fail),
            Provided((8,), (8,), _allocate),
            Provided((8,), (), _free),
        ),
        strict=True,
    )
)
