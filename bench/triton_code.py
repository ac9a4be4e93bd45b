"""Kernels in Triton of which the machine code is compared with ours, compiled without a GPU."""

# Triton ships no types that a kernel could be checked with.
# mypy: ignore-errors

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.triton_kernels import add
from tests.peers.kernels import attention, histogram, matmul, row_sums, softmax

triton.knobs.compilation.always_compile = True
# Multiplications and additions are contracted, as by default; said, because Triton warns otherwise.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@triton.jit
def layer_norm(x, w, b, o, mean, rstd, N, eps, BN: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BN)
    inside = columns < N
    values = tl.load(x + row * N + columns, inside, 0.0)
    mu = tl.sum(values, axis=0) / N
    apart = tl.where(inside, values - mu, 0.0)
    r = tl.rsqrt(tl.sum(apart * apart, axis=0) / N + eps)
    weight, bias = tl.load(w + columns, inside, 0.0), tl.load(b + columns, inside, 0.0)
    tl.store(o + row * N + columns, apart * r * weight + bias, inside)
    tl.store(mean + row, mu)
    tl.store(rstd + row, r)


@triton.jit
def matmul_gelu(a, b, c, bias, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        total = tl.dot(a.load([i, start]), b.load([j, start]).T, total)
    x = total + tl.load(bias + j + tl.arange(0, BN))[None, :]
    c.store([i, j], (0.5 * x * (1 + tl.erf(x * 0.7071067811865476))).to(tl.float16))


@triton.jit
def split_k(a, b, c, N, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    first = tl.program_id(2) * steps
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(steps):
        k = (first + step) * BK
        total = tl.dot(a.load([i, k]), b.load([k, j]), total)
    rows, columns = i + tl.arange(0, BM), j + tl.arange(0, BN)
    tl.atomic_add(c + rows[:, None] * N + columns[None, :], total, sem="relaxed")


@triton.jit
def stream_k(a, b, parts, M, N, K, P, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    steps, across, part = tl.cdiv(K, BK), tl.cdiv(N, BN), tl.program_id(0)
    total = steps * tl.cdiv(M, BM) * across
    first, last = total * part // P, total * (part + 1) // P
    for tile in range(first // steps, (last + steps - 1) // steps):
        i, j = tile // across * BM, tile % across * BN
        acc = tl.zeros((BM, BN), tl.float32)
        low = tl.maximum(first - tile * steps, 0)
        for k in range(low, tl.minimum(last - tile * steps, steps)):
            acc = tl.dot(a.load([i, k * BK]), b.load([k * BK, j]), acc)
        places = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        tl.store(parts + (tile + part) * BM * BN + places, acc)


@triton.jit
def transpose(x, o, M, N, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    values = tl.load(x + rows[:, None] * N + columns[None, :], inside)
    turned = (columns[:, None] < N) & (rows[None, :] < M)
    tl.store(o + columns[:, None] * M + rows[None, :], tl.trans(values), turned)


@triton.jit
def column_sums(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for start in range(0, M, BM):
        rows = start + tl.arange(0, BM)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        total += tl.sum(tl.load(x + rows[:, None] * N + columns[None, :], inside, 0.0), axis=0)
    tl.store(o + columns, total, columns < N)


def _signature(pointers="", integers="", floats="", kind="fp32", **boxes):
    """Return the types of run-time parameters: `name=(dtype, m, n)` is a tensor map."""
    maps = {name: f"tensordesc<{dtype}[{m},{n}]>" for name, (dtype, m, n) in boxes.items()}
    scalars = dict.fromkeys(integers.split(), "i32") | dict.fromkeys(floats.split(), "fp32")
    return maps | dict.fromkeys(pointers.split(), f"*{kind}") | scalars


def _operands(m, n, k, dtype="fp16"):
    return {"a": (dtype, m, k), "b": (dtype, k, n)}


_TILE, _WIDE = {"BM": 128, "BN": 128, "BK": 64}, {"BM": 128, "BN": 256, "BK": 64}
_OUT, _WIDE_OUT = ("fp16", 128, 128), ("fp16", 128, 256)
_GELU = {"c": _OUT, "pointers": "bias", "integers": "K"}
_DEEP, _EIGHT = {"num_stages": 4}, {"num_stages": 4, "num_warps": 8}
_WIDE_OPTIONS = {"num_stages": 3, "num_warps": 8}
# Name: function, signature, constants, options.
SOURCES = {
    "add": (add, _signature("x y o", "M N"), {"BM": 64, "BN": 64}, {}),
    "softmax": (softmax, _signature("x o", "N"), {"BLOCK": 1024}, {}),
    "layer norm": (
        layer_norm, _signature("x w b o mean rstd", "N", "eps"), {"BN": 1024}, {},
    ),
    "sums of rows": (row_sums, _signature("x o", "M N"), {"BM": 8, "BN": 1024}, {}),
    "sums of columns": (column_sums, _signature("x o", "M N"), {"BM": 64, "BN": 128}, {}),
    "transpose": (transpose, _signature("x o", "M N"), {"B": 64}, {}),
    "histogram": (histogram, _signature("x counts", "n", kind="i32"), {"BLOCK": 512}, {}),
    "matmul": (
        matmul, _signature(**_operands(128, 128, 64), c=_OUT, integers="K"), _TILE, _DEEP,
    ),
    "matmul, 256 wide": (
        matmul,
        _signature(**_operands(128, 256, 64), c=_WIDE_OUT, integers="K"),
        _WIDE,
        _WIDE_OPTIONS,
    ),
    "matmul and GELU": (
        matmul_gelu, _signature(a=("fp16", 128, 64), b=("fp16", 128, 64), **_GELU), _TILE, _EIGHT,
    ),
    "matmul and GELU, f8": (
        matmul_gelu,
        _signature(a=("fp8e4nv", 128, 128), b=("fp8e4nv", 128, 128), **_GELU),
        {**_TILE, "BK": 128},
        _EIGHT,
    ),
    "split-K": (
        split_k, _signature("c", "N steps", **_operands(128, 128, 64)), _TILE, _DEEP,
    ),
    "stream-K": (
        stream_k, _signature("parts", "M N K P", **_operands(128, 128, 64)), _TILE, _DEEP,
    ),
    "stream-K, 256 wide": (
        stream_k, _signature("parts", "M N K P", **_operands(128, 256, 64)), _WIDE, _WIDE_OPTIONS,
    ),
    "attention": (
        attention,
        _signature(integers="S", **dict.fromkeys("qo", ("fp16", 128, 64)),
                   **dict.fromkeys("kv", ("fp16", 64, 64))),
        {"BM": 128, "BN": 64, "D": 64},
        {"num_stages": 2},
    ),
}  # fmt: skip


def ptx_of(name, target):
    """Return the PTX of a kernel, compiled as for aligned arrays of even dims."""
    function, signature, constants, options = SOURCES[name]
    order = {each: signature[each] for each in function.arg_names if each in signature}
    every = {**order, **dict.fromkeys(constants, "constexpr")}
    even = [n for n, kind in enumerate(order.values()) if kind == "i32" or kind.startswith("*")]
    aligned = {(n,): [["tt.divisibility", 16]] for n in even}
    source = ASTSource(function, every, constexprs=constants, attrs=aligned)
    gpu = GPUTarget("cuda", int(target[3:-1]), 32)
    made = triton.compile(source, target=gpu, options={"num_warps": 4, **options})
    return made.asm["ptx"]
