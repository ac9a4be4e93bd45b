"""What a block does before and after its program: barriers, tensor memory, padding.

Invariant: after `enter`, every thread sees every mbarrier initialised, and so does the
asynchronous proxy; after `leave`, nothing of the block is held.
"""

from __future__ import annotations

from itertools import product

from astdsl.ir import ops
from astdsl.ir.core import Block, walk
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.asm import barriers
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.values import LV, i32, zero
from astdsl.lowering.target import TCGEN05

_WIDE = "<4 x i32>"
_WIDE_BYTES = 16


def enter(emitter: Emitter, program: Block) -> None:
    """Write what comes before the program."""
    starts = _initialise_barriers(emitter, program)
    clears = _clear_padded_buffers(emitter)
    if starts or clears:
        emitter.synchronise()
    if emitter.target.has(TCGEN05):
        emitter.tensor_memory = tensor_memory.reserve(emitter, program)


def leave(emitter: Emitter) -> None:
    """Write what comes after the program."""
    if emitter.tensor_memory:
        tensor_memory.release(emitter, emitter.tensor_memory)
    emitter.builder.ret()


def _initialise_barriers(emitter: Emitter, program: Block) -> bool:
    """Initialise every mbarrier; return whether there is one."""
    found = [op for op in walk(program) if isinstance(op, ops.AllocBarrier)]
    if not found:
        return False
    builder = emitter.builder
    with emitter.guarded(emitter.is_first_thread(), "initialise"):
        for op in found:
            for offset_bytes, index in product(emitter.shared.places(op.result), range(op.count)):
                base = builder.shared(offset_bytes)
                address = builder.shared_address(builder.gep("i64", base, i32(index)))
                builder.asm(barriers.MBARRIER_INIT, address, i32(op.arrivals))
        builder.asm(barriers.FENCE_MBARRIER_INIT)
        builder.asm(barriers.FENCE_PROXY_ASYNC)
    return True


def _clear_padded_buffers(emitter: Emitter) -> bool:
    """Fill operands that are laid out with room for more rows with zeros, once.

    Products read the room, so it must hold something; no copy ever writes there.
    """
    shared = emitter.shared
    padded = [v for v, layout in shared.layouts.items() if layout.allocated != layout.shape]
    for buffer in padded:
        for offset_bytes in shared.places(buffer):
            _clear(emitter, offset_bytes, shared.sizes[buffer])
    if padded:
        emitter.builder.asm(barriers.FENCE_PROXY_ASYNC)
    return bool(padded)


def _clear(emitter: Emitter, offset_bytes: int, size_bytes: int) -> None:
    """Write a loop in which the threads store zeros, 16 bytes each, side by side."""
    builder = emitter.builder
    head, body, done = (builder.block(hint) for hint in ("clear", "cleared", "clear.end"))
    first = builder.mul(emitter.thread, i32(_WIDE_BYTES))
    before = builder.current
    builder.br(head)
    builder.position(head)
    place = builder.phi("i32", "place")
    place.add(first, before)
    builder.cond_br(builder.icmp("ult", place.value, i32(size_bytes)), body, done)
    builder.position(body)
    target = builder.gep("i8", builder.shared(offset_bytes), place.value)
    nothing: LV = zero(_WIDE)
    builder.store(nothing, target, _WIDE_BYTES)
    place.add(builder.add(place.value, i32(_WIDE_BYTES * emitter.threads)), builder.current)
    builder.back_br(head)
    builder.position(done)
