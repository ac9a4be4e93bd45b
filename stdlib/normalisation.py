"""Normalisation of rows, forward and backward. Sources: Ba et al. 2016, Zhang and Sennrich 2019."""

from astdsl import GMEM, In, Out, cdiv, f32, kernel, pipeline, rsqrt, tile, zeros


@kernel
def layer_norm(
    x: In["M N"],
    weight: In["N"],
    bias: In["N"],
    o: Out["M N"],
    mean: Out[f32, "M"],
    rstd: Out[f32, "M"],
    *,
    eps=1e-5,
    bm=4,
    bn=1024,
):
    """Write `(x - mean) * rstd * weight + bias` of every row, with the row's mean and rstd.

    `rstd = 1 / sqrt(mean((x - mean)**2) + eps)`. `bn` is at least the length of a row.
    """
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    with pipeline(cdiv(M, bm)) as i:
        rows = x[tile(i, bm), tile(0, bn)].astype(f32)
        mu = rows.sum(axis=1) / N
        apart = rows - mu[:, None]
        r = rsqrt((apart * apart).sum(axis=1) / N + eps)
        w, b = weight[tile(0, bn)].astype(f32), bias[tile(0, bn)].astype(f32)
        o[tile(i, bm), tile(0, bn)] = apart * r[:, None] * w + b
        mean[tile(i, bm)] = mu
        rstd[tile(i, bm)] = r


@kernel
def layer_norm_backward(
    x: In["M N"],
    weight: In["N"],
    mean: In[f32, "M"],
    rstd: In[f32, "M"],
    do: In["M N"],
    dx: Out["M N"],
    dweight: Out[f32, "N"],
    dbias: Out[f32, "N"],
    *,
    bm=4,
    bn=1024,
    parts=8,
):
    """Write the gradients of `layer_norm` by its input, weight and bias, from that of its output.

    Each of `parts` blocks adds up the gradients of weight and bias over its rows; a second launch
    adds the parts.
    """
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    dw, db = GMEM((parts, N), f32), GMEM((parts, N), f32)
    each = cdiv(cdiv(M, bm), parts)
    with pipeline(parts) as p:
        w = weight[tile(0, bn)].astype(f32)
        dw_part, db_part = zeros(bn, f32), zeros(bn, f32)
        with pipeline(each) as k:
            rows = tile(p * each + k, bm)
            g = do[rows, tile(0, bn)].astype(f32)
            normal = (x[rows, tile(0, bn)].astype(f32) - mean[rows][:, None]) * rstd[rows][:, None]
            gw = g * w
            by_mean = gw.sum(axis=1) / N
            by_rstd = (gw * normal).sum(axis=1) / N
            dx[rows, tile(0, bn)] = (gw - by_mean[:, None] - normal * by_rstd[:, None]) * rstd[
                rows
            ][:, None]
            dw_part += (g * normal).sum(axis=0)
            db_part += g.sum(axis=0)
        dw[p, tile(0, bn)] = dw_part
        db[p, tile(0, bn)] = db_part
    with pipeline(1):
        dweight[tile(0, bn)] = dw[:, tile(0, bn)].sum(axis=0)
        dbias[tile(0, bn)] = db[:, tile(0, bn)].sum(axis=0)


@kernel
def rms_norm(x: In["M N"], weight: In["N"], o: Out["M N"], *, eps=1e-6, bm=4, bn=1024):
    """Write `x * weight / sqrt(mean(x**2) + eps)` of every row of at most `bn` elements."""
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    with pipeline(cdiv(M, bm)) as i:
        rows = x[tile(i, bm), tile(0, bn)].astype(f32)
        scale = rsqrt((rows * rows).sum(axis=1) / N + eps)
        o[tile(i, bm), tile(0, bn)] = rows * scale[:, None] * weight[tile(0, bn)].astype(f32)
