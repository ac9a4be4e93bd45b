"""Runs one instruction, or a few, for many values: what the tests of opcodes share."""

from typing import Any

import numpy as np

from astdsl.emulator import run

THREADS = 128
SUFFIX = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def module(body: str, parameters: Any, declarations: str = "", outside: str = "") -> Any:
    """Return a PTX text with one kernel `k` whose parameters are `p0`, `p1`, ... of these types."""
    listed = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(parameters))
    return f"{HEADER}{outside}\n.visible .entry k({listed})\n{{\n{declarations}\n{body}\nret;\n}}\n"


def evaluate(code: str, result_type: Any, dtype: Any, **operands: Any) -> Any:
    """Run `code` once for each element of the operand arrays; returns `%d` of every one.

    An operand `a=("f32", array)` is in register `%a`; `%d` has `result_type` and `dtype`.
    """
    n = len(next(iter(operands.values()))[1])
    padded = -(-n // THREADS) * THREADS
    arrays = [np.resize(np.ascontiguousarray(a), padded) for _, a in operands.values()]
    out = np.zeros(padded, dtype)
    lines = [
        ".reg .b64 %at, %base, %size; .reg .b32 %i, %t, %n, %c0; .reg .pred %p, %q;",
        ".reg .b32 %r<16>; .reg .f32 %f<16>; .reg .b16 %h<16>; .reg .b64 %l<16>;",
        ".reg .f64 %g<16>; .reg .pred %s<16>;",
        "mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x;",
        "mad.lo.u32 %i, %i, %n, %t;",
    ]
    for k, ((name, (kind, _)), array) in enumerate(zip(operands.items(), arrays, strict=True)):
        size = array.dtype.itemsize
        register = "b16" if size == 1 and kind != "b8" else kind
        lines += [
            f".reg .{register} %{name};",
            f"ld.param.u64 %base, [p{k}]; mad.wide.u32 %at, %i, {size}, %base;",
            f"ld.global.{SUFFIX[size]} %{name}, [%at];",
        ]
    size = np.dtype(dtype).itemsize
    register = "b16" if size == 1 and result_type != "b8" else result_type
    lines += [
        f".reg .{register} %d;",
        code,
        f"ld.param.u64 %base, [p{len(arrays)}]; mad.wide.u32 %at, %i, {size}, %base;",
        f"st.global.{SUFFIX[size]} [%at], %d;",
    ]
    text = module("\n".join(lines), ["u64"] * (len(arrays) + 1))
    run(text, "k", (padded // THREADS,), (THREADS,), [*arrays, out])
    return out[:n]


def bits_of(count: int, dtype: Any, seed: int = 0) -> Any:
    """Return `count` values of a dtype with random bits."""
    size = np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count * size, dtype=np.uint8)
    return raw.view(dtype)


def floats(count: int, dtype: Any, seed: int = 0) -> Any:
    """Return random bits mixed with the values where rules change: zeros, infinities, NaN, ties."""
    info = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan,
               info.tiny, -info.tiny, info.smallest_subnormal, info.max, -info.max]  # fmt: skip
    values = bits_of(count, dtype, seed)
    generator = np.random.default_rng(seed + 1)
    values[::3] = generator.choice(np.array(special, dtype), len(values[::3]))
    values[1::3] = (generator.standard_normal(len(values[1::3])) * 100).astype(dtype)
    return values


def same_bits(got: Any, expected: Any) -> Any:
    """Say whether float arrays are equal bit for bit, any NaN being like any other."""
    unsigned = f"u{got.dtype.itemsize}"
    nan = np.isnan(got) & np.isnan(expected)
    return bool(((got.view(unsigned) == expected.view(unsigned)) | nan).all())
