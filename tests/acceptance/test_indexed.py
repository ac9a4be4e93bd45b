"""Gathers, scatters and atomics by tiles of indices, in whole kernels, on every witness."""

import numpy as np
import pytest

from astdsl import (
    GMEM,
    SMEM,
    Barrier,
    In,
    InOut,
    Out,
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
    bf16,
    cdiv,
    copy_gmem_to_smem,
    ds,
    f8e4m3,
    f16,
    f32,
    i32,
    iota,
    kernel,
    load,
    parallel,
    pipeline,
    take,
    tile,
    u32,
    warpgroup_id,
)
from astdsl.errors import KernelError, ParallelConflict, RepeatedIndex, UnwrittenRead
from astdsl.ir.equality import structurally_equal
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from astdsl.lowering.compiler import find_target
from astdsl.lowering.nvptx.assemble import assemble
from astdsl.lowering.schedule.launches import SerialPipeline
from tests.witnesses import agree

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((45, 70)).astype(np.float32)


def integers(low, high, count, dtype=np.int32):
    return np.random.default_rng(count).integers(low, high, count).astype(dtype)


@kernel
def rows(x: In[f32, "V D"], ids: In["N"], o: Out[f32, "N D"], *, bn=16, bd=64):
    with pipeline(cdiv(ids.shape[0], bn), cdiv(x.shape[1], bd)) as (i, j):
        o[tile(i, bn), tile(j, bd)] = x[ids[tile(i, bn)], tile(j, bd)]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16, np.uint8, np.uint32])
def test_rows_are_gathered_by_indices_of_any_integer(dtype):
    ids = integers(0, 45, 37, dtype)
    assert np.array_equal(agree(rows, lambda: (MATRIX, ids)), MATRIX[ids])


def test_indices_outside_read_as_zero():
    ids = integers(-9, 60, 37)
    inside = (ids >= 0) & (ids < 45)
    expected = np.where(inside[:, None], MATRIX[np.clip(ids, 0, 44)], 0)
    assert np.array_equal(agree(rows, lambda: (MATRIX, ids)), expected)


@pytest.mark.parametrize("columns", [64, 66, 3])
def test_rows_of_any_width_and_order_are_gathered(columns):
    ids, x = integers(0, 30, 20), RANDOM.standard_normal((columns, 30)).astype(np.float32)
    assert np.array_equal(agree(rows, lambda: (x.T, ids)), x.T[ids])
    whole = np.ascontiguousarray(x.T)
    assert np.array_equal(agree(rows, lambda: (whole, ids)), whole[ids])


@kernel
def moved_rows(x: In["V D"], ids: In[i32, "N"], o: Out["N D"], p: InOut["V D"], *, bn=16):
    with parallel(cdiv(ids.shape[0], bn)) as i:
        here = ids[tile(i, bn)]
        o[tile(i, bn)] = load(x.at[here], fill=1)
        p[here] = x[here]
        buffer = SMEM((bn, x.shape[1]), x.dtype)
        buffer[...] = x[here]
        buffer[iota((bn,), 0)] = x[here]


DTYPES = [
    *(np.float64, np.float32, np.float16, bf16.numpy, f8e4m3.numpy, np.bool_),
    *(np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8),
]


