"""Count how often each number occurs: in shared memory first, then over all blocks.

Run it: `python examples/histogram.py [--count 20000]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import SMEM, In, Out, atomic_add, cdiv, i32, kernel, parallel, tile


@kernel
def histogram(x: In[i32, "N"], o: Out[i32, "B", 0], *, b=512, n=8):
    # A block counts n tiles on chip, where updates are cheap, and adds its counts to memory once.
    # Numbers outside of the bins are left out, and so are the elements past the end of x.
    bins = o.shape[0]
    with parallel(cdiv(x.shape[0], b * n)) as i:
        counts = SMEM((bins,), i32)
        counts[...] = 0
        for k in range(n):
            atomic_add(counts.at[x[tile(i * n + k, b)]], 1, scope="cta")
        atomic_add(o.at[...], counts[...])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=20000)
    count = parser.parse_args(arguments).count
    x = np.random.default_rng(0).integers(0, 64, count).astype(np.int32)
    found = histogram(x, np.empty(64, np.int32))
    np.testing.assert_array_equal(found, np.bincount(x, minlength=64))
    print(f"histogram: {count} numbers, equal to NumPy")


if __name__ == "__main__":
    main()
