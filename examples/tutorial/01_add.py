"""Tutorial 1: add two arrays, first in one piece, then in blocks of any shape.

Run it: `python examples/tutorial/01_add.py [--size 4096]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, f32, kernel, pipeline, tile


@kernel
def add_whole(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"]):
    # No pipeline: one block of threads does it all. The tile is as large as the arrays, so its
    # extents become compile-time constants. No block can hold 4096 x 4096 elements: as they are
    # only loaded, added and stored, the compiler streams them through.
    o[...] = x[...] + y[...]


@kernel
def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=64, bn=128):
    # One step for each block of the output. The steps are independent, so each runs on a block of
    # threads of its own; at the edges, what lies outside is read as zero and not written.
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        block = tile(i, bm), tile(j, bn)
        o[block] = x[block] + y[block]


def main(arguments: Sequence[str] | None = None) -> None:
    """Add two arrays by each kernel and by blocks of several shapes, and compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns (%(default)s)")
    size = parser.parse_args(arguments).size
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((size, size), dtype=np.float32) for _ in range(2))

    np.testing.assert_array_equal(add_whole(x, y), x + y)
    print(f"add_whole: {size} x {size}, equal to NumPy")
    for bm, bn in ((64, 128), (32, 32), (128, 64)):
        np.testing.assert_array_equal(add(x, y, bm=bm, bn=bn), x + y)
        print(f"add: {size} x {size} in blocks of {bm} x {bn}, equal to NumPy")


if __name__ == "__main__":
    main()
