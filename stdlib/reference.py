"""What the kernels of this folder compute, in NumPy, in f64 where they are of floats."""

import numpy as np


def softmax(x):
    """Return the softmax of every row."""
    e = np.exp(x.astype(float) - x.astype(float).max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cross_entropy(x, label):
    """Return `log(sum(exp(x))) - x[label]` of every row."""
    x = x.astype(float)
    largest = x.max(axis=1)
    log_sum = np.log(np.exp(x - largest[:, None]).sum(axis=1)) + largest
    return log_sum - x[np.arange(len(x)), label]


def layer_norm(x, weight, bias, eps=1e-5):
    """Return `(x - mean) * rstd * weight + bias` of every row, the means, and the rstds."""
    x = x.astype(float)
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + eps)
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd


def layer_norm_backward(x, weight, do, eps=1e-5):
    """Return the gradients of `layer_norm` by x, weight and bias."""
    x, do = x.astype(float), do.astype(float)
    mean, rstd = x.mean(axis=1)[:, None], 1 / np.sqrt(x.var(axis=1) + eps)[:, None]
    normal, gw = (x - mean) * rstd, do * weight
    by_mean, by_rstd = (v.mean(axis=1, keepdims=True) for v in (gw, gw * normal))
    dx = (gw - by_mean - normal * by_rstd) * rstd
    return dx, (do * normal).sum(axis=0), do.sum(axis=0)


def rms_norm(x, weight, eps=1e-6):
    """Return `x * weight / sqrt(mean(x**2) + eps)` of every row."""
    x = x.astype(float)
    return x * weight / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)


def swiglu(gate, up):
    """Return `gate * sigmoid(gate) * up`."""
    return gate / (1 + np.exp(-gate.astype(float))) * up


def attention(q, k, v, causal=False):
    """Return `softmax(q @ k.T / sqrt(D)) @ v`, and the logarithms of the sums of exponentials."""
    p, lse, _, v = _probabilities(q, k, v, causal)
    return p @ v, lse


def attention_backward(q, k, v, do, causal=False):
    """Return the gradients of `attention` by q, k and v."""
    heads, groups = q.shape[1], k.shape[1]
    p, _, wide_k, wide_v = _probabilities(q, k, v, causal)
    do, scale = do.astype(float), q.shape[-1] ** -0.5
    dp = do @ wide_v.swapaxes(2, 3)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * scale
    dk, dv = ds.swapaxes(2, 3) @ q.astype(float), p.swapaxes(2, 3) @ do

    def summed(x):
        return x.reshape(len(x), groups, heads // groups, *x.shape[2:]).sum(axis=2)

    return ds @ wide_k, summed(dk), summed(dv)


def _probabilities(q, k, v, causal):
    wide_k, wide_v = (np.repeat(x.astype(float), q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q.astype(float) @ wide_k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if causal:
        s = np.where(np.tril(np.ones(s.shape[2:])) > 0, s, -np.inf)
    largest = s.max(axis=-1, keepdims=True)
    e = np.exp(s - largest)
    total = e.sum(axis=-1, keepdims=True)
    return e / total, (largest + np.log(total))[..., 0], wide_k, wide_v
