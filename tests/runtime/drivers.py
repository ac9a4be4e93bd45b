"""A CUDA driver for tests: its memory is the host's, a launch is a function of the test."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from astdsl.runtime.maps import MapFields

SUCCESS, INVALID_VALUE, NO_DEVICE = 0, 1, 100
NAMES = {INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", NO_DEVICE: b"CUDA_ERROR_NO_DEVICE"}
WORDS = {INVALID_VALUE: b"invalid argument", NO_DEVICE: b"no CUDA-capable device is detected"}

# What a test does at a launch: the entry's name, the grid, and the addresses of the parameters.
Run = Callable[[str, int, Sequence[int]], None]


class _Names:
    """An enumeration of the driver whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class Map:
    """An encoded tensor map."""

    def __init__(self, text: str) -> None:
        self._memory = ctypes.create_string_buffer(text.encode(), 128)

    def getPtr(self) -> int:  # noqa: N802 (the driver's name)
        return ctypes.addressof(self._memory)


class StubApi:
    """Stands for cuda.bindings.driver; `calls` notes what was called, `failing` what fails."""

    CUdevice_attribute = CUfunction_attribute = CUtensorMapDataType = _Names()
    CUtensorMapInterleave = CUtensorMapSwizzle = CUtensorMapL2promotion = _Names()
    CUtensorMapFloatOOBfill = _Names()
    cuuint32_t = cuuint64_t = int

    def __init__(
        self, run: Run = lambda *_: None, parameters: int = 0, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing: dict[str, int] = {}
        self.contexts: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.gpus = 2
        self._run = run
        self._parameters = parameters
        self._capability = capability

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        meaning = getattr(type(self), f"_{name}", None)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in self.failing:
                return (self.failing[name], None)
            made = None if meaning is None else meaning(self, *arguments)
            return (SUCCESS,) if made is None else (SUCCESS, made)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def _cuGetErrorName(self, error: int) -> bytes:  # noqa: N802
        return NAMES[error]

    def _cuGetErrorString(self, error: int) -> bytes:  # noqa: N802
        return WORDS[error]

    def _cuDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpus

    def _cuDeviceGet(self, ordinal: int) -> int:  # noqa: N802
        return ordinal

    def _cuDeviceGetName(self, length: int, device: int) -> bytes:  # noqa: N802
        return b"Stub GPU\0"

    def _cuDeviceGetAttribute(self, kind: str, device: int) -> int:  # noqa: N802
        return self._capability[kind.endswith("MINOR")]

    def _cuDevicePrimaryCtxRetain(self, device: int) -> str:  # noqa: N802
        return f"context {device}"

    def _cuCtxPushCurrent(self, context: Any) -> None:  # noqa: N802
        self.contexts.append(context)

    def _cuCtxPopCurrent(self) -> Any:  # noqa: N802
        return self.contexts.pop()

    def _cuModuleLoadData(self, image: bytes) -> Any:  # noqa: N802
        return SimpleNamespace(image=image)

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> str:  # noqa: N802
        return name.decode()

    def _cuMemAllocAsync(self, size: int, stream: int) -> int:  # noqa: N802
        array = np.zeros(size + 256, np.uint8)
        address = -(-array.ctypes.data // 256) * 256
        self.memory[address] = array
        return address

    def _cuMemFreeAsync(self, address: int, stream: int) -> None:  # noqa: N802
        del self.memory[address]

    def _cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(to, source, size)

    _cuMemcpyDtoHAsync = _cuMemcpyHtoDAsync  # noqa: N815

    def _cuTensorMapEncodeTiled(self, kind: str, rank: int, address: int, *rest: Any) -> Map:  # noqa: N802
        dims, strides, box = (tuple(numbers) for numbers in rest[:3])
        fields = MapFields(kind.rpartition("_")[2], dims, strides, box, 0)
        return Map(f"{rank} {address} {fields.dims} {fields.strides_bytes} {fields.box}")

    def _cuLaunchKernel(self, function: str, grid: int, *rest: Any) -> None:  # noqa: N802
        pointers = (ctypes.c_void_p * self._parameters).from_address(rest[-2])
        self._run(function, grid, [int(p or 0) for p in pointers])