@pytest.mark.parametrize("columns", [64, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_elements_of_every_dtype_are_moved(dtype, columns):
    x = RANDOM.integers(0, 2, (40, columns)).astype(dtype)
    ids = RANDOM.permutation(48)[:37].astype(np.int32)
    zeros = np.zeros_like(x)
    arguments = (x, ids, np.zeros((37, columns), dtype))
    o, p = agree(moved_rows, lambda: (*arguments, zeros.copy()), targets=("sm_90a",))
    inside = (ids < 40)[:, None]
    wide = x.astype(np.float32)
    assert np.array_equal(o.astype(np.float32), np.where(inside, wide[ids % 40], 1))
    expected = np.zeros_like(wide)
    expected[ids[ids < 40]] = wide[ids[ids < 40]]
    assert np.array_equal(p.astype(np.float32), expected)
    for target in ("sm_90a", "sm_100a"):
        ptx = moved_rows.lower(*arguments, zeros, target=target).ptx
        assert assemble(ptx, find_target(target)).spill_bytes == 0


@kernel
def by_two(x: In[f32, "N D"], r: In[i32, "A"], c: In[i32, "B"], o: Out[f32, "A B"]):
    o[...] = x[r[...][:, None], c[...]]


def test_two_tiles_of_indices_are_broadcast():
    r, c = integers(0, 45, 20), integers(0, 70, 24)
    assert np.array_equal(agree(by_two, lambda: (MATRIX, r, c)), MATRIX[r[:, None], c])


@kernel
def by_numpys_rules(
    x: In[f32, "A B C"],
    r: In[i32, "N"],
    first: Out[f32, "N B C"],
    middle: Out[f32, "A N C"],
    last: Out[f32, "A B N"],
    apart: Out[f32, "N B"],
    beside: Out[f32, "A N"],
    turned: Out[f32, "C N B"],
):
    i = r[...]
    first[...] = x[i]
    middle[...] = x[:, i]
    last[...] = x[..., i]
    apart[...] = x[i, :, 3]
    beside[...] = x[:, 2, i]
    turned[...] = x.T[:, i.reshape(8)]


def test_axes_of_indices_stand_where_numpy_puts_them():
    x, i = RANDOM.standard_normal((8, 8, 16)).astype(np.float32), integers(0, 8, 8)
    found = agree(by_numpys_rules, lambda: (x, i))
    expected = (x[i], x[:, i], x[..., i], x[i, :, 3], x[:, 2, i], x.T[:, i])
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


@kernel
def filled_rows(x: In[f32, "N"], ids: In[i32, "M"], o: Out[f32, "M"], s: Out[f32, "1"]):
    o[...] = load(x.at[ids[...]], fill=7)
    s[0] = x[ids[ds(0, 64)]].max()


def test_a_fill_stands_for_indices_outside_and_ragged_ones_are_left_out_of_reductions():
    x, ids = -1 - np.arange(20, dtype=np.float32), np.array([3, 40, 5, -1], np.int32)
    o, s = agree(filled_rows, lambda: (x, ids[:3]))
    assert o.tolist() == [-4, 7, -6]
    assert s.tolist() == [0], "an index outside is an ordinary zero"
    _, s = agree(filled_rows, lambda: (x, ids[::2].copy()))
    assert s.tolist() == [-4], "what the tile of indices has no element for is not"


@kernel
def put(x: In[f32, "N D"], ids: In[i32, "N"], o: InOut[f32, "V D"], *, bn=16, bd=32):
    with parallel(cdiv(ids.shape[0], bn), cdiv(x.shape[1], bd)) as (i, j):
        o[ids[tile(i, bn)], tile(j, bd)] = x[tile(i, bn), tile(j, bd)]


@pytest.mark.parametrize("columns", [70, 64])
def test_rows_are_scattered_and_those_outside_dropped(columns):
    x, ids = MATRIX[:, :columns].copy(), RANDOM.permutation(60)[:45].astype(np.int32)
    expected = np.zeros((60, columns), np.float32)
    expected[ids] = x
    found = agree(put, lambda: (x, ids, np.zeros((50, columns), np.float32)))
    assert np.array_equal(found, expected[:50])


def test_two_values_for_one_element_are_reported():
    ids = np.zeros(45, np.int32)
    with pytest.raises(RepeatedIndex, match="two different values are stored at"):
        put.on("reference")(MATRIX, ids, np.zeros((50, 70), np.float32))
    same = np.ones_like(MATRIX)
    found = agree(put, lambda: (same, ids, np.zeros((50, 70), np.float32)), emulate=False, bn=64)
    assert found.sum() == 70


def test_steps_that_scatter_to_one_row_conflict():
    ids = np.arange(45, dtype=np.int32) % 16
    with pytest.raises(ParallelConflict, match="writes what another step writes"):
        put.on("reference")(MATRIX, ids, np.zeros((50, 70), np.float32))


@kernel
def permute_in_place(ids: In[i32, "N"], x: InOut[f32, "N"]):
    with pipeline(3, axes="sequential"):
        x[ids[...]] = x[...]


def test_a_scatter_happens_in_program_order():
    ids, x = RANDOM.permutation(100).astype(np.int32), MATRIX.reshape(-1)[:100].copy()
    expected = x
    for _ in range(3):
        moved = np.empty_like(expected)
        moved[ids] = expected
        expected = moved
    assert np.array_equal(agree(permute_in_place, lambda: (ids, x.copy())), expected)


@kernel
def through_shared(x: In[f32, "N"], ids: In[i32, "N"], o: Out[f32, "N"], p: Out[f32, "N"]):
    n = x.shape[0]
    buffer = SMEM((n,), f32)
    buffer[...] = x[...]
    o[...] = buffer[ids[...]]
    table = SMEM((2, n), f32)
    table[...] = x[...]
    table[1, ids[...]] = x[...]
    p[...] = table[1]


def test_shared_memory_is_gathered_and_scattered():
    x, ids = MATRIX.reshape(-1)[:96].copy(), RANDOM.permutation(96).astype(np.int32)
    ids[5] = 200
    o, p = agree(through_shared, lambda: (x, ids))
    assert np.array_equal(o, np.where(ids < 96, x[ids % 96], 0))
    expected = x.copy()
    expected[ids[ids < 96]] = x[ids < 96]
    assert np.array_equal(p, expected)


# Atomics


@kernel
def histogram(x: In[i32, "N"], o: Out[i32, "B", 0], *, b=128):
    with pipeline(cdiv(x.shape[0], b)) as i:
        atomic_add(o.at[x[tile(i, b)]], 1)


def test_steps_that_update_one_window_spread_over_blocks():
    x = integers(0, 17, 500)
    arguments = (x, np.zeros(16, np.int32))
    found = agree(histogram, lambda: arguments)
    assert np.array_equal(found, np.bincount(x, minlength=17)[:16])
    assert "Phase" not in histogram.lower(*arguments).schedule, "a block has one step"


@kernel
def update_and_store(x: In[i32, "N"], o: InOut[i32, "B"], *, b=128):
    with pipeline(cdiv(x.shape[0], b)) as i:
        atomic_add(o.at[x[tile(i, b)]], 1)
        o[ds(0, 4)] = 7


@kernel
def scatter_in_order(x: In[i32, "N"], o: InOut[i32, "B"], *, b=128):
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[x[tile(i, b)]] = i + 1


@pytest.mark.parametrize("serial", [update_and_store, scatter_in_order])
def test_steps_that_also_store_to_what_is_updated_or_scattered_run_in_order(serial):
    x = integers(0, 16, 500)
    with pytest.warns(SerialPipeline):
        found = agree(serial, lambda: (x, np.zeros(16, np.int32)))
    if serial is scatter_in_order:
        last = [1 + np.flatnonzero(x == k)[-1] // 128 for k in range(16)]
        assert found.tolist() == last
    else:
        assert found[:4].tolist() == [7] * 4
        assert np.array_equal(found[4:], np.bincount(x, minlength=16)[4:])


@kernel
def shared_histogram(x: In[i32, "N"], o: Out[i32, "16", 0], *, b=128, n=4):
    with pipeline(cdiv(x.shape[0], b * n)) as i:
        counts = SMEM((16,), i32)
        counts[...] = 0
        for k in range(n):
            atomic_add(counts.at[x[tile(i * n + k, b)]], 1, scope="cta")
        atomic_add(o.at[...], counts[...])


def test_shared_memory_is_updated():
    x = integers(0, 16, 1500)
    assert np.array_equal(agree(shared_histogram, lambda: (x,)), np.bincount(x, minlength=16))


@kernel
def update(
    x: InOut["N"], v: In["N"], o: Out["N"], *, kind, order="relaxed", scope="gpu", shared=False
):
    functions = {
        "add": atomic_add,
        "max": atomic_max,
        "min": atomic_min,
        "and": atomic_and,
        "or": atomic_or,
        "xor": atomic_xor,
        "exchange": atomic_exchange,
    }
    memory = x
    if shared:
        memory = SMEM((x.shape[0],), x.dtype)
        memory[...] = x[...]
    o[...] = functions[kind](memory.at[...], v[...], order=order, scope=scope)
    if shared:
        x[...] = memory[...]


MEANING = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exchange": lambda old, value: value,
}
FLOATS, BITS = ("f64", "f32", "f16", "bf16"), ("and", "or", "xor")
ALL = [
    (kind, dtype)
    for kind in MEANING
    for dtype in (*FLOATS, "i64", "u64", "i32", "u32", "i16", "u16")
    if not (dtype in FLOATS and kind in BITS)
]


def numbers(dtype, seed):
    made = np.random.default_rng(seed).integers(0, 1000, 40) - (0 if dtype[0] == "u" else 500)
    if dtype == "bf16":
        return (made / 8).astype(bf16.numpy)
    names = {"f": "float", "i": "int", "u": "uint"}
    return made.astype(f"{names[dtype[0]]}{dtype[1:]}")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), ALL)
