"""GPU kernels as plain Python functions.

Importing this package loads neither llvmlite nor a CUDA library: both wait for the first kernel
that needs them. Names that Python has as builtins are here too, but not in `__all__`.
"""

from typing import Any

from astdsl.errors import DeviceError, KernelError, did_you_mean
from astdsl.ir.dtypes import (
    bf16,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from astdsl.kernel import kernel, spec
from astdsl.lang.annotations import In, InOut, Out
from astdsl.lang.arith import (
    abs as abs,
)
from astdsl.lang.arith import (
    astype,
    cdiv,
    ceil,
    clip,
    cos,
    erf,
    exp,
    exp2,
    floor,
    fma,
    isinf,
    isnan,
    log,
    log2,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
    where,
)
from astdsl.lang.arith import (
    pow as pow,
)
from astdsl.lang.arith import (
    round as round,
)
from astdsl.lang.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
)
from astdsl.lang.bits import bitcast, random_bits
from astdsl.lang.block_specs import BlockSpec, Element, Squeezed
from astdsl.lang.control import parallel, pipeline, unroll
from astdsl.lang.emitted import NDLoopInfo, emit_pipeline, nd_loop
from astdsl.lang.inline import inline_ptx
from astdsl.lang.layouts import Layout, layout_cast, print_layout
from astdsl.lang.memory import (
    GMEM,
    SMEM,
    async_prefetch,
    commit_smem_to_gmem_group,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    load,
    wait_smem_to_gmem,
)
from astdsl.lang.missing import MISSING, NotYet
from astdsl.lang.orders import planar_snake
from astdsl.lang.params import CompilerParams
from astdsl.lang.parts import concat, split, stack, take
from astdsl.lang.products import (
    ACC,
    WGMMAAccumulatorRef,
    wgmma,
    wgmma_accumulator_load,
    wgmma_wait,
)
from astdsl.lang.reductions import all as all
from astdsl.lang.reductions import any as any
from astdsl.lang.reductions import argmax, argmin, mean, prod
from astdsl.lang.reductions import max as max
from astdsl.lang.reductions import min as min
from astdsl.lang.reductions import sum as sum
from astdsl.lang.scans import cumsum, reduce, scan
from astdsl.lang.shapes import (
    arange,
    broadcast_to,
    broadcasted_iota,
    expand_dims,
    full,
    iota,
    ones,
    reshape,
    squeeze,
    transpose,
    zeros,
)
from astdsl.lang.sync import Barrier, barrier_arrive, barrier_test, barrier_wait, commit_smem
from astdsl.lang.tensor import dot
from astdsl.lang.tmem import (
    TMEM,
    async_load_tmem,
    async_store_tmem,
    commit_tmem,
    tcgen05_commit_arrive,
    tcgen05_mma,
    wait_load_tmem,
)
from astdsl.lang.tmem_scales import TMEMLayout, async_copy_scales_to_tmem
from astdsl.lang.transforms import (
    SwizzleTransform,
    TilingTransform,
    TransposeTransform,
    find_swizzle,
    transform_ref,
    transpose_ref,
)
from astdsl.lang.unions import RefUnion
from astdsl.lang.warpgroups import (
    axis_index,
    axis_size,
    num_programs,
    num_sms,
    program_id,
    set_max_registers,
    warp_id,
    warpgroup_id,
    when,
)
from astdsl.lang.windows import ds, tile
from astdsl.runtime.devices import device, devices

__all__ = [
    "ACC", "GMEM", "SMEM", "TMEM", "Barrier", "BlockSpec", "CompilerParams", "DeviceError",
    "Element", "In", "InOut", "KernelError", "Layout", "NDLoopInfo", "Out", "RefUnion", "Squeezed",
    "SwizzleTransform", "TMEMLayout", "TilingTransform", "TransposeTransform",
    "WGMMAAccumulatorRef", "__version__", "arange", "argmax", "argmin", "astype",
    "async_copy_scales_to_tmem", "async_load_tmem", "async_prefetch", "async_store_tmem",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_exchange", "atomic_max", "atomic_min",
    "atomic_or", "atomic_xor", "axis_index", "axis_size", "barrier_arrive", "barrier_test",
    "barrier_wait", "bf16", "bitcast", "broadcast_to", "broadcasted_iota", "cdiv", "ceil", "clip",
    "commit_smem", "commit_smem_to_gmem_group", "commit_tmem", "concat", "copy_gmem_to_smem",
    "copy_smem_to_gmem", "cos", "cumsum", "device", "devices", "dot", "ds", "emit_pipeline", "erf",
    "exp", "exp2", "expand_dims", "f4e2m1", "f8e4m3", "f8e5m2", "f8e8m0", "f16", "f32", "f64",
    "find_swizzle", "floor", "fma", "full", "i8", "i16", "i32", "i64", "inline_ptx", "iota",
    "isinf", "isnan", "kernel", "layout_cast", "load", "log", "log2", "maximum", "mean", "minimum",
    "nd_loop", "num_programs", "num_sms", "ones", "parallel", "pipeline", "planar_snake",
    "print_layout", "prod", "program_id", "random_bits", "reduce", "reshape", "rsqrt", "scan",
    "set_max_registers", "sigmoid", "sin", "spec", "split", "sqrt", "squeeze", "stack", "take",
    "tanh", "tcgen05_commit_arrive", "tcgen05_mma", "tf32", "tile", "transform_ref", "transpose",
    "transpose_ref", "u8", "u16", "u32", "u64", "unroll", "wait_load_tmem", "wait_smem_to_gmem",
    "warp_id", "warpgroup_id", "wgmma", "wgmma_accumulator_load", "wgmma_wait", "when", "where",
    "zeros",
]  # fmt: skip

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Give names that this version refuses, and say "did you mean" of unknown ones."""
    if name in MISSING:
        return NotYet(name)
    hint = did_you_mean(name, [*__all__, *MISSING])
    raise AttributeError(f"astdsl has no name `{name}`{f'; {hint}' if hint else ''}")
