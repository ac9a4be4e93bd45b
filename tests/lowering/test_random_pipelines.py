"""Random programs: schedule, PTX and program mean the same, in every order of the blocks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings

from astdsl.errors import OverlappingWindows
from astdsl.ir import ops
from astdsl.ir.core import Module, Param, walk
from astdsl.ir.dtypes import BY_NUMPY, f32
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
from astdsl.runtime.launch import Argument, Counts
from tests.pipelines import PRODUCT, Case
from tests.strategies import module_arguments, modules, pipeline_cases

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
    module = run_passes(case.module, STANDARD)
    found = case.arguments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTDSL_COMPLETION", completion)
        emulate(module, target, found)
    assert (found[2] == wanted(module, case)).all()


# Steps that store in one place run one after the other, and that is said.
@pytest.mark.filterwarnings("ignore::astdsl.lowering.schedule.launches.SerialPipeline")
@given(module=modules(), arguments=module_arguments())
@settings(max_examples=12)
def test_ptx_means_what_a_random_module_means(module: Module, arguments: list[Any]) -> None:
    kinds = {type(op) for op in walk(module.body)}
    assume(kinds.isdisjoint({ops.Exp, ops.Dot}))  # not exact; extents of 4
    module = run_passes(module, STANDARD)
    expected, found = copy.deepcopy(arguments), copy.deepcopy(arguments)
    evaluate(module, expected)
    try:
        emulate(module, "sm_90a", found)
    except OverlappingWindows:
        reject()
    for x, y in zip(found[:4], expected[:4], strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def test_a_product_of_64_rows_reads_no_more_than_its_operand() -> None:
    case = Case(kind=PRODUCT, around="plain", dtype=f32, block=(64, 64), trips=2, is_dynamic=True,
                stages=2, rows=64, columns=64, has_branch=False, has_second=False, shift=0,
                is_inner_axis=False, has_tma=True)  # fmt: skip
    emulate(run_passes(case.module, STANDARD), "sm_100a", case.arguments())


def emulate(module: Module, target: str, given: list[Any]) -> None:
    """Compile a module and run its PTX on arrays and scalars."""
    compiled = compile_module(module, target)
    artifact = Artifact(module, compiled.ptx, compiled.plan)
    arguments = [
        argument(index, param, value)
        for index, (param, value) in enumerate(zip(module.params, given, strict=True))
    ]
    shapes = [getattr(value, "shape", ()) for value in given]
    for param, value in zip(module.params, given, strict=True):
        if param.initial is not None:
            value[...] = param.initial
    grids, *scratch = (
        tuple(int(compile_host(n)(shapes, given)) for n in row)
        for row in (
            [e.grid for e in compiled.plan.entries],
            *(s.shape for s in compiled.plan.scratch),
        )
    )
    addresses = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in given]
    if any(grids):
        Emulator().load(artifact, arguments)(Counts(grids, tuple(scratch)), addresses, given)


def argument(index: int, param: Param, value: Any) -> Argument:
    """Describe an argument as a call would."""
    where = Where(param.name, param.span)
    if not isinstance(value, np.ndarray):
        return Argument(where, index, param.role, param.value.tile.dtype)
    dtype = BY_NUMPY[value.dtype]
    strides = tuple(s // value.itemsize for s in value.strides)
    geometry = Geometry(value.shape, strides, dtype, 16)
    return Argument(where, index, param.role, dtype, geometry, initial=param.initial)
