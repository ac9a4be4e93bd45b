"""Calling kernels: what is compiled when, what a call returns, how mistakes come out."""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import copy
import functools
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pickle import dumps, loads
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import In, InOut, Out, cdiv, f16, f32, i32, kernel, pipeline, spec, tile
from astdsl.errors import (
    AliasedOutput,
    BadArgument,
    BadSignature,
    DeviceUnavailable,
    FailedAssertion,
    ScatteredAccumulation,
    UnsupportedFeature,
    UnwrittenRead,
    WrongTarget,
)
from astdsl.kernel import Kernel, Placed
from tests.adding import add_of, arrays, traces

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTDSL_DEVICE", "reference")
    monkeypatch.delenv("ASTDSL_TARGET", raising=False)


def test_an_omitted_output_is_allocated_and_returned() -> None:
    x, y = arrays(20, 33)
    np.testing.assert_array_equal(add_of()(x, y), x + y)


def test_a_passed_output_is_written_and_returned() -> None:
    x, y = arrays(20, 33)
    o = np.zeros_like(x)
    assert add_of()(x, y, o) is o
    np.testing.assert_array_equal(o, x + y)


def test_arguments_may_be_passed_by_name_in_any_order() -> None:
    x, y = arrays(20, 33)
    o = np.zeros_like(x)
    add_of()(o=o, y=y, x=x, bn=8)
    np.testing.assert_array_equal(o, x + y)


def test_a_new_size_of_the_same_class_does_not_trace_again() -> None:
    add = add_of()
    for shape in ((16, 16), (20, 32), (7, 48), (300, 64)):
        x, y = arrays(*shape)
        np.testing.assert_array_equal(add(x, y), x + y)
    assert traces(add) == 1


def test_a_new_class_traces_again() -> None:
    add = add_of()
    x, y = arrays(16, 16)
    add(x, y)
    np.testing.assert_array_equal(add(x.T, y), x.T + y)
    assert traces(add) == 2


def test_a_new_constant_traces_again_and_an_old_one_does_not() -> None:
    add = add_of()
    x, y = arrays(16, 16)
    for bm in (8, 4, 8, 4):
        add(x, y, bm=bm)
    assert traces(add) == 2


def test_constants_that_compare_equal_are_told_apart() -> None:
    @kernel
    def fill(o: Out[f32, "8"], *, value):
        o[...] = 1 if value is True else 2

    assert [fill(value=v)[0] for v in (1, True, 1.0)] == [2, 1, 2]


STEP = 1


@kernel
def add_step(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:8] = x[0:8] + STEP


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros(8, np.float32)
    assert add_step(x)[0] == 1
    monkeypatch.setitem(globals(), "STEP", 5)
    assert add_step(x)[0] == 5
    assert add_step(x)[0] == 5
    assert traces(add_step) == 2


def test_a_changed_closure_cell_is_seen() -> None:
    step = 1

    @kernel
    def shift(x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:8] = x[0:8] + step

    x = np.zeros(8, np.float32)
    assert shift(x)[0] == 1
    step = 7
    assert shift(x)[0] == 7


@kernel
def scaled_by_root(x: In[f32, "M D"], o: Out[f32, "M D"], y: In[f32, "D"]):
    M, D = x.shape
    with pipeline(M) as i:
        o[i, 0:D] = x[i, 0:D] / math.sqrt(D) + y[0:D]


def test_a_dim_that_python_needs_becomes_a_constant_by_itself() -> None:
    for shape in ((3, 4), (5, 4), (3, 9)):
        x = np.ones(shape, np.float32)
        y = np.zeros(shape[1], np.float32)
        o = np.zeros_like(x)
        scaled_by_root(x, o, y)
        np.testing.assert_allclose(o, x / math.sqrt(shape[1]), rtol=1e-6)
    assert traces(scaled_by_root) == 2


