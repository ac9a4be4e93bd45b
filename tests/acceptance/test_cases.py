"""Faults that users of other kernel languages reported: pipelines, addressing, numbers, texts.

The numbers are those of the list of cases. Tests of a case that stand elsewhere: 1, 3 and 6 also in
`lowering/schedule/test_trip_counts.py`, 13 in `test_protocol.py`, 16 in `runtime/test_large.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import (
    SMEM,
    In,
    InOut,
    Out,
    argmax,
    bf16,
    broadcast_to,
    cdiv,
    ds,
    erf,
    exp,
    exp2,
    f16,
    f32,
    floor,
    fma,
    i32,
    iota,
    kernel,
    log,
    pipeline,
    rsqrt,
    sqrt,
    tanh,
    tile,
    where,
    zeros,
)
from astdsl.errors import OutOfSharedMemory, OverlappingWindows
from tests.arrays import Array, whole
from tests.witnesses import agree

ONE = ("sm_90a",)


# 1. short pipelines


@kernel
def copied(x: In[f32, "R N"], o: Out[f32, "R N"], *, S=2, steps=0):
    R, N = x.shape
    with pipeline(cdiv(N, 32)) as j:
        with pipeline(steps or R, stages=S) as r:
            o[r, tile(j, 32)] = x[r, tile(j, 32)] * 2


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("counted", ["static", "dynamic"])
def test_1_every_short_trip_count_copies_every_row(stages: int, counted: str) -> None:
    for steps in sorted({1, stages - 1, stages, stages + 1, 2 * stages, 2 * stages + 1} - {0}):
        x = whole(steps, 40)
        found = agree(
            copied,
            partial(tuple, [x]),
            targets=ONE,
            emulate=steps in (1, stages + 1),
            S=stages,
            steps=steps if counted == "static" else 0,
        )
        np.testing.assert_array_equal(found, x * 2)


# 2. reading and overwriting one buffer


@kernel
def doubled_in_place(o: InOut[f32, "R N"], *, S=3):
    R, N = o.shape
    with pipeline(1):
        with pipeline(R, stages=S) as r:
            t = o[r, 0:64]
            o[r, 0:64] = t + 1
            o[r, 0:64] = t * o[r, 0:64]


@kernel
def reversed_reads(o: InOut[f32, "R N"], *, S=3):
    R, N = o.shape
    with pipeline(1):
        with pipeline(R, stages=S, axes="sequential") as r:
            o[r, 0:64] = o[R - 1 - r, 0:64] + 1


@kernel
def smoothed_in_place(o: InOut[f32, "R N"], *, S=3):
    R, N = o.shape
    with pipeline(1):
        with pipeline(range(1, R - 1), stages=S, axes="sequential") as r:
            o[r, 0:64] = o[r - 1, 0:64] + o[r, 0:64] + o[r + 1, 0:64]


@kernel
def scattered_reads(at: In[i32, "R"], o: InOut[f32, "R N"], *, S=3):
    R, N = o.shape
    with pipeline(1):
        with pipeline(R, stages=S, axes="sequential") as r:
            o[r, 0:64] = o[at[r], 0:64] + 1


def in_order(step: Callable[[Array, int], None], o: Array, steps: range) -> Array:
    o = o.copy()
    for r in steps:
        step(o, r)
    return o


def _smoothed(o: Array, r: int) -> None:
    o[r] = o[r - 1] + o[r] + o[r + 1]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_2_what_a_step_overwrites_the_next_ones_read(stages: int) -> None:
    o = whole(7, 64)
    expected = o * (o + 1)
    found = agree(doubled_in_place, lambda: (o.copy(),), targets=ONE, S=stages)
    np.testing.assert_array_equal(found, expected)
    expected = in_order(_smoothed, o, range(1, 6))
    found = agree(smoothed_in_place, lambda: (o.copy(),), targets=ONE, S=stages)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stages", [1, 3])
def test_2_windows_that_may_overlap_are_refused_with_both_lines(stages: int) -> None:
    o, at = whole(7, 64), np.array([3, 0, 0, 6, 3, 1, 5], np.int32)
    for program, arguments in ((reversed_reads, (o,)), (scattered_reads, (at, o))):
        with pytest.raises(OverlappingWindows) as caught:
            program.on("emulator")(*arguments, S=stages)
        assert len(caught.value.places) == 2


# 3. the order of independent statements


@kernel
def two_statements(
    x: In[f32, "R N"], y: In[f32, "R N"], o: Out[f32, "R N"], p: Out[f32, "R N"], *, swapped=False
):
    R, N = x.shape
    with pipeline(1):
        with pipeline(R, stages=3) as r:
            if swapped:
                p[r, 0:64] = exp(y[r, 0:64])
                o[r, 0:64] = x[r, 0:64] / 3
            else:
                o[r, 0:64] = x[r, 0:64] / 3
                p[r, 0:64] = exp(y[r, 0:64])


def test_3_independent_statements_may_be_swapped() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 7, 60)).astype(np.float32)
    for device in ("reference", "emulator"):
        one = two_statements.on(device)(x, y)
        two = two_statements.on(device)(x, y, swapped=True)
        np.testing.assert_array_equal(one, two)


# 5. every operation under a condition in a pipeline

OPERATIONS = {
    "arithmetic": lambda t: (t + 1) * t - t / 2,
    "floor division": lambda t: t // 2 + t % 3,
    "powers": lambda t: t**2,
    "comparison": lambda t: where(t > 0, t, -t),
    "elementary": lambda t: exp(t * 0.1) + log(abs(t) + 1) + tanh(t),
    "more elementary": lambda t: exp2(t * 0.1) + erf(t) + rsqrt(abs(t) + 1) + sqrt(abs(t)),
    "rounding": lambda t: floor(t * 0.3) + round(t * 0.7),
    "fused": lambda t: fma(t, t, t),
    "halves": lambda t: (t.astype(f16) * 2 + t.astype(bf16).astype(f16)).astype(f32),
    "integers": lambda t: ((t.astype(i32) << 1) ^ 5).astype(f32),
    "a sum": lambda t: t + t.sum(),
    "a maximum": lambda t: t - t.max(axis=0),
    "an argmax": lambda t: t + argmax(t, axis=0),
    "truths": lambda t: where((t > 0).all() | (t > 50).any(), t, 1),
    "a transpose": lambda t: t.reshape(8, 8).T.reshape(64),
    "a broadcast": lambda t: broadcast_to(t[:, None], (64, 4)).sum(axis=1),
    "a slice": lambda t: t[::2].sum() + t,
    "an iota": lambda t: t + iota((64,), 0),
    "filled": lambda t: t.filled(3) * 2,
}


@kernel
def under_a_condition(x: In[f32, "R N"], o: Out[f32, "R N"], *, operation=abs):
    R, N = x.shape
    with pipeline(1):
        with pipeline(R, stages=3) as r:
            t = x[r, 0:64]
            if r % 2 == 1:
                t = operation(t)
            o[r, 0:64] = t


@pytest.mark.parametrize("operation", OPERATIONS)
def test_5_every_operation_may_stand_under_a_condition(operation: str) -> None:
    x = whole(4, 64)
    found = agree(
        under_a_condition,
        lambda: (x,),
        targets=ONE,
        tolerance=1e-5,
        operation=OPERATIONS[operation],
    )
    np.testing.assert_array_equal(found[::2], x[::2])
    assert not np.array_equal(found[1], x[1])


@kernel
def product_under_a_condition(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"]):
    M, K = a.shape
    acc = zeros((64, 64), f32)
    with pipeline(cdiv(K, 32), stages=3, axes="sequential") as k:
        p, q = a[0:64, tile(k, 32)], b[tile(k, 32), 0:64]
        if k % 2 == 1:
            acc += (p @ q).filled(0)
    c[0:64, 0:64] = acc


def test_5_a_product_may_stand_under_a_condition() -> None:
    a, b = whole(64, 160, dtype=np.float16, low=-3, high=4), whole(160, 64, dtype=np.float16)
    kept = np.concatenate([np.arange(32, 64), np.arange(96, 128)])
    expected = a[:, kept].astype(np.float32) @ b[kept].astype(np.float32)
    np.testing.assert_array_equal(agree(product_under_a_condition, lambda: (a, b)), expected)


# 6. pipelines anywhere, unit dims, permuted views


@kernel
def unit_dims(x: In[f32, "A B C"], o: Out[f32, "A B C"], *, S=3):
    A, B, C = x.shape
    with pipeline(1):
        with pipeline(A, stages=S) as a:
            o[ds(a, 1), 0:8, 0:32] = x[ds(a, 1), 0:8, 0:32] + 1


@kernel
def permuted(x: In[f32, "A B C"], o: Out[f32, "B C A"], *, S=3):
    A, B, C = x.shape
    turned = x.T
    with pipeline(1):
        with pipeline(B, stages=S) as b:
            o[b, 0:32, 0:8] = turned[0:32, b, 0:8] * 2


@pytest.mark.parametrize("shape", [(5, 8, 32), (4, 7, 30), (1, 1, 1)], ids=str)
def test_6_unit_dims_and_permuted_views(shape: tuple[int, int, int]) -> None:
    x = whole(*shape)
    np.testing.assert_array_equal(agree(unit_dims, lambda: (x,)), x + 1)
    np.testing.assert_array_equal(agree(permuted, lambda: (x,)), x.transpose(1, 2, 0) * 2)
    strided = np.repeat(x, 2, 2)[:, :, ::2].transpose(2, 1, 0).copy().transpose(2, 1, 0)
    np.testing.assert_array_equal(agree(unit_dims, lambda: (strided,), targets=ONE), x + 1)


# 17. rows, buffers and boxes of any size


@kernel
def in_boxes(x: In["M N"], o: Out["M N"], *, bm=8, bn=48, S=3):
    M, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        with pipeline(cdiv(M, bm), stages=S) as i:
            window = tile(i, bm), tile(j, bn)
            o[window] = x[window] * 2


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
@pytest.mark.parametrize("columns", [1, 15, 16, 49, 192])
def test_17_rows_of_any_number_of_bytes(columns: int, dtype: Any) -> None:
    x = whole(19, columns, dtype=dtype)
    np.testing.assert_array_equal(agree(in_boxes, lambda: (x,), targets=ONE), x * 2)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
@pytest.mark.parametrize("box", [(1, 16), (3, 48), (5, 96), (7, 192), (3, 20), (1, 7)], ids=str)
def test_17_boxes_of_any_number_of_bytes(box: tuple[int, int], dtype: Any) -> None:
    x = whole(16, 208, dtype=dtype)
    bm, bn = box
    found = agree(in_boxes, lambda: (x,), targets=ONE, bm=bm, bn=bn)
    np.testing.assert_array_equal(found, x * 2)


@kernel
def product_of_boxes(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bn=48, bk=48):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((64, bn), f32)
        with pipeline(cdiv(K, bk), stages=3) as k:
            acc += a[0:64, tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[0:64, tile(j, bn)] = acc


@pytest.mark.parametrize("order", ["CC", "FF"])
@pytest.mark.parametrize("box", [(48, 48), (96, 16), (192, 80)], ids=str)
def test_17_products_of_boxes_that_no_swizzle_divides(box: tuple[int, int], order: str) -> None:
    a, b = whole(60, 200, dtype=np.float16), whole(200, 250, dtype=np.float16)
    a, b = np.asarray(a, order=order[0]), np.asarray(b, order=order[1])  # type: ignore[call-overload]
    expected = a.astype(np.float32) @ b.astype(np.float32)
    bn, bk = box
    found = agree(product_of_boxes, lambda: (a, b), bn=bn, bk=bk)
    np.testing.assert_array_equal(found, expected)


# 18. strides


class Exported:
    """An array that is known by `__dlpack__` alone."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("strides", [(4, 4), (0, 4), (-4, 4), (1 << 40, 4), (12, 4)], ids=str)
