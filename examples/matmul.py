"""Multiply matrices on both targets, compare with NumPy, and print the time.

Run it: `python examples/matmul.py [--shape 512 512 512]`.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, f16, f32, kernel, pipeline, tile, zeros


@kernel
def matmul(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=128, bn=128, bk=64):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=4) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


def main(arguments: Sequence[str] | None = None) -> None:
    """Multiply random matrices for each target and compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 512, 512), metavar="MNK")
    parser.add_argument("--target", choices=["sm_90a", "sm_100a"], action="append")
    options = parser.parse_args(arguments)
    m, n, k = options.shape
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n)).astype(np.float16)
    wanted = a.astype(np.float32) @ b.astype(np.float32)

    for target in options.target or ["sm_90a", "sm_100a"]:
        started = time.perf_counter()
        c = matmul.on(target=target)(a, b)
        compiled = time.perf_counter()
        c = matmul.on(target=target)(a, b)
        done = time.perf_counter()
        np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=1e-3)
        print(
            f"{target}: {m} x {n} x {k}, close to NumPy; first call {compiled - started:.2f} s "
            f"(it compiles), second {done - compiled:.2f} s"
        )


if __name__ == "__main__":
    main()
