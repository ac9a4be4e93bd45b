"""Tutorial 3: double buffering, by the pipeline and by hand.

Run it: `python examples/tutorial/03_double_buffering.py [--rows 128]`.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    barrier_wait,
    cdiv,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f32,
    kernel,
    parallel,
    pipeline,
    tile,
    wait_smem_to_gmem,
)


@kernel(warpgroups=1)
def copy_tile(x: In[f32, "64 128"], o: Out[f32, "64 128"]):
    # One copy in, one copy out: what a single step of a pipeline consists of.
    buf, full = SMEM((64, 128), f32), Barrier()
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    buf[...] = buf[...] + 1
    commit_smem()
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)


@kernel
def increment(x: In[f32, "M N"], o: Out[f32, "M N"], *, rows=128, bm=32, bn=16):
    # Each outer step is a block of threads; its inner steps share two slots of shared memory: while
    # one is worked on, the next is on its way.
    M, N = x.shape
    with pipeline(cdiv(M, rows), cdiv(N, bn)) as (i, j):
        with pipeline(rows // bm, stages=2) as k:
            window = tile(i * (rows // bm) + k, bm), tile(j, bn)
            o[window] = x[window] + 1


@kernel(warpgroups=1)
def increment_by_hand(x: In[f32, "M N"], o: Out[f32, "M N"], *, rows=128, bm=32, bn=16):
    # The same in explicit names. Copies in run one step ahead; a slot is written to again only
    # when the copy out of it has read its data.
    M, N = x.shape
    steps = rows // bm
    with parallel(cdiv(M, rows), cdiv(N, bn)) as (i, j):
        into, out = SMEM((2, bm, bn), f32), SMEM((2, bm, bn), f32)
        full = Barrier(num_barriers=2)

        def window(k):
            return tile(i * steps + k, bm), tile(j, bn)

        copy_gmem_to_smem(x.at[window(0)], into.at[0], full.at[0])  # prologue
        for k in range(steps):
            slot = k % 2
            if k + 1 < steps:
                copy_gmem_to_smem(x.at[window(k + 1)], into.at[1 - slot], full.at[1 - slot])
            barrier_wait(full.at[slot])
            wait_smem_to_gmem(1, wait_read_only=True)  # the copy out of two steps ago
            out[slot] = into[slot] + 1
            commit_smem()
            copy_smem_to_gmem(out.at[slot], o.at[window(k)])
        wait_smem_to_gmem(0)  # epilogue


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the three kernels and compare with NumPy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", type=int, default=128, help="of the array (%(default)s)")
    rows = parser.parse_args(arguments).rows
    random = np.random.default_rng(0)

    x = random.standard_normal((64, 128), dtype=np.float32)
    np.testing.assert_array_equal(copy_tile(x), x + 1)
    print("copy_tile: 64 x 128, equal to NumPy")
    x = random.standard_normal((rows, 64), dtype=np.float32)
    for increments in (increment, increment_by_hand):
        np.testing.assert_array_equal(increments(x), x + 1)
        print(f"{increments.__name__}: {rows} x 64, equal to NumPy")


if __name__ == "__main__":
    main()
