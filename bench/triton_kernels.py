"""Kernels like ours in Triton, compiled for sm_90a without a GPU and without Triton's cache."""

# Triton ships no types that a kernel could be checked with.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
triton.knobs.compilation.always_compile = True


@triton.jit
def add(x, y, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    blocks = tl.cdiv(N, BN)
    rows = tl.program_id(0) // blocks * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % blocks * BN + tl.arange(0, BN)
    places = rows[:, None] * N + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(o + places, tl.load(x + places, inside) + tl.load(y + places, inside), inside)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    blocks = tl.cdiv(N, BN)
    rows = tl.program_id(0) // blocks * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % blocks * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        depth = start + tl.arange(0, BK)
        left = tl.load(
            a + rows[:, None] * K + depth[None, :], (rows[:, None] < M) & (depth[None, :] < K), 0.0
        )
        right = tl.load(
            b + depth[:, None] * N + columns[None, :],
            (depth[:, None] < K) & (columns[None, :] < N),
            0.0,
        )
        acc += tl.dot(left, right)
    places = rows[:, None] * N + columns[None, :]
    tl.store(c + places, acc, (rows[:, None] < M) & (columns[None, :] < N))


def _compile(function, pointers, dims, tile, stages):
    """Compile as a launch with aligned pointers and dims divisible by 16 would."""
    signature = pointers | dict.fromkeys(dims, "i32") | dict.fromkeys(tile, "constexpr")
    aligned = {(number,): [["tt.divisibility", 16]] for number in range(len(pointers) + len(dims))}
    source = ASTSource(function, signature, constexprs=tile, attrs=aligned)
    return triton.compile(source, target=TARGET, options={"num_warps": 4, "num_stages": stages})


COMPILATIONS = {
    "add, 64x64 f32": lambda: _compile(
        add, dict.fromkeys("xyo", "*fp32"), "MN", {"BM": 64, "BN": 64}, 1
    ),
    "matmul, 128x128x64 f16, 4 stages": lambda: _compile(
        matmul,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32"},
        "MNK",
        {"BM": 128, "BN": 128, "BK": 64},
        4,
    ),
}
