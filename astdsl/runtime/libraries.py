"""What is particular to a library of arrays: reading one, making one, filling one, its stream.

Invariant: no library is imported here; one whose array a call passes is loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from astdsl.errors import BadArgument, DeviceError, DeviceUnavailable, UnsupportedFeature
from astdsl.ir.dtypes import BY_NAME, BY_NUMPY, DType, u8
from astdsl.runtime import dlpack
from astdsl.runtime.arrays import ArrayView, Where, strides_in_elements, view_of_numpy

ARRAY_LIBRARIES = "arrays of NumPy, PyTorch, CuPy, JAX and others with `__dlpack__` are accepted"
IMMUTABLE_LIBRARIES = ("jax", "jaxlib")

TORCH_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu",
}  # fmt: skip
_BY_TORCH = {f"torch.{theirs}": BY_NAME[ours] for ours, theirs in TORCH_NAMES.items()}
_BY_TORCH["torch.float4_e2m1fn_x2"] = u8  # two elements to a byte, and its shape counts bytes
LEGACY_STREAM = 0


def library_of(value: object) -> str:
    """Name the package that an array's type comes from."""
    return type(value).__module__.partition(".")[0]


def is_array(value: object) -> bool:
    """Whether a value is what an array parameter takes."""
    return (
        isinstance(value, np.ndarray)
        or hasattr(value, "__dlpack__")
        or hasattr(value, "__cuda_array_interface__")
    ) and not isinstance(value, np.generic)


def view_of(value: object, where: Where) -> ArrayView:
    """Describe an array argument.

    Raises BadArgument for what is no array, for strides that are no whole number of elements and
    for dtypes without a kernel type; DeviceUnavailable for arrays in memory that no kernel reads.
    """
    if isinstance(value, ArrayView):
        return value
    if isinstance(value, np.ndarray):
        return view_of_numpy(value, where)
    reader = READERS.get(library_of(value))
    if reader is not None and hasattr(value, "data_ptr"):
        return reader(value, where)
    if hasattr(value, "__cuda_array_interface__"):
        return read_interface(value, where)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return _read_dlpack(value, where)
    raise BadArgument(
        f"`{where.name}` takes an array, got {type(value).__name__}",
        where.place,
        help=f"{ARRAY_LIBRARIES}; `numpy.asarray` makes one",
    )


def _read_dlpack(value: Any, where: Where) -> ArrayView:
    library = library_of(value)
    try:
        tensor = dlpack.read(value)
    except dlpack.NotReadable as error:
        raise DeviceUnavailable(
            f"`{where.name}` is in memory of {error}, which no kernel reads",
            where.place,
            help="copy it to the host, for example by `.cpu()`",
        ) from None
    except dlpack.NotExported as error:
        raise BadArgument(
            f"`{where.name}` could not be read through `__dlpack__`: {error}",
            where.place,
            help=ARRAY_LIBRARIES,
        ) from None
    return ArrayView(
        tensor.address,
        tensor.shape,
        tensor.strides,
        tensor.dtype,
        tensor.writeable and library not in IMMUTABLE_LIBRARIES,
        tensor.owner,
        library,
        tensor.device,
    )


def read_torch(tensor: Any, where: Where) -> ArrayView:
    """Describe a tensor of PyTorch, in memory of the host or of a GPU."""
    dtype = _torch_dtype(tensor.dtype)
    place = tensor.device
    dense = str(tensor.layout) == "torch.strided"
    if dtype is None or not dense or place.type not in ("cpu", "cuda"):
        kind = "tensor" if dense else str(tensor.layout).removeprefix("torch.") + " tensor"
        raise BadArgument(
            f"`{where.name}` is a {kind} of {tensor.dtype} on {place}",
            where.place,
            help="kernels take dense tensors of real numbers on the CPU or a GPU of CUDA",
        )
    if tensor.is_neg():
        raise BadArgument(
            f"`{where.name}` is a view whose numbers stand negated in memory",
            where.place,
            help="pass `.resolve_neg()`",
        )
    if tensor.requires_grad:
        raise BadArgument(
            f"`{where.name}` requires a gradient, and a kernel records none",
            where.place,
            help="pass `.detach()`, or wrap the kernel in a torch.autograd.Function",
        )
    device = None if place.type == "cpu" else place.index
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # A tensor of a trace, or one that wraps others.
        raise BadArgument(
            f"`{where.name}` is a {type(tensor).__name__} without memory of its own",
            where.place,
            help="call the kernel outside of `torch.compile`, `vmap` and the like",
        ) from None
    return ArrayView(
        address,
        tuple(tensor.shape),
        tensor.stride(),
        dtype,
        True,
        tensor,
        "torch",
        device,
    )


@cache
def _torch_dtype(dtype: Any) -> DType | None:
    return _BY_TORCH.get(str(dtype))


