"""What Python does not do with objects of ours is a mistake with a report, in every version."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import astdsl.lang
from astdsl import Barrier, BlockSpec, barrier_arrive, emit_pipeline, nd_loop
from astdsl.errors import BadPipeline, TypeMismatch
from astdsl.ir.dtypes import f32
from tests.frontend.tracing import array, error_of, text, trace


class Number:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Any) -> Any:
        return self

    def __bool__(self) -> Any:
        return self.value


def running_through(x: Any, o: Any) -> None:
    for row in x.at:
        o[0:4] = row[...]


def unpacking(x: Any, o: Any) -> None:
    a, _ = x.blocks(2)
    o[0:4] = a


def keeping(x: Any, o: Any) -> None:
    t: Any = x[0:4]
    t.mask = t > 0
    o[0:4] = t


def reshaping(x: Any, o: Any) -> None:
    t: Any = x[0:4]
    t.shape = (2, 2)
    o[0:4] = t


def naming(x: Any, o: Any) -> None:
    t: Any = x[0:4]
    o[0:4] = dict(**t)["a"]


def formatting(x: Any, o: Any) -> None:
    o[0:4] = x[0:4] * len(f"{x:>3}")


def sorting(x: Any, o: Any) -> None:
    o[0] = len(sorted([Number(x[0] > 0), Number(x[1] > 0)]))


MISUSES = [
    (running_through, "for row in x.at", "a window follows it"),
    (unpacking, "a, _", r"blocks\(bm, bn\)\[i, j\]"),
    (keeping, "t.mask", "keeps no attributes"),
    (reshaping, "t.shape", "keeps no attributes"),
    (naming, "dict(**t)", "documentation"),
    (formatting, 'f"{x:>3}"', "a ref is memory"),
    (sorting, "sorted([Number(x[0] > 0), Number(x[1] > 0)])", "call a method by its name"),
]


@pytest.mark.parametrize(("kernel", "place", "way_out"), MISUSES)
def test_a_complaint_of_python_about_an_object_of_ours_is_a_report(
    kernel: Any, place: str, way_out: str
) -> None:
    error = error_of(kernel, x=array(8), o=array(8))
    assert isinstance(error, TypeMismatch)
    assert place in text(error.places[0][0])
    assert re.search(way_out, error.help)
    assert "Session" not in error.message


def test_a_loop_of_ours_is_no_iterable_of_python() -> None:
    def kernel(x: Any, o: Any) -> None:
        steps: Any = nd_loop((3,))
        o[0] = sum(x[step.index] for step in steps)

    error = error_of(kernel, x=array(8), o=array(8))
    assert isinstance(error, BadPipeline)
    assert "is a loop in the kernel" in error.help


def test_what_the_users_text_raises_stays_its_own() -> None:
    def kernel(x: Any, o: Any) -> None:
        if x.shape[0] > 4:
            raise TypeError("no Tile, and no Ref either")

    with pytest.raises(TypeError, match="and no Ref either"):
        trace(kernel, x=array(8), o=array(8))


def test_what_python_refuses_of_its_own_objects_stays_its_own() -> None:
    def kernel(x: Any, o: Any) -> None:
        o[0:4] = x[0:4] * len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        trace(kernel, x=array(8), o=array(8))


def test_what_has_elements_says_how_it_is_iterated_over() -> None:
    # Without `__iter__` Python would ask for element 0, 1, 2, ... without end.
    modules = [
        importlib.import_module(f"astdsl.lang.{m.name}")
        for m in pkgutil.iter_modules(astdsl.lang.__path__)
    ]
    classes = {c for m in modules for _, c in inspect.getmembers(m, inspect.isclass)}
    own = (c for c in classes if c.__module__.startswith("astdsl.lang"))
    ours = [c for c in own if "__getitem__" in vars(c)]
    assert len(ours) > 5
    assert [c for c in ours if not any("__iter__" in vars(base) for base in c.__mro__)] == []


def test_a_number_of_barriers_is_taken_apart() -> None:
    def kernel(x: Any, o: Any) -> None:
        full, empty = Barrier(num_barriers=2)
        barrier_arrive(full)
        barrier_arrive(empty)
        o[0:4] = x[0:4]

    trace(kernel, x=array(8, dtype=f32), o=array(8))


def emitting(x: Any, o: Any) -> None:
    body: Any = x
    emit_pipeline(body, grid=(2,))()


def emitting_one(x: Any, o: Any) -> None:
    specs: Any = BlockSpec((4,), lambda i: (i,))
    emit_pipeline(lambda i, a: None, grid=(2,), in_specs=specs)(x)


def shaping_a_block(x: Any, o: Any) -> None:
    shape: Any = 4
    BlockSpec(shape, lambda i: (i,))


def mapping_a_block(x: Any, o: Any) -> None:
    index_map: Any = (0,)
    BlockSpec((4,), index_map)


def looping(x: Any, o: Any) -> None:
    nothing: Any = 3
    nd_loop((3,))(nothing)


def converting(x: Any, o: Any) -> None:
    convert: Any = f32
    o[0] = convert()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (emitting, "`body` of `emit_pipeline` is a function"),
        (emitting_one, "`in_specs` of `emit_pipeline` takes a list"),
        (shaping_a_block, "`block_shape` of `BlockSpec` is a tuple"),
        (mapping_a_block, "`index_map` of `BlockSpec` is a function"),
        (looping, "what `nd_loop` is given is a function"),
        (converting, "converts one value"),
    ],
)
def test_what_takes_functions_and_lists_says_so(kernel: Any, message: str) -> None:
    error = error_of(kernel, x=array(8), o=array(8))
    assert isinstance(error, TypeMismatch)
    assert message in error.message
    assert error.help


def test_memory_and_barriers_are_the_same_in_a_copy_of_what_holds_them() -> None:
    def kernel(x: Any, o: Any) -> None:
        held: Any = [Barrier(), x, x[0:4], x.blocks(4)]
        for one, other in zip(held[:3], copy.deepcopy(held), strict=False):
            assert one is other
        o[0:4] = copy.deepcopy(held)[3][0]

    trace(kernel, x=array(8), o=array(8))


class Tile:
    """A class of the user's with the name of one of ours."""


def adding_to_an_object(x: Any, o: Any) -> None:
    own: Any = Tile()
    o[0] = own + 1


def asking_for_the_name_of_a_class(x: Any, o: Any) -> None:
    own: Any = Number(x)
    o[0] = own.Barrier


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [(adding_to_an_object, TypeError), (asking_for_the_name_of_a_class, AttributeError)],
)
def test_what_is_said_of_the_users_own_classes_stays_what_it_is(kernel: Any, kind: type) -> None:
    with pytest.raises(kind, match=r"Tile|Barrier") as error:
        trace(kernel, x=array(8, dtype=f32), o=array(8))
    assert type(error.value) is kind
