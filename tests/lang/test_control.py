"""What `pipeline` and `parallel` record, and what they refuse."""

from __future__ import annotations

# Annotations of kernels are arrays, which a type checker takes for no types.
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import In, Out, cdiv, f32, kernel, parallel, pipeline, tile
from astdsl.errors import BadPipeline, KernelError, UnknownName, UnsupportedFeature
from astdsl.ir.ops import INFERRED, SEQUENTIAL, SPREAD
from astdsl.lang.control import LATER, KernelRange, kernel_range
from tests.lang.harness import a_trace
from tests.lang.test_windows import MATRIX


@pytest.mark.parametrize(
    ("axes", "placement"),
    [
        ("auto", (INFERRED, INFERRED)), ("sequential", (SEQUENTIAL, SEQUENTIAL)),
        (("parallel", "sequential"), (SPREAD, SEQUENTIAL)),
    ],
)  # fmt: skip
def test_axes_say_where_steps_run(axes: Any, placement: Any) -> None:
    with a_trace() as _:
        assert pipeline(2, 3, axes=axes).fields["placement"] == placement


def test_parallel_spreads_every_axis() -> None:
    with a_trace() as _:
        made = parallel(2, 3, names=("m", "n"))
        assert made.fields["placement"] == (SPREAD, SPREAD)
        assert made.fields["names"] == ("m", "n")


@pytest.mark.parametrize(("stages", "count"), [("auto", 0), (1, 1), (4, 4)])
def test_stages_count_slots(stages: Any, count: int) -> None:
    with a_trace() as _:
        assert pipeline(2, stages=stages).fields["stages"] == count


def test_axes_may_be_one_tuple() -> None:
    with a_trace(MATRIX) as (_, x):
        grid = (x.shape[0], cdiv(x.shape[1], 8))
        assert len(pipeline(grid).axes) == len(pipeline(*grid).axes) == 2
        assert not pipeline((4,)).is_single
        assert pipeline(4).is_single


@pytest.mark.parametrize("option", LATER)
@pytest.mark.parametrize("function", [pipeline, parallel])
def test_options_of_later_versions_are_refused_by_name(function: Any, option: str) -> None:
    with a_trace() as _, pytest.raises(UnsupportedFeature, match=option) as caught:
        function(4, **{option: True})
    assert caught.value.help


@pytest.mark.parametrize(
    "arguments",
    [
        {"stages": 0}, {"stages": -1}, {"stages": "many"}, {"schedule": "fast"}, {"axes": "both"},
        {"axes": ("auto", "auto")},
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments: Any) -> None:
    with a_trace() as _, pytest.raises(BadPipeline) as caught:
        pipeline(4, **arguments)
    assert caught.value.help


def test_a_misspelt_option_says_what_was_meant() -> None:
    with a_trace() as _, pytest.raises(UnknownName) as caught:
        pipeline(4, stage=2)
    assert "`stages`" in caught.value.help


@pytest.mark.parametrize("axis", [2.5, "4", None])
def test_an_axis_is_a_count_or_a_range(axis: Any) -> None:
    with a_trace() as _, pytest.raises(KernelError) as caught:
        pipeline(axis)
    assert caught.value.help


def test_a_pipeline_outside_a_kernel_says_so() -> None:
    with pytest.raises(UnsupportedFeature, match="outside a kernel"):
        pipeline(4)


def test_ranges_of_python_integers_are_pythons() -> None:
    assert kernel_range(3) == range(3)
    assert kernel_range(1, np.int64(7), 2) == range(1, 7, 2)


def test_a_range_of_a_dim_is_counted_in_the_kernel() -> None:
    with a_trace(MATRIX) as (_, x):
        assert isinstance(kernel_range(x.shape[0]), KernelRange)
        with pytest.raises(BadPipeline, match="step"):
            kernel_range(0, x.shape[0], 0)


@kernel
def strided(x: In[f32, "N"], o: Out[f32, "N"], *, step=2):
    (n,) = x.shape
    o[...] = 0
    with pipeline(range(1, n, step), range(2)) as (i, j):
        if j == 0:
            o[i] = x[i]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_an_axis_may_be_a_range(n: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    wanted = np.zeros_like(x)
    wanted[1::2] = x[1::2]
    assert np.array_equal(strided.on("reference")(x), wanted)


@kernel
def summed(x: In[f32, "M N"], o: Out[f32, "N"], *, order="sequential", b=4):
    m, n = x.shape
    with pipeline(cdiv(n, b), axes=order) as j:
        acc = astdsl.zeros((b,))
        with pipeline(m) as i:
            acc += x[i, tile(j, b)]
        o[tile(j, b)] = acc


@pytest.mark.parametrize("order", ["sequential", "parallel", "auto"])
def test_where_steps_run_does_not_change_the_result(order: str) -> None:
    x = np.random.default_rng(0).random((5, 10)).astype(np.float32)
    found = summed.on("reference")(x, order=order)
    np.testing.assert_allclose(found, x.sum(0), rtol=1e-6)
