"""Lowering kernels without a launch: what arrays are described by, and what each stage tells."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import f32, spec
from astdsl.errors import BadArgument, UnsupportedFeature
from tests.adding import add_of, arrays, traces


def test_lower_takes_specs_and_compiles_without_a_launch() -> None:
    add = add_of()
    lowered = add.lower(spec((64, 64), f32), spec((64, 64), f32), bm=4)
    assert "Pipeline" in lowered.ir
    assert 'constant bm = "4"' in lowered.ir
    assert "def add(" in lowered.source


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_every_stage_is_there_for_both_targets(target: str) -> None:
    lowered = add_of().lower(spec((64, 64), f32), spec((64, 64), f32), target=target)
    assert "Launch" in lowered.schedule
    assert "define" in lowered.llvm
    assert f".target {target}" in lowered.ptx
    assert lowered.cubin.startswith(b"\x7fELF")
    assert lowered.resources.spill_bytes == 0
    assert lowered.resources.messages == ()


@pytest.mark.parametrize("dtype", [f32, np.float32, np.dtype("float32"), float], ids=str)
def test_a_spec_takes_the_dtypes_of_numpy_and_python(dtype: object) -> None:
    assert spec((4, 4), dtype) == spec((4, 4), f32)


@pytest.mark.parametrize("dtype", ["f32", np.complex64, None], ids=str)
def test_a_spec_of_another_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(BadArgument, match="takes a shape and a dtype"):
        spec((4, 4), dtype)


def test_a_call_with_a_spec_is_refused() -> None:
    with pytest.raises(BadArgument, match="takes an array, got Spec"):
        add_of()(spec((4, 4), f32), spec((4, 4), f32))


def test_explain_names_classes_constants_and_blocks() -> None:
    x, y = arrays(20, 33)
    text = add_of().lower(x, y).explain()
    assert (
        "x: f32 20 33; axis 1 contiguous; plain loads, because axis 0 has a stride of 132" in text
    )
    assert "bm = 8" in text
    assert "blocks: 9 of" in text


def test_what_is_not_in_this_version_is_refused_by_name() -> None:
    lowered = add_of().lower(spec((4, 4), f32), spec((4, 4), f32))
    with pytest.raises(UnsupportedFeature, match="timeline"):
        lowered.timeline()


def test_a_pass_that_is_not_there_is_refused_with_those_that_are() -> None:
    lowered = add_of().lower(*arrays(16, 16))
    with pytest.raises(BadArgument, match="did you mean `fold_constants`"):
        lowered.after("fold_constant")
    with pytest.raises(BadArgument, match="passes are fold_constants, "):
        lowered.after("schedule")


def test_a_compiled_kernel_launches_new_sizes_and_refuses_other_classes() -> None:
    add = add_of()
    x, y = arrays(16, 16)
    compiled = add.lower(x, y).compile()
    for shape in ((16, 16), (20, 32), (7, 48)):
        a, b = arrays(*shape)
        np.testing.assert_array_equal(compiled(a, b), a + b)
    assert traces(add) == 1
    with pytest.raises(BadArgument, match="the kernel is compiled for"):
        compiled(x.T, y)
    with pytest.raises(BadArgument, match="`bm` is settled"):
        compiled(x, y, bm=4)
