"""What is known to be missing: each test fails today, and says so when it no longer does."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import In, KernelError, Out, f16, f32, kernel, tile, zeros

X = np.ones((64, 32), np.float32)


@kernel(cluster={"x": 2})
def in_clusters(x: In[f32, "64 32"], o: Out[f32, "64 32"]):
    o[...] = x[...]


@pytest.mark.xfail(strict=True, reason="the errors of `@kernel(...)` have no place in the source")
def test_a_refused_option_of_the_decorator_is_shown_in_its_line() -> None:
    with pytest.raises(KernelError) as caught:
        in_clusters(X)
    assert caught.value.places


@kernel
def sums_products_under_a_condition(
    x: In[f16, "M K"], y: In[f16, "K N"], o: Out[f32, "M N"], *, b=64
):
    acc = zeros((b, b), f32)
    for k in range(2):
        if k % 2 == 1:
            acc += x[0:b, tile(k, 16)] @ y[tile(k, 16), 0:b]
    o[0:b, 0:b] = acc


@pytest.mark.xfail(strict=True, reason="a branch does not mark its other side's tile as ragged")
def test_a_ragged_product_may_be_added_under_a_condition_as_it_may_in_a_loop() -> None:
    x, y = X[:60].astype(np.float16), X.T[:, :60].astype(np.float16)
    expected = x[:, 16:].astype(np.float32) @ y[16:].astype(np.float32)
    np.testing.assert_array_equal(sums_products_under_a_condition(x, y), expected)
