"""Kernels over rows (softmax, normalisation), and element by element (dropout, transpose)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.stdlib import elementwise, normalisation, reference, softmax
from tests.witnesses import agree

SHAPES = [(9, 300), (4, 64), (1, 1), (5, 33)]
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_of_rows_longer_than_a_tile(shape: tuple[int, int]) -> None:
    x = floats(*shape)
    found = agree(softmax.softmax, lambda: (x,), tolerance=1e-6, bn=64)
    np.testing.assert_allclose(found, reference.softmax(x), **CLOSE)


def test_softmax_of_rows_longer_than_shared_memory() -> None:
    x = floats(2, 100_000)
    np.testing.assert_allclose(softmax.softmax(x), reference.softmax(x), **CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy(shape: tuple[int, int]) -> None:
    x = floats(*shape)
    label = np.random.default_rng(1).integers(0, shape[1], shape[0], dtype=np.int32)
    found = agree(softmax.cross_entropy, lambda: (x, label), tolerance=1e-6, bn=64)
    np.testing.assert_allclose(found, reference.cross_entropy(x, label), **CLOSE)


@pytest.mark.parametrize("shape", [(9, 100), (64, 33), (1, 2)])
def test_layer_norm_forward_and_backward(shape: tuple[int, int]) -> None:
    x, do, w, b = (floats(*s, seed=k) for k, s in enumerate([shape, shape, shape[1:], shape[1:]]))
    found = agree(normalisation.layer_norm, lambda: (x, w, b), tolerance=1e-5, bn=128)
    for got, expected in zip(found, reference.layer_norm(x, w, b), strict=True):
        np.testing.assert_allclose(got, expected, **CLOSE)
    _, mean, rstd = found
    gradients = agree(
        normalisation.layer_norm_backward,
        lambda: (x, w, mean, rstd, do),
        tolerance=1e-4,
        bn=128,
        parts=3,
    )
    for got, expected in zip(gradients, reference.layer_norm_backward(x, w, do), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_the_parts_of_layer_norm_backward_are_blocks() -> None:
    rows, row, column = floats(64, 128), floats(64), floats(128)
    lowered = normalisation.layer_norm_backward.lower(rows, column, row, row, rows, bn=128)
    assert lowered.schedule.count("Launch ") == 2


def test_rms_norm() -> None:
    x, w = floats(9, 100), floats(100, seed=1)
    found = agree(normalisation.rms_norm, lambda: (x, w), tolerance=1e-5, bn=128)
    np.testing.assert_allclose(found, reference.rms_norm(x, w), **CLOSE)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int8])
@pytest.mark.parametrize("shape", [(70, 200), (64, 64), (1, 9)])
def test_transpose(dtype: Any, shape: tuple[int, int]) -> None:
    x = (floats(*shape) * 50).astype(dtype)
    np.testing.assert_array_equal(agree(elementwise.transpose, lambda: (x,)), x.T)


def test_swiglu() -> None:
    gate, up = floats(70, 200), floats(70, 200, seed=1)
    found = agree(elementwise.swiglu, lambda: (gate, up), tolerance=1e-6)
    np.testing.assert_allclose(found, reference.swiglu(gate, up), **CLOSE)


def test_dropout_keeps_the_share_asked_for_and_scales_it() -> None:
    x = np.abs(floats(70, 200)) + 1
    found = agree(elementwise.dropout, lambda: (x, 7), tolerance=1e-6, p=0.25)
    kept = found != 0
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(found[kept], (x / 0.75)[kept], rtol=1e-6)


def test_dropout_depends_on_the_seed_and_not_on_the_blocks() -> None:
    x = np.ones((70, 200), np.float32)
    first = elementwise.dropout(x, 7)
    np.testing.assert_array_equal(elementwise.dropout(x, 7, bm=16, bn=64), first)
    assert (elementwise.dropout(x, 8) != first).any()
