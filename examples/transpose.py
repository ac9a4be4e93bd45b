"""Turn a matrix: read rows, write columns, both as wide as memory likes.

Run it: `python examples/transpose.py [--shape 200 300]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, f32, kernel, pipeline, tile


@kernel
def transpose(x: In[f32, "M N"], o: Out[f32, "N M"], *, b=32):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
        o[tile(j, b), tile(i, b)] = x[tile(i, b), tile(j, b)].T


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=2, default=(200, 300), metavar=("M", "N"))
    m, n = parser.parse_args(arguments).shape
    x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
    np.testing.assert_array_equal(transpose(x), x.T)
    print(f"transpose: {m} x {n}, equal to NumPy")


if __name__ == "__main__":
    main()
