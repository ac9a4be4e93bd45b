"""Find the k largest elements of every row, and where they are.

Run it: `python examples/top_k.py [--shape 64 500]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, argmax, cdiv, f32, i32, iota, kernel, load, pipeline, tile, where


@kernel
def top_k(x: In[f32, "M N"], values: Out[f32, "M K"], places: Out[i32, "M K"], *, bm=8, bn=512):
    # Take the largest, put it out of the race, and begin again.
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    lowest = float("-inf")
    with pipeline(cdiv(M, bm)) as i:
        rows = load(x.at[tile(i, bm), tile(0, bn)], fill=lowest)
        for k in range(values.shape[1]):
            best = argmax(rows, axis=1)
            is_best = iota((bm, bn), 1) == best[:, None]
            values[tile(i, bm), k] = rows.max(axis=1)
            places[tile(i, bm), k] = best
            rows = where(is_best, lowest, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=2, default=(64, 500), metavar=("M", "N"))
    m, n = parser.parse_args(arguments).shape
    x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
    k = min(5, n)
    values, places = top_k(x, np.empty((m, k), np.float32), np.empty((m, k), np.int32))
    wanted = np.argsort(-x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis=1))
    print(f"top {k} of rows of {m} x {n}, equal to NumPy")


if __name__ == "__main__":
    main()
