"""Tensor maps that a kernel changes: `tensormap.replace` and its copy.

Sources: PTX ISA 9.7.9.28, 9.7.13.16.  Invariant: the maps are of the emulator's own encoding, so
only bytes that a `TensorMap` argument gave, and 128 bytes of zeros, can be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.clocks import scope_number
from astdsl.emulator.convergence import Gathering, together
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fields import FIELDS, ORDINAL_FIELDS, replaced
from astdsl.emulator.formats.tensormap import MAP_BYTES
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.lanes import WARP_THREADS, Lanes
from astdsl.emulator.scalars import one_a_lane
from astdsl.emulator.undefined import read_here

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

_WORD = np.dtype(np.uint64)
_WORDS = MAP_BYTES // _WORD.itemsize
_OFFSETS = np.arange(0, MAP_BYTES, _WORD.itemsize)
_PART = np.dtype(np.uint32)


def _read(m: Machine, lane: Lanes, space: str, address: int) -> bytes:
    words, _ = m.memory.load(m, lane, space, address + _OFFSETS, _WORD)
    return bytes(words.tobytes())


def _write(m: Machine, lane: Lanes, space: str, address: int, raw: bytes) -> None:
    m.memory.store(m, lane, space, address + _OFFSETS, np.frombuffer(raw, _WORD))


def _release(m: Machine, lanes: Lanes, scope: int) -> None:
    """Show the tensormap proxy what lanes know and did, as a fence of a scope does others."""
    if m.guard is not None:
        m.guard.fence_memory(lanes, scope)
    if m.memory.globals.races is not None:
        m.memory.globals.races.maps.released.fence(lanes)


@executes("tensormap.replace")
def prepare_replace(ops: Operands) -> Execute:
    """`tensormap.replace.tile.field{.ss}.b1024.type [addr]{, ord}, value`."""
    spaces = ("global", "shared::cta")
    ops.allow("replace", "tile", "b1024", *spaces, *FIELDS)
    field = next((word for word in FIELDS if ops.has(word)), "")
    if not field:
        raise ops.refuse("a field must be named: " + ", ".join(FIELDS))
    space = next((word.partition("::")[0] for word in spaces if ops.has(word)), "generic")
    ordinal = ops.immediate(ops.args[1]) if field in ORDINAL_FIELDS else 0
    address, value = ops.address(ops.args[0]), ops.source(ops.args[-1], ops.last_type().name)
    ops.sensitive += ops.reads

    def execute(m: Machine, lanes: Lanes) -> None:
        places = np.broadcast_to(address(m, lanes), lanes.n)
        values = np.broadcast_to(value(m, lanes), lanes.n)
        for lane, at, new in zip(lanes.index, places, values, strict=True):
            one = Lanes.listed(np.full(_WORDS, lane))
            try:
                raw = replaced(_read(m, one, space, int(at)), field, ordinal, int(new))
            except FormatError as error:
                raise m.fault("E255", str(error), int(lane)) from None
            _write(m, one, space, int(at), raw)

    return execute


@executes("fence.proxy.tensormap::generic")
def prepare_fence(ops: Operands) -> Execute:
    """`fence.proxy.tensormap::generic.{release,acquire}.scope {[addr], 128}` (PTX ISA 9.7.13.4)."""
    ops.allow("proxy", "tensormap::generic", "release", "acquire", "cta", "cluster", "gpu", "sys")
    scope = scope_number(ops.modifiers)
    if ops.has("release"):

        def release(m: Machine, lanes: Lanes) -> None:
            _release(m, lanes, scope)

        return release
    address = ops.address(ops.args[0])
    if ops.immediate(ops.args[1]) != MAP_BYTES:
        raise ops.refuse(f"{MAP_BYTES} bytes are acquired")
    ops.sensitive += ops.reads

    def acquire(m: Machine, lanes: Lanes) -> None:
        if m.guard is not None:
            m.guard.fence_memory(lanes, scope)
        if m.memory.globals.races is not None:
            places = one_a_lane(address(m, lanes), lanes.n)
            m.memory.globals.races.maps.acquire(lanes, places)

    return acquire


@controls("tensormap.cp_fenceproxy")
def prepare_copy(ops: Operands) -> Control:
    """`tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release... [dst], [src], 128`.

    A warp copies a map from shared to global memory; who uses it is ordered after that.
    """
    ops.allow("cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "acquire",
              "cta", "cluster", "gpu", "sys", "sync", "aligned")  # fmt: skip
    if ops.immediate(ops.args[2]) != MAP_BYTES:
        raise ops.refuse(f"{MAP_BYTES} bytes are copied")
    target, source = ops.address(ops.args[0]), ops.address(ops.args[1])
    ops.sensitive += ops.reads
    scope = scope_number(ops.modifiers)

    def execute(m: Machine, lanes: Lanes) -> None:
        # Lane k copies the k-th word.
        words = (m.thread_of[lanes.sel] % WARP_THREADS * _PART.itemsize).astype(np.int64)
        origins = np.broadcast_to(source(m, lanes), lanes.n) + words
        parts, undefined = m.memory.load(m, lanes, "shared", origins, _PART)
        places = np.broadcast_to(target(m, lanes), lanes.n) + words
        m.memory.store(m, lanes, "global", places, parts, read_here(m, undefined))
        if m.guard is not None:
            # The warp makes one copy: no lane has a part of its own.
            m.guard.meet(lanes)
        _release(m, lanes, scope)

    return together(execute, Gathering(WARP_THREADS))
