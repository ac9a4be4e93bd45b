"""Convolve images with a small filter, every `stride`-th output only, by windows that overlap.

Run it: `python examples/convolution.py [--shape 60 90]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import In, Out, cdiv, ds, f32, kernel, load, pipeline, tile, zeros


@kernel
def convolve(x: In[f32, "H W"], w: In[f32, "R S"], o: Out[f32, "P Q"], *, stride=2, bp=8, bq=32):
    # The windows begin before the image and end behind it; `fill` makes what is outside ordinary
    # zeros, which count in the sum as any others do.
    R, S = w.shape
    with pipeline(cdiv(o.shape[0], bp), cdiv(o.shape[1], bq)) as (i, j):
        acc = zeros((bp, bq), f32)
        for r in range(R):
            for s in range(S):
                rows = ds(i * bp * stride + r - R // 2, bp, stride)
                columns = ds(j * bq * stride + s - S // 2, bq, stride)
                acc += load(x.at[rows, columns], fill=0) * w[r, s]
        o[tile(i, bp), tile(j, bq)] = acc


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", type=int, nargs=2, default=(60, 90), metavar=("H", "W"))
    h, w = parser.parse_args(arguments).shape
    random = np.random.default_rng(0)
    x = random.standard_normal((h, w), dtype=np.float32)
    filter_ = random.standard_normal((3, 5), dtype=np.float32)
    found = convolve(x, filter_, np.empty((-(-h // 2), -(-w // 2)), np.float32))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((1, 1), (2, 2))), (3, 5))
    np.testing.assert_allclose(found, (windows * filter_).sum((2, 3))[::2, ::2], atol=1e-5)
    print(f"convolution: {h} x {w} by 3 x 5, every second one, close to NumPy")


if __name__ == "__main__":
    main()