def test_18_a_dim_of_size_one_has_no_stride(strides: tuple[int, int]) -> None:
    x = whole(64)
    row = np.lib.stride_tricks.as_strided(x, (1, 64), strides)
    np.testing.assert_array_equal(agree(in_boxes, lambda: (row,), targets=ONE), x[None] * 2)
    column = np.lib.stride_tricks.as_strided(x, (64, 1), strides[::-1])
    found = agree(in_boxes, lambda: (column,), targets=ONE)
    np.testing.assert_array_equal(found, x[:, None] * 2)


def test_18_a_view_by_dlpack_starts_at_its_offset() -> None:
    x = whole(20, 40)
    for device in ("reference", "emulator"):
        view = Exported(x[3:, 5:])
        out = np.zeros((17, 35), np.float32)
        in_boxes.on(device)(view, out)
        np.testing.assert_array_equal(out, x[3:, 5:] * 2)


# 19. guard zones


@pytest.mark.parametrize("align", [0, 1, 4])
@pytest.mark.parametrize("shape", [(1, 1), (7, 47), (16, 96), (9, 49)], ids=str)
def test_19_nothing_is_written_around_an_output(shape: tuple[int, int], align: int) -> None:
    x, guard = whole(*shape), 64
    size = shape[0] * shape[1]
    for device in ("reference", "emulator"):
        memory = np.full(size + 2 * guard, 12345, np.float32)
        out = memory[guard + align : guard + align + size].reshape(shape)
        in_boxes.on(device)(x, out)
        np.testing.assert_array_equal(out, x * 2)
        out[...] = 12345
        assert (memory == 12345).all()
        wide = np.full((shape[0] + 4, shape[1] + 8), 12345, np.float32)
        inner = wide[2:-2, 4:-4]
        in_boxes.on(device)(x, inner)
        np.testing.assert_array_equal(inner, x * 2)
        inner[...] = 12345
        assert (wide == 12345).all()


