"""Layouts in the words of a kernel: what `print_layout` prints.

Invariant: what is spelt `Layout....` of a block of one warpgroup is that layout, and may be stated
by `layout_cast`.
"""

from __future__ import annotations

from collections.abc import Iterator

from astdsl.lowering.layout.registers import (
    WARPGROUP_THREADS,
    Digit,
    Layout,
    blocked,
    normalised,
    splat,
)
from astdsl.lowering.layout.shared import BufferLayout
from astdsl.lowering.layout.stated import LEAST, stated_layout

_COLLECTIVE_COLUMNS = 16
_VECTORS = (16, 8, 4, 2, 1)


def spelt(layout: Layout) -> str:
    """Return the name that a kernel states a layout by, the shortest one."""
    found = normalised(layout)
    for name, candidate in _candidates(layout.shape, layout.thread_count):
        if candidate == found:
            return f"Layout.{name}"
    of = f", of {layout.thread_count} threads"
    tiled = f"Layout.TILED({layout.shape}, {_digits(found.registers)}, {_digits(found.threads)})"
    return tiled if layout.thread_count == WARPGROUP_THREADS else tiled + of


def _candidates(shape: tuple[int, ...], threads: int) -> Iterator[tuple[str, Layout]]:
    yield "WG_SPLAT", splat(shape, threads)
    for name, least in LEAST.items():
        if _fits(shape, least):
            yield name, normalised(stated_layout((name,), shape, threads))
    if len(shape) == 2 and _fits(shape, (64, _COLLECTIVE_COLUMNS)):
        spec = ("TCGEN05_M64_COLLECTIVE", shape[1])
        yield f"{spec[0]}({spec[1]})", normalised(stated_layout(spec, shape, threads))
    for vec in _VECTORS:
        if shape and shape[-1] % vec == 0:
            yield f"WG_STRIDED({shape}, {vec})", blocked(shape, threads, vec)
    for name, least in LEAST.items():
        for axis in range(len(least)):
            if _fits(shape, (*least[:axis], *least[axis + 1 :])):
                reduced = stated_layout(("reduce", (name,), axis), shape, threads)
                yield f"{name}.reduce({axis})", normalised(reduced)


def _fits(shape: tuple[int, ...], least: tuple[int, ...]) -> bool:
    same_rank = len(shape) == len(least)
    return same_rank and all(n and n % m == 0 for n, m in zip(shape, least, strict=True))


def _digits(digits: tuple[Digit, ...]) -> str:
    each = [f"({d.extent}, {d.axis}, {d.stride})" for d in digits]
    return f"({', '.join(each)}{',' if len(each) == 1 else ''})"


def spelt_buffer(layout: BufferLayout, slots: int) -> str:
    """Return how a buffer of shared memory is laid out: what follows what, contiguous first."""
    parts = [
        (part.stride_bytes, axis, part.extent)
        for axis, of in enumerate(layout.parts)
        for part in of
        if part.extent > 1
    ]
    order = ", ".join(f"{extent} along axis {axis}" for _, axis, extent in sorted(parts))
    swizzle = f"swizzled by {layout.swizzle_bytes} bytes" if layout.swizzle_bytes else "no swizzle"
    each = f"{slots} slots of {layout.slot_bytes} bytes, each " if slots > 1 else ""
    return f"{each}{order or 'one element'}; {swizzle}"