def test_inferred_constants_are_explained() -> None:
    lowered = scaled_by_root.lower(spec((3, 4), f32), spec((3, 4), f32), spec(4, f32))
    assert "x.shape[1] = 4, which the trace needs as a number" in lowered.explain()


class Layer:
    """An object with a kernel for a method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @kernel
    def apply(self, x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:8] = x[0:8] * self.factor


def test_a_method_is_a_kernel_of_its_object() -> None:
    x = np.ones(8, np.float32)
    double, triple = Layer(2.0), Layer(3.0)
    assert [layer.apply(x)[0] for layer in (double, triple, double)] == [2, 3, 2]
    assert double.apply.on("reference")(x)[0] == 2
    assert "Multiply" in double.apply.lower(x).ir


@dataclass
class Unhashable:
    """An object of which each is itself only, and whose attributes change."""

    factor: int

    @kernel
    def run(self, x: In[f32, "N"], o: Out[f32, "N"]):
        o[...] = x[...] * self.factor


def test_an_object_without_a_hash_has_kernels_of_its_own() -> None:
    x = np.ones(8, np.float32)
    two, also = Unhashable(2), Unhashable(2)
    assert [two.run(x)[0], also.run(x)[0], two.run(x)[0]] == [2, 2, 2]
    two.factor = 5
    assert [two.run(x)[0], also.run(x)[0], two.run(x)[0]] == [5, 2, 5]
    assert two.run.lower(x).ir == Unhashable(5).run.lower(x).ir


def test_several_outputs_are_returned_as_a_tuple() -> None:
    @kernel
    def both(x: In[f32, "8"], p: Out[f32, "8"], q: Out[i32, "8"]):
        p[...] = x[...] + 1
        q[...] = x[...].astype(i32)

    p, q = both(np.full(8, 3, np.float32))
    assert (p[0], q[0], q.dtype) == (4, 3, np.int32)


def test_an_inout_is_changed_in_place_and_not_returned() -> None:
    @kernel
    def bump(x: InOut[f32, "8"]):
        x[...] = x[...] + 1

    x = np.zeros(8, np.float32)
    assert bump(x) is None
    assert x.tolist() == [1] * 8


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_initialised_output_starts_filled(device: str) -> None:
    @kernel
    def some(x: In[f32, "4"], o: Out[f32, "8", 3]):
        o[0:4] = o[0:4] + x[0:4]

    x = np.ones(4, np.float32)
    expected = [4, 4, 4, 4, 3, 3, 3, 3]
    assert some.on(device)(x).tolist() == expected
    assert some.on(device)(x, np.zeros(8, np.float32)).tolist() == expected


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_scalars_are_rounded_to_their_dtype(device: str) -> None:
    @kernel
    def scale(x: In[f32, "8"], o: Out[f32, "8"], alpha: f32 = 0.1, n=2):
        o[...] = x[...] * alpha + n

    x = np.ones(8, np.float32)
    assert scale.on(device)(x)[0] == np.float32(0.1) + np.float32(2)
    assert scale.on(device)(x, alpha=0.5)[0] == 2.5
    assert scale.on(device)(x, None, 0.25, 3)[0] == 3.25
    assert traces(scale) == 1


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_arrays_without_elements_work(device: str, shape: tuple[int, int]) -> None:
    x, y = arrays(*shape)
    assert add_of().on(device)(x, y).shape == shape


def views() -> dict[str, Callable[[Array], Array]]:
    """Return ways to make an array's elements stand differently in memory."""
    return {
        "transposed": lambda x: np.ascontiguousarray(x.T).T,
        "sliced": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        "padded": lambda x: np.pad(x, ((0, 3), (0, 5)))[: x.shape[0], : x.shape[1]],
        "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "unaligned": lambda x: np.append(0, x).astype(np.float32)[1:].reshape(x.shape),
        "fortran": np.asfortranarray,
    }


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("how", list(views()))
def test_arguments_of_any_strides_give_the_same(device: str, how: str) -> None:
    x, y = arrays(20, 36)
    seen = views()[how](x)
    np.testing.assert_array_equal(seen, x)
    np.testing.assert_array_equal(add_of().on(device)(seen, y), x + y)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_arrays_whose_elements_are_not_aligned_are_copied(device: str) -> None:
    def shifted(like: Array) -> Array:
        raw = np.full(like.nbytes + 16, 255, np.uint8)
        moved = raw[1 : 1 + like.nbytes].view(np.float32).reshape(like.shape)
        moved[...] = like
        return moved

    x, y = arrays(20, 33)
    o = shifted(np.zeros_like(x))
    add = add_of()
    assert add.on(device)(shifted(x), y, o) is o
    np.testing.assert_array_equal(o, x + y)
    assert "copied, its elements are not aligned" in add.lower(shifted(x), y).explain()


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_expanded_argument_reads_its_one_row(device: str) -> None:
    x, y = arrays(20, 36)
    row = np.broadcast_to(x[3], x.shape)
    np.testing.assert_array_equal(add_of().on(device)(row, y), row + y)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_size_1_dim_with_a_nonsense_stride_is_read_right(device: str) -> None:
    x, y = arrays(1, 36)
    odd = np.lib.stride_tricks.as_strided(x, (1, 36), (12345 * 4, 4))
    np.testing.assert_array_equal(add_of().on(device)(odd, y), x + y)


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("shape", [(17, 32), (16, 33), (1, 1), (9, 7)])
def test_nothing_is_written_around_an_output(device: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    guarded = np.full((rows + 16, columns + 32), -7, np.float32)
    inside = guarded[8 : 8 + rows, 16 : 16 + columns]
    x, y = arrays(rows, columns)
    add_of().on(device)(x, y, inside)
    np.testing.assert_array_equal(inside, x + y)
    assert (guarded == -7).sum() == guarded.size - rows * columns


def test_an_output_that_is_an_input_is_refused_before_the_launch() -> None:
    x, y = arrays(16, 16)
    before = x.copy()
    with pytest.raises(AliasedOutput, match="the output `o` shares memory with `x`"):
        add_of()(x, y, x)
    np.testing.assert_array_equal(x, before)


def test_an_array_of_another_library_is_read_and_written_in_place() -> None:
    class Foreign:
        def __init__(self, array: Array) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    x, y = arrays(16, 16)
    o = Foreign(np.zeros_like(x))
    assert add_of()(Foreign(x[:, ::-1]), y, o) is o
    np.testing.assert_array_equal(o.array, x[:, ::-1] + y)


@kernel
def checked(x: In[f32, "M N"], o: Out[f32, "M N"], n=1):
    M, _ = x.shape
    assert M % 4 == 0, "M is a multiple of 4"
    assert n > 0, "n is positive"
    o[0:4, 0:4] = x[0:4, 0:4] + n


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_assertions_are_checked_at_every_launch(device: str) -> None:
    run = checked.on(device)
    run(np.ones((4, 4), np.float32))
    with pytest.raises(FailedAssertion, match="M is a multiple of 4"):
        run(np.ones((5, 4), np.float32))
    with pytest.raises(FailedAssertion, match="n is positive") as caught:
        run(np.ones((4, 4), np.float32), n=0)
    assert caught.value.span is not None
    assert caught.value.span.line == checked.__wrapped__.__code__.co_firstlineno + 4


def test_a_mistake_shows_the_call_and_no_frame_of_ours() -> None:
    x, y = arrays(16, 16)
    with pytest.raises(BadArgument) as caught:
        add_of()(x, y[:8])
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert "`M` is 16 by axis 0 of `x`, and 8 by axis 0 of `y`" in str(caught.value)


def test_an_exception_of_the_users_own_passes_with_the_kernel_line() -> None:
    def helper() -> int:
        return dict[str, int]()["nothing"]

    @kernel
    def broken(x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] + helper()

    with pytest.raises(KeyError) as caught:
        broken(np.zeros(8, np.float32))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert [frame.name for frame in frames][-2:] == ["broken", "helper"]
    (note,) = caught.value.__notes__
    assert note.startswith("in kernel `broken`, test_kernel.py:")


def test_nothing_is_refused_before_the_first_call() -> None:
    @kernel(warpgroups=9)
    def later(x: In[f32, "N"]): ...

    @kernel(warpgroup=1)
    def misspelt(x: In[f32, "N"]): ...

    @kernel
    def malformed(*x: In[f32, "N"]): ...

    x = np.zeros(8, np.float32)
    with pytest.raises(BadSignature, match="from 1 to 8, got 9"):
        later(x)
    with pytest.raises(BadSignature, match="did you mean `warpgroups`"):
        misspelt(x)
    with pytest.raises(BadSignature, match="takes any"):
        malformed(x)


def test_a_refused_option_of_the_decorator_is_shown_where_it_is_written() -> None:
    @kernel(
        warpgroups=1,
        cluster={"x": 2},
    )
    def in_clusters(x: In[f32, "N"]): ...

    first = in_clusters.__wrapped__.__code__.co_firstlineno
    with pytest.raises(UnsupportedFeature, match="cluster") as caught:
        in_clusters(np.zeros(8, np.float32))
    ((span, _),) = caught.value.places
    assert (span.line, span.column, span.end_column) == (first + 2, 8, 24)
    assert caught.value.help


def test_an_array_without_an_annotation_is_named_ahead_of_the_dims_it_would_settle() -> None:
    @kernel
    def bare(x, o: Out[f32, "N"]): ...

    with pytest.raises(BadArgument, match="`x` takes a number, got ndarray") as caught:
        bare(np.zeros(8, np.float32))
    assert "annotate it `x: In[...]`" in caught.value.help


def test_a_target_of_the_decorator_is_refused_with_the_way_to_name_it() -> None:
    aimed = kernel(target="sm_100a")(add_step.__wrapped__)
    with pytest.raises(UnsupportedFeature, match="targets of a decorator") as caught:
        aimed(np.zeros(8, np.float32))
    assert '.on(target="sm_100a")' in caught.value.help


def test_the_decorator_keeps_the_functions_identity() -> None:
    assert add_step.__name__ == "add_step"
    assert add_step.__module__ == __name__
    assert isinstance(add_step, Kernel)
    assert repr(add_step) == "<kernel add_step>"


def pickled(value: Any) -> Any:
    """Return what comes out of the pickle of a value."""
    return loads(dumps(value))  # noqa: S301  (our own)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_and_pickles_of_a_kernel_are_the_kernel(copied: Any) -> None:
    assert copied(add_step) is add_step
    placed = copied(add_step.on("emulator", target="sm_100a", completion="early"))
    x = np.zeros(8, np.float32)
    np.testing.assert_array_equal(placed(x), add_step(x))


def test_a_kernel_above_a_decorator_is_told_where_to_stand() -> None:
    def passing(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    @kernel
    @passing
    def above(x: In[f32, "N"], o: Out[f32, "N"]):
        o[...] = x[...]

    with pytest.raises(BadSignature, match="`args` takes any") as caught:
        above(np.zeros(8, np.float32))
    assert "nearest to the `def` of `above`" in caught.value.help


@dataclass(frozen=True)
class Blocks:
    """A constant of the user's own type."""

    rows: int


def test_any_hashable_value_is_a_constant() -> None:
    @kernel
    def blocked(x: In[f32, "N"], o: Out[f32, "N"], *, blocks):
        (N,) = x.shape
        with pipeline(cdiv(N, blocks.rows)) as i:
            o[tile(i, blocks.rows)] = x[tile(i, blocks.rows)] + 1

    x = np.zeros(20, np.float32)
    assert blocked(x, blocks=Blocks(8)).tolist() == [1] * 20
    blocked(x, blocks=Blocks(8))
    assert traces(blocked) == 1


def test_unknown_devices_and_targets_are_refused_with_the_right_name() -> None:
    x, y = arrays(16, 16)
    with pytest.raises(DeviceUnavailable, match="did you mean `emulator`"):
        add_of().on("emulatr")(x, y)
    with pytest.raises(WrongTarget, match="did you mean `sm_90a`"):
        add_of().on("emulator", target="sm_90")(x, y)


def test_a_with_runs_kernels_on_its_device() -> None:
    x, y = arrays(16, 16)
    with astdsl.device("emulator"):
        np.testing.assert_array_equal(add_of()(x, y), x + y)


def test_on_returns_a_kernel_that_can_be_placed_again() -> None:
    placed = add_of().on("emulator").on(target="sm_100a")
    assert isinstance(placed, Placed)
    assert placed.__name__ == "add"
    assert ".target sm_100a" in placed.lower(*arrays(16, 16)).ptx


def test_a_wrong_dtype_is_refused_by_both_names() -> None:
    x, y = arrays(16, 16)
    with pytest.raises(BadArgument, match="`y` takes f32, got an array of f16"):
        add_of()(x, y.astype(np.float16))
    assert f16.numpy == np.float16


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_what_the_language_refuses_is_refused_on_every_device(device: str) -> None:
    @kernel
    def scattered(x: In[f32, "R N"], o: Out[f32, "N"]):
        R, N = x.shape
        with pipeline(R, cdiv(N, 8)) as (r, i):
            out = o.at[tile(i, 8)]
            if r == 0:
                out[...] = 0
            out[...] += x[r, tile(i, 8)]

    @kernel
    def unwritten(x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] += x[...]

    with pytest.raises(ScatteredAccumulation, match="axis 0 does not move it"):
        scattered.on(device)(np.ones((3, 32), np.float32))
    with pytest.raises(UnwrittenRead):
        unwritten.on(device)(np.ones(8, np.float32))


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_output_behind_an_optional_array_may_have_the_default_none(device: str) -> None:
    @kernel
    def shifted(x: In[f32, "N"], by: In[f32, "N"] | None = None, o: Out[f32, "N"] = None):
        o[...] = x[...] if by is None else x[...] + by[...]

    x = np.ones(8, np.float32)
    assert shifted.on(device)(x).tolist() == [1] * 8
    assert shifted.on(device)(x, x).tolist() == [2] * 8
    o = np.zeros(8, np.float32)
    assert shifted.on(device)(x, None, o) is o
    assert o.tolist() == [1] * 8


def test_a_number_in_the_place_of_an_output_is_named() -> None:
    @kernel
    def scaled(x: In[f32, "N"], o: Out[f32, "N"], by: f32):
        o[...] = x[...] * by

    x = np.ones(8, np.float32)
    with pytest.raises(BadArgument, match="`scaled` needs `by`") as caught:
        scaled(x, 2.0)
    assert "2.0 was passed as the output `o`" in caught.value.help
    assert scaled(x, by=2.0).tolist() == [2] * 8
    assert scaled(x, None, 2.0).tolist() == [2] * 8


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_output_that_nothing_writes_is_refused(device: str) -> None:
    @kernel
    def renamed(x: In[f32, "N"], o: Out[f32, "N"]):
        o = x[...] + 1  # noqa: F841  (the mistake)

    @kernel
    def of_steps(x: In[f32, "M N"], o: Out[f32, "M N"]):
        with pipeline(x.shape[0]) as i:
            o[i] = x[i]

    @kernel
    def filled(x: In[f32, "N"], o: Out[f32, "N", 3]):
        pass

    x = np.ones(8, np.float32)
    with pytest.raises(UnwrittenRead, match="nothing writes it") as caught:
        renamed.on(device)(x)
    assert "`o[...] = value` writes it" in caught.value.help
    assert of_steps.on(device)(np.ones((0, 4), np.float32)).shape == (0, 4)
    assert filled.on(device)(x).tolist() == [3] * 8
