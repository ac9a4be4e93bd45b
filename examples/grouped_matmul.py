"""Multiply groups of rows, each by its own matrix: the experts of a mixture.

Run it: `python examples/grouped_matmul.py [--sizes 70 0 128 37]`.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from astdsl import In, Out, cdiv, f16, f32, i32, kernel, parallel, pipeline, tile, zeros


@kernel
def grouped_matmul(
    x: In[f16, "M K"],
    w: In[f16, "G K N"],
    offsets: In[i32, "_"],
    o: Out[f32, "M N"],
    *,
    bm=64,
    bn=64,
    bk=64,
):
    # The offsets are in memory. A view of a group ends where the group does: what a window of it
    # reads beyond is zero, and what it writes beyond is dropped.
    G, K, N = w.shape
    assert offsets.shape[0] == G + 1, "one offset for the start of each group, and one for the end"
    with parallel(G, cdiv(N, bn)) as (g, j):
        group = slice(offsets[g], offsets[g + 1])
        rows, out = x.at[group], o.at[group]
        with pipeline(cdiv(rows.shape[0], bm)) as i:
            acc = zeros((bm, bn), f32)
            with pipeline(cdiv(K, bk)) as k:
                acc += rows[tile(i, bm), tile(k, bk)] @ w[g, tile(k, bk), tile(j, bn)]
            out[tile(i, bm), tile(j, bn)] = acc


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=(70, 0, 128, 37), metavar="M")
    sizes = parser.parse_args(arguments).sizes
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    random = np.random.default_rng(0)
    x = random.standard_normal((offsets[-1], 96)).astype(np.float16)
    w = random.standard_normal((len(sizes), 96, 80)).astype(np.float16)
    found = grouped_matmul(x, w, offsets)
    for matrix, (low, high) in zip(w, pairwise(offsets), strict=True):
        wanted = x[low:high].astype(np.float32) @ matrix.astype(np.float32)
        np.testing.assert_allclose(found[low:high], wanted, rtol=1e-3, atol=1e-3)
    print(f"grouped matmul: groups of {', '.join(map(str, sizes))} rows, close to NumPy")


if __name__ == "__main__":
    main()
