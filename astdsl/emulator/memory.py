"""The memory of a machine: global, shared, local and parameter space, and the generic windows.

Invariant: global addresses are real host addresses (or a fake base that a `VirtualBuffer` chose),
below 2^60; shared, local and parameter space have generic windows above. Every access is checked:
inside one allocation, aligned to its width, writable, and, where a buffer tracks it, written before
it is read. Source: PTX ISA 5.1 (state spaces), 6.4.1 (generic addressing), 9.7.9 (alignment).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.global_memory import GlobalMemory, misaligned
from astdsl.emulator.row_memory import RowMemory
from astdsl.emulator.scalars import Array, BoolArray, all_of, any_of, one_a_lane
from astdsl.emulator.undefined import Undefined, undefined_fault

if TYPE_CHECKING:
    from astdsl.emulator.guard import SharedGuard
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine

WINDOW_SHIFT = 60
WINDOWS = {"shared": 1 << WINDOW_SHIFT, "local": 2 << WINDOW_SHIFT, "param": 3 << WINDOW_SHIFT}
SPACE_OF_WINDOW = {1: "shared", 2: "local", 3: "param"}
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1

# Values loaded, shape (n,) or (n, count), or length 1 for all lanes; their undefined bits.
Loaded = tuple[Array, "Array | None"]


@dataclass(frozen=True, slots=True)
class Span:
    """An access of `width` bytes in a space of `size_bytes`, aligned to its width or not."""

    space: str
    size_bytes: int
    width: int
    aligned: bool = True


def check_span(m: Machine, lanes: Lanes, span: Span, offsets: Array) -> None:
    """Raise a fault if an access leaves its space or is not aligned."""
    if not offsets.size:
        return
    width = span.width
    # No offset is more than all bits of any; one of them is negative if one is.
    bits = int(np.bitwise_or.reduce(offsets))
    unaligned = span.aligned and bits & (width - 1)
    if 0 <= bits <= span.size_bytes - width and not unaligned:
        return
    low, high = int(offsets.min()), int(offsets.max())
    if low < 0 or high + width > span.size_bytes:
        bad = (offsets < 0) | (offsets + width > span.size_bytes)
        at = int(offsets[np.argmax(bad)])
        raise m.fault(
            "E220",
            f"access of {width} bytes at {span.space} address {at:#x} by thread"
            f" {m.thread_of[lanes.first(bad)]}, outside of the {span.size_bytes} bytes of"
            f" {span.space} memory",
            lanes.first(bad),
        )
    if unaligned:
        raise misaligned(m, lanes, span.space, offsets, width)


def _require_running(m: Machine, lanes: Lanes, rows: Array, ended: BoolArray) -> None:
    """Fault if the shared memory of another block is accessed after the block's end."""
    if any_of(ended):
        row = int(np.broadcast_to(rows, lanes.n)[np.argmax(ended)])
        raise m.fault(
            "E258",
            f"block {m.launch.block_index(row)}, whose shared memory is accessed, has ended",
            lanes.first(ended),
            help="let all blocks of a cluster end together: `barrier.cluster` before the end",
        )


