"""What only a GPU can settle: the emulator's tests of values, run there, and its free choices.

`pytest -m gpu` asks the first GPU; without one these tests are skipped. A form that the GPU does
not have (tcgen05 on Hopper, wgmma on Blackwell) is skipped by what the driver says.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run as emulated
from astdsl.errors import DeviceError
from astdsl.runtime.devices import why_no_gpu
from astdsl.runtime.driver import Driver
from tests.emulator import (
    gpu,
    running,
    test_arith,
    test_atomic,
    test_block_scaled,
    test_cluster,
    test_cluster_copies,
    test_convert,
    test_copy,
    test_floating,
    test_launch_control,
    test_logic,
    test_matrix_access,
    test_meanings,
    test_memory,
    test_mma,
    test_narrow_operands,
    test_pairs,
    test_remote,
    test_scaled_pairs,
    test_short_sums,
    test_tcgen05,
    test_tma,
    test_warp,
    test_wgmma,
    test_wmma,
)
from tests.emulator.asm import kernel
from tests.runtime.drivers import StubApi

MODULES = (
    test_arith, test_atomic, test_block_scaled, test_cluster, test_cluster_copies, test_convert,
    test_copy, test_floating, test_launch_control, test_logic, test_matrix_access, test_meanings,
    test_mma, test_narrow_operands, test_pairs, test_remote, test_scaled_pairs, test_short_sums,
    test_tcgen05, test_tma, test_warp, test_wgmma, test_wmma,
)  # fmt: skip
# Of a module about host memory: what an instruction of the GPU computes.
SOME = ((test_memory, "test_a_bulk_store_fills"),)
# Tests of faults and of the emulator's own parts ask nothing of a GPU.
EMULATORS_OWN = ("fault(", "raises(", "add_products(", "@given", "launched(")
Run = Callable[..., None]
REASON = why_no_gpu()
NEEDS_GPU = pytest.mark.skipif(bool(REASON), reason=f"no GPU to ask: {REASON}")


def cases(module: ModuleType, begin: str = "test_") -> Iterator[Any]:
    """Yield the tests of values of a module, each with one set of its parameters."""
    for name, function in vars(module).items():
        if not name.startswith(begin) or not inspect.isfunction(function):
            continue
        source = inspect.getsource(function)
        if any(word in source for word in EMULATORS_OWN):
            continue
        axes = [m.args for m in getattr(function, "pytestmark", ()) if m.name == "parametrize"]
        for chosen in itertools.product(*(values for _, values in axes)):
            given: dict[str, Any] = {}
            for (names, _), value in zip(axes, chosen, strict=True):
                several = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
                given.update(zip(several, value if len(several) > 1 else (value,), strict=True))
            if given.get("completion", "late") == "late":
                yield pytest.param(module, function, given, id=f"{module.__name__[15:]}-{name}")


# Without a GPU a module is skipped as one, not by its hundreds of tests.
ASKED = (*((module, "test_") for module in MODULES), *SOME)
CASES = [case for m in ASKED for case in itertools.islice(cases(*m), 1 if REASON else None)]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: str(asked[0].__name__)[15:])
def test_every_module_has_something_to_ask(asked: tuple[ModuleType, str]) -> None:
    assert next(cases(*asked), None)


@pytest.fixture(scope="module")
def run() -> Run:
    from cuda.bindings import driver as api  # noqa: PLC0415  only where there is a GPU

    return gpu.runner(Driver(api))


def asked(run: Run, function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Call a test, or a launch; skip it where the GPU does not know its instructions."""
    try:
        return function(*arguments, **given)
    except DeviceError as error:
        if "cuModuleLoadData" not in str(error):
            raise
        pytest.skip(f"this GPU does not run it: {error}")


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize(("module", "function", "given"), CASES)
def test_a_gpu_computes_what_the_emulator_is_tested_for(
    module: ModuleType, function: Callable[..., Any], given: Any, run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for each in (*(module for module, _ in ASKED), running):
        if hasattr(each, "run"):
            monkeypatch.setattr(each, "run", run)
    asked(run, function, **given)


WORDS = """
  mov.u32 %r0, %tid.x; ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
"""
# Each line is a choice of the emulator's: code that gives %r1, and its value for lane t.
CHOICES: dict[str, tuple[str, Callable[[int], int]]] = {
    "unsigned division by zero": ("div.u32 %r1, %r0, 0;", lambda t: 0xFFFFFFFF),
    "unsigned remainder by zero": ("rem.u32 %r1, %r0, 0;", lambda t: t),
    "signed remainder by zero": ("rem.s32 %r1, %r0, 0;", lambda t: t),
    "canonical NaN": (
        "add.rn.f32 %f1, 0fFF800000, 0f7F800000; mov.b32 %r1, %f1;", lambda t: 0x7FFFFFFF,
    ),
    "the elected lane": ("elect.sync %r1|%p1, -1;", lambda t: 0),
    "a shared address has its block's rank": (
        "mov.u32 %r2, smem; mapa.shared::cluster.u32 %r1, %r2, 0; shr.u32 %r1, %r1, 24;",
        lambda t: 0,
    ),
    "float to integer of a NaN": (
        "mov.b32 %f1, 0f7FFFFFFF; cvt.rzi.s32.f32 %r1, %f1;", lambda t: 0,
    ),
    "subnormal products": (
        "mov.b32 %f1, 0f00800000; mul.rn.f32 %f1, %f1, 0f3F000000; mov.b32 %r1, %f1;",
        lambda t: 0x00400000,
    ),
}  # fmt: skip


def chosen(run: Run, name: str) -> np.ndarray[Any, Any]:
    out = np.zeros(32, np.uint32)
    code = WORDS + CHOICES[name][0] + "st.global.b32 [%d1], %r1;"
    run(kernel(code, ["u64"], shared_bytes=16), "k", (1,), (32,), [out])
    return out


@pytest.mark.parametrize("name", CHOICES)
def test_the_emulator_chooses_what_the_documentation_says(name: str) -> None:
    assert chosen(emulated, name).tolist() == [CHOICES[name][1](t) for t in range(32)]


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("name", CHOICES)
def test_a_gpu_chooses_as_the_emulator_does(name: str, run: Run) -> None:
    found = asked(run, chosen, run, name)
    assert found.tolist() == [CHOICES[name][1](t) for t in range(32)]


def test_arguments_reach_the_driver_as_the_kernel_expects_them() -> None:
    x, seen = np.arange(6, dtype=np.uint32), []

    def on_launch(name: str, grid: int, addresses: Any) -> None:
        pointer = ctypes.c_uint64.from_address(addresses[0]).value
        seen.append((name, grid, ctypes.c_float.from_address(addresses[1]).value))
        copy = (ctypes.c_uint32 * 6).from_address(pointer)
        for i in range(6):
            copy[i] += 1

    run = gpu.runner(Driver(StubApi(on_launch, parameters=2)))
    run(kernel("", ["u64", "f32"]), "k", (3,), (32,), [x, 2.5])
    assert seen == [("k", 3, 2.5)]
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
