"""Windows of shared memory that a warp moves by `ldmatrix` and `stmatrix`.

Invariant: every lane of each warp takes part, and gives the address of a whole row of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astdsl.ir import ops
from astdsl.lowering.layout.matrices import ROW_BYTES, Matrices, matrices_of
from astdsl.lowering.layout.registers import WARP_THREADS, Layout
from astdsl.lowering.nvptx.access import SharedWindow, fast_axis, shared_vector
from astdsl.lowering.nvptx.asm.warp import load_matrix, store_matrix
from astdsl.lowering.nvptx.function import MEMORY_TYPES, Emitter, as_memory, as_register
from astdsl.lowering.nvptx.values import LV, vector


def matrices_of_window(emitter: Emitter, op: ops.Window, layout: Layout) -> Matrices | None:
    """Return how a warp moves a window in a layout; None if not by matrices, or no faster."""
    fast, element_bytes = fast_axis(emitter, op), op.ref.ref.dtype.bytes
    if fast is None or emitter.threads % WARP_THREADS:
        return None
    if shared_vector(emitter, op, layout) * element_bytes >= ROW_BYTES:
        return None
    found = matrices_of(layout, fast, element_bytes)
    if found is None or shared_vector(emitter, op, found.rows) != found.elements:
        return None
    return found


def load_matrices(emitter: Emitter, op: ops.Load, found: Matrices) -> list[LV]:
    """Load a window; the registers of each lane are those of the layout that it is held in."""
    builder, dtype = emitter.builder, op.ref.ref.dtype
    row = load_matrix(found.count, transpose=found.is_transposed)
    kind = MEMORY_TYPES[dtype.name]
    result: list[LV] = []
    for address in _addresses(emitter, op, found):
        for word in builder.asm(row, address):
            if found.each == 1:
                elements = [builder.cast("bitcast", word, kind)]
            else:
                elements = builder.unpack(builder.cast("bitcast", word, vector(found.each, kind)))
            result += [as_register(builder, element, dtype) for element in elements]
    return result


def store_matrices(
    emitter: Emitter, op: ops.Store, found: Matrices, registers: Sequence[LV]
) -> None:
    """Store a window from the registers of a layout that are matrices."""
    builder, dtype = emitter.builder, op.ref.ref.dtype
    row = store_matrix(found.count, transpose=found.is_transposed)
    elements = [as_memory(builder, register, dtype) for register in registers]
    packed = [
        builder.pack(elements[k : k + found.each]) if found.each > 1 else elements[k]
        for k in range(0, len(elements), found.each)
    ]
    words = [builder.cast("bitcast", word, "i32") for word in packed]
    for number, address in enumerate(_addresses(emitter, op, found)):
        builder.asm(row, address, *words[number * found.count : (number + 1) * found.count])


def _addresses(emitter: Emitter, op: ops.Window, found: Matrices) -> Iterator[LV]:
    """Yield for each instruction the address of a lane's row."""
    window = SharedWindow(emitter, op, found.rows)
    window.note_conflicts()
    for register in range(0, found.rows.register_count, found.elements):
        yield emitter.builder.shared_address(window.address(register))
