"""Look rows of a table up by number, and add gradients back into the rows they came from.

Run it: `python examples/embedding.py [--shape 1000 96 500]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, atomic_add, cdiv, f32, i32, kernel, pipeline, tile


@kernel
def embed(table: In[f32, "V D"], ids: In[i32, "N"], o: Out[f32, "N D"], *, bn=32, bd=64):
    N, D = o.shape
    with pipeline(cdiv(N, bn), cdiv(D, bd)) as (i, j):
        o[tile(i, bn), tile(j, bd)] = table[ids[tile(i, bn)], tile(j, bd)]


@kernel
def embed_backward(g: In[f32, "N D"], ids: In[i32, "N"], grad: Out[f32, "V D", 0], *, bn=32, bd=64):
    # Several tokens may be one word: their gradients are added, in any order.
    N, D = g.shape
    with pipeline(cdiv(N, bn), cdiv(D, bd)) as (i, j):
        atomic_add(grad.at[ids[tile(i, bn)], tile(j, bd)], g[tile(i, bn), tile(j, bd)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(1000, 96, 500), metavar="N")
    words, width, tokens = parser.parse_args(arguments).shape
    random = np.random.default_rng(0)
    table = random.standard_normal((words, width), dtype=np.float32)
    ids = random.integers(0, words, tokens).astype(np.int32)

    np.testing.assert_array_equal(embed(table, ids), table[ids])
    g = random.standard_normal((tokens, width), dtype=np.float32)
    wanted = np.zeros_like(table)
    np.add.at(wanted, ids, g)
    found = embed_backward(g, ids, np.empty_like(table))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    print(f"embedding: {tokens} rows of {words} x {width}, and their gradients, close to NumPy")


if __name__ == "__main__":
    main()
