"""Softmax of rows of any length, and what is built on it. Source: Milakov and Gimelshein 2018."""

from astdsl import (
    In,
    Out,
    cdiv,
    exp,
    f32,
    full,
    i32,
    iota,
    kernel,
    log,
    maximum,
    pipeline,
    tile,
    where,
    zeros,
)

LOWEST = -float("inf")


@kernel
def softmax(x: In["M N"], o: Out["M N"], *, bm=4, bn=1024):
    """Write `exp(x - max) / sum(exp(x - max))` of every row, in f32 inside.

    Rows may be longer than shared memory: they are read twice, `bn` elements at a time. The first
    pass keeps the largest element so far, and the sum relative to it.
    """
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        largest, total = full(bm, LOWEST, f32), zeros(bm, f32)
        with pipeline(cdiv(N, bn)) as j:
            part = x[tile(i, bm), tile(j, bn)].astype(f32)
            now = maximum(largest, part.max(axis=1))
            total = total * exp(largest - now) + exp(part - now[:, None]).sum(axis=1)
            largest = now
        share = 1 / total
        with pipeline(cdiv(N, bn)) as j:
            part = x[tile(i, bm), tile(j, bn)].astype(f32)
            o[tile(i, bm), tile(j, bn)] = exp(part - largest[:, None]) * share[:, None]


@kernel
def cross_entropy(x: In["M N"], label: In[i32, "M"], loss: Out[f32, "M"], *, bm=4, bn=1024):
    """Write `log(sum(exp(x))) - x[label]` of every row: the loss of logits `x`."""
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        wanted = label[tile(i, bm)]
        largest, total, chosen = full(bm, LOWEST, f32), zeros(bm, f32), zeros(bm, f32)
        with pipeline(cdiv(N, bn)) as j:
            part = x[tile(i, bm), tile(j, bn)].astype(f32)
            now = maximum(largest, part.max(axis=1))
            total = total * exp(largest - now) + exp(part - now[:, None]).sum(axis=1)
            largest = now
            is_wanted = iota((bm, bn), 1) + j * bn == wanted[:, None]
            chosen += where(is_wanted, part, 0).sum(axis=1)
        loss[tile(i, bm)] = log(total) + largest - chosen
