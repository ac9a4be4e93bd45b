"""Tutorial 2: sum over the first axis: two ways that are wrong, each refused, then the right one.

Run it: `python examples/tutorial/02_reduction.py [--shape 8 1024 1024]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, KernelError, Out, cdiv, f32, kernel, pipeline, tile


@kernel
def sum0_unwritten(x: In[f32, "R M N"], o: Out[f32, "M N"], *, bm=64, bn=128):
    # Wrong: an `Out` starts unwritten, so the first `+=` adds to whatever the memory held.
    R, M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), R) as (i, j, r):
        o[tile(i, bm), tile(j, bn)] += x[r, tile(i, bm), tile(j, bn)]


@kernel
def sum0_outermost(x: In[f32, "R M N"], o: Out[f32, "M N"], *, bm=64, bn=128):
    # Wrong: r is the outermost axis. Between two visits of one window of `o` the pipeline visits
    # all others, so the sum would have to leave the chip and come back at every step.
    R, M, N = x.shape
    with pipeline(R, cdiv(M, bm), cdiv(N, bn)) as (r, i, j):
        out = o.at[tile(i, bm), tile(j, bn)]
        if r == 0:
            out[...] = 0
        out[...] += x[r, tile(i, bm), tile(j, bn)]


@kernel
def sum0(x: In[f32, "R M N"], o: Out[f32, "M N"], *, bm=64, bn=128):
    # Right: r is the innermost axis. The window of `o` stays on chip while r runs, and is stored
    # once, when i or j moves on.
    R, M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), R) as (i, j, r):
        out = o.at[tile(i, bm), tile(j, bn)]
        if r == 0:
            out[...] = 0
        out[...] += x[r, tile(i, bm), tile(j, bn)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Show what the wrong versions are told, then compare the right one with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(8, 1024, 1024))
    shape = parser.parse_args(arguments).shape
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)

    for wrong in (sum0_unwritten, sum0_outermost):
        try:
            wrong(x)
        except KernelError as error:
            print(f"{wrong.__name__} is refused:\n{error}\n")
        else:
            raise AssertionError(f"{wrong.__name__} was not refused")

    np.testing.assert_allclose(sum0(x), x.sum(axis=0), rtol=1e-5, atol=1e-5)
    print(f"sum0: {' x '.join(map(str, shape))}, close to NumPy")


if __name__ == "__main__":
    main()
