"""Prefix sum of a long array: every block adds up its part, then starts from those before it.

Run it: `python examples/prefix_sum.py [--size 100000]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import GMEM, In, Out, cdiv, cumsum, f32, kernel, pipeline, tile


@kernel
def prefix_sum(x: In[f32, "N"], o: Out[f32, "N"], *, b=1024):
    # Each outermost pipeline is a launch. The first and the last are spread over blocks; the second
    # carries `running` from step to step, so one block runs it.
    (N,) = x.shape
    sums, starts = GMEM(cdiv(N, b), f32), GMEM(cdiv(N, b), f32)
    with pipeline(cdiv(N, b)) as i:
        sums[i] = x[tile(i, b)].sum()
    running = 0.0
    with pipeline(cdiv(N, b), axes="sequential") as i:
        starts[i] = running
        running += sums[i]
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = starts[i] + cumsum(x[tile(i, b)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--size", type=int, default=100_000)
    n = parser.parse_args(arguments).size
    # Sums of small whole numbers are exact in any order.
    x = np.random.default_rng(0).integers(-4, 5, n).astype(np.float32)

    np.testing.assert_array_equal(prefix_sum(x), np.cumsum(x))
    print(f"prefix_sum: {n} elements, equal to NumPy")


if __name__ == "__main__":
    main()
