"""Attention, forward and backward: causal or not, heads in groups, ragged sequences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.stdlib import attention, reference
from tests.witnesses import agree


def operands(
    heads: tuple[int, int], lengths: tuple[int, int], d: int, dtype: Any, batch: int = 1
) -> Any:
    random = np.random.default_rng(0)
    (h, g), (s, t) = heads, lengths
    shapes = [(batch, h, s, d), (batch, g, t, d), (batch, g, t, d), (batch, h, s, d)]
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


FORWARD = [
    # heads of q and of k, lengths of q and of k, d, causal
    ((4, 1), (64, 64), 64, False),
    ((6, 3), (100, 70), 64, False),
    ((4, 4), (130, 130), 128, True),
    ((2, 2), (64, 64), 256, True),
]


@pytest.mark.parametrize(("heads", "lengths", "d", "causal"), FORWARD)
def test_the_output_and_the_sums(heads: Any, lengths: Any, d: int, causal: bool) -> None:
    q, k, v, _ = operands(heads, lengths, d, np.float16)
    found = agree(attention.attention, lambda: (q, k, v), tolerance=2e-3, causal=causal)
    for got, expected in zip(found, reference.attention(q, k, v, causal), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("heads", [(4, 1), (6, 3), (4, 4)], ids=str)
@pytest.mark.parametrize("batch", [1, 4])
def test_18_every_mix_of_batches_heads_and_depths(
    batch: int, heads: tuple[int, int], d: int, causal: bool, target: str
) -> None:
    q, k, v, _ = operands(heads, (64, 64), d, np.float16, batch)
    found = attention.attention.on("emulator", target=target)(q, k, v, causal=causal)
    for got, expected in zip(found, reference.attention(q, k, v, causal), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), expected, atol=2e-3, rtol=1e-3)


def test_several_batches_of_bf16() -> None:
    q, k, v, _ = operands((2, 1), (70, 70), 64, ml_dtypes.bfloat16, batch=2)
    o, _ = attention.attention(q, k, v, causal=True)
    expected, _ = reference.attention(q, k, v, causal=True)
    np.testing.assert_allclose(o.astype(np.float64), expected, atol=2e-2)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("heads", "lengths", "causal"),
    [((2, 1), (100, 70), False), ((2, 2), (100, 100), True), ((4, 2), (64, 64), True)],
)
def test_the_gradients(heads: Any, lengths: Any, causal: bool, target: str) -> None:
    q, k, v, do = operands(heads, lengths, 64, np.float16)
    o, lse = reference.attention(q, k, v, causal)
    backward = attention.attention_backward.on("emulator", target=target)
    found = backward(q, k, v, o.astype(np.float16), lse.astype(np.float32), do, causal=causal)
    expected = reference.attention_backward(q, k, v, do, causal)
    for got, gradient in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), gradient, atol=4e-3, rtol=4e-3)
