"""Asynchronous copies, products and barriers: what is right is silent, each omission is named."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.errors import KernelError, ParallelConflict, ProtocolError, UnwrittenRead
from astdsl.ir import ops
from astdsl.ir.core import IN, OUT, Block, Module
from astdsl.ir.dtypes import f16, f32
from astdsl.ir.evaluate import evaluate
from astdsl.ir.types import INDEX
from astdsl.ir.verify import verify
from tests.building import Maker, gmem

TILE = (8, 4)


def launch(m: Maker, body: Block, count: int) -> None:
    """Append a launch of `count` blocks."""
    with m.region() as grid:
        m.yields(m.index(count))
    m.op(ops.Launch, grid=grid.block, body=body)


def copy_module(*, without: str = "", early: bool = False) -> Module:
    """Return `o = x + 1` by one block, by hand; `without` names an operation to leave out."""
    m = Maker(("x", IN, gmem(f32, *TILE)), ("o", OUT, gmem(f32, *TILE)))

    def unless(name: str, kind: type, **fields: object) -> None:
        if name != without:
            m.op(kind, **fields)

    with m.region(INDEX) as body:
        buffer = m.make(ops.AllocSmem, shape=TILE, dtype=f32, label="buffer")
        full = m.make(ops.AllocBarrier, count=1, arrivals=1)
        zero = m.index(0)
        unless("copy", ops.CopyIn, **m.window(m["x"], (0, 0), TILE), buffer=buffer,
               barrier=full, index=zero)  # fmt: skip
        unless("wait", ops.BarrierWait, barrier=full, index=zero, parity=zero)
        tile = m.load(buffer, (0, 0), TILE)
        m.store(buffer, (0, 0), m.make(ops.Add, tile, m.full(1, f32, *TILE)))
        unless("fence", ops.ProxyFence)
        unless("join", ops.BlockBarrier)
        m.op(ops.CopyOut, **m.window(m["o"], (0, 0), TILE), buffer=buffer)
        unless("commit", ops.CommitGroup)
        if early:
            m.store(buffer, (0, 0), tile)
        unless("drain", ops.WaitGroup, pending=0)
        m.yields()
    launch(m, body.block, 1)
    return m.module()


def run_copy(module: Module) -> np.ndarray:
    verify(module)
    x, o = np.arange(32, dtype=np.float32).reshape(TILE), np.zeros(TILE, np.float32)
    evaluate(module, [x, o])
    assert (o == x + 1).all()
    return o


def test_a_copy_by_hand_is_right() -> None:
    run_copy(copy_module())


@pytest.mark.parametrize(
    ("without", "error", "words"),
    [
        ("copy", ProtocolError, "deadlock"),
        ("wait", ProtocolError, "buffer is read before the copy into it was waited for"),
        ("fence", ProtocolError, "without a proxy fence"),
        ("join", ProtocolError, "without a block barrier"),
        ("commit", ProtocolError, "still reads its shared memory"),
        ("drain", ProtocolError, "still reads its shared memory"),
    ],
)
def test_each_operation_left_out_is_reported(
    without: str, error: type[KernelError], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_copy(copy_module(without=without))


def test_a_slot_overwritten_while_it_is_copied_out_is_reported_with_both_places() -> None:
    with pytest.raises(ProtocolError, match="overwritten while an asynchronous read") as caught:
        run_copy(copy_module(early=True))
    writer, reader = (place.line for place, _ in caught.value.places)
    assert writer > reader


@pytest.mark.parametrize("read_only", [False, True])
def test_a_copy_out_has_arrived_only_when_it_is_complete(read_only: bool) -> None:
    m = Maker(("o", OUT, gmem(f32, *TILE)))
    buffer = m.make(ops.AllocSmem, shape=TILE, dtype=f32)
    m.store(buffer, (0, 0), m.full(1, f32, *TILE))
    m.op(ops.ProxyFence)
    m.op(ops.BlockBarrier)
    m.op(ops.CopyOut, **m.window(m["o"], (0, 0), TILE), buffer=buffer)
    m.op(ops.CommitGroup)
    m.op(ops.WaitGroup, pending=0, read_only=read_only)
    m.store(buffer, (0, 0), m.full(2, f32, *TILE))
    m.store(m["o"], (0, 0), m.load(m["o"], (0, 0), TILE))
    o = np.zeros(TILE, np.float32)
    if read_only:
        with pytest.raises(ProtocolError, match="o is read before the copy out to it"):
            evaluate(m.module(), [o])
    else:
        evaluate(m.module(), [o])
        assert (o == 1).all()


def test_a_deadlock_names_the_wait_and_the_barrier() -> None:
    with pytest.raises(ProtocolError, match="deadlock") as caught:
        run_copy(copy_module(without="copy"))
    wait, barrier = (place.line for place, _ in caught.value.places)
    assert wait > barrier


def test_a_fresh_barrier_has_its_odd_phase_complete() -> None:
    m = Maker()
    barrier = m.make(ops.AllocBarrier, count=1, arrivals=1)
    m.op(ops.BarrierWait, barrier=barrier, index=m.index(0), parity=m.index(1))
    evaluate(m.module(), [])


def test_a_phase_needs_all_its_arrivals() -> None:
    for arrivals, is_stuck in ((1, False), (2, True)):
        m = Maker()
        barrier = m.make(ops.AllocBarrier, count=1, arrivals=arrivals)
        m.op(ops.BarrierArrive, barrier=barrier, index=m.index(0))
        m.op(ops.BarrierWait, barrier=barrier, index=m.index(0), parity=m.index(0))
        if is_stuck:
            with pytest.raises(ProtocolError, match="deadlock"):
                evaluate(m.module(), [])
        else:
            evaluate(m.module(), [])


def test_an_arrival_on_a_phase_that_nobody_awaited_is_reported() -> None:
    m = Maker()
    barrier = m.make(ops.AllocBarrier, count=1, arrivals=1)
    for _ in range(2):
        m.op(ops.BarrierArrive, barrier=barrier, index=m.index(0))
    with pytest.raises(ProtocolError, match="overruns"):
        evaluate(m.module(), [])


def test_a_test_of_a_barrier_does_not_wait() -> None:
    m = Maker(("o", OUT, gmem(f32, 2)))
    barrier = m.make(ops.AllocBarrier, count=1, arrivals=1)
    for place in range(2):
        done = m.make(ops.BarrierTest, barrier=barrier, index=m.index(0), parity=m.index(0))
        number = m.make(ops.Cast, done, dtype=f32)
        m.store(m["o"], (place,), m.make(ops.Reshape, number, shape=(1,)))
        m.op(ops.BarrierArrive, barrier=barrier, index=m.index(0))
    o = np.zeros(2, np.float32)
    evaluate(m.module(), [o])
    assert o.tolist() == [0, 1]


def test_a_copy_that_is_predicated_off_arrives_and_copies_nothing() -> None:
    m = Maker(("x", IN, gmem(f32, *TILE)), ("o", OUT, gmem(f32, *TILE)))
    buffer = m.make(ops.AllocSmem, shape=TILE, dtype=f32)
    full, zero = m.make(ops.AllocBarrier, count=1, arrivals=1), m.index(0)
    m.op(ops.CopyIn, **m.window(m["x"], (0, 0), TILE), buffer=buffer, barrier=full, index=zero,
         predicate=(m.flag(False),))  # fmt: skip
    m.op(ops.BarrierWait, barrier=full, index=zero, parity=zero)
    m.store(m["o"], (0, 0), m.load(buffer, (0, 0), TILE))
    with pytest.raises(UnwrittenRead):
        evaluate(m.module(), [np.ones(TILE, np.float32), np.zeros(TILE, np.float32)])


@pytest.mark.parametrize("order", ["ascending", "descending", 0, 1])
def test_blocks_run_in_the_order_that_is_asked_for(order: str | int) -> None:
    m = Maker(("x", IN, gmem(f32, None)), ("o", OUT, gmem(f32, None)))
    with m.region(INDEX) as body:
        (block,) = body.args
        m.store(m["o"], (block,), m.load(m["x"], (block,), (1,)))
        m.yields()
    launch(m, body.block, 10)
    x, o = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    evaluate(m.module(), [x, o], order=order)
    assert (o == x).all()


def test_blocks_that_write_one_element_are_reported() -> None:
    m = Maker(("o", OUT, gmem(f32, 4)))
    with m.region(INDEX) as body:
        m.store(m["o"], (0,), m.full(1, f32, 1))
        m.yields()
    launch(m, body.block, 2)
    with pytest.raises(ParallelConflict):
        evaluate(m.module(), [np.zeros(4, np.float32)])


def ring_module(depth: int, stages: int, *, without: str = "") -> Module:
    """Return `c = a @ b` of (64, 16 * depth) by a ring of `stages` slots, products in flight."""
    rows, step, columns = 64, 16, 32
    m = Maker(
        ("a", IN, gmem(f16, rows, step * depth)),
        ("b", IN, gmem(f16, step * depth, columns)),
        ("c", OUT, gmem(f32, rows, columns)),
    )

    def slot_of(n: int) -> tuple[object, object]:
        return m.index(n % stages), m.index(n // stages % 2)

    with m.region(INDEX) as body:
        a = m.make(ops.AllocSmem, shape=(stages, rows, step), dtype=f16, label="a")
        b = m.make(ops.AllocSmem, shape=(stages, step, columns), dtype=f16, label="b")
        full = m.make(ops.AllocBarrier, count=stages, arrivals=2)
        total = m.make(ops.AllocAccumulator, shape=(rows, columns), dtype=f32)

        def fetch(n: int) -> None:
            slot, _ = slot_of(n)
            shared = {"slot": (slot,), "barrier": full, "index": slot}
            at = step * n
            m.op(ops.CopyIn, **m.window(m["a"], (0, at), (rows, step)), buffer=a, **shared)
            m.op(ops.CopyIn, **m.window(m["b"], (at, 0), (step, columns)), buffer=b, **shared)

        for n in range(min(stages, depth)):
            fetch(n)
        for n in range(depth):
            slot, parity = slot_of(n)
            if without != "wait":
                m.op(ops.BarrierWait, barrier=full, index=slot, parity=parity)
            m.op(ops.MatrixMultiply, accumulator=total, a=a, b=b, a_slot=(slot,), b_slot=(slot,),
                 accumulate=m.flag(n > 0))  # fmt: skip
            # One product stays in flight, so the slot before this one is free.
            if without != "product wait":
                m.op(ops.ProductWait, pending=1)
            if n > 0 and n - 1 + stages < depth:
                fetch(n - 1 + stages)
        if without != "last wait":
            m.op(ops.ProductWait, pending=0)
        m.store(m["c"], (0, 0), m.make(ops.AccumulatorRead, accumulator=total))
        m.yields()
    launch(m, body.block, 1)
    return m.module()


def run_ring(module: Module, depth: int) -> None:
    verify(module)
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 4, (64, 16 * depth)).astype(np.float16)
    b = rng.integers(-4, 4, (16 * depth, 32)).astype(np.float16)
    c = np.zeros((64, 32), np.float32)
    evaluate(module, [a, b, c])
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_a_ring_with_a_product_in_flight_is_right(stages: int, depth: int) -> None:
    run_ring(ring_module(depth, stages), depth)


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("wait", "read before the copy into it was waited for"),
        ("product wait", "overwritten while an asynchronous read"),
        ("last wait", "a product into it is in flight"),
    ],
)
def test_each_wait_left_out_of_a_ring_is_reported(without: str, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        run_ring(ring_module(7, 3, without=without), 7)


def test_transposed_operands_of_a_product() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, s).astype(np.float16) for s in ((16, 64), (32, 16)))
    m = Maker(("a", IN, gmem(f16, 16, 64)), ("b", IN, gmem(f16, 32, 16)),
              ("c", OUT, gmem(f32, 64, 32)))  # fmt: skip
    refs = []
    for name, shape in (("a", (16, 64)), ("b", (32, 16))):
        ref = m.make(ops.AllocSmem, shape=shape, dtype=f16, label=name)
        m.store(ref, (0, 0), m.load(m[name], (0, 0), shape))
        refs.append(ref)
    m.op(ops.ProxyFence)
    m.op(ops.BlockBarrier)
    total = m.make(ops.AllocAccumulator, shape=(64, 32), dtype=f32)
    m.op(ops.MatrixMultiply, accumulator=total, a=refs[0], b=refs[1], a_transposed=True,
         b_transposed=True, accumulate=m.flag(False))  # fmt: skip
    m.op(ops.ProductWait, pending=0)
    m.store(m["c"], (0, 0), m.make(ops.AccumulatorRead, accumulator=total))
    c = np.zeros((64, 32), np.float32)
    evaluate(m.module(), [a, b, c])
    assert (c == a.T.astype(np.float32) @ b.T.astype(np.float32)).all()


def test_reading_an_unwritten_accumulator_is_reported() -> None:
    m = Maker(("o", OUT, gmem(f32, 4)))
    total = m.make(ops.AllocAccumulator, shape=(64, 8), dtype=f32)
    m.make(ops.AccumulatorRead, accumulator=total)
    with pytest.raises(UnwrittenRead, match="accumulator"):
        evaluate(m.module(), [np.zeros(4, np.float32)])
