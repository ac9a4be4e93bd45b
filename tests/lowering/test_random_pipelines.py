"""Random pipelines: the schedule means what the program means, in every order of the blocks."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings

from astdsl.ir.evaluate import evaluate
from astdsl.ir.passes import run_passes
from astdsl.lowering.compiler import find_target
from astdsl.lowering.schedule.kernel import schedule
from astdsl.passes import STANDARD
from tests.pipelines import Case
from tests.strategies import pipeline_cases


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@given(case=pipeline_cases())
@settings(max_examples=60)
def test_a_schedule_means_what_the_pipeline_means(target: str, case: Case) -> None:
    module = run_passes(case.module, STANDARD)
    wanted = case.arguments()
    evaluate(module, wanted)
    scheduled = run_passes(schedule(module, find_target(target)), STANDARD)
    for order in ("ascending", "descending", 1):
        found = copy.deepcopy(case.arguments())
        evaluate(scheduled, found, order=order)
        assert (found[2] == wanted[2]).all(), order
