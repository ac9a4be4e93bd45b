"""A kernel that adds two arrays, made anew for every test, and its arguments."""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import math
from typing import Any

import numpy as np

from astdsl import In, Out, cdiv, f32, kernel, pipeline, tile

Array = np.ndarray[Any, Any]


def add_of(bm: int = 8) -> Any:
    """Return a fresh kernel, with an empty cache."""

    @kernel
    def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=bm, bn=16):
        M, N = x.shape
        with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
            window = tile(i, bm), tile(j, bn)
            o[window] = x[window] + y[window]

    return add


def arrays(*shape: int) -> tuple[Array, Array]:
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    return x, x * 2 + 1


def traces(k: Any) -> int:
    """Count how often a kernel has been traced."""
    return int(k._plain.programs.traces)
