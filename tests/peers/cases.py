"""What the kernels of the peers must compute: arguments, and NumPy's results.

Invariant: a case does not know where its PTX comes from, stored or compiled afresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astdsl.emulator import Swizzle, TensorMap, run
from tests.peers.launches import Compiled

Array = np.ndarray[Any, Any]
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
EXACT = 0.0
# Twice as many steps of 64 as rings have slots, so that each is filled again.
DEPTH = 384
# How Triton aligns the tensor maps that a kernel makes, and how long they are.
MAP_BYTES = 128


@dataclass(frozen=True)
class Case:
    """Make arguments from a generator; say what `output` holds after a launch of `grid`."""

    grid: tuple[int, ...]
    make: Callable[[np.random.Generator], Sequence[Any]]
    output: int
    expected: Callable[..., Array]
    tolerance: float = EXACT
    has_maps: bool = False


def _floats(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _whole(random: np.random.Generator, *shape: int) -> Array:
    return random.integers(-3, 4, shape).astype(np.float16)


def _empty(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def _softmax(x: Array, *_: Any) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _attention(q: Array, k: Array, v: Array, o: Array, length: int) -> Array:
    q, k, v = (x.astype(np.float32).reshape(-1, length, 64) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) * 0.125
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.asarray((powers / powers.sum(axis=2, keepdims=True)) @ v).reshape(o.shape)


def _product(a: Array, b: Array, *_: Any) -> Array:
    return np.asarray(a.astype(np.float32) @ b.astype(np.float32))


def _uniform(o: Array, seed: int) -> Array:
    """Return what `tl.rand` gives: Philox 4x32, ten rounds, counters in the first word."""
    counter = np.zeros((4, o.size), np.uint64)
    counter[0] = np.arange(o.size)
    keys = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        counter = np.stack([
            (second >> shift) ^ counter[1] ^ keys[0], second & low,
            (first >> shift) ^ counter[3] ^ keys[1], first & low,
        ])  # fmt: skip
        keys = (keys + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & low
    signed = counter[0].astype(np.uint32).view(np.int32)
    positive = np.where(signed < 0, -signed - 1, signed)
    return np.asarray(positive.astype(np.float32) * np.float32(4.6566127342e-10))


def _matmul(random: np.random.Generator) -> list[Any]:
    a, b = _whole(random, 256, DEPTH), _whole(random, DEPTH, 256)
    return [a, b, _empty(256, 256, dtype=np.float16), DEPTH]


def _matmul_ends(random: np.random.Generator) -> list[Any]:
    a, b, c, _ = _matmul(random)
    return [a, b, c, 256, 256, DEPTH]


CASES = {
    "elementwise": Case(
        (3,), lambda r: [_floats(r, 2500), _floats(r, 2500), _empty(2500), 2500], 2,
        lambda x, y, o, n: np.exp(x) * y + np.sqrt(np.abs(x)), 1e-5,
    ),
    "row_sums": Case(
        (2,), lambda r: [_floats(r, 50, 200), _empty(50), 50, 200], 1,
        lambda x, *_: x.sum(axis=1), 1e-5,
    ),
    "softmax": Case((7,), lambda r: [_floats(r, 7, 777), _empty(7, 777), 777], 1, _softmax, 1e-5),
    "prefix_sums": Case(
        (3,), lambda r: [r.integers(-9, 9, (3, 1024)).astype(np.float32), _empty(3, 1024)], 1,
        lambda x, _: np.cumsum(x, axis=1),
    ),
    "sort_rows": Case(
        (3,),
        lambda r: [r.integers(-99, 99, (3, 256)).astype(np.int32), _empty(3, 256, dtype=np.int32)],
        1, lambda x, _: np.sort(x, axis=1),
    ),
    "histogram": Case(
        (4,),
        lambda r: [r.integers(0, 16, 2000).astype(np.int32), _empty(16, dtype=np.int32), 2000],
        1, lambda x, counts, n: np.bincount(x, minlength=16),
    ),
    "gather_rows": Case(
        (2,),
        lambda r: [
            _floats(r, 50, 100), r.integers(0, 50, 32).astype(np.int32), _empty(32, 100), 100,
        ],
        2, lambda table, index, *_: table[index],
    ),
    "random_uniform": Case((2,), lambda r: [_empty(1024), 1234], 0, _uniform),
    "matmul": Case((2, 2), _matmul, 2, _product, has_maps=True),
    "matmul_pairs": Case((2, 2), _matmul, 2, _product, has_maps=True),
    "matmul_persistent": Case((3,), _matmul_ends, 2, _product, has_maps=True),
    "matmul_pointers": Case(
        (2, 2),
        lambda r: [_whole(r, 100, 80), _whole(r, 80, 96), _empty(100, 96), 100, 96, 80],
        2, _product,
    ),
    "scaled_described": Case(
        (4,), lambda r: [_floats(r, 50, 128), _empty(50, 128), 50, 128], 1, lambda x, *_: 2 * x,
    ),
    "attention": Case(
        (DEPTH // 128, 2),
        lambda r: [*(_floats(r, 2 * DEPTH, 64).astype(np.float16) for _ in "qkv"),
                   _empty(2 * DEPTH, 64, dtype=np.float16), DEPTH],
        3, _attention, 2e-2, has_maps=True,
    ),
}  # fmt: skip


def check(name: str, made: Compiled, **schedule: Any) -> None:
    """Run a case's kernel under a schedule and compare what it wrote."""
    case = CASES[name]
    arguments = case.make(np.random.default_rng(5))
    expected = case.expected(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    launch(made, case.grid, arguments, has_maps=case.has_maps, **schedule)
    got = arguments[case.output].reshape(expected.shape).astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=case.tolerance, atol=case.tolerance)


def launch(
    made: Compiled, grid: tuple[int, ...], arguments: Sequence[Any], *, has_maps: bool,
    **schedule: Any,
) -> None:  # fmt: skip
    """Run a kernel of Triton with the arguments that its ABI adds."""
    given: list[Any] = []
    maps = zip(made.boxes, made.swizzles, strict=True)
    for argument in arguments:
        is_mapped = has_maps and isinstance(argument, np.ndarray)
        given += _described(argument, *next(maps)) if is_mapped else [argument]
    blocks = (grid[0] * made.cluster, *grid[1:])
    # Triton passes two pointers of its own: to scratch for tensor maps, and for its profiler.
    given += [_scratch(made.scratch_bytes * math.prod(blocks)), 0]
    run(
        made.ptx, made.entry, blocks, (made.threads,), given, cluster=(made.cluster,),
        shared_bytes=made.shared_bytes, **schedule,
    )  # fmt: skip


def _scratch(size_bytes: int) -> Array | int:
    """Return memory aligned as tensor maps are, 0 for none."""
    if not size_bytes:
        return 0
    memory = np.zeros(size_bytes + MAP_BYTES, np.uint8)
    start = -memory.ctypes.data % MAP_BYTES
    return memory[start : start + size_bytes]


def _described(array: Array, box: tuple[int, ...], mode: int) -> list[Any]:
    """Return what Triton passes for a host descriptor: the map, its shape and its strides."""
    strides = [stride // array.itemsize for stride in array.strides]
    return [TensorMap.of(array, box, swizzle=SWIZZLES[mode]), *array.shape, *strides]
