"""Arrays of any library become address, shape, strides and dtype."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.errors import AliasedOutput, BadArgument, DeviceUnavailable, UnsupportedFeature
from astdsl.ir.dtypes import bf16, f4e2m1, f16, f32, i32
from astdsl.runtime import dlpack
from astdsl.runtime.arrays import (
    ArrayView,
    Where,
    as_numpy,
    check_aliases,
    check_written,
)
from astdsl.runtime.libraries import allocate, view_of
from astdsl.source import NOWHERE

X, Y = Where("x", NOWHERE), Where("y", NOWHERE)


class Exported:
    """An array of another library: all that is known of it is `__dlpack__`."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def view(array: Any) -> ArrayView:
    return view_of(array, X)


def test_a_negative_stride_starts_at_its_element_0() -> None:
    array = np.arange(6, dtype=np.float32)
    seen = view(array[::-1])
    assert seen.strides == (-1,)
    assert seen.address == view(array).address + 5 * 4


def test_strides_count_elements() -> None:
    seen = view(np.zeros((4, 6), np.float16)[:, ::2])
    assert (seen.shape, seen.strides, seen.dtype) == ((4, 3), (6, 2), f16)


def test_a_broadcast_axis_has_stride_0() -> None:
    assert view(np.broadcast_to(np.float32(1), (3, 5))).strides == (0, 0)


def test_bfloat16_is_known() -> None:
    assert view(np.zeros(3, ml_dtypes.bfloat16)).dtype is bf16


def test_a_stride_inside_an_element_is_refused_in_words() -> None:
    rows = np.zeros(4, np.dtype([("a", np.int8), ("b", np.float32)]))
    with pytest.raises(BadArgument, match="stride of 5 bytes, which is no multiple of its 4-byte"):
        view(rows["b"])


def test_a_stride_that_nothing_steps_along_may_be_any_number() -> None:
    one = np.lib.stride_tricks.as_strided(np.ones(8, np.float32), (1, 8), (13, 4))
    assert view(one).shape == (1, 8)
    empty = np.lib.stride_tricks.as_strided(np.ones(8, np.float32), (3, 0), (13, 5))
    assert view(empty).shape == (3, 0)


def test_another_byte_order_is_refused_with_the_conversion() -> None:
    with pytest.raises(BadArgument, match=r"(?s)has dtype >f4.*astype\('float32'\)"):
        view(np.zeros(3, ">f4"))


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(BadArgument, match="complex64"):
        view(np.zeros(3, np.complex64))


def test_four_bit_floats_of_numpy_are_one_element_a_byte() -> None:
    found = view(np.zeros((3, 4), ml_dtypes.float4_e2m1fn)[:, ::2])
    assert (found.dtype, found.strides) == (f4e2m1, (4, 2))


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(BadArgument, match="masked array"):
        view(np.ma.zeros(3))


def test_a_list_is_refused() -> None:
    with pytest.raises(BadArgument, match="takes an array, got list"):
        view([1, 2])


class OnGpu:
    """An array in memory of GPU 1, as CuPy exports it."""

    def __init__(self, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3, 4), "typestr": "<f4", "data": (4096, True), "strides": strides,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


@pytest.mark.parametrize(
    ("strides", "elements"), [(None, (4, 1)), ((32, 8), (8, 2)), ((0, 4), (0, 1))]
)
def test_an_array_on_a_gpu_is_described(
    strides: tuple[int, ...] | None, elements: tuple[int, ...]
) -> None:
    seen = view(OnGpu(strides))
    assert (seen.address, seen.shape, seen.strides, seen.dtype) == (4096, (3, 4), elements, f32)
    assert (seen.device, seen.writeable) == (1, False)


def test_an_array_that_does_not_say_its_gpu_is_refused() -> None:
    class Nowhere:
        __cuda_array_interface__ = OnGpu().__cuda_array_interface__

    with pytest.raises(DeviceUnavailable, match="on which GPU"):
        view(Nowhere())


@pytest.mark.parametrize("missing", ["shape", "typestr", "data"])
def test_an_interface_that_leaves_out_what_it_must_say_is_refused(missing: str) -> None:
    array = OnGpu()
    del array.__cuda_array_interface__[missing]
    with pytest.raises(BadArgument, match=f"of `x` has no '{missing}'"):
        view(array)


def test_dlpack_gives_the_same_memory() -> None:
    array = np.zeros((4, 6), np.int32)
    foreign = Exported(array[1:, ::2])
    seen = view(foreign)
    assert (seen.shape, seen.strides, seen.dtype) == ((3, 3), (6, 2), i32)
    as_numpy(seen)[...] = 7
    assert (array[1:, ::2] == 7).all()
    assert array.sum() == 7 * 9


