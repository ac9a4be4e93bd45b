"""Arrays of f4e2m1 as bytes of two elements."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.errors import BadArgument
from astdsl.ir.dtypes import ALL, f4e2m1, f8e4m3, u8
from astdsl.ir.launch import MapSlot
from astdsl.runtime.arrays import Where
from astdsl.runtime.classes import Geometry
from astdsl.runtime.libraries import view_of
from astdsl.runtime.maps import map_fields
from astdsl.runtime.nibbles import elements_of, is_packed, shape_in_bytes
from astdsl.source import NOWHERE

X = Where("x", NOWHERE)


def test_bytes_are_packed_where_the_annotation_says_four_bits_and_not_bytes() -> None:
    view = view_of(np.zeros((4, 8), np.uint8), X)
    assert is_packed(view, (f4e2m1,))
    assert is_packed(view, (f8e4m3, f4e2m1))
    assert not is_packed(view, (f4e2m1, u8))
    assert not is_packed(view, ())
    assert not is_packed(view_of(np.zeros((4, 8), np.int8), X), (f4e2m1,))


def test_the_last_axis_holds_twice_as_many_elements() -> None:
    found = elements_of(view_of(np.zeros((4, 8), np.uint8), X), X)
    assert (found.shape, found.dtype) == ((4, 16), f4e2m1)
    assert shape_in_bytes(found.shape, X) == (4, 8)


@pytest.mark.parametrize("shape", [(), (4, 7)])
def test_an_output_of_half_a_byte_is_not_allocated(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadArgument, match="two f4e2m1 to a byte"):
        shape_in_bytes(shape, X)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_can_be_copied_by_a_tensor_map(dtype: object) -> None:
    geometry = Geometry((32, 64), (64, 1), dtype, 16)  # type: ignore[arg-type]
    found = map_fields(MapSlot(0, (1, 0), (16, 8), 0), geometry)
    assert found.strides_bytes == (64 * geometry.dtype.bytes,)
