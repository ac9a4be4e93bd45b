"""Annotations say what they said where the kernel was made, however late Python evaluates them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from astdsl import f16, f32
from astdsl.errors import BadSignature
from astdsl.frontend.signature import Signature
from tests.frontend.test_spans import module_of

TEXT = "from __future__ import annotations\n"
HEADER = "from astdsl import In, Out, f16, f32, kernel\n"
# Python 3.11 to 3.13 evaluate annotations at the `def`, 3.14 when somebody asks.
LAZY = pytest.param(
    "",
    marks=pytest.mark.skipif(
        sys.version_info < (3, 14), reason="older versions fail at the `def` itself"
    ),
    id="lazy",
)
LATE = pytest.mark.parametrize("future", [pytest.param(TEXT, id="text"), LAZY])
ANY = pytest.mark.parametrize("future", [pytest.param(TEXT, id="text"), pytest.param("", id="own")])


def module(path: Path, future: str, source: str) -> ModuleType:
    return module_of(path / "annotated.py", future + HEADER + source)


def dtypes(signature: Signature) -> list[object]:
    return [p.spec.dtypes[0] if p.spec else None for p in signature.params]


LOOP = """
kernels = []
for dtype in (f16, f32):
    @kernel
    def copy(x: In[dtype, "N"], o: Out[dtype, "N"]):
        o[...] = x[...]
    kernels.append(copy)
"""


@ANY
def test_kernels_of_a_loop_over_dtypes_have_each_its_own(future: str, tmp_path: Path) -> None:
    first, second = module(tmp_path, future, LOOP).kernels
    assert dtypes(first.signature) == [f16, f16]
    assert dtypes(second.signature) == [f32, f32]


@ANY
def test_a_name_that_changes_after_the_def_does_not_change_the_kernel(
    future: str, tmp_path: Path
) -> None:
    source = "D = f16\n@kernel\ndef copy(x: In[D, 'N'], o: Out[D, 'N']): ...\nD = f32\n"
    made = module(tmp_path, future, source).copy
    assert dtypes(made.signature) == [f16, f16]
    assert inspect.signature(made).parameters.keys() == {"x", "o"}


def test_annotations_of_a_method_see_the_names_of_the_class(tmp_path: Path) -> None:
    source = """
class Owner:
    D = f16
    @kernel
    def copy(self, x: In[D, 'N'], o: Out[D, 'N']): ...
    D = f32
"""
    owner = module(tmp_path, "", source).Owner()
    assert dtypes(owner.copy.signature) == [f16, f16]


UNKNOWN_TO_PYTHON = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from somewhere import Options
def make(dtype):
    @kernel
    def copy(x: In[dtype, "N"], n, o: Out[dtype, "N"], *, options: Options = None) -> Options:
        return dtype
    return copy
copy = make(f16)
"""


@LATE
def test_annotations_that_no_kernel_needs_may_be_for_type_checkers_only(
    future: str, tmp_path: Path
) -> None:
    made = module(tmp_path, future, UNKNOWN_TO_PYTHON).copy
    assert dtypes(made.signature) == [f16, None, f16]


LATER = """
@kernel
def copy(x: In[f32, "N"], o: Out[D, "N"]): ...
def define():
    global D
    D = f16
"""


@LATE
def test_a_name_may_be_defined_between_the_kernel_and_its_call(future: str, tmp_path: Path) -> None:
    found = module(tmp_path, future, LATER)
    found.define()
    assert dtypes(found.copy.signature) == [f32, f16]


@LATE
def test_a_name_that_is_not_defined_is_reported_at_its_own_parameter(
    future: str, tmp_path: Path
) -> None:
    made = module(tmp_path, future, LATER).copy
    with pytest.raises(BadSignature, match="annotation of `o` uses a name that is not") as caught:
        made.signature
    (span, _) = caught.value.places[0]
    assert span.column == len('def copy(x: In[f32, "N"], ')
    way_out = "move the name to the module" if future else "define the name before the kernel"
    assert way_out in caught.value.help


def test_a_kernel_shows_the_annotations_of_its_function(tmp_path: Path) -> None:
    source = "@kernel\ndef copy(x: In[f32, 'N'], o: Out[f32, 'N']): ...\n"
    made = module(tmp_path, "", source).copy
    assert inspect.get_annotations(made).keys() == {"x", "o"}
    assert inspect.get_annotations(made.on("emulator")).keys() == {"x", "o"}
    assert made.__annotations__ == made.__wrapped__.__annotations__
