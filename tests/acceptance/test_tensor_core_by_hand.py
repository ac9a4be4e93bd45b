"""Acceptance 14 to 16: the tensor core by its own names, in one warpgroup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    ACC,
    SMEM,
    TMEM,
    Barrier,
    In,
    KernelError,
    Layout,
    Out,
    RefUnion,
    SwizzleTransform,
    TilingTransform,
    async_load_tmem,
    async_store_tmem,
    barrier_wait,
    bf16,
    commit_smem,
    commit_tmem,
    copy_gmem_to_smem,
    ds,
    f16,
    f32,
    full,
    kernel,
    parallel,
    tcgen05_commit_arrive,
    tcgen05_mma,
    tile,
    wait_load_tmem,
    wgmma,
    wgmma_accumulator_load,
    wgmma_wait,
)
from astdsl.errors import ProtocolError, WrongTarget
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.lowering.schedule.kernel import schedule
from astdsl.lowering.target import SM_90A
from tests.witnesses import agree

Array = np.ndarray[Any, Any]
TILED = (TilingTransform((8, 64)), SwizzleTransform(128))
RANDOM = np.random.default_rng(14)
A = RANDOM.integers(-3, 4, (64, 128)).astype(np.float16)
B = RANDOM.integers(-3, 4, (128, 192)).astype(np.float16)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32)
HOPPER, BLACKWELL = ("sm_90a",), ("sm_100a",)


@kernel
def multiplied(a: In[f16, "64 128"], b: In[f16, "128 192"], c: Out[f32, "64 192"], *, layout=None):
    left, right = SMEM((64, 128), f16, transforms=layout), SMEM((128, 192), f16, transforms=layout)
    full_ = Barrier(num_arrivals=2)
    copy_gmem_to_smem(a.at[...], left, full_)
    copy_gmem_to_smem(b.at[...], right, full_)
    barrier_wait(full_)
    acc = ACC((64, 192))
    wgmma(acc, left, right)
    c[...] = acc[...]


@pytest.mark.parametrize("layout", [None, TILED], ids=["inferred", "stated"])
def test_14_a_product_of_shared_memory(layout: Any) -> None:
    found = agree(multiplied, lambda: (A, B), targets=HOPPER, layout=layout)
    assert np.array_equal(found, PRODUCT)


@kernel
def halves_swapped(a: In[f16, "64 128"], b: In[f16, "192 128"], c: Out[f32, "64 192"]):
    left, right, full_ = SMEM((64, 128), f16), SMEM((192, 128), f16), Barrier(num_arrivals=2)
    copy_gmem_to_smem(a.at[...], left, full_)
    copy_gmem_to_smem(b.at[...], right, full_)
    barrier_wait(full_)
    acc = ACC((64, 192))
    wgmma(acc.at[:, 0:96], left, right.at[96:192].T)
    wgmma(acc.at[:, 96:192], left, right.at[0:96].T)
    c[:, 0:64] = acc[:, 0:64]
    c[:, 64:192] = acc[:, 64:192]


def test_14_halves_of_the_accumulator_are_swapped() -> None:
    found = agree(halves_swapped, lambda: (A, np.ascontiguousarray(B.T)), targets=HOPPER)
    assert np.array_equal(found, np.concatenate([PRODUCT[:, 96:], PRODUCT[:, :96]], axis=1))


@kernel
def from_registers(a: In[f16, "128 128"], b: In[f16, "128 192"], c: Out[f32, "128 192"]):
    right, full_ = SMEM((128, 192), f16), Barrier()
    copy_gmem_to_smem(b.at[...], right, full_)
    doubled = a[...] * 2
    barrier_wait(full_)
    first, second = ACC.init(full((128, 96), 1.0, f32)), ACC((128, 96))
    wgmma(first, doubled, right.at[:, 0:96])
    wgmma(second, doubled, right.at[:, 96:192])
    c[:, 0:96] = wgmma_accumulator_load(first, 1)
    c[:, 96:192] = wgmma_accumulator_load(second)


def test_14_a_in_registers_and_two_accumulators_with_waits_one_then_none() -> None:
    a = np.concatenate([A, -A])
    found = agree(from_registers, lambda: (a, B), targets=HOPPER)
    expected = 2 * np.concatenate([PRODUCT, -PRODUCT])
    expected[:, :96] += 1
    assert np.array_equal(found, expected)


@kernel
def stored(a: In[f16, "64 64"], b: In[f16, "64 64"], c: Out[f32, "64 64"]):
    left, right = SMEM((2, 64, 64), f16), SMEM((64, 64), f16)
    left[1] = a[...]
    right[...] = b[...]
    commit_smem()
    acc = ACC((64, 64))
    wgmma(acc, left.at[1, :, 0:32].T.T, right.at[0:32])
    wgmma(acc, left.at[1, :, 32:64], right.at[32:64])
    c[...] = acc[...]


def test_14_parts_of_a_slot_add_up() -> None:
    a, b = A[:, :64].copy(), B[:64, :64].copy()
    found = agree(stored, lambda: (a, b), targets=HOPPER)
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@kernel
def unfenced(a: In[f16, "64 64"], b: In[f16, "64 64"], c: Out[f32, "64 64"], *, fence, wait):
    left, right = SMEM((64, 64), f16), SMEM((64, 64), f16)
    left[...] = a[...]
    right[...] = b[...]
    if fence:
        commit_smem()
    acc = ACC((64, 64))
    wgmma(acc, left, right)
    if wait:
        wgmma_wait(0)
    left[...] = right[...]
    c[...] = acc[...] + left[...]


@pytest.mark.parametrize(("fence", "wait"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_19_a_missing_fence_or_wait_around_a_product_is_reported(
    device: str, fence: bool, wait: bool
) -> None:
    a, b = A[:, :64].copy(), B[:64, :64].copy()
    if fence and wait:
        assert unfenced.on(device)(a, b, fence=fence, wait=wait).shape == (64, 64)
        return
    with pytest.raises(KernelError) as caught:
        unfenced.on(device)(a, b, fence=fence, wait=wait)
    assert caught.value.help
    if device == "reference":
        assert isinstance(caught.value, ProtocolError)


def test_accumulators_in_registers_are_refused_on_the_other_target_naming_both() -> None:
    with pytest.raises(WrongTarget, match="needs sm_90a, and this kernel is compiled for sm_100a"):
        multiplied.on("emulator", target="sm_100a")(A, B)


# Tensor memory


@kernel
def in_tensor_memory(
    a: In["_ _"], b: In["_ _"], c: Out[f32, "M N"], *, M, N, K, dtype, swizzle, turned, held
):
    turned_a, turned_b = turned
    layout = (TilingTransform((8, swizzle * 8 // dtype.bits)), SwizzleTransform(swizzle))
    left = SMEM((K, M) if turned_a else (M, K), dtype, transforms=layout)
    right = SMEM((N, K) if turned_b else (K, N), dtype, transforms=layout)
    full_, done = Barrier(num_arrivals=2), Barrier(orders_tensor_core=True)
    copy_gmem_to_smem(a.at[...], left, full_)
    copy_gmem_to_smem(b.at[...], right, full_)
    barrier_wait(full_)
    acc = TMEM((M, N))
    first = left.T if turned_a else left
    if held:
        first = TMEM((M, K), dtype, packed=True)
        async_store_tmem(first, left[...])
        commit_tmem()
    tcgen05_mma(acc, first, right.T if turned_b else right, done, accumulate=False)
    barrier_wait(done)
    c[...] = async_load_tmem(acc)


def product_in_tensor_memory(
    M: int,
    N: int,
    *,
    swizzle: int = 128,
    dtype: Any = f16,
    turned: tuple[bool, bool] = (False, False),
    held: bool = False,
) -> None:
    a = RANDOM.integers(-3, 4, (M, 128)).astype(dtype.numpy)
    b = RANDOM.integers(-3, 4, (128, N)).astype(dtype.numpy)
    given = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True)]
    constants = {"M": M, "N": N, "K": 128, "dtype": dtype, "swizzle": swizzle}
    found = in_tensor_memory.on("emulator", target="sm_100a")(
        *given, **constants, turned=turned, held=held
    )
    expected = a.astype(np.float32) @ b.astype(np.float32)
    assert np.array_equal(found, expected)
    again = in_tensor_memory.on("reference")(*given, **constants, turned=turned, held=held)
    assert np.array_equal(again, expected)


@pytest.mark.parametrize("M", [64, 128])
@pytest.mark.parametrize("N", [64, 128, 256])
def test_15_a_product_in_tensor_memory(M: int, N: int) -> None:
    product_in_tensor_memory(M, N)


@pytest.mark.parametrize("swizzle", [64, 32])
def test_15_operands_of_every_swizzle(swizzle: int) -> None:
    product_in_tensor_memory(128, 64, swizzle=swizzle)


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
def test_15_operands_are_transposed(turned: tuple[bool, bool]) -> None:
    product_in_tensor_memory(128, 64, turned=turned)


@pytest.mark.parametrize(("M", "dtype"), [(64, f16), (128, bf16)])
def test_15_a_in_tensor_memory(M: int, dtype: Any) -> None:
    product_in_tensor_memory(M, 64, dtype=dtype, held=True)


@kernel
def round_trip(x: In[f32, "M N"], o: Out[f32, "M N"], *, width=32):
    M, N = x.shape
    memory = TMEM((M, N))
    async_store_tmem(memory, x[...])
    commit_tmem()
    for j in range(N // width):
        part = memory.at[:, ds(j * width, width)]
        read = async_load_tmem(part)
        wait_load_tmem()
        async_store_tmem(part, read + 1)
    commit_tmem()
    o[...] = async_load_tmem(memory)


@kernel
def reduced_rows(x: In[f32, "M N"], o: Out[f32, "M N"], p: Out[f32, "M"], *, reduce="max"):
    memory = TMEM(x.shape)
    async_store_tmem(memory, x[...])
    commit_tmem()
    o[...], p[...] = async_load_tmem(memory, layout=Layout.WGMMA, reduce=reduce)


@pytest.mark.parametrize(("rows", "reduce"), [(64, "max"), (128, "min"), (128, "max")])
def test_a_load_may_find_the_extremes_of_its_rows(rows: int, reduce: str) -> None:
    x = RANDOM.standard_normal((rows, 64)).astype(np.float32)
    x[3, 5] = np.nan
    same, found = agree(reduced_rows, lambda: [x], targets=BLACKWELL, reduce=reduce)
    assert np.array_equal(same, x, equal_nan=True)
    assert np.array_equal(found, getattr(np, reduce)(x, axis=1), equal_nan=True)


@pytest.mark.parametrize("rows", [64, 128])
def test_16_a_round_trip_by_slices_of_columns_at_kernel_values(rows: int) -> None:
    x = RANDOM.normal(size=(rows, 64)).astype(np.float32)
    assert np.array_equal(agree(round_trip, lambda: (x,), targets=BLACKWELL), x + 1)


@kernel
def packed_and_not(x: In[f16, "128 32"], o: Out[f16, "128 32"], p: Out[f16, "128 32"]):
    loose, packed = TMEM((128, 32), f16), TMEM((128, 32), f16, packed=True)
    async_store_tmem(loose, x[...])
    async_store_tmem(packed, x[...] * 2)
    commit_tmem()
    o[...] = async_load_tmem(loose)
    p[...] = async_load_tmem(packed)


def test_16_halves_are_stored_packed_or_one_to_a_cell() -> None:
    x = RANDOM.integers(-9, 9, (128, 32)).astype(np.float16)
    o, p = agree(packed_and_not, lambda: (x,), targets=BLACKWELL)
    assert np.array_equal(o, x)
    assert np.array_equal(p, 2 * x)


@kernel
def in_turns(a: In[f16, "128 64"], b: In[f16, "64 64"], c: Out[f32, "128 64"], *, wrong=""):
    left, right = SMEM((128, 64), f16), SMEM((64, 64), f16)
    scores, weights = RefUnion(TMEM((128, 64)), TMEM((128, 64), f16, packed=True))
    acc, done = TMEM((128, 64)), Barrier(orders_tensor_core=True)
    left[...] = a[...]
    right[...] = b[...]
    commit_smem()
    tcgen05_mma(scores, left, right, done, accumulate=False)
    barrier_wait(done)
    first = async_load_tmem(scores)
    if wrong != "no wait":
        wait_load_tmem()
    async_store_tmem(weights, first.astype(f16))
    commit_tmem()
    if wrong == "read":
        first = async_load_tmem(scores)
    tcgen05_mma(acc, weights, right, done, accumulate=False)
    barrier_wait(done)
    c[...] = async_load_tmem(acc)


def rows_and_squares() -> tuple[Array, Array]:
    b = B[:64, :64].clip(-1, 1)
    return np.concatenate([A[:, :64], -A[:, :64]]), b


def test_16_buffers_of_tensor_memory_take_turns() -> None:
    a, b = (x.astype(np.float32) for x in rows_and_squares())
    assert np.array_equal(agree(in_turns, rows_and_squares, targets=BLACKWELL), a @ b @ b)
    shared = in_turns.lower(*rows_and_squares(), target="sm_100a").ptx
    assert "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 " in shared
    assert ", 128;" in shared.split("tcgen05.alloc")[1].split("\n")[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("no wait", "while it is still being read"), ("read", "before it is written")],
)
def test_16_what_another_buffer_overwrites_is_not_used(wrong: str, said: str) -> None:
    with pytest.raises(KernelError, match=said) as caught:
        in_turns.on("reference")(*rows_and_squares(), wrong=wrong)
    assert caught.value.help


@kernel
def everything(a: In[f16, "64 64"], b: In[f16, "64 64"], c: Out[f32, "64 64"], *, without=""):
    left, right = TMEM((64, 64), f16, packed=True), SMEM((64, 64), f16)
    acc, done = TMEM((64, 64)), Barrier(orders_tensor_core=True)
    right[...] = b[...]
    if without != "commit_smem":
        commit_smem()
    async_store_tmem(left, a[...])
    if without != "commit_tmem":
        commit_tmem()
    tcgen05_mma(acc, left, right, accumulate=False)
    if without != "tcgen05_commit_arrive":
        tcgen05_commit_arrive(done)
    if without != "barrier_wait":
        barrier_wait(done)
    first = async_load_tmem(acc)
    if without != "wait_load_tmem":
        wait_load_tmem()
    tcgen05_mma(acc, left, right, done, accumulate=False)
    barrier_wait(done)
    c[...] = first + async_load_tmem(acc)


NEEDED = {
    "commit_smem": "read asynchronously without a proxy fence",
    "commit_tmem": "before the store to it is known to be done",
    "tcgen05_commit_arrive": "deadlock",
    "barrier_wait": "while a product into it is in flight",
    "wait_load_tmem": "tensor memory is written while it is still being read",
}


def squares() -> tuple[Array, Array]:
    return A[:, :64].copy(), B[:64, :64].copy()


def test_19_with_every_wait_of_tensor_memory_all_witnesses_are_silent() -> None:
    a, b = squares()
    found = agree(everything, squares, targets=BLACKWELL)
    assert np.array_equal(found, 2 * (a.astype(np.float32) @ b.astype(np.float32)))


@pytest.mark.parametrize("without", NEEDED)
def test_19_each_wait_of_tensor_memory_is_missed_by_the_reference(without: str) -> None:
    with pytest.raises(ProtocolError, match=NEEDED[without]) as caught:
        everything.on("reference")(*squares(), without=without)
    assert caught.value.help


@pytest.mark.parametrize("without", NEEDED)
def test_19_each_wait_of_tensor_memory_is_missed_by_the_emulator(without: str) -> None:
    with pytest.raises(KernelError) as caught:
        everything.on("emulator", target="sm_100a")(*squares(), without=without)
    assert caught.value.help


@kernel
def left_running(a: In[f16, "64 64"], b: In[f16, "64 64"]):
    left, right = SMEM((64, 64), f16), SMEM((64, 64), f16)
    left[...] = a[...]
    right[...] = b[...]
    commit_smem()
    tcgen05_mma(TMEM((64, 64)), left, right, accumulate=False)


def test_a_product_in_flight_at_the_end_is_reported() -> None:
    with pytest.raises(ProtocolError, match="the block ends while"):
        left_running.on("reference")(*squares())


def test_tensor_memory_is_refused_on_the_other_target_naming_both() -> None:
    with pytest.raises(WrongTarget, match="needs sm_100a, and this kernel is compiled for sm_90a"):
        everything.on("emulator", target="sm_90a")(*squares())


@kernel
def too_much(o: Out[f32, "128 32"]):
    one, other = TMEM((128, 384)), TMEM((128, 256))
    async_store_tmem(one, 0.0)
    async_store_tmem(other, 0.0)
    o[...] = 0.0


def test_buffers_over_512_columns_are_refused_with_each_of_them() -> None:
    with pytest.raises(KernelError) as caught:
        too_much.on("emulator", target="sm_100a")()
    text = str(caught.value)
    assert "640 columns of tensor memory, 512 is all" in text
    assert "384 columns" in text
    assert "256 columns" in text


# A matrix product with rings by hand, on both targets


def load_step(a, b, left, right, full_, i, j, k, turned):
    bm, bk = left.shape[1:]
    bn = right.shape[1 if turned else 2]
    slot = k % left.shape[0]
    copy_gmem_to_smem(a.at[tile(i, bm), tile(k, bk)], left.at[slot], full_[slot])
    window = b.at[tile(j, bn), tile(k, bk)] if turned else b.at[tile(k, bk), tile(j, bn)]
    copy_gmem_to_smem(window, right.at[slot], full_[slot])


@kernel
def by_wgmma(
    a: In[f16, "M K"], b: In[f16, "_ _"], c: Out[f32, "M N"], *, N, turned, bm=128, bn=128, stages=3
):
    M, K = a.shape
    with parallel(M // bm, N // bn) as (i, j):
        left = SMEM((stages, bm, 64), f16)
        right = SMEM((stages, bn, 64) if turned else (stages, 64, bn), f16)
        full_, acc, steps = Barrier(2, stages), ACC((bm, bn)), K // 64
        for k in range(stages - 1):
            if k < steps:
                load_step(a, b, left, right, full_, i, j, k, turned)
        for k in range(steps):
            slot = k % stages
            barrier_wait(full_[slot])
            wgmma(acc, left.at[slot], right.at[slot].T if turned else right.at[slot])
            wgmma_wait(1)
            if k + stages - 1 < steps:
                load_step(a, b, left, right, full_, i, j, k + stages - 1, turned)
        c[tile(i, bm), tile(j, bn)] = acc[...]


@kernel
def by_tcgen05(
    a: In[f16, "M K"], b: In[f16, "_ _"], c: Out[f32, "M N"], *, N, turned, bm=128, bn=128, stages=3
):
    M, K = a.shape
    with parallel(M // bm, N // bn) as (i, j):
        left = SMEM((stages, bm, 64), f16)
        right = SMEM((stages, bn, 64) if turned else (stages, 64, bn), f16)
        full_, free = Barrier(2, stages), Barrier(1, stages, orders_tensor_core=True)
        acc, steps = TMEM((bm, bn)), K // 64
        for k in range(stages - 1):
            if k < steps:
                load_step(a, b, left, right, full_, i, j, k, turned)
        for k in range(steps):
            slot = k % stages
            barrier_wait(full_[slot])
            operand = right.at[slot].T if turned else right.at[slot]
            tcgen05_mma(acc, left.at[slot], operand, free[slot], accumulate=k > 0)
            if k > 0:
                barrier_wait(free[(k - 1) % stages])
            if k + stages - 1 < steps:
                load_step(a, b, left, right, full_, i, j, k + stages - 1, turned)
        barrier_wait(free[(steps - 1) % stages])
        c[tile(i, bm), tile(j, bn)] = async_load_tmem(acc)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("multiply", "targets"), [(by_wgmma, HOPPER), (by_tcgen05, BLACKWELL)])
def test_13_a_matrix_product_with_rings_by_hand(multiply: Any, targets: Any, turned: bool) -> None:
    a = RANDOM.integers(-3, 4, (256, 320)).astype(np.float16)
    b = RANDOM.integers(-3, 4, (320, 128)).astype(np.float16)
    given = (a, np.ascontiguousarray(b.T) if turned else b)
    found = agree(multiply, lambda: given, targets=targets, N=128, turned=turned)
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@kernel
def by_wgmma_of_stored(c: Out[f32, "128 128"], *, steps):
    left, right, acc = SMEM((128, 64), f16), SMEM((64, 128), f16), ACC((128, 128))
    for k in range(steps):
        left[...], right[...] = full((128, 64), k, f16), full((64, 128), k + 1, f16)
        commit_smem()
        wgmma(acc, left, right)
        wgmma_wait(0)
    c[...] = acc[...]


def test_what_a_product_reads_is_written_again_when_every_warpgroup_has_waited() -> None:
    """Two warpgroups multiply, and each waits for its own product alone."""
    a, b = np.ones((128, 320), np.float16), np.ones((320, 128), np.float16)
    found = agree(by_wgmma_of_stored, lambda: (), targets=HOPPER, steps=4)
    assert np.all(found == 64 * (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4))
    for lowered, refill in (
        (by_wgmma.lower(a, b, N=128, turned=False, target="sm_90a"), ops.CopyIn),
        (by_wgmma_of_stored.lower(steps=4, target="sm_90a"), ops.Store),
    ):
        (launch,) = (op for op in schedule(lowered.module, SM_90A).body.ops if op.regions)
        assert isinstance(launch, ops.Launch)
        assert launch.warpgroups == 2
        (loop,) = (
            op
            for op in walk(launch.body)
            if isinstance(op, ops.Loop)
            and any(isinstance(inner, ops.MatrixMultiply) for inner in walk(op.body))
        )
        kinds = [type(op) for op in walk(loop.body)]
        assert ops.BlockBarrier in kinds[: kinds.index(refill)]


def test_a_call_that_names_no_target_takes_the_one_that_the_names_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASTDSL_TARGET", raising=False)
    assert everything.lower(*squares()).target == "sm_100a"
    assert multiplied.lower(A, B).target == "sm_90a"
    assert everything.on("emulator")(*squares()).shape == (64, 64)


TURNED_B = np.ascontiguousarray(B.T)
ASSEMBLED: dict[str, Any] = {
    "halves": lambda: halves_swapped.lower(A, TURNED_B, target="sm_90a"),
    "registers": lambda: from_registers.lower(np.concatenate([A, A]), B, target="sm_90a"),
    "ring": lambda: by_wgmma.lower(A, B[:, :128], target="sm_90a", N=128, turned=False, bm=64),
    "tensor memory": lambda: in_turns.lower(*rows_and_squares(), target="sm_100a"),
}


@pytest.mark.parametrize("name", ASSEMBLED)
def test_the_assembler_puts_no_wait_of_its_own_into_products(name: str) -> None:
    assert ASSEMBLED[name]().resources.messages == ()