def test_dlpack_keeps_read_only_arrays_read_only() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    seen = view(Exported(array))
    assert not seen.writeable
    assert not as_numpy(seen).flags.writeable


def test_dlpack_of_a_device_that_no_kernel_reads_is_refused_by_name() -> None:
    class Elsewhere(Exported):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (10, 0)

    with pytest.raises(DeviceUnavailable, match="memory of ROCm"):
        view(Elsewhere(np.zeros(3)))


def test_dlpack_without_a_version_is_read_too() -> None:
    class Old(Exported):
        def __dlpack__(self) -> Any:  # type: ignore[override]
            return self._array.__dlpack__()

    array = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(as_numpy(view(Old(array))), array)


def test_a_library_that_refuses_to_export_is_quoted() -> None:
    class Refusing(Exported):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires grad")

    with pytest.raises(BadArgument, match="it requires grad"):
        view(Refusing(np.zeros(3)))


def test_dlpack_reads_bfloat16() -> None:
    class Capsule:
        """A bfloat16 array, exported by hand: NumPy exports none."""

        def __init__(self) -> None:
            self.data = np.arange(3).astype(ml_dtypes.bfloat16)
            self.shape = (ctypes.c_int64 * 1)(3)
            self.tensor = _dl_tensor(self.data.ctypes.data, self.shape)

        def __dlpack__(self) -> Any:
            make = ctypes.pythonapi.PyCapsule_New
            make.restype = ctypes.py_object
            make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return make(ctypes.addressof(self.tensor), b"dltensor", None)

    seen = view(Capsule())
    assert (seen.dtype, seen.strides) == (bf16, (1,))
    assert as_numpy(seen).astype(np.float32).tolist() == [0, 1, 2]


def _dl_tensor(address: int, shape: Any) -> Any:
    pointer = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    return dlpack._Tensor(address, 1, 0, 1, 4, 16, 1, pointer, None, 0)


def aliased(x: Any, y: Any) -> None:
    check_aliases([view_of(x, X), view_of(y, Y)], [False, True], [X, Y])


def test_an_output_that_is_an_input_is_refused() -> None:
    array = np.zeros(8, np.float32)
    with pytest.raises(AliasedOutput, match="the output `y` shares memory with `x`"):
        aliased(array, array)


def test_overlapping_slices_are_refused() -> None:
    array = np.zeros(8, np.float32)
    with pytest.raises(AliasedOutput):
        aliased(array[:5], array[4:])


def test_interleaved_columns_share_nothing() -> None:
    array = np.zeros((4, 8), np.float32)
    aliased(array[:, :4], array[:, 4:])
    aliased(array[:, ::2], array[:, 1::2])


def test_two_inputs_may_be_the_same() -> None:
    array = np.zeros(8, np.float32)
    views = [view_of(array, X), view_of(array, Y)]
    check_aliases(views, [False, False], [X, Y])


def test_two_outputs_may_not_be_the_same() -> None:
    array = np.zeros(8, np.float32)
    views = [view_of(array, X), view_of(array, Y)]
    with pytest.raises(AliasedOutput):
        check_aliases(views, [True, True], [X, Y])


def test_a_read_only_output_is_refused() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    with pytest.raises(BadArgument, match="read-only"):
        check_written(view(array), X)


@pytest.mark.parametrize("shape", [(4, 3), (0, 3), (1, 1)])
def test_an_output_of_distinct_elements_is_accepted(shape: tuple[int, int]) -> None:
    check_written(view(np.zeros(shape, np.float32)[::-1]), X)


def test_an_output_whose_elements_share_memory_is_refused() -> None:
    base = np.zeros(8, np.float32)
    windows = np.lib.stride_tricks.as_strided(base, (3, 4), (8, 4), writeable=True)
    with pytest.raises(BadArgument, match="elements of this array share memory"):
        check_written(view(windows), X)


def test_an_output_is_allocated_with_the_library_of_the_first_array() -> None:
    made = allocate(np.zeros(3), (2, 5), bf16, X)
    assert (made.shape, made.dtype) == ((2, 5), ml_dtypes.bfloat16)


def test_an_unknown_library_cannot_allocate() -> None:
    with pytest.raises(UnsupportedFeature, match="cannot be allocated with tests"):
        allocate(Exported(np.zeros(3)), (2,), f32, X)
