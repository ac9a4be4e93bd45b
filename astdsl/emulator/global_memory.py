"""Global memory: a table of allocations, each a range of addresses with the bytes behind it.

Invariant: ranges are disjoint, sorted, and their bytes are the caller's own memory (no copy), so a
store is seen by the caller at once. An access must lie inside one allocation.
"""

from __future__ import annotations

import bisect
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.row_memory import bits_of_bytes
from astdsl.emulator.scalars import UNSIGNED, Array, BoolArray, all_of, any_of

if TYPE_CHECKING:
    from astdsl.emulator.constancy import Constancy
    from astdsl.emulator.global_races import GlobalRaces
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine

# Widest single element that NumPy gathers in one go.
_WIDE = np.dtype(np.complex128)


class Allocation:
    """Addresses low <= a < high, with `data` their bytes; `written` tracks unwritten outputs."""

    __slots__ = ("_shadows", "_views", "data", "high", "low", "name", "read_only", "written")

    def __init__(self, low: int, data: Array, name: str, *, read_only: bool = False) -> None:
        self.low = low
        self.high = low + data.size
        self.data = data
        self.name = name
        self.read_only = read_only
        self.written: BoolArray | None = None
        self._views: dict[int, tuple[int, Array]] = {}
        self._shadows: dict[int, Array] = {}

    def track(self, written: BoolArray | None = None) -> BoolArray:
        """Take the contents as unwritten from now on, but for the bytes marked in `written`.

        Returns the marks, which change as the kernel writes.
        """
        marks = np.zeros(self.data.size, np.bool_) if written is None else written
        assert marks.size == self.data.size, f"{self.name} has other bytes than in the run before"
        self.written = marks
        self._shadows.clear()
        return marks

    def view(self, width: int) -> tuple[int, Array]:
        """Return (first aligned address, elements of `width` bytes from there)."""
        found = self._views.get(width)
        if found is None:
            start = -(-self.low // width) * width
            found = self._views[width] = (start, _elements(self._aligned(self.data, width), width))
        return found

    def host_addresses(self, addresses: Array) -> Array | None:
        """Return where the bytes at some addresses are, None if writes to them are tracked."""
        if self.written is not None or not self.data.flags.c_contiguous:
            return None
        moved = int(self.data.ctypes.data) - self.low
        return addresses + moved if moved else addresses

    def shadow(self, width: int) -> Array:
        """Return `written` as rows of `width` bytes, beside `view(width)`."""
        found = self._shadows.get(width)
        if found is None:
            if self.written is None:
                raise AssertionError("this allocation does not track what is written")
            found = self._shadows[width] = self._aligned(self.written, width).reshape(-1, width)
        return found

    def _aligned(self, data: Array, width: int) -> Array:
        skip = -(-self.low // width) * width - self.low
        rest = max(self.high - self.low - skip, 0) // width * width
        return data[skip : skip + rest]


def _elements(data: Array, width: int) -> Array:
    if width in (1, 2, 4, 8):
        return data.view(UNSIGNED[width * 8])
    if width == 16:
        return data.view(_WIDE)
    return data.view(np.uint64).reshape(-1, width // 8)


class GlobalMemory:
    """The allocations of a launch, found by address."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._lows: list[int] = []
        self._keep: list[object] = []
        # Set for a launch that loads constants: `ld.global.nc`.
        self.constancy: Constancy | None = None
        # Set for a launch in which races are looked for.
        self.races: GlobalRaces | None = None

    def add(self, allocation: Allocation) -> Allocation:
        """Add an allocation that overlaps none."""
        at = bisect.bisect_left(self._lows, allocation.low)
        self.allocations.insert(at, allocation)
        self._lows.insert(at, allocation.low)
        return allocation

    def add_host(
        self, low: int, high: int, name: str, owner: object, *, read_only: bool = False
    ) -> Allocation:
        """Map the caller's own memory low <= a < high; `owner` is kept alive with it.

        A range that overlaps one mapped before (views of one buffer) is joined with it.
        """
        self._keep.append(owner)
        for other in [a for a in self.allocations if a.low < high and low < a.high]:
            low, high = min(low, other.low), max(high, other.high)
            name = other.name if other.name == name else f"{other.name}, {name}"
            read_only = read_only and other.read_only
            at = self.allocations.index(other)
            del self.allocations[at], self._lows[at]
        pointer = (ctypes.c_uint8 * (high - low)).from_address(low)
        data: Array = np.ctypeslib.as_array(pointer)
        return self.add(Allocation(low, data, name, read_only=read_only))

    def remove(self, allocation: Allocation) -> None:
        """Take an allocation away; its addresses are given to no other."""
        at = self.allocations.index(allocation)
        del self.allocations[at], self._lows[at]
        self._keep.append(allocation)

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds an address."""
        at = bisect.bisect_right(self._lows, address) - 1
        if at >= 0 and address < self.allocations[at].high:
            return self.allocations[at]
        return None

    def nearest(self, address: int) -> Allocation | None:
        """Return the allocation nearest to an address, for reports."""
        return min(
            self.allocations,
            key=lambda a: max(a.low - address, address - a.high + 1, 0),
            default=None,
        )

    def load(
        self, m: Machine, lanes: Lanes, addresses: Array, dtype: np.dtype[Any], count: int,
        *, judged: bool = False,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Gather elements; returns them and their undefined bits, None for none.

        Races are looked for unless that is `judged` otherwise.
        """
        width = dtype.itemsize * count
        races = None if judged else self.races
        allocation = self._one(m, lanes, addresses, width)
        if allocation is not None:
            if races is not None:
                races.read(m, lanes, allocation, addresses, width)
            return _gather(allocation, addresses, dtype, count)
        values = np.empty((len(addresses), count) if count > 1 else len(addresses), dtype)
        undefined = np.zeros_like(values)
        for found, mask in self._pieces(m, lanes, addresses, width):
            if races is not None:
                races.read(m, lanes.where(mask), found, addresses[mask], width)
            values[mask], missing = _gather(found, addresses[mask], dtype, count)
            if missing is not None:
                undefined[mask] = missing
        return values, undefined if any_of(undefined) else None

    def fetch(
        self, m: Machine, lanes: Lanes, addresses: Array, width: int, *, waited: bool
    ) -> None:
        """Check that lanes may read from now on, or note that they did until now."""
        if self.races is None:
            return
        whole = np.ones(len(addresses), np.bool_)
        allocation = self._one(m, lanes, addresses, width)
        alone = None if allocation is None else [(allocation, whole)]
        for found, mask in alone or self._pieces(m, lanes, addresses, width):
            if not found.read_only:
                some = lanes if mask is whole else lanes.where(mask)
                self.races.fetch(m, some, found, addresses[mask], width, waited=waited)

    def store(self, m: Machine, lanes: Lanes, addresses: Array, values: Array) -> None:
        """Scatter elements, or rows of them; of lanes with one address the last one wins."""
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        allocation = self._one(m, lanes, addresses, width)
        if allocation is not None:
            self._writable(m, lanes, allocation, None)
            if self.constancy is not None:
                self.constancy.note(m, lanes, allocation, addresses, width, stores=True)
            if self.races is not None:
                self.races.write(m, lanes, allocation, addresses, values)
            _scatter(allocation, addresses, values, width)
            return
        pieces = self._pieces(m, lanes, addresses, width)
        for found, mask in pieces:
            self._writable(m, lanes, found, mask)
            if self.races is not None:
                self.races.write(m, lanes.where(mask), found, addresses[mask], values[mask])
            _scatter(found, addresses[mask], values[mask], width)

    def note_constant(self, m: Machine, lanes: Lanes, addresses: Array, width: int) -> None:
        """Note a load of bytes that the launch must not write; what it holds is checked later."""
        if self.constancy is None:
            return
        addresses = np.broadcast_to(addresses, lanes.n)
        allocation = self._one(m, lanes, addresses, width)
        if allocation is not None and not allocation.read_only:
            self.constancy.note(m, lanes, allocation, addresses, width, stores=False)

    def _one(self, m: Machine, lanes: Lanes, addresses: Array, width: int) -> Allocation | None:
        """Return the allocation that holds every access, None when it is not one alone."""
        if width > 1 and int(np.bitwise_or.reduce(addresses)) & (width - 1):
            raise misaligned(m, lanes, "global", addresses, width)
        allocation = self.find(int(addresses.min()))
        if allocation is not None and int(addresses.max()) + width <= allocation.high:
            return allocation
        return None

    def _pieces(
        self, m: Machine, lanes: Lanes, addresses: Array, width: int
    ) -> list[tuple[Allocation, BoolArray]]:
        """Split accesses by allocation; one outside of all of them is a fault."""
        at = np.searchsorted(np.array(self._lows, np.int64), addresses, side="right") - 1
        highs = np.array([a.high for a in self.allocations], np.int64)
        outside = (at < 0) | (addresses + width > (highs[at] if len(highs) else 0))
        if any_of(outside):
            raise self._out_of_bounds(m, lanes, addresses, width, outside)
        return [(self.allocations[int(k)], at == k) for k in np.unique(at)]

    def _out_of_bounds(
        self, m: Machine, lanes: Lanes, addresses: Array, width: int, outside: BoolArray
    ) -> Exception:
        address = int(addresses[np.argmax(outside)])
        lane = lanes.first(outside)
        near = self.nearest(address)
        where = "there is no allocation"
        if near is not None:
            distance = address - near.high if address >= near.high else address - near.low
            edge = "the end" if address >= near.high else "the start"
            where = (
                f"the nearest allocation is {near.name} [{near.low:#x}, {near.high:#x}), "
                f"{distance:+d} bytes from {edge}"
            )
        return m.fault(
            "E220",
            f"access of {width} bytes at global address {address:#x} by thread "
            f"{int(m.thread_of[lane])} is outside of every allocation; {where}",
            lane,
        )

    def _writable(
        self, m: Machine, lanes: Lanes, allocation: Allocation, mask: BoolArray | None
    ) -> None:
        if allocation.read_only:
            lane = int(lanes.index[0 if mask is None else np.argmax(mask)])
            text = f"thread {m.thread_of[lane]} stores to {allocation.name}, which is read-only"
            raise m.fault("E222", text, lane)


def misaligned(m: Machine, lanes: Lanes, space: str, addresses: Array, align: int) -> Exception:
    """Return the fault of an access that is not aligned to its width (PTX ISA 9.7.9.8)."""
    bad = (addresses & (align - 1)) != 0
    at = int(addresses[np.argmax(bad)])
    lane = lanes.first(bad)
    return m.fault(
        "E221",
        f"misaligned access by thread {m.thread_of[lane]}: {space} address {at:#x} is not a"
        f" multiple of {align}",
        lane,
    )


def _gather(
    allocation: Allocation, addresses: Array, dtype: np.dtype[Any], count: int
) -> tuple[Array, Array | None]:
    width = dtype.itemsize * count
    start, view = allocation.view(width)
    index = (addresses - start) // width
    values = view.take(index, axis=0)
    undefined = None
    if allocation.written is not None:
        written = allocation.shadow(width)[index]
        undefined = None if all_of(written) else bits_of_bytes(~written, dtype, count)
    if count == 1:
        return values.view(dtype), undefined
    return values.view(dtype).reshape(len(addresses), count), undefined


def _scatter(allocation: Allocation, addresses: Array, values: Array, width: int) -> None:
    start, view = allocation.view(width)
    index = (addresses - start) // width
    if values.ndim == 1:
        view.view(values.dtype)[index] = values
    else:
        flat = np.ascontiguousarray(values).view(view.dtype)
        view[index] = flat[:, 0] if view.ndim == 1 else flat
    if allocation.written is not None:
        allocation.shadow(width)[index] = True
