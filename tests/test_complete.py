"""Nothing is forgotten: every operation has each thing that an operation needs."""

from __future__ import annotations

from pathlib import Path

import pytest

import astdsl.ir.evaluate
from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.evaluate.table import EVALUATORS
from astdsl.ir.parser import OPERATIONS
from astdsl.lowering.nvptx import rules
from astdsl.lowering.nvptx.function import lowered_kinds

FAMILIES = ("arith", "control", "indexed", "memory", "tile", "sync", "tensor", "tmem")
# Bases that no program holds: they state what their subclasses share.
ABSTRACT = {
    Op, ops.Elementwise, ops.Unary, ops.Binary, ops.Loop, ops.Window, ops.Copy, ops.Indexed,
    ops.Combining,
}  # fmt: skip
CONCRETE = sorted(set(OPERATIONS.values()) - ABSTRACT, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda k: k.__name__)
def test_every_operation_has_a_meaning_in_the_family_where_it_is_defined(kind: type[Op]) -> None:
    meaning = EVALUATORS[kind]
    family = kind.__module__.rpartition(".")[2]
    assert meaning.__module__ == f"astdsl.ir.evaluate.{family}"


def test_no_base_class_has_a_meaning() -> None:
    assert set(EVALUATORS) == set(CONCRETE)


# What never reaches a rule of code generation: the schedule takes pipelines and products of tiles
# apart, the launch plan holds the grid, the conditions of the launch, and its scratch.
SCHEDULED = {
    ops.Multiprocessors, ops.Pipeline, ops.Dot, ops.ScaledDot, ops.Launch, ops.Assert,
    ops.AllocGmem,
}  # fmt: skip


def test_every_operation_is_scheduled_away_or_has_a_rule_of_code_generation() -> None:
    assert rules.FAMILIES, "importing the families fills the tables"
    assert set(CONCRETE) == lowered_kinds() | SCHEDULED
    assert lowered_kinds().isdisjoint(SCHEDULED)


def test_every_operation_says_what_it_is() -> None:
    assert [kind.__name__ for kind in CONCRETE if not kind.__doc__] == []


def test_families_have_the_same_names_everywhere() -> None:
    rooms = [Path(room).parent for room in (ops.__file__, astdsl.ir.evaluate.__file__)]
    for room in rooms:
        assert {family for family in FAMILIES if (room / f"{family}.py").exists()} == set(FAMILIES)