def test_every_update_of_every_dtype_returns_the_old_values(kind, dtype, shared):
    x, v = numbers(dtype, 1), numbers(dtype, 2)
    found = agree(update, lambda: (x.copy(), v), targets=("sm_90a",), kind=kind, shared=shared)
    old, new = found if len(found) == 2 else (found[0], x)
    wide = np.float32 if dtype == "bf16" else x.dtype
    expected = MEANING[kind](x.astype(wide), v.astype(wide)).astype(x.dtype)
    assert np.array_equal(old, x)
    assert np.array_equal(new, expected)


@kernel
def all_updates(x: InOut["N"], v: In["N"], i: In[i32, "N"], o: Out["N"], *, kinds):
    shared = SMEM((x.shape[0],), x.dtype)
    shared[...] = x[...]
    for memory in (x, shared):
        for function in kinds:
            o[...] = function(memory.at[i[...]], v[...])
            function(memory.at[...], v[...], order="acq_rel", scope="sys")
        o[...] = atomic_cas(memory.at[i[...]], x[...], v[...])


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [*FLOATS, "i64", "u64", "i32", "u32", "i16", "u16"])
def test_every_update_is_assembled(dtype, target):
    x, i = numbers(dtype, 1), np.arange(40, dtype=np.int32)
    kinds = (atomic_add, atomic_max, atomic_min, atomic_exchange)
    if dtype not in FLOATS:
        kinds += (atomic_and, atomic_or, atomic_xor)
    ptx = all_updates.lower(x, x, i, x, target=target, kinds=kinds).ptx
    assert assemble(ptx, find_target(target)).spill_bytes == 0