def read_interface(value: Any, where: Where) -> ArrayView:
    """Describe an array with `__cuda_array_interface__`, version 2 or 3, in memory of a GPU."""
    interface = value.__cuda_array_interface__
    missing = [name for name in ("typestr", "shape", "data") if name not in interface]
    if missing:
        raise BadArgument(
            f"the `__cuda_array_interface__` of `{where.name}` has no {missing[0]!r}",
            where.place,
            help="it has at least 'shape', 'typestr', 'data' and 'version'",
        )
    numpy = np.dtype(interface["typestr"])
    dtype = BY_NUMPY.get(numpy)
    if dtype is None:
        raise BadArgument(f"`{where.name}` has dtype {numpy}", where.place, help="convert it first")
    shape = tuple(interface["shape"])
    strides_bytes = interface.get("strides")
    if strides_bytes is None:
        strides_bytes = np.empty(0, numpy).strides if not shape else _row_major(shape, numpy)
    strides = strides_in_elements(shape, strides_bytes, numpy.itemsize, where)
    address, is_read_only = interface["data"]
    device = _ordinal(value, where)
    library = library_of(value)
    return ArrayView(address, shape, strides, dtype, not is_read_only, value, library, device)


def _row_major(shape: Sequence[int], numpy: np.dtype[Any]) -> tuple[int, ...]:
    strides, step = [], numpy.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _ordinal(value: Any, where: Where) -> int:
    """Return the number of the GPU that holds an array."""
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[1])
    if hasattr(value, "device") and isinstance(getattr(value.device, "id", None), int):
        return int(value.device.id)
    raise DeviceUnavailable(
        f"`{where.name}` does not say on which GPU it is",
        where.place,
        help="arrays with `__dlpack_device__` do, for example those of CuPy and PyTorch",
    )


def stream_of(arguments: Sequence[Any]) -> Callable[[], int]:
    """Return what asks for the stream of a launch: the current one of the arrays' library.

    `arguments` say of each array its `library` and `device`.
    """
    for argument in arguments:
        make = _STREAMS.get(argument.library)
        if make is not None and argument.device is not None:
            return make(argument.device)
    return lambda: LEGACY_STREAM


def _torch_stream(device: int) -> Callable[[], int]:
    current = sys.modules["torch"].cuda.current_stream
    return lambda: int(current(device).cuda_stream)


def _cupy_stream(device: int) -> Callable[[], int]:
    current = sys.modules["cupy"].cuda.get_current_stream
    return lambda: int(current().ptr)


_STREAMS: dict[str, Callable[[int], Callable[[], int]]] = {
    "torch": _torch_stream,
    "cupy": _cupy_stream,
}


def allocate(like: object, shape: tuple[int, ...], dtype: DType, where: Where) -> Any:
    """Return an unwritten array of the library, and on the device, of `like`; NumPy's for None."""
    library = "numpy" if like is None else library_of(like)
    make = _ALLOCATORS.get(library)
    if make is None and isinstance(like, np.ndarray):
        make = _numpy_empty
    if make is None:
        raise UnsupportedFeature(
            f"the omitted output `{where.name}` cannot be allocated with {library}",
            where.place,
            help=f"pass `{where.name}`",
        )
    try:
        return make(like, shape, dtype)
    except (MemoryError, ValueError):  # more than there is, or than NumPy counts
        raise DeviceError(
            f"there is no memory for the omitted output `{where.name}` of {shape} {dtype.name}",
            where.place,
            help=f"pass `{where.name}`, or call the kernel for parts of it",
        ) from None


def _numpy_empty(like: object, shape: tuple[int, ...], dtype: DType) -> Any:
    return np.empty(shape, dtype.numpy)


def _torch_empty(like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    try:
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], TORCH_NAMES[dtype.name]))
    except RuntimeError as error:  # what PyTorch raises, whatever the reason, for the CPU too
        raise MemoryError(str(error)) from None


def _cupy_empty(like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    with like.device:
        return sys.modules["cupy"].empty(shape, dtype.numpy)


# JAX's arrays are never written: the kernel writes one of NumPy, which JAX takes over afterwards.
_ALLOCATORS: dict[str, Callable[[Any, tuple[int, ...], DType], Any]] = {
    "numpy": _numpy_empty,
    "torch": _torch_empty,
    "cupy": _cupy_empty,
    "jax": _numpy_empty,
    "jaxlib": _numpy_empty,
}


def fill(view: ArrayView, number: float | int | bool, where: Where) -> None:
    """Set every element of an array in memory of a GPU."""
    owner: Any = view.owner
    make = getattr(owner, "fill_" if view.library == "torch" else "fill", None)
    if make is None:
        raise UnsupportedFeature(
            f"`{where.name}` starts filled, and arrays of {view.library} have no `fill`",
            where.place,
            help=f"leave `{where.name}` out, or pass an array of PyTorch or CuPy",
        )
    make(number)


def address_of(array: Any) -> int:
    """Return where an array of the host begins."""
    return int(array.address if isinstance(array, ArrayView) else array.ctypes.data)


def in_library(like: object, made: Any) -> Any:
    """Return an allocated output as an array of the library of `like`."""
    finish = _FINISHERS.get(library_of(like))
    return made if finish is None else finish(made)


def _jax_array(made: Any) -> Any:
    return sys.modules["jax"].numpy.asarray(made)


_FINISHERS: dict[str, Callable[[Any], Any]] = {"jax": _jax_array, "jaxlib": _jax_array}
FINISHED_LIBRARIES = frozenset(_FINISHERS)
READERS: dict[str, Callable[[Any, Where], ArrayView]] = {"torch": read_torch}
