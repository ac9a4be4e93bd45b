"""Cluster launch control: running clusters take over the work of waiting ones.

PTX ISA 9.7.13.17, 9.7.13.18.  Invariant: a response is 16 bytes of our own: the index of the first
block of the cancelled cluster, and whether there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.copies import Addresses, Transfer, issue_values
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place
from astdsl.emulator.spread import Spread, cluster_start, own
from astdsl.emulator.syntax import Vector

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.limits import Triple
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array

_RESPONSE_BYTES = 16
_CANCELLED = np.uint64(1 << 32)
_LOW = np.uint64(0xFFFFFFFF)
_AXES = ("x", "y", "z")


@executes("clusterlaunchcontrol.try_cancel")
def prepare_cancel(ops: Operands) -> Execute:
    """`clusterlaunchcontrol.try_cancel.async{.space}.mbarrier...{.multicast}.b128 [a], [mbar]`."""
    every = "multicast::cluster::all"
    ops.allow("try_cancel", "async", "shared::cta", "mbarrier::complete_tx::bytes", every, "b128")
    address, barrier = ops.address(ops.args[0]), barrier_place(ops, ops.args[1])
    reach = _whole_cluster if ops.has(every) else own

    def execute(m: Machine, lanes: Lanes) -> None:
        _, offsets = m.memory.shared_place(
            m, lanes, address(m, lanes), _RESPONSE_BYTES, aligned=True
        )
        places = barrier(m, lanes)[1]
        responses = np.stack([_response(m) for _ in range(lanes.n)])
        spread = reach(m, lanes)
        starts = spread.of(offsets)
        target = Transfer(
            m, spread.lanes, "clusterlaunchcontrol.try_cancel", _RESPONSE_BYTES,
            Addresses.listed(starts[:, None]), None, spread.rows, starts, _RESPONSE_BYTES,
            starts[:, None] // _RESPONSE_BYTES,
        )  # fmt: skip
        values = spread.of(responses).view(np.complex128)
        issue_values(target, values, (spread.rows, spread.of(places)))

    return execute


def _whole_cluster(m: Machine, lanes: Lanes) -> Spread:
    size = m.launch.cluster_size
    at = np.repeat(np.arange(lanes.n), size)
    first = cluster_start(m, m.block_of[lanes.sel])
    return Spread(lanes.listed(lanes.index[at]), at, first[at] + np.tile(np.arange(size), lanes.n))


def _response(m: Machine) -> Array:
    found: Triple | None = None if m.launch.waiting is None else m.launch.waiting.cancel()
    if found is None:
        return np.zeros(2, np.uint64)
    x, y, z = found
    return np.array([x | y << 32, z | int(_CANCELLED)], np.uint64)


@executes("clusterlaunchcontrol.query_cancel")
def prepare_query(ops: Operands) -> Execute:
    """`clusterlaunchcontrol.query_cancel.{is_canceled.pred,get_first_ctaid...b32}.b128 d, a`."""
    words = [f"get_first_ctaid::{axis}" for axis in _AXES]
    ops.allow("query_cancel", "is_canceled", "get_first_ctaid", *words, "v4", "pred", "b32", "b128")
    response = ops.source(ops.args[1], "b128")
    if ops.has("is_canceled"):
        write = ops.destination(ops.args[0], "pred")
        return lambda m, lanes: write(m, lanes, response(m, lanes)[:, 1] >= _CANCELLED)
    if isinstance(ops.args[0], Vector):
        axes = list(range(3))
        writes = [ops.destination(each, "b32") for each in ops.args[0].elements[:3]]
    else:
        axes = [i for i, word in enumerate(words) if ops.has(word)]
        writes = [ops.destination(ops.args[0], "b32")]

    def execute(m: Machine, lanes: Lanes) -> None:
        found = response(m, lanes)
        values = found[:, 0] & _LOW, found[:, 0] >> np.uint64(32), found[:, 1] & _LOW
        for axis, write in zip(axes, writes, strict=True):
            write(m, lanes, values[axis].astype(np.uint32))

    return execute
