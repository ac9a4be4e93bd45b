"""Clusters of blocks: their barrier, and addresses in each other's shared memory.

Source: PTX ISA 9.7.13.3 (barrier.cluster), 9.7.9.23 (mapa), 9.7.9.24 (getctarank). Invariant: a
shared address carries the rank of its block in bits 24 to 31, as the hardware's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.barriers import BlockBarriers
from astdsl.emulator.clocks import SCOPES
from astdsl.emulator.convergence import together
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.isa.steps import value_step
from astdsl.emulator.machine import Condition
from astdsl.emulator.memory import RANK_SHIFT

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array, BoolArray

RANK_MASK = 0xFF << RANK_SHIFT


class ClusterBarrier:
    """The one barrier of each cluster; `pending` = the lane has arrived and not waited yet."""

    def __init__(self, m: Machine) -> None:
        self.size = m.launch.cluster_size
        n_clusters = m.n_blocks // self.size
        self.barriers = BlockBarriers(n_clusters, m.n_threads * self.size)
        self.generation = np.zeros(m.n_lanes, np.int64)
        self.pending = np.zeros(m.n_lanes, np.bool_)
        self.barriers.live -= self.count(m, np.flatnonzero(~m.live))
        m.end_hooks.append(lambda lanes: self.barriers.leave(self.count(m, lanes.sel)))

    def count(self, m: Machine, sel: Any) -> Array:
        """Return how many of the lanes each cluster has."""
        clusters = m.block_of[sel] // self.size
        return np.bincount(clusters, minlength=m.n_blocks // self.size)

    def now(self, m: Machine, lanes: Lanes) -> Array:
        """Return the phase of each lane's barrier."""
        phases: Array = self.barriers.generation[m.block_of[lanes.sel] // self.size, 0]
        return phases


@controls("barrier.cluster.arrive")
def prepare_arrive(ops: Operands) -> Control:
    """`barrier.cluster.arrive{.release,.relaxed}{.aligned}`: arrive and go on."""
    ops.allow("cluster", "arrive", "release", "relaxed", "aligned")
    relaxed = SCOPES.index("cluster") if ops.has("relaxed") else None

    def execute(m: Machine, lanes: Lanes) -> None:
        state = m.state(ClusterBarrier)
        if state.pending[lanes.sel].any():
            at = int(lanes.index[np.argmax(state.pending[lanes.sel])])
            text = "barrier.cluster.arrive twice without a wait between"
            raise m.fault("E213", text, at)
        state.pending[lanes.sel] = True
        state.generation[lanes.sel] = state.now(m, lanes)
        counts = state.count(m, lanes.sel)
        state.barriers.arrive(counts, 0, None, counts * 0)
        if m.guard is not None:
            m.guard.arrive_cluster(lanes, relaxed=relaxed)
        m.wake = True

    return together(execute) if ops.has("aligned") else execute


@controls("barrier.cluster.wait")
def prepare_wait(ops: Operands) -> Control:
    """`barrier.cluster.wait{.acquire}{.aligned}`: wait for every thread of the cluster."""
    ops.allow("cluster", "wait", "acquire", "aligned")

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        state = m.state(ClusterBarrier)
        if not state.pending[lanes.sel].all():
            at = int(lanes.index[np.argmin(state.pending[lanes.sel])])
            raise m.fault("E213", "barrier.cluster.wait without an arrive before", at)
        m.block(lanes, _WAIT)
        return lane_sets.NONE

    return together(execute) if ops.has("aligned") else execute


def _ready(m: Machine, lanes: Lanes) -> BoolArray:
    state = m.state(ClusterBarrier)
    ready: BoolArray = state.now(m, lanes) != state.generation[lanes.sel]
    return ready


def _resume(m: Machine, lanes: Lanes) -> None:
    m.state(ClusterBarrier).pending[lanes.sel] = False


def _text(m: Machine, lanes: Lanes) -> str:
    state = m.state(ClusterBarrier)
    cluster = int(m.block_of[lanes.index[0]]) // state.size
    arrived, expected = state.barriers.arrived[cluster, 0], state.barriers.expected[cluster, 0]
    return f"waits at the cluster's barrier, {arrived} of {expected} threads have arrived"


def _learn(m: Machine, lanes: Lanes) -> None:
    if m.guard is not None:
        m.guard.pass_cluster(lanes)


_WAIT = Condition(_ready, _text, _resume, _learn)


@executes("mapa")
def prepare_mapa(ops: Operands) -> Execute:
    """`mapa{.shared::cluster}.type d, a, b`: the address of `a` in the block of rank b."""
    ops.allow("shared::cluster")
    name = ops.last_type().name
    dtype = ops.last_type().dtype.type
    keep = dtype(~RANK_MASK & ((1 << ops.last_type().bits) - 1))

    def function(a: Any, rank: Any) -> Any:
        return (a & keep) | (np.asarray(rank).astype(dtype) << dtype(RANK_SHIFT))

    return value_step(ops, function, name, [name, "u32"])


@executes("getctarank")
def prepare_rank(ops: Operands) -> Execute:
    """`getctarank{.shared::cluster}.type d, a`: the rank of the block that an address lies in."""
    ops.allow("shared::cluster")
    name = ops.last_type().name
    dtype = ops.last_type().dtype.type

    def function(a: Any) -> Any:
        return ((a & dtype(RANK_MASK)) >> dtype(RANK_SHIFT)).astype(np.uint32)

    return value_step(ops, function, "u32", [name])