# 22. a store, then a transposed load


@kernel
def turned_through_memory(x: In[f32, "64 64"], s: InOut[f32, "64 64"], o: Out[f32, "64 64"]):
    s[...] = x[...] + 1
    o[...] = s.T[...] * 2


@kernel(warpgroups=1)
def turned_through_smem(x: In[f32, "64 64"], o: Out[f32, "64 64"]):
    buf = SMEM((64, 64), f32)
    buf[...] = x[...] + 1
    o[...] = buf.T[...] * 2


@kernel
def turned_in_steps(s: InOut[f32, "64 64"]):
    for _ in range(3):
        s[...] = s.T[...] + iota((64, 64), 0)


def test_22_a_store_is_seen_by_the_loads_after_it() -> None:
    x = whole(64, 64)
    s, o = x + 1, (x + 1).T * 2
    for found in agree(turned_through_memory, lambda: (x, np.zeros_like(x))):
        assert any(np.array_equal(found, e) for e in (s, o))
    expected = x
    for _ in range(3):
        expected = expected.T + np.arange(64)[:, None]
    np.testing.assert_array_equal(agree(turned_in_steps, lambda: (x.copy(),)), expected)


def test_22_shared_memory_too() -> None:
    x = whole(64, 64)
    np.testing.assert_array_equal(agree(turned_through_smem, lambda: (x,)), (x + 1).T * 2)


