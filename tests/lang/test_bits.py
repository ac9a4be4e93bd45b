"""Bits of elements: reinterpreted, and random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    arange,
    bitcast,
    cdiv,
    f16,
    f32,
    i16,
    i32,
    i64,
    kernel,
    pipeline,
    random_bits,
    tile,
    u32,
)
from astdsl.errors import KernelError, ShapeMismatch, TypeMismatch
from astdsl.ir.types import TileType
from tests.lang.harness import a_trace, computed
from tests.witnesses import agree

MASK = 2**32 - 1


def philox(key: int, counter: int) -> int:
    """Return the first word of Philox4x32-10, by Python's integers."""
    words = [counter & MASK, counter >> 32 & MASK, 0, 0]
    keys = [key & MASK, key >> 32 & MASK]
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [second >> 32 ^ words[1] ^ keys[0], second & MASK,
                 first >> 32 ^ words[3] ^ keys[1], first & MASK]  # fmt: skip
        keys = [keys[0] + 0x9E3779B9 & MASK, keys[1] + 0xBB67AE85 & MASK]
    return words[0]


def bits_of_offsets(x: In["N"], seed: i64, o: Out[u32, "N"], *, b: int = 32) -> None:
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[tile(i, b)] = random_bits(seed, x[tile(i, b)])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("seed", [0, 1, -1, 0x1234567887654321])
def test_random_bits_are_philox_on_every_witness(seed: int, dtype: Any) -> None:
    x = np.array([0, 1, 2, 77, 2**31 - 1, 5], dtype)
    found = agree(kernel(bits_of_offsets), lambda: (x, seed))
    assert found.tolist() == [philox(seed % 2**64, int(n)) for n in x]


def test_the_first_word_is_that_of_the_paper_s_test_vector() -> None:
    # Random123's known answers: philox4x32 of 10 rounds, counter and key 0.
    assert computed(lambda x: random_bits(0, x), np.zeros(1, np.int32)) == 0x6627E8D5


def test_a_weak_offset_and_a_python_seed_will_do() -> None:
    found = computed(lambda x: random_bits(7, arange(4)) + bitcast(x, u32), np.zeros(4, np.int32))
    assert found.tolist() == [philox(7, n) for n in range(4)]


@pytest.mark.parametrize("target", [np.int32, np.uint32])
def test_bitcast_keeps_the_bits(target: Any) -> None:
    x = np.array([0.0, -0.0, 1.5, np.inf, np.nan], np.float32)
    assert np.array_equal(computed(lambda t: bitcast(t, target), x), x.view(target))


def sign_bits(x: In[f16, "N"], o: Out[i16, "N"]) -> None:
    o[...] = bitcast(x[...], i16) >> 15


def test_bitcast_is_the_same_on_every_witness() -> None:
    x = np.array([1, -1, -0.0, 0.0, -np.inf, 3, 4, 5], np.float16)
    assert np.array_equal(agree(kernel(sign_bits), lambda: (x,)), x.view(np.int16) >> 15)


MISTAKES: list[tuple[Any, type[KernelError], str]] = [
    (lambda x: bitcast(x, i16), TypeMismatch, "16 bits"),
    (lambda x: bitcast(x > 0, i32), TypeMismatch, "bitcast"),
    (lambda x: random_bits(x, 1), TypeMismatch, "f32"),
    (lambda x: random_bits(1, x), TypeMismatch, "f32"),
    (lambda x: random_bits(x.astype(i32), 1), ShapeMismatch, "one seed"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), MISTAKES)
def test_a_mistake_says_what_to_do(wrong: Any, kind: type[KernelError], said: str) -> None:
    with a_trace(TileType((4,), f32)) as (_, x), pytest.raises(kind, match=said) as caught:
        wrong(x)
    assert caught.value.help
