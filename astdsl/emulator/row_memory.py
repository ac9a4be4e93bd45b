"""Memory on the chip: a row of bytes for each block (shared) or lane (local), with their shadow.

Invariant: the shadow says of every byte whether it has been written; a destination of an
asynchronous copy that has not completed counts as unwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from astdsl.emulator.scalars import UNSIGNED, Array, BoolArray, all_of

POISON = 0xFF
ROW_ALIGN_BYTES = 1024
# Between long rows, so that the same bytes of many of them do not share a set of the caches.
ROW_APART_BYTES = 64
# The widest element that NumPy gathers and scatters in one go.
WIDE_BYTES = 16


@dataclass(frozen=True, slots=True)
class _View:
    """Data and shadow as elements of one width; `written` is the shadow of a written element."""

    data: Array
    shadow: Array
    written: Any


def bits_of_bytes(missing: BoolArray, dtype: np.dtype[Any], count: int) -> Array:
    """Return the undefined bits of `count` elements each, (n,) or (n, count), by their bytes."""
    bits = (missing * np.uint8(0xFF)).view(dtype)
    return bits if count > 1 else bits[:, 0]


class RowMemory:
    """Rows of bytes: `data[row, offset]`, and `defined` of the same shape (False = unwritten)."""

    def __init__(self, n_rows: int, size_bytes: int, align_bytes: int = ROW_ALIGN_BYTES) -> None:
        self.size_bytes = size_bytes
        self.row_bytes = max(-(-size_bytes // align_bytes), 1) * align_bytes
        if align_bytes > ROW_APART_BYTES:
            self.row_bytes += ROW_APART_BYTES
        self.data = np.full((n_rows, self.row_bytes), POISON, np.uint8)
        self.defined = np.zeros((n_rows, self.row_bytes), np.bool_)
        self._views: dict[int, _View] = {}

    def reset(self) -> None:
        """Make the contents as they are at launch."""
        self.data.fill(POISON)
        self.defined.fill(False)

    def load(
        self, rows: Array, offsets: Array, dtype: np.dtype[np.generic], count: int
    ) -> tuple[Array, Array | None]:
        """Gather `count` neighbouring elements at each (row, offset), aligned and in bounds.

        Returns them, shape (n,) or (n, count), and their undefined bits, None for none.
        """
        width = dtype.itemsize * count
        index = (rows * self.row_bytes + offsets) // width
        view = self._view(width)
        values = view.data[index]
        if width <= WIDE_BYTES:
            defined = view.shadow[index] == view.written
        else:
            defined = view.shadow[index].all(axis=1)
        values = values.view(dtype)
        if count > 1:
            values = values.reshape(-1, count)
        if all_of(defined):
            return values, None
        written = self.defined.reshape(-1, width)[index]
        return values, bits_of_bytes(~written, dtype, count)

    def store(
        self, rows: Array, offsets: Array, values: Array, undefined: Array | None = None
    ) -> None:
        """Scatter elements, or rows of neighbouring elements when `values` has two axes.

        Bytes with undefined bits, given like the values, are marked as never written.
        """
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        index = (rows * self.row_bytes + offsets) // width
        view = self._view(width)
        whole = np.ascontiguousarray(values).view(view.data.dtype)
        view.data[index] = whole.reshape(len(values), *view.data.shape[1:])
        view.shadow[index] = view.written
        if undefined is not None:
            octets = np.ascontiguousarray(undefined).view(np.uint8).reshape(len(values), width)
            self.defined.reshape(-1, width)[index] = octets == 0

    def differs(self, rows: Array, offsets: Array, values: Array, part_bytes: int) -> BoolArray:
        """Say which parts of `values` are not what is written at each (row, offset).

        [places, parts]; what is not written is nothing.
        """
        width = values[0].nbytes
        index = (rows * self.row_bytes + offsets) // width
        new = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
        changed = self.data.reshape(-1, width)[index] != new
        changed |= ~self.defined.reshape(-1, width)[index]
        parts: BoolArray = changed.reshape(len(values), -1, min(part_bytes, width)).any(axis=2)
        return parts

    def forget(self, rows: Array, offsets: Array, width: int) -> None:
        """Count `width` bytes at each place, aligned to it, as never written."""
        index = (rows * self.row_bytes + offsets) // width
        self.defined.reshape(-1, width)[index] = False

    def _view(self, width: int) -> _View:
        found = self._views.get(width)
        if found is None:
            if width > WIDE_BYTES:
                rows = self.data.reshape(-1).view(np.uint64).reshape(-1, width // 8)
                found = _View(rows, self.defined.reshape(-1, width), True)
            else:
                wide = width == WIDE_BYTES
                dtype = np.dtype(np.complex128) if wide else UNSIGNED[width * 8]
                written = np.frombuffer(b"\x01" * width, dtype)[0]
                data, shadow = self.data.reshape(-1), self.defined.reshape(-1)
                found = _View(data.view(dtype), shadow.view(dtype), written)
            self._views[width] = found
        return found
