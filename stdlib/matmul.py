"""Products of matrices: batched, with what follows fused, of quantised weights, by a vector."""

from astdsl import (
    In,
    Out,
    cdiv,
    f32,
    i8,
    kernel,
    maximum,
    pipeline,
    planar_snake,
    round,
    tile,
    zeros,
)


def snake(linear, grid):
    """Return where block `linear` of a plane of blocks is: in strips, for the L2 cache."""
    return planar_snake(linear, grid, minor_dim=1, tile_width=8)


@kernel
def matmul(a: In["M K"], b: In["K N"], c: Out["M N"], *, bm=128, bn=128, bk=64, stages=4):
    """Write `a @ b` of f16 or bf16, summed in f32."""
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), order=snake) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=stages) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


@kernel
def batched_matmul(a: In["B M K"], b: In["B K N"], c: Out["B M N"], *, bm=64, bn=64, bk=64):
    """Write `a[n] @ b[n]` for every n, of f16 or bf16, summed in f32."""
    B, M, K = a.shape
    _, _, N = b.shape
    with pipeline(B, cdiv(M, bm), cdiv(N, bn)) as (n, i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=3) as k:
            acc += a[n, tile(i, bm), tile(k, bk)] @ b[n, tile(k, bk), tile(j, bn)]
        c[n, tile(i, bm), tile(j, bn)] = acc


@kernel
def quantise_rows(x: In["M K"], q: Out[i8, "M K"], scale: Out[f32, "M"], *, bm=4, bk=1024):
    """Write each row as i8 numbers times a scale, `max(abs(x)) / 127`; ties to even.

    `bk` is at least the length of a row.
    """
    M, K = x.shape
    assert bk >= K, "a tile holds a whole row"
    with pipeline(cdiv(M, bm)) as i:
        rows = x[tile(i, bm), tile(0, bk)].astype(f32)
        s = maximum(abs(rows).max(axis=1), 1e-30) / 127
        q[tile(i, bm), tile(0, bk)] = round(rows / s[:, None]).astype(i8)
        scale[tile(i, bm)] = s


@kernel
def matmul_dequantised(
    a: In["M K"], q: In[i8, "K N"], scale: In[f32, "N"], c: Out["M N"], *, bm=64, bn=64, bk=64
):
    """Write `a @ (q * scale)`: weights kept in 8 bits, multiplied in a's dtype, summed in f32."""
    M, K = a.shape
    _, N = q.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=3) as k:
            weights = q[tile(k, bk), tile(j, bn)].astype(a.dtype)
            acc += a[tile(i, bm), tile(k, bk)] @ weights
        c[tile(i, bm), tile(j, bn)] = acc * scale[tile(j, bn)]


@kernel
def matvec(a: In["M K"], x: In["K"], y: Out["M"], *, bm=16, bk=256, parts=1):
    """Write `a @ x`, each row summed in f32, in `parts` blocks."""
    M, K = a.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, f32)
        with pipeline(cdiv(K, bk), split=parts) as k:
            row = x[tile(k, bk)].astype(f32)
            total += (a[tile(i, bm), tile(k, bk)].astype(f32) * row).sum(axis=1)
        y[tile(i, bm)] = total
