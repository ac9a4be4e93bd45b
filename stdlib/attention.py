"""Attention whose scores never leave the chip, forward and backward. Source: Dao 2023.

Exponentials are powers of 2, since that is what there is an instruction for: scores are scaled by
`log2(e) / sqrt(D)`, which is done together with taking off the largest.
"""

import math

from astdsl import (
    GMEM,
    In,
    Out,
    cdiv,
    exp2,
    f32,
    fma,
    full,
    iota,
    kernel,
    log2,
    maximum,
    min,
    pipeline,
    tile,
    where,
    zeros,
)

LOWEST = -1e30
LOG2_E = math.log2(math.e)


def scores(q, k, i, j, causal):
    """Return `q @ k.T` of query block i and key block j; what is hidden is lowest."""
    s = q @ k.T
    if not causal:
        return s
    bq, bk = s.shape
    sees = iota((bq, bk), 0) + i * bq >= iota((bq, bk), 1) + j * bk
    return where(sees, s, LOWEST)


@kernel
def attention(
    q: In["B H S D"],
    k: In["B G T D"],
    v: In["B G T D"],
    o: Out["B H S D"],
    lse: Out[f32, "B H S"],
    *,
    causal=False,
    bq=64,
    bk=64,
):
    """Write `softmax(q @ k.T / sqrt(D)) @ v`, and the logarithm of each row's sum of exponentials.

    Heads of q share those of k and v in groups of H // G neighbours. With `causal`, query s sees
    the keys up to s. f16 or bf16; scores and sums in f32.
    """
    B, H, S, D = q.shape
    _, G, T, _ = k.shape
    assert H % G == 0, "each head of k and v serves the same number of heads of q"
    scale = D**-0.5 * LOG2_E
    with pipeline(B, H, cdiv(S, bq)) as (b, h, i):
        g = h // (H // G)
        queries = q[b, h, tile(i, bq), :]
        largest, total = full((bq, 1), LOWEST, f32), zeros((bq, 1), f32)
        acc = zeros((bq, D), f32)
        seen = min(T, (i + 1) * bq) if causal else T
        with pipeline(cdiv(seen, bk), stages=2) as j:
            s = scores(queries, k[b, g, tile(j, bk), :], i, j, causal)
            now = maximum(largest, s.max(axis=1, keepdims=True) * scale)
            p, shrink = exp2(fma(s, scale, -now)), exp2(largest - now)
            total = total * shrink + p.sum(axis=1, keepdims=True)
            acc = acc * shrink + p.astype(v.dtype) @ v[b, g, tile(j, bk), :]
            largest = now
        o[b, h, tile(i, bq), :] = acc * (1 / total)
        lse[b, h, tile(i, bq)] = ((largest + log2(total)) / LOG2_E).reshape(bq)


@kernel
def attention_backward(
    q: In["B H S D"],
    k: In["B G T D"],
    v: In["B G T D"],
    o: In["B H S D"],
    lse: In[f32, "B H S"],
    do: In["B H S D"],
    dq: Out["B H S D"],
    dk: Out["B G T D"],
    dv: Out["B G T D"],
    *,
    causal=False,
    bq=64,
    bk=64,
):
    """Write the gradients of `attention` by q, k and v, from its results and `do`, that of `o`.

    The scores are computed again, once by the blocks of keys, which add up over the queries, and
    once by the blocks of queries.
    """
    B, H, S, D = q.shape
    _, G, T, _ = k.shape
    scale = D**-0.5
    delta = GMEM((B, H, S), f32)
    with pipeline(B, H, cdiv(S, bq)) as (b, h, i):
        at = b, h, tile(i, bq)
        delta[at] = (o[at].astype(f32) * do[at].astype(f32)).sum(axis=1)
    with pipeline(B, G, cdiv(T, bk)) as (b, g, j):
        keys, values = k[b, g, tile(j, bk), :], v[b, g, tile(j, bk), :]
        dkeys, dvalues = zeros((bk, D), f32), zeros((bk, D), f32)
        with pipeline(H // G, cdiv(S, bq), stages=2) as (n, i):
            at = b, g * (H // G) + n, tile(i, bq)
            sums = lse[at][:, None] * -LOG2_E
            p = exp2(fma(scores(q[at], keys, i, j, causal), scale * LOG2_E, sums))
            ds = p * (do[at] @ values.T - delta[at][:, None]) * scale
            dvalues += p.astype(v.dtype).T @ do[at]
            dkeys += ds.astype(k.dtype).T @ q[at]
        dk[b, g, tile(j, bk), :] = dkeys
        dv[b, g, tile(j, bk), :] = dvalues
    with pipeline(B, H, cdiv(S, bq)) as (b, h, i):
        at = b, h, tile(i, bq)
        g = h // (H // G)
        queries, gradients, moved = q[at], do[at], delta[at][:, None]
        sums = lse[at][:, None] * -LOG2_E
        dqueries = zeros((bq, D), f32)
        seen = min(T, (i + 1) * bq) if causal else T
        with pipeline(cdiv(seen, bk), stages=2) as j:
            keys = k[b, g, tile(j, bk), :]
            p = exp2(fma(scores(queries, keys, i, j, causal), scale * LOG2_E, sums))
            ds = p * (gradients @ v[b, g, tile(j, bk), :].T - moved) * scale
            dqueries += ds.astype(k.dtype) @ keys
        dq[at] = dqueries
