"""The public names: documented, none shadows a builtin, and what is missing says so."""

from __future__ import annotations

import builtins
import inspect
from typing import Any

import pytest

import astdsl
from astdsl import KernelError
from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.dtypes import DType, boolean, f32, i32
from astdsl.ir.types import TileType
from astdsl.lang.missing import MISSING
from tests.lang.harness import a_trace

# LANGUAGE.md §2, and the names of the explicit level that gate 6 of "1 of 3" has.
LANGUAGE = [
    "In", "Out", "InOut", "kernel", "spec", "devices", "device", "load", "pipeline", "parallel",
    "unroll", "tile", "ds", "f64", "f32", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e8m0",
    "f4e2m1", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "where", "abs", "exp",
    "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "floor",
    "ceil", "round", "minimum", "maximum", "clip", "fma", "isnan", "isinf", "cdiv", "sum",
    "max", "min", "mean", "prod", "any", "all", "argmax", "argmin", "cumsum", "reduce", "scan",
    "zeros", "ones", "full", "arange", "iota", "reshape", "transpose", "broadcast_to",
    "squeeze", "expand_dims", "concat", "stack", "split", "take", "bitcast", "astype", "dot",
    "pow", "random_bits", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or",
    "atomic_xor", "atomic_exchange", "atomic_cas", "GMEM", "SMEM", "Barrier", "barrier_arrive",
    "barrier_wait", "copy_gmem_to_smem", "copy_smem_to_gmem", "commit_smem_to_gmem_group",
    "wait_smem_to_gmem", "commit_smem", "TMEM", "ACC", "wgmma", "wgmma_wait", "tcgen05_mma",
    "TMEMLayout", "async_copy_scales_to_tmem",
    "nd_loop", "emit_pipeline", "planar_snake", "when", "KernelError",
]  # fmt: skip
LIKE_BUILTINS = ["abs", "all", "any", "max", "min", "pow", "round", "sum"]


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_name_of_the_language_is_there_or_refuses_its_use(name: str) -> None:
    found = getattr(astdsl, name)
    assert (name in MISSING) is (type(found).__name__ == "NotYet")


@pytest.mark.parametrize("name", sorted(MISSING))
def test_a_missing_name_refuses_its_use_with_a_way_out(name: str) -> None:
    assert name not in astdsl.__all__
    with pytest.raises(UnsupportedFeature, match=f"`{name}` is not in this version") as caught:
        getattr(astdsl, name)(1, axis=2)
    assert caught.value.help


def test_names_of_builtins_are_there_and_not_imported_by_a_star() -> None:
    assert [name for name in LIKE_BUILTINS if name not in vars(astdsl)] == []
    assert set(astdsl.__all__) & set(vars(builtins)) == set()


def test_public_names_are_there_once() -> None:
    assert len(set(astdsl.__all__)) == len(astdsl.__all__)
    assert [name for name in astdsl.__all__ if name not in vars(astdsl)] == []


DOCUMENTED = [n for n in [*astdsl.__all__, *LIKE_BUILTINS] if callable(getattr(astdsl, n))]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_can_be_called_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(astdsl, name)) or ""
    assert len(text) > 20
    assert text[0].isupper() or text[0] == "`"


def test_a_misspelt_name_says_what_was_meant() -> None:
    with pytest.raises(AttributeError, match="did you mean `pipeline`"):
        astdsl.pipelin


# What places, converts or masks operands is not counted.
PLACING = {ops.Constant, ops.Cast, ops.Broadcast, ops.Reshape, ops.Iota}
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ["abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin",
         "cos", "floor", "ceil", "round", "isnan", "isinf", "sum", "max", "min", "mean", "prod",
         "any", "all"], (f32,)),
    "minimum": (f32, f32), "maximum": (f32, f32), "pow": (f32, f32), "fma": (f32, f32, f32),
    "clip": (f32, f32, f32), "where": (boolean, f32, f32), "cdiv": (i32, i32),
    "transpose": (f32,), "dot": (f32, f32),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_function_builds_one_operation_or_says_that_it_is_composed(name: str) -> None:
    function = getattr(astdsl, name)
    with a_trace(*(TileType((4, 4), dtype) for dtype in CALLS[name])) as (now, *tiles):
        function(*tiles)
        made = [type(op) for op in now.builder.current.ops if type(op) not in PLACING]
    is_composed = "Composed" in (inspect.getdoc(function) or "")
    assert is_composed is (len(made) != 1), made


@pytest.mark.parametrize("name", ["exp", "zeros", "where", "dot", "SMEM", "barrier_wait"])
def test_a_function_outside_a_kernel_says_so(name: str) -> None:
    arguments = {"zeros": ((4,),), "where": (True, 1, 2), "dot": (1, 2), "SMEM": ((4,), f32)}
    with pytest.raises(KernelError) as caught:
        getattr(astdsl, name)(*arguments.get(name, (1.0,)))
    assert caught.value.help


def test_dtypes_are_public_under_their_names() -> None:
    dtypes = {n: v for n, v in vars(astdsl).items() if isinstance(v, DType)}
    assert all(dtype.name == name for name, dtype in dtypes.items())
    assert set(dtypes) <= set(astdsl.__all__)
