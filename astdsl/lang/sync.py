"""Barriers and fences written by hand.

Invariant: phases are tracked here: of every barrier a counter counts the waits, and its lowest bit
is the parity of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from astdsl.errors import BadWindow, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.lang.indices import as_index, form_of, index_constant, index_value
from astdsl.lang.shapes import as_extent
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile
from astdsl.records import dataclass

MOST_ARRIVALS = 2**20 - 1


class Barrier:
    """`num_barriers` mbarriers in shared memory, each completed by `num_arrivals` arrivals.

    An arrival is one `barrier_arrive`, or one copy. `bar[slot]` (or `bar.at[slot]`) is one of
    several; `slot` is any kernel integer. With `orders_tensor_core`, tensor memory may be used
    after a wait, and what was done to it before an arrival is ordered: products arrive on those.
    """

    __slots__ = ("arrivals", "count", "counters", "orders_tensor_core", "value")
    operand_help = "a barrier is no value: `barrier_wait(b)` waits for it"

    def __init__(
        self, num_arrivals: object = 1, num_barriers: object = 1, orders_tensor_core: object = False
    ) -> None:
        self.arrivals = as_extent(num_arrivals, "`num_arrivals`")
        self.count = as_extent(num_barriers, "`num_barriers`")
        if not 1 <= self.arrivals <= MOST_ARRIVALS:
            raise fault(
                TypeMismatch,
                f"`Barrier` takes 1 to {MOST_ARRIVALS} arrivals, got {self.arrivals}",
                help="count the arrives and copies that complete one phase",
            )
        if self.count < 1:
            raise fault(
                TypeMismatch,
                f"`Barrier` takes 1 barrier or more, got {self.count}",
                help="one for each slot of the buffer that it guards",
            )
        if not isinstance(orders_tensor_core, bool):
            raise fault(
                TypeMismatch,
                f"`orders_tensor_core` of `Barrier` is True or False, got {orders_tensor_core!r}",
                help="True for a barrier that products in tensor memory arrive on",
            )
        self.orders_tensor_core = orders_tensor_core
        self.value = emit(
            ops.AllocBarrier,
            count=self.count,
            arrivals=self.arrivals,
            orders_tensor_core=orders_tensor_core,
        ).result
        self.counters = tuple(emit(ops.Counter).result for _ in range(self.count))

    def __getitem__(self, slot: object) -> BarrierSlot:
        index = as_index(slot, "the index of a barrier")
        low, high = form_of(index).bounds
        if high < 0 or low >= self.count:
            raise fault(
                BadWindow,
                f"barrier {form_of(index)} of an array of {self.count}",
                (self.value, "made here"),
                help=f"indices go from 0 to {self.count - 1}",
            )
        return BarrierSlot(self, index_value(index), form_of(index).constant)

    def __repr__(self) -> str:
        return f"Barrier({self.arrivals}, {self.count})"

    def __copy__(self) -> Barrier:
        return self

    def __deepcopy__(self, memo: object) -> Barrier:
        # It names memory, which is the same for its copy.
        return self

    def __iter__(self) -> Iterator[BarrierSlot]:
        return (self[slot] for slot in range(self.count))

    @property
    def at(self) -> Barrier:
        """`bar.at[slot]` is `bar[slot]`."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class BarrierSlot:
    """One barrier of an array: its index, and that as a number if it is constant."""

    barrier: Barrier
    index: Value
    number: int | None


def as_slot(barrier: Barrier | BarrierSlot) -> BarrierSlot:
    """Return one barrier; an array of several must be indexed."""
    if isinstance(barrier, BarrierSlot):
        return barrier
    if barrier.count != 1:
        raise fault(
            BadWindow,
            f"an array of {in_words(barrier.count, 'barrier')} stands where one is needed",
            (barrier.value, "made here"),
            help="`bar[slot]` is one of them",
        )
    return barrier[0]


