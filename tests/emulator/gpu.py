"""Runs PTX on a GPU as the emulator runs it, so that its tests of values can be asked there.

Invariant: `run` changes the arrays that it is given as a launch on the GPU does, and nothing else;
what only the emulator knows (schedules, checks) is ignored.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from astdsl.emulator import TensorMap
from astdsl.runtime.driver import Driver

PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+\w+\s*(\[\d+\])?")
ALIGN_BYTES = 256


class Memory:
    """Copies of host arrays on the GPU, each at the same place in its 256 bytes."""

    def __init__(self, driver: Driver) -> None:
        self._call = driver.call
        self._copies: list[tuple[Any, int, int]] = []

    def address(self, array: np.ndarray[Any, Any]) -> int:
        """Return where an array is on the GPU; it is copied there once."""
        for known, base, _ in self._copies:
            if known is array:
                return base
        room = array.ctypes.data % ALIGN_BYTES
        taken = int(self._call("cuMemAllocAsync", array.nbytes + room, 0))
        self._copies.append((array, taken + room, taken))
        self._call("cuMemcpyHtoDAsync", taken + room, array.ctypes.data, array.nbytes, 0)
        return taken + room

    def bring_back(self) -> None:
        """Copy everything back, and free it."""
        for array, base, taken in self._copies:
            if array.flags.writeable:
                self._call("cuMemcpyDtoHAsync", array.ctypes.data, base, array.nbytes, 0)
            self._call("cuMemFreeAsync", taken, 0)
        self._call("cuStreamSynchronize", 0)


def runner(driver: Driver) -> Callable[..., None]:
    """Return a function with the signature of `astdsl.emulator.run` that uses the first GPU."""
    gpu, api = driver.gpus[0], driver.api

    def run(
        ptx: str, kernel: str, grid: Sequence[int], block: Sequence[int], args: Sequence[Any],
        *, cluster: Sequence[int] | None = None, shared_bytes: int = 0, **ignored: Any,
    ) -> None:  # fmt: skip
        text = re.sub(r"\.target \w+", f".target {gpu.target}", ptx)
        driver.call("cuCtxPushCurrent", gpu.context)
        try:
            module = driver.call("cuModuleLoadData", text.encode() + b"\0")
            function = driver.call("cuModuleGetFunction", module, kernel.encode())
            kind = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.call("cuFuncSetAttribute", function, kind, shared_bytes)
            memory = Memory(driver)
            head = text[text.index(f".entry {kernel}") :].split("{", 1)[0]
            kinds = [name for name, _ in PARAMETER.findall(head)]
            held = [_value(driver, memory, *pair) for pair in zip(kinds, args, strict=True)]
            pointers = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
            shape = [*grid, 1, 1][:3], [*block, 1, 1][:3], [*(cluster or ()), 1, 1, 1][:3]
            _launch(driver, function, shape, shared_bytes, ctypes.addressof(pointers))
            driver.call("cuStreamSynchronize", 0)
            memory.bring_back()
        finally:
            driver.call("cuCtxPopCurrent")

    return run


def _launch(
    driver: Driver, function: Any, shape: tuple[list[int], ...], shared: int, pointers: int
) -> None:
    grid, block, cluster = shape
    if cluster == [1, 1, 1]:
        driver.call("cuLaunchKernel", function, *grid, *block, shared, 0, pointers, 0)
        return
    api, config = driver.api, driver.api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared, 0
    attribute = api.CUlaunchAttribute()
    attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimension = attribute.value.clusterDim
    dimension.x, dimension.y, dimension.z = cluster
    config.attrs, config.numAttrs = [attribute], 1
    driver.call("cuLaunchKernelEx", config, function, pointers, 0)


def _value(driver: Driver, memory: Memory, kind: str, argument: Any) -> np.ndarray[Any, Any]:
    """Return the bytes of a parameter, at an address that it may have."""
    room = np.zeros(256, np.uint8)
    place = room[-room.ctypes.data % 64 :]
    if isinstance(argument, TensorMap):
        encoded = _encoded(driver, memory, argument)
        ctypes.memmove(place.ctypes.data, encoded.getPtr(), 128)
        return place
    is_array = isinstance(argument, np.ndarray)
    number = memory.address(argument) if is_array else argument
    letter, size = ("f" if kind[0] == "f" else "i" if kind[0] == "s" else "u"), int(kind[1:]) // 8
    place[:size] = np.array([number], f"{letter}{size}").view(np.uint8)
    return place


def _encoded(driver: Driver, memory: Memory, map_: TensorMap) -> Any:
    api, (array,) = driver.api, map_.arrays
    address = memory.address(array) + map_.address - array.ctypes.data

    def numbers(make: Any, values: Sequence[int]) -> list[Any]:
        return [make(value) for value in values]

    return driver.call(
        "cuTensorMapEncodeTiled", api.CUtensorMapDataType(int(map_.dtype)), map_.rank, address,
        numbers(api.cuuint64_t, map_.dims), numbers(api.cuuint64_t, map_.strides_bytes),
        numbers(api.cuuint32_t, map_.box), numbers(api.cuuint32_t, map_.element_strides),
        api.CUtensorMapInterleave(int(map_.interleave)), api.CUtensorMapSwizzle(int(map_.swizzle)),
        api.CUtensorMapL2promotion(0), api.CUtensorMapFloatOOBfill(int(map_.out_of_bounds)),
    )  # fmt: skip
