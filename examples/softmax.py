"""Softmax of every row, for rows of any length.

Run it: `python examples/softmax.py [--shape 256 1000]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, exp, f32, kernel, pipeline, tile


@kernel
def softmax(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=4, bn=1024):
    # `bn` is at least the length of a row. The elements past its end are no part of it: `max` and
    # `sum` leave them out and the store drops them, so no mask is needed.
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    with pipeline(cdiv(M, bm)) as i:
        rows = x[tile(i, bm), tile(0, bn)]
        e = exp(rows - rows.max(axis=1, keepdims=True))
        o[tile(i, bm), tile(0, bn)] = e / e.sum(axis=1, keepdims=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=2, default=(256, 1000), metavar=("M", "N"))
    m, n = parser.parse_args(arguments).shape
    x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)

    e = np.exp(x - x.max(axis=1, keepdims=True))
    bn = 1 << (n - 1).bit_length()
    np.testing.assert_allclose(softmax(x, bn=bn), e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    print(f"softmax: {m} x {n}, close to NumPy")


if __name__ == "__main__":
    main()