@pytest.mark.parametrize("order", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "cluster", "gpu", "sys"])
def test_orders_and_scopes_are_those_of_ptx(order, scope):
    x, v = numbers("i32", 1), numbers("i32", 2)
    constants = {"kind": "add", "order": order, "scope": scope}
    agree(update, lambda: (x.copy(), v), **constants)
    assert f"atom.{order}.{scope}.global.add.u32" in update.lower(x, v, **constants).ptx


@kernel
def swap(x: InOut[f32, "N"], c: In[f32, "N"], v: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = atomic_cas(x.at[...], c[...], v[...])


def test_compare_and_swap_compares_bits():
    x = np.array([0.0, -0.0, 1.0, np.nan, 5.0], np.float32)
    c = np.array([0.0, 0.0, 2.0, np.nan, 5.0], np.float32)
    v = np.arange(5, dtype=np.float32) + 10
    old, new = agree(swap, lambda: (x.copy(), c, v))
    assert np.array_equal(old, x, equal_nan=True)
    assert np.array_equal(new, np.array([10, 0, 1, 13, 14], np.float32))


@kernel
def tickets(c: Out[i32, "1", 0], o: Out[i32, "8"]):
    with pipeline(8, axes="sequential") as i:
        o[i] = atomic_add(c.at[0], 2)


def test_a_scalar_is_updated_once_by_the_block():
    c, o = agree(tickets, lambda: ())
    assert c.tolist() == [16]
    assert o.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@kernel
def in_turn(x: InOut[u32, "4"], o: Out[u32, "4"]):
    atomic_add(x.at[ds(0, 4)], 5)
    atomic_max(x.at[ds(0, 4)], 7)
    atomic_exchange(x.at[ds(0, 4)], 1)
    o[...] = x[...]


def test_different_updates_happen_in_program_order():
    assert agree(in_turn, lambda: (np.zeros(4, np.uint32),))[0].tolist() == [1, 1, 1, 1]


@kernel
def split_k(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N", 0], *, bm=64, bn=64, bk=64):
    grid = cdiv(a.shape[0], bm), cdiv(b.shape[1], bn), cdiv(a.shape[1], bk)
    with pipeline(grid) as (i, j, k):
        part = a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        atomic_add(c.at[tile(i, bm), tile(j, bn)], part)


def test_a_product_is_split_along_k():
    a = RANDOM.standard_normal((100, 200)).astype(np.float16)
    b = RANDOM.standard_normal((200, 72)).astype(np.float16)
    found = agree(split_k, lambda: (a, b), tolerance=1e-3)
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


@kernel
def unwritten(x: In[f32, "N"], o: Out[f32, "N"]):
    with pipeline(cdiv(x.shape[0], 64)) as i:
        atomic_add(o.at[tile(i, 64)], x[tile(i, 64)])


def test_an_update_of_what_is_unwritten_is_refused():
    with pytest.raises(UnwrittenRead, match="`o` is read here before this window is written"):
        unwritten.lower(MATRIX[0].copy()).ptx


@kernel
def updates_and_reads(x: InOut[f32, "N"], o: Out[f32, "M N"]):
    with parallel(o.shape[0]) as i:
        atomic_add(x.at[ds(0, 8)], 1.0)
        o[i] = x[...]


def test_what_the_same_indices_wrote_in_the_step_is_read():
    @kernel
    def twice(x: In[f32, "8"], ids: In[i32, "8"], o: Out[f32, "8"]):
        with parallel(4) as k:
            i = ids[tile(k, 2)]
            o[i] = x[tile(k, 2)]
            o[i] += 1

    @kernel
    def scratch(x: In[f32, "3 5"], o: Out[f32, "15"]):
        t = GMEM((3, 5), f32)
        t.reshape(15)[0:15] = x.reshape(15)[...]
        o[...] = t.reshape(15)[0:15] * 2

    x, ids = MATRIX[0, :8], np.array([3, 1, 5, 0, 7, 2, 4, 6], np.int32)
    expected = np.zeros(8, np.float32)
    expected[ids] = x + 1
    np.testing.assert_array_equal(agree(twice, lambda: (x, ids)), expected)
    y = MATRIX[:3, :5].copy()
    np.testing.assert_array_equal(agree(scratch, lambda: (y,)), y.ravel() * 2)


def test_what_other_indices_or_steps_wrote_is_not_proved_to_be_written():
    @kernel
    def shifted(x: In[f32, "8"], ids: In[i32, "8"], o: Out[f32, "8"]):
        i = ids[...]
        o[i] = x[...]
        o[i + 1] += 1

    @kernel
    def first(x: In[f32, "8"], ids: In[i32, "8"], o: Out[f32, "8"]):
        with pipeline(4) as k:
            i = ids[tile(k, 2)]
            if k == 0:
                o[i] = 0
            o[i] += x[tile(k, 2)]

    @kernel
    def fenced(x: In[f32, "8"], ids: In[i32, "8"], o: Out[f32, "8"]):
        i = ids[...]
        o.at[0 : ids[0]][i] = x[...]
        o[i] += 1

    for k in (shifted, first, fenced):
        with pytest.raises(UnwrittenRead, match="`o` is read here before this window is written"):
            k.on("reference")(MATRIX[0, :8], np.arange(8, dtype=np.int32))


def test_a_step_that_reads_what_others_update_conflicts():
    with pytest.raises(ParallelConflict, match="another step"):
        updates_and_reads.on("reference")(np.zeros(8, np.float32), np.zeros((4, 8), np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, o: atomic_add(x[...], 1), "updates memory"),
        (lambda x, o: atomic_add(x.at[0:8], 1), "`In` parameter"),
        (lambda x, o: atomic_and(o.at[0:8], 1), "bits of integers"),
        (lambda x, o: atomic_add(o.at[0:8], 1, order="weak"), "`order` of `atomic_add`"),
        (lambda x, o: atomic_add(o.at[0:8], 1, scope="grid"), "`scope` of `atomic_add`"),
        (lambda x, o: atomic_add(o.at[0:8], x[0:4]), "does not fit"),
        (lambda x, o: o.at[x[0:4].astype(i32)].T, "not turned"),
        (lambda x, o: o.at[x[0:4].astype(i32)][0:2], "not indexed again"),
        (
            lambda x, o: copy_gmem_to_smem(x.at[x[0:4].astype(i32)], SMEM((4,), f32), Barrier()),
            "takes one window",
        ),
        (
            lambda x, o: load(o.at[x[0:4].astype(i32)], fill=x[0]),
            "fills with a constant",
        ),
        (lambda x, o: o[x[0:4]], "hold integers, got f32"),
    ],
)
def test_what_is_not_meant_is_refused(call, message):
    @kernel
    def wrong(x: In[f32, "8"], o: Out[f32, "8", 0]):
        call(x, o)

    with pytest.raises(KernelError, match=message):
        wrong.on("reference")(np.zeros(8, np.float32))


@kernel(warpgroups=2)
def by_warpgroups(x: In[f32, "256"], ids: In[i32, "256"], o: Out[f32, "256"], c: Out[i32, "2", 0]):
    w = warpgroup_id()
    here = ids[tile(w, 128)]
    buffer = SMEM((256,), f32)
    buffer[tile(w, 128)] = take(x[here], here % 128, 0)
    atomic_add(buffer.at[tile(w, 128)], 1.0)
    o[tile(w, 128)] = buffer[tile(w, 128)]
    atomic_add(c.at[ds(w, 1)], w + 1)


def test_each_warpgroup_accesses_for_itself():
    x, ids = MATRIX.reshape(-1)[:256].copy(), integers(0, 256, 256)
    o, c = agree(by_warpgroups, lambda: (x, ids))
    expected = [x[half][half % 128] + 1 for half in ids.reshape(2, 128)]
    assert np.array_equal(o, np.concatenate(expected))
    assert c.tolist() == [1, 2]


def test_the_text_of_every_access_is_read_back():
    x, i = np.zeros((8, 8), np.float32), np.zeros(8, np.int32)
    lowered = [
        rows.lower(x, i),
        put.lower(x, i, x),
        swap.lower(*[x[0].copy()] * 4),
        taken.lower(x, i),
    ]
    for module in (each.module for each in lowered):
        assert structurally_equal(parse_module(print_module(module)), module)


# Elements of tiles


@kernel
def taken(x: In[f32, "A B"], i: In[i32, "A"], o: Out[f32, "A B"], p: Out[f32, "A A"]):
    t = x[...]
    o[...] = take(t, i[...], 0)
    p[...] = take(t, i[...], 1)


def test_a_tile_is_indexed_by_a_tile():
    x, i = RANDOM.standard_normal((128, 96)).astype(np.float32), integers(-3, 140, 128)
    o, p = agree(taken, lambda: (x, i))
    rows_inside, columns_inside = (i >= 0) & (i < 128), (i >= 0) & (i < 96)
    assert np.array_equal(o, np.where(rows_inside[:, None], x[i % 128], 0))
    assert np.array_equal(p, np.where(columns_inside, x[:, i % 96], 0))