def _require_barrier(barrier: object, function: str) -> BarrierSlot:
    if isinstance(barrier, Barrier | BarrierSlot):
        return as_slot(barrier)
    raise fault(
        TypeMismatch,
        f"`{function}` takes a `Barrier`, got {barrier!r}",
        help="make one with `Barrier(num_arrivals)`",
    )


def barrier_arrive(barrier: object) -> None:
    """Arrive once on a barrier, releasing what was done before. PTX: mbarrier.arrive."""
    slot = _require_barrier(barrier, "barrier_arrive")
    emit(ops.BarrierArrive, barrier=slot.barrier.value, index=slot.index)


def barrier_wait(barrier: object, completion: object = None) -> None:
    """Wait for the next completion of a barrier that this thread has not waited for yet.

    `completion=n` names the n-th one instead, from 0, for a thread that skips some: the newest or
    the one before. It leaves the count of the other waits alone. PTX: mbarrier.try_wait.parity.
    Errors: TypeMismatch.
    """
    slot = _require_barrier(barrier, "barrier_wait")
    parity = _parity(slot, completion, "barrier_wait")
    emit(ops.BarrierWait, barrier=slot.barrier.value, index=slot.index, parity=parity)
    if completion is None:
        _count_wait(slot)


def barrier_test(barrier: object, completion: object = None) -> Tile:
    """Return whether the completion that `barrier_wait` would wait for has happened.

    It does not wait for the completion, and does not count as waited for. Who runs it meets, and
    all are told the same: that it has happened, once each warp sees it.
    PTX: mbarrier.test_wait.parity, then bar.red.and (vote.all in a branch of one warp).
    Errors: TypeMismatch.
    """
    slot = _require_barrier(barrier, "barrier_test")
    parity = _parity(slot, completion, "barrier_test")
    test = emit(ops.BarrierTest, barrier=slot.barrier.value, index=slot.index, parity=parity)
    return Tile(test.result)


def _parity(slot: BarrierSlot, completion: object, function: str) -> Value:
    if completion is None:
        number = _waits(slot)
    else:
        index = as_index(completion, f"`completion` of `{function}`")
        if form_of(index).bounds[1] < 0:
            raise fault(
                TypeMismatch,
                f"`{function}` counts completions from 0, got {form_of(index)}",
                help="`completion=0` is the first one",
            )
        number = index_value(index)
    return emit(ops.BitAnd, x=number, y=index_constant(1)).result


def _waits(slot: BarrierSlot) -> Value:
    """Return how often the barrier was waited for; a runtime index picks among all counters."""
    counters = slot.barrier.counters
    if slot.number is not None:
        return emit(ops.CounterRead, counter=counters[slot.number]).result
    picked = emit(ops.CounterRead, counter=counters[0]).result
    for number, counter in enumerate(counters[1:], start=1):
        read = emit(ops.CounterRead, counter=counter).result
        condition = _is_slot(slot, number)
        picked = emit(ops.Select, condition=condition, x=read, y=picked).result
    return picked


def _is_slot(slot: BarrierSlot, number: int) -> Value:
    this = index_constant(number)
    return emit(ops.Compare, x=slot.index, y=this, predicate="eq").result


def _count_wait(slot: BarrierSlot) -> None:
    one = index_constant(1)
    if slot.number is not None:
        emit(ops.CounterAdd, counter=slot.barrier.counters[slot.number], amount=one)
        return
    for number, counter in enumerate(slot.barrier.counters):
        none = index_constant(0)
        amount = emit(ops.Select, condition=_is_slot(slot, number), x=one, y=none).result
        emit(ops.CounterAdd, counter=counter, amount=amount)


def commit_smem() -> None:
    """Make shared memory written so far visible to copies, and wait for all who run this.

    That is the block, or the warpgroup in `@kernel(warpgroups=n)`. PTX: fence.proxy.async,
    bar.sync.
    """
    emit(ops.ProxyFence)
    emit(ops.BlockBarrier)
