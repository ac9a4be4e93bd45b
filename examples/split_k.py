"""Multiply matrices whose result is small and whose sums are long: blocks share each sum.

Run it: `python examples/split_k.py [--shape 64 64 2048]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, atomic_add, cdiv, f16, f32, kernel, pipeline, tile, zeros


@kernel
def split_k(
    a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N", 0], *, bm=64, bn=64, bk=64, steps=8
):
    # Each block sums `steps` tiles of k, and adds its part to the result. Atomic updates do not
    # hinder blocks from running side by side; their order is not fixed, nor are the last bits.
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), cdiv(K, bk * steps)) as (i, j, part):
        acc = zeros((bm, bn), f32)
        with pipeline(steps) as step:
            k = part * steps + step
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        atomic_add(c.at[tile(i, bm), tile(j, bn)], acc)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(64, 64, 2048), metavar="N")
    m, n, k = parser.parse_args(arguments).shape
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n)).astype(np.float16)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(split_k(a, b), wanted, rtol=1e-3, atol=1e-2)
    print(f"split-K matmul: {m} x {n} x {k}, close to NumPy")


if __name__ == "__main__":
    main()