# 26. shared memory


@kernel
def greedy(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, S=4):
    M, N = x.shape
    with pipeline(cdiv(M, 64)) as i:
        with pipeline(cdiv(N, 128), stages=S) as j:
            window = tile(i, 64), tile(j, 128)
            o[window] = x[window] + y[window]


def test_26_a_budget_that_is_exceeded_lists_every_buffer_and_the_stages_that_fit() -> None:
    x = astdsl.spec((64, 1024), f32)
    with pytest.raises(OutOfSharedMemory) as caught:
        greedy.lower(x, x, target="sm_90a").ptx
    report = str(caught.value)
    assert all(f"ring of {name}" in report for name in "xy")
    assert "copies out of o" in report
    fitting = int(report.split("`stages=")[1].split("`", maxsplit=1)[0])
    assert greedy.lower(x, x, target="sm_90a", S=fitting).ptx
    with pytest.raises(OutOfSharedMemory):
        greedy.lower(x, x, target="sm_90a", S=fitting + 1).ptx


@kernel
def automatic(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        with pipeline(cdiv(N, 128)) as j:
            window = tile(i, bm), tile(j, 128)
            o[window] = x[window] + 1


@pytest.mark.parametrize("rows", [8, 64, 128])
def test_26_automatic_stages_fit(rows: int) -> None:
    x = whole(rows, 300)
    np.testing.assert_array_equal(agree(automatic, lambda: (x,), targets=ONE, bm=rows), x + 1)
