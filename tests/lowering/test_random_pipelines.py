"""Random pipelines: schedule, PTX and program mean the same, in every order of the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from astdsl.errors import DeviceError
from astdsl.ir.core import Module
from astdsl.ir.dtypes import BY_NUMPY, f32, i64
from astdsl.ir.evaluate import evaluate
from astdsl.ir.passes import run_passes
from astdsl.lowering.compiler import compile_module, find_target
from astdsl.lowering.schedule.kernel import schedule
from astdsl.passes import STANDARD
from astdsl.runtime.arrays import Where
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import Geometry
from astdsl.runtime.devices import Emulator
from astdsl.runtime.host import compile_host
from astdsl.runtime.launch import Argument
from tests.pipelines import PRODUCT, Case
from tests.strategies import pipeline_cases

TARGETS = pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])


def wanted(module: Module, case: Case) -> Any:
    """Return the output of the program, step after step."""
    arguments = case.arguments()
    evaluate(module, arguments)
    return arguments[2]


@TARGETS
@given(case=pipeline_cases())
@settings(max_examples=60)
def test_a_schedule_means_what_the_pipeline_means(target: str, case: Case) -> None:
    module = run_passes(case.module, STANDARD)
    scheduled = run_passes(schedule(module, find_target(target)), STANDARD)
    for order in ("ascending", "descending", 1):
        found = case.arguments()
        evaluate(scheduled, found, order=order)
        assert (found[2] == wanted(module, case)).all(), order


@TARGETS
@pytest.mark.parametrize("completion", ["late", "early"])
@given(case=pipeline_cases())
@settings(max_examples=8)
def test_ptx_means_what_the_pipeline_means(target: str, completion: str, case: Case) -> None:
    assume(not reads_padding(target, case))
    module = run_passes(case.module, STANDARD)
    found = case.arguments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTDSL_COMPLETION", completion)
        emulate(module, target, found)
    assert (found[2] == wanted(module, case)).all()


def reads_padding(target: str, case: Case) -> bool:
    """Whether a product of 64 rows is run as one of 128, whose other rows nobody has written."""
    return target == "sm_100a" and case.kind == PRODUCT and case.block[0] < 128


@pytest.mark.xfail(raises=DeviceError, reason="tcgen05 of 64 rows reads 64 more rows, unwritten")
def test_a_product_of_64_rows_reads_no_more_than_its_operand() -> None:
    case = Case(kind=PRODUCT, around="plain", dtype=f32, block=(64, 64), trips=2, is_dynamic=True,
                stages=2, rows=64, columns=64, has_branch=False, has_second=False, shift=0,
                is_inner_axis=False, has_tma=True)  # fmt: skip
    assert reads_padding("sm_100a", case)
    emulate(run_passes(case.module, STANDARD), "sm_100a", case.arguments())


def emulate(module: Module, target: str, given: list[Any]) -> None:
    """Compile a module and run its PTX on arrays and scalars."""
    compiled = compile_module(module, target)
    artifact = Artifact(module, compiled.ptx, compiled.plan)
    arguments = [
        argument(index, param.name, param.role, param.span, value)
        for index, (param, value) in enumerate(zip(module.params, given, strict=True))
    ]
    shapes = [getattr(value, "shape", ()) for value in given]
    grid = compile_host(compiled.plan.grid)(shapes, given)
    addresses = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in given]
    if grid:
        Emulator().load(artifact, arguments)(grid, addresses, given)


def argument(index: int, name: str, role: str, span: Any, value: Any) -> Argument:
    """Describe an argument as a call would."""
    where = Where(name, span)
    if not isinstance(value, np.ndarray):
        return Argument(where, index, role, i64)
    dtype = BY_NUMPY[value.dtype]
    strides = tuple(s // value.itemsize for s in value.strides)
    return Argument(where, index, role, dtype, Geometry(value.shape, strides, dtype, 16))
