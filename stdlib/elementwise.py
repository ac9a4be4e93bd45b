"""Kernels that work element by element."""

from astdsl import (
    In,
    Out,
    cdiv,
    f32,
    i32,
    iota,
    kernel,
    pipeline,
    random_bits,
    sigmoid,
    tile,
    where,
)


@kernel
def dropout(x: In["M N"], seed: i32, o: Out["M N"], *, p=0.5, bm=32, bn=128):
    """Write x / (1 - p) where a random number is at least p, else 0.

    The number of an element depends on `seed` and on its place alone, so that a backward pass makes
    the same again. Source: Srivastava et al. 2014; Philox4x32-10, Salmon et al. 2011.
    """
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        place = (iota((bm, bn), 0) + i * bm) * N + iota((bm, bn), 1) + j * bn
        is_kept = (random_bits(seed, place) >> 8).astype(f32) * (1 / (1 << 24)) >= p
        part = x[tile(i, bm), tile(j, bn)].astype(f32)
        o[tile(i, bm), tile(j, bn)] = where(is_kept, part / (1 - p), 0)


@kernel
def transpose(x: In["M N"], o: Out["N M"], *, bm=64, bn=64):
    """Write the transpose of a matrix, by tiles that are turned on chip."""
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(j, bn), tile(i, bm)] = x[tile(i, bm), tile(j, bn)].T


@kernel
def swiglu(gate: In["M N"], up: In["M N"], o: Out["M N"], *, bm=32, bn=128):
    """Write `gate * sigmoid(gate) * up`. Source: Shazeer 2020."""
    M, N = gate.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        g = gate[tile(i, bm), tile(j, bn)].astype(f32)
        u = up[tile(i, bm), tile(j, bn)].astype(f32)
        o[tile(i, bm), tile(j, bn)] = g * sigmoid(g) * u
