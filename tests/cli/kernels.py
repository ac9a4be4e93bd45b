"""Kernels that the command line's tests load, as a user's file."""

from astdsl import In, InOut, Out, cdiv, f16, f32, i32, kernel, pipeline, sqrt, tile


@kernel
def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=16, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        block = tile(i, bm), tile(j, bn)
        o[block] = x[block] + y[block]


@kernel
def scale(x: InOut[f16 | f32, "M"], alpha: f32, *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        x[tile(i, b)] = x[tile(i, b)] * alpha


@kernel
def fixed(x: In[i32, "8 16"], o: Out[i32, "8 16"]):
    o[...] = x[...] + 1


@kernel
def misspelt(x: In[f32, "M"], o: Out[f32, "M"]):
    o[...] = sqroot(x[...])


@kernel
def root(x: In[f32, "M"], o: Out[f32, "M"]):
    o[...] = sqrt(x[...])


@kernel
def wasteful(x: In[f32, "8"], o: Out[f32, "8"]):
    unused = x[...] * 2  # noqa: F841
    o[...] = x[...]


class Doubled:
    @kernel
    def method(self, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * 2


bound = Doubled().method