class Memory:
    """All spaces of one machine."""

    def __init__(
        self,
        global_memory: GlobalMemory,
        shared: RowMemory,
        local: RowMemory,
        parameters: Array,
        variable_addresses: list[int],
    ) -> None:
        self.globals = global_memory
        self.shared = shared
        self.local = local
        self.parameters = parameters
        self.variable_addresses = variable_addresses
        # Counts stores, so that it is known whether anything has changed.
        self.version = 0
        self.guard: SharedGuard | None = None

    def load(
        self,
        m: Machine,
        lanes: Lanes,
        space: str,
        addresses: Array,
        dtype: np.dtype[np.generic],
        count: int = 1,
    ) -> Loaded:
        """Load `count` elements of an unsigned dtype at each address of a space ("" = generic)."""
        addresses = np.atleast_1d(addresses)
        if space in ("", "generic"):
            return self._load_generic(m, lanes, addresses, dtype, count)
        width = dtype.itemsize * count
        if space in ("global", "const"):
            return self.globals.load(m, lanes, addresses, dtype, count)
        if space == "param":
            check_span(m, lanes, Span(space, len(self.parameters), width), addresses)
            raw = self.parameters[addresses[:, None] + np.arange(width)]
            values = raw.view(dtype)
            return (values if count > 1 else values[:, 0]), None
        rows, offsets, memory = self._row_access(m, lanes, space, addresses, width)
        if self.guard is not None and memory is self.shared:
            self.guard.read(lanes, rows, offsets, width)
        return memory.load(rows, offsets, dtype, count)

    def store(
        self,
        m: Machine,
        lanes: Lanes,
        space: str,
        addresses: Array,
        values: Array,
        undefined: Undefined | None = None,
    ) -> None:
        """Store `values`, shape (n,) or (n, count) of an unsigned dtype, at each lane's address.

        `undefined` are undefined bits of them: a fault in global memory.
        """
        addresses = one_a_lane(addresses, lanes.n)
        self.version += 1
        if space in ("", "generic"):
            self._store_generic(m, lanes, addresses, values, undefined)
            return
        if space in ("global", "const"):
            if undefined is not None:
                raise undefined_fault(m, lanes, undefined, "a value stored to global memory")
            self.globals.store(m, lanes, addresses, values)
            return
        if space == "param":
            lane = int(lanes.index[0])
            raise m.fault("E222", "store to kernel parameters, which are read-only", lane)
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        rows, offsets, memory = self._row_access(m, lanes, space, addresses, width)
        guard = self.guard if memory is self.shared else None
        if guard is not None:
            guard.write(lanes, rows, offsets, width, values)
        memory.store(rows, offsets, values, None if undefined is None else undefined.bits)
        if guard is not None and guard.races.contested and undefined is None:
            guard.races.check_winners(lanes, rows, offsets, values)

    def shared_place(
        self, m: Machine, lanes: Lanes, addresses: Array, size_bytes: int, *, aligned: bool = False
    ) -> tuple[Array, Array]:
        """Return (block row, offset) of shared addresses, window or rank included, checked.

        `addresses` may be of space shared or generic; `size_bytes` is what is accessed at each.
        """
        addresses = one_a_lane(addresses, lanes.n)
        if addresses.size and int(addresses[0]) >> WINDOW_SHIFT:
            addresses = addresses & ((1 << 32) - 1)
        rows, offsets, _ = self._row_access(
            m, lanes, "shared", addresses, size_bytes, aligned=aligned
        )
        return rows, offsets

    def split_generic(self, addresses: Array) -> list[tuple[str, BoolArray | None]]:
        """Return the spaces that generic addresses fall into, each with its mask (None = all)."""
        windows = addresses >> WINDOW_SHIFT
        first = int(windows[0])
        if all_of(windows == first):
            return [(SPACE_OF_WINDOW.get(first, "global"), None)]
        return [
            (SPACE_OF_WINDOW.get(int(window), "global"), windows == window)
            for window in np.unique(windows)
        ]

    def _row_access(
        self,
        m: Machine,
        lanes: Lanes,
        space: str,
        addresses: Array,
        width: int,
        *,
        aligned: bool = True,
    ) -> tuple[Array, Array, RowMemory]:
        if space == "local":
            check_span(m, lanes, Span(space, self.local.size_bytes, width), addresses)
            return lanes.index, addresses, self.local
        rows, offsets = m.block_of[lanes.sel], addresses
        if m.launch.cluster_size > 1:
            size = m.launch.cluster_size
            rank, offsets = addresses >> RANK_SHIFT, addresses & OFFSET_MASK
            if any_of(rank >= size):
                text = f"shared address of a block outside the cluster of {size}"
                raise m.fault("E220", text, lanes.first(rank >= size))
            own, rows = rows, rows // size * size + rank
            _require_running(m, lanes, rows, (rows != own) & (m.barriers.live[rows] == 0))
            if self.guard is not None:
                self.guard.require_started(lanes, rows)
        span = Span("shared", self.shared.size_bytes, width, aligned=aligned)
        check_span(m, lanes, span, offsets)
        return rows, offsets, self.shared

    def _load_generic(
        self,
        m: Machine,
        lanes: Lanes,
        addresses: Array,
        dtype: np.dtype[np.generic],
        count: int,
    ) -> Loaded:
        parts = self.split_generic(addresses)
        if parts[0][1] is None:
            space = parts[0][0]
            return self.load(m, lanes, space, in_space(addresses, space), dtype, count)
        values = np.empty((lanes.n, count) if count > 1 else lanes.n, dtype)
        undefined = np.zeros_like(values)
        for space, mask in parts:
            if mask is None:
                raise AssertionError("one space among several holds every lane")
            some = lanes.where(mask)
            there = in_space(addresses[mask], space)
            found, missing = self.load(m, some, space, there, dtype, count)
            values[mask] = found
            undefined[mask] = 0 if missing is None else missing
        return values, undefined if any_of(undefined) else None

    def _store_generic(
        self,
        m: Machine,
        lanes: Lanes,
        addresses: Array,
        values: Array,
        undefined: Undefined | None,
    ) -> None:
        for space, mask in self.split_generic(addresses):
            if mask is None:
                self.store(m, lanes, space, in_space(addresses, space), values, undefined)
                continue
            missing = None if undefined is None else undefined.where(mask)
            if missing is not None and not any_of(missing.bits):
                missing = None
            there = in_space(addresses[mask], space)
            self.store(m, lanes.where(mask), space, there, values[mask], missing)


def in_space(addresses: Array, space: str) -> Array:
    """Return generic addresses of one space as addresses inside it."""
    return addresses if space == "global" else addresses - WINDOWS[space]
