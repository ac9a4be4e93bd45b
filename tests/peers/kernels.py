"""Kernels in Triton, of our own, compiled without a GPU: `python -m tests.peers.kernels` stores.

Imported only where Triton is installed (the optional extra `peers`).
"""

# Triton ships no types that a kernel could be checked with.
# mypy: ignore-errors

import os
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.peers.launches import STORED, Compiled, stripped

triton.knobs.compilation.always_compile = True
# Multiplications and additions are contracted, as by default; said, because Triton warns otherwise.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@triton.jit
def elementwise(x, y, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a, b = tl.load(x + at, inside, 0.0), tl.load(y + at, inside, 0.0)
    tl.store(o + at, tl.exp(a) * b + tl.sqrt(tl.abs(a)), inside)


@triton.jit
def row_sums(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, N, BN):
        columns = start + tl.arange(0, BN)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        total += tl.sum(tl.load(x + rows[:, None] * N + columns[None, :], inside, 0.0), axis=1)
    tl.store(o + rows, total, rows < M)


@triton.jit
def softmax(x, o, N, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < N
    values = tl.load(x + row * N + columns, inside, -float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(o + row * N + columns, powers / tl.sum(powers, axis=0), inside)


@triton.jit
def prefix_sums(x, o, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(o + at, tl.cumsum(tl.load(x + at), axis=0))


@triton.jit
def sort_rows(x, o, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(o + at, tl.sort(tl.load(x + at)))


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(counts + tl.load(x + at, inside, 0), 1, inside)


@triton.jit
def gather_rows(table, index, o, N, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    chosen = tl.load(index + rows)
    values = tl.load(table + chosen[:, None] * N + columns[None, :], columns[None, :] < N)
    tl.store(o + rows[:, None] * N + columns[None, :], values, columns[None, :] < N)


@triton.jit
def random_uniform(o, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.rand(seed, at))


@triton.jit
def matmul(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        total = tl.dot(a.load([i, start]), b.load([start, j]), total)
    c.store([i, j], total.to(tl.float16))


@triton.jit
def matmul_persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    for number in tl.range(
        tl.program_id(0), tl.cdiv(M, BM) * columns, tl.num_programs(0), warp_specialize=True
    ):
        i, j = number // columns * BM, number % columns * BN
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            total = tl.dot(a.load([i, start]), b.load([start, j]), total)
        c.store([i, j], total.to(tl.float16))


@triton.jit
def matmul_pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        depth = start + tl.arange(0, BK)
        inside = (rows[:, None] < M) & (depth[None, :] < K)
        left = tl.load(a + rows[:, None] * K + depth[None, :], inside, 0.0)
        inside = (depth[:, None] < K) & (columns[None, :] < N)
        total = tl.dot(left, tl.load(b + depth[:, None] * N + columns[None, :], inside, 0.0), total)
    places = rows[:, None] * N + columns[None, :]
    tl.store(c + places, total, (rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def scaled_described(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    for start in range(0, N, BN):
        target.store([row, start], source.load([row, start]) * 2.0)


@triton.jit
def attention(q, k, v, o, S, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    head = tl.program_id(1) * S
    first = head + tl.program_id(0) * BM
    query = q.load([first, 0])
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total, result = tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for start in range(0, S, BN):
        scores = tl.dot(query, k.load([head + start, 0]).T) * 0.125
        above = tl.maximum(largest, tl.max(scores, axis=1))
        powers, scale = tl.exp(scores - above[:, None]), tl.exp(largest - above)
        total = total * scale + tl.sum(powers, axis=1)
        result = result * scale[:, None]
        result = tl.dot(powers.to(tl.float16), v.load([head + start, 0]), result)
        largest = above
    o.store([first, 0], (result / total[:, None]).to(tl.float16))


def _pointers(names, dtype="fp32"):
    return dict.fromkeys(names.split(), f"*{dtype}")


def _boxes(**shapes):
    return {name: f"tensordesc<fp16[{m},{n}]>" for name, (m, n) in shapes.items()}


TILE = {"BM": 128, "BN": 128, "BK": 64}
MAPS = _boxes(a=(128, 64), b=(64, 128), c=(128, 128))
# Name: function, signature of its run-time parameters, constants, options.
SOURCES = {
    "elementwise": (elementwise, {**_pointers("x y o"), "n": "i32"}, {"BLOCK": 1024}, {}),
    "row_sums": (row_sums, {**_pointers("x o"), "M": "i32", "N": "i32"}, {"BM": 32, "BN": 64}, {}),
    "softmax": (softmax, {**_pointers("x o"), "N": "i32"}, {"BLOCK": 1024}, {}),
    "prefix_sums": (prefix_sums, _pointers("x o"), {"N": 1024}, {}),
    "sort_rows": (sort_rows, _pointers("x o", "i32"), {"N": 256}, {}),
    "histogram": (histogram, {**_pointers("x counts", "i32"), "n": "i32"}, {"BLOCK": 512}, {}),
    "gather_rows": (
        gather_rows,
        {"table": "*fp32", "index": "*i32", "o": "*fp32", "N": "i32"},
        {"BM": 16, "BN": 128},
        {},
    ),
    "random_uniform": (random_uniform, {"o": "*fp32", "seed": "i32"}, {"BLOCK": 512}, {}),
    "matmul": (matmul, {**MAPS, "K": "i32"}, TILE, {"num_stages": 3}),
    "matmul_persistent": (
        matmul_persistent,
        {**MAPS, "M": "i32", "N": "i32", "K": "i32"},
        TILE,
        {"num_stages": 3},
    ),
    "matmul_pointers": (
        matmul_pointers,
        {**_pointers("a b", "fp16"), **_pointers("c"), "M": "i32", "N": "i32", "K": "i32"},
        {"BM": 64, "BN": 64, "BK": 32},
        {"num_stages": 3},
    ),
    "matmul_pairs": (matmul, {**MAPS, "K": "i32"}, TILE, {"num_stages": 3, "num_ctas": 2}),
    "scaled_described": (
        scaled_described,
        {**_pointers("x o"), "M": "i32", "N": "i32"},
        {"BM": 16, "BN": 32},
        {},
    ),
    "attention": (
        attention,
        {**_boxes(q=(128, 64), k=(64, 64), v=(64, 64), o=(128, 64)), "S": "i32"},
        {"BM": 128, "BN": 64, "D": 64},
        {"num_stages": 2},
    ),
}


def compiled(name, target):
    """Compile a kernel for sm_90a or sm_100a, as a launch with aligned pointers would."""
    function, signature, constants, options = SOURCES[name]
    every = {**signature, **dict.fromkeys(constants, "constexpr")}
    pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(function, every, constexprs=constants, attrs=aligned)
    gpu = GPUTarget("cuda", int(target[3:-1]), 32)
    made = triton.compile(source, target=gpu, options={"num_warps": 4, **options})
    facts = made.metadata
    maps = getattr(facts, "tensordesc_meta", None) or []
    return Compiled(
        ptx=made.asm["ptx"],
        entry=facts.name,
        threads=32 * getattr(facts, "num_warps", 4),
        shared_bytes=facts.shared,
        cluster=facts.num_ctas,
        swizzles=tuple(each["swizzle"] for each in maps),
        boxes=tuple(tuple(each["block_size"]) for each in maps),
        scratch_bytes=facts.global_scratch_size,
    )


def main(names):
    """Store the PTX of kernels, with the facts of their launch in the first line."""
    for stem in names:
        name, _, target = stem.partition("-")
        (STORED / f"{stem}.ptx").write_text(stripped(compiled(name, target)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
