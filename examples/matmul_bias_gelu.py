"""Multiply matrices, add a bias and apply GELU, in one kernel.

Run it: `python examples/matmul_bias_gelu.py [--shape 256 256 256]`.
"""

import argparse
import math
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, erf, f16, f32, kernel, pipeline, tile, zeros


def gelu(x):
    """Return x times the probability that a normal variable is below x: a helper, inlined."""
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


@kernel
def matmul_bias_gelu(
    a: In[f16, "M K"],
    b: In[f16, "K N"],
    bias: In[f32, "N"],
    c: Out[f16, "M N"],
    *,
    bm=128,
    bn=128,
    bk=64,
):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=4) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = gelu(acc + bias[tile(j, bn)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy on both targets."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(256, 256, 256), metavar="MNK")
    m, n, k = parser.parse_args(arguments).shape
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n)).astype(np.float16)
    bias = random.standard_normal(n, dtype=np.float32)

    x = a.astype(np.float64) @ b.astype(np.float64) + bias
    wanted = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    for target in ("sm_90a", "sm_100a"):
        c = matmul_bias_gelu.on(target=target)(a, b, bias)
        np.testing.assert_allclose(c, wanted, rtol=2e-3, atol=2e-3)
        print(f"{target}: {m} x {n} x {k}, close to NumPy")


if __name__ == "__main__":
    main()
