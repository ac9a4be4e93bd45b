"""Launching on a GPU through the driver.

A kernel is loaded once for arguments of one geometry on one GPU. A launch writes addresses and
scalars into the parameters, which stand ready, and calls the driver. Arrays of the host are copied
to the GPU and back. Tensor maps are made once for each address.

Invariant: what a launch passes lives until the driver has copied it; the caller's context is
current again afterwards.
Source: CUDA driver API, cuLaunchKernel, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from astdsl.errors import DeviceError, WrongTarget
from astdsl.ir.launch import (
    LOG_HEAD_WORDS,
    DimSlot,
    Entry,
    LaunchPlan,
    MapSlot,
    PointerSlot,
    ScalarSlot,
    Slot,
    StrideSlot,
)
from astdsl.runtime import libraries, reports
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import launch_strides
from astdsl.runtime.driver import Driver, Gpu
from astdsl.runtime.launch import Argument, Counts
from astdsl.runtime.maps import MapFields, map_fields
from astdsl.runtime.scratch import scratch_argument, scratch_reach_bytes

MAP_BYTES = 128
# Parameters are aligned to their size, tensor maps to 64 bytes.
PARAMETER_ALIGN_BYTES = 64
# What cuMemAlloc promises; an array of the host keeps its place within it.
ALLOCATION_ALIGN_BYTES = 256
MAX_MAPS = 1024
_DRIVER_TYPES = {
    "U8": "UINT8", "U16": "UINT16", "U32": "UINT32", "S32": "INT32", "U64": "UINT64",
    "S64": "INT64", "F16": "FLOAT16", "F32": "FLOAT32", "F64": "FLOAT64", "BF16": "BFLOAT16",
}  # fmt: skip
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def load(driver: Driver, artifact: Artifact, arguments: Sequence[Argument]) -> CudaLauncher:
    """Load a kernel on the GPU of its arguments, the first GPU where all are in host memory.

    Raises WrongTarget for another GPU's code, DeviceError for what the driver refuses.
    """
    plan = artifact.plan
    assert plan is not None, "a GPU launches by a plan"
    ordinals = {a.device for a in arguments if a.device is not None}
    if len(ordinals) > 1:
        named = ", ".join(f"`{a.where.name}` on GPU {a.device}" for a in arguments if a.device)
        raise DeviceError(
            f"the arrays are on different GPUs: {named}", help="copy them to one of them"
        )
    gpu = driver.gpus[ordinals.pop() if ordinals else 0]
    if plan.target != gpu.target:
        raise WrongTarget(
            f"the kernel is compiled for {plan.target}, and GPU {gpu.ordinal} ({gpu.name}) "
            f"runs {gpu.target or 'no target of ours'}",
            help="leave the target out, or use the emulator for another GPU's code",
        )
    return CudaLauncher(driver, gpu, artifact, arguments)


class CudaLauncher:
    """A kernel loaded on one GPU for arguments of one geometry."""

    def __init__(
        self, driver: Driver, gpu: Gpu, artifact: Artifact, arguments: Sequence[Argument]
    ) -> None:
        assert artifact.plan is not None, "a GPU launches by a plan"
        self._driver = driver
        self._gpu = gpu
        self._plan: LaunchPlan = artifact.plan
        self._arguments = tuple(arguments)
        self._lock = Lock()
        self._hosted = [
            (i, a) for i, a in enumerate(arguments) if a.geometry is not None and a.device is None
        ]
        self._stream = libraries.stream_of(arguments)
        # What a launch with temporary memory passes has other parameters each time.
        self._is_direct = not (self._hosted or self._plan.scratch or self._plan.reports)
        with self._context():
            image = artifact.cubin or artifact.ptx.encode() + b"\0"
            module = driver.call("cuModuleLoadData", image)
            self._functions = [self._function(module, entry) for entry in self._plan.entries]
        self._entries = (
            [_Parameters(driver, entry, self._arguments) for entry in self._plan.entries]
            if self._is_direct
            else []
        )

    def _function(self, module: Any, entry: Entry) -> Any:
        function = self._driver.call("cuModuleGetFunction", module, entry.name.encode())
        kinds = self._driver.api.CUfunction_attribute
        kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._driver.call("cuFuncSetAttribute", function, kind, entry.shared_bytes)
        return function

    @contextmanager
    def _context(self) -> Iterator[None]:
        self._driver.call("cuCtxPushCurrent", self._gpu.context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent")

    def __call__(self, counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Run the launches one after the other on the current stream of the arrays' library."""
        stream = self._stream()
        with self._lock, self._context():
            if self._is_direct:
                self._launch(self._entries, counts, values, stream)
            else:
                _Temporary(self, stream).run(counts, values, arrays)

    def _launch(
        self, entries: Sequence[_Parameters], counts: Counts, values: Sequence[Any], stream: int
    ) -> None:
        launches = zip(self._plan.entries, entries, self._functions, counts.grids, strict=True)
        for entry, parameters, function, grid in launches:
            if grid:
                self.launch(entry, function, grid, parameters.filled(values), stream)

    def launch(self, entry: Entry, function: Any, grid: int, parameters: int, stream: int) -> None:
        """Call the driver: `parameters` is the address of the parameters' addresses."""
        error, *_ = self._driver.api.cuLaunchKernel(
            function, grid, 1, 1, entry.threads, 1, 1, entry.shared_bytes, stream, parameters, 0
        )
        if int(error):
            raise self._driver.failure("cuLaunchKernel", error)


class _Temporary:
    """One call that needs memory of its own on the GPU: copies of host arrays, scratch, the log."""

    def __init__(self, launcher: CudaLauncher, stream: int) -> None:
        self._launcher = launcher
        self._call = launcher._driver.call
        self._stream = stream
        self._taken: list[Any] = []

    def run(self, counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        launcher, plan = self._launcher, self._launcher._plan
        try:
            values = list(values)
            for position, argument in launcher._hosted:
                values[position] = self._copy_in(argument, values[position])
            shaped = [
                scratch_argument(each, shape)
                for each, shape in zip(plan.scratch, counts.scratch, strict=True)
            ]
            values += [self._take(scratch_reach_bytes(each)) for each in shaped]
            if plan.reports:
                shaped.append(reports.log_argument())
                values.append(self._new_log())
            self._launch_all((*launcher._arguments, *shaped), counts, values)
            self._copy_out(values, launcher._hosted, arrays)
        finally:
            for memory in self._taken:
                self._call("cuMemFreeAsync", memory, self._stream)

    def _launch_all(
        self, arguments: Sequence[Argument], counts: Counts, values: Sequence[Any]
    ) -> None:
        launcher, plan = self._launcher, self._launcher._plan
        launches = zip(plan.entries, launcher._functions, counts.grids, strict=True)
        for entry, function, grid in launches:
            if grid:
                parameters = _Parameters(launcher._driver, entry, arguments)
                launcher.launch(entry, function, grid, parameters.filled(values), self._stream)
            if plan.reports:
                reports.deliver(self._read_log(values[-1]), plan.reports)
                self._write(values[-1], reports.head_of_log())

    def _take(self, size_bytes: int) -> int:
        memory = self._call("cuMemAllocAsync", max(size_bytes, 1), self._stream)
        self._taken.append(memory)
        return int(memory)

    def _copy_in(self, argument: Argument, address: int) -> int:
        """Copy an array of the host; return the address of its first element on the GPU."""
        low, high = argument.offsets
        room = (address + low) % ALLOCATION_ALIGN_BYTES
        base = self._take(high - low + room) + room
        if high > low:
            self._call("cuMemcpyHtoDAsync", base, address + low, high - low, self._stream)
        return base - low

    def _copy_out(
        self, values: Sequence[Any], hosted: Sequence[tuple[int, Argument]], arrays: Sequence[Any]
    ) -> None:
        for position, argument in hosted:
            low, high = argument.offsets
            if argument.is_written and high > low:
                host = libraries.address_of(arrays[position]) + low
                device = values[position] + low
                self._call("cuMemcpyDtoHAsync", host, device, high - low, self._stream)
        if hosted:
            self._call("cuStreamSynchronize", self._stream)

    def _new_log(self) -> int:
        size_bytes = reports.LOG_WORDS * 4
        log = self._take(size_bytes)
        self._call("cuMemsetD8Async", log, 0, size_bytes, self._stream)
        self._write(log, reports.head_of_log())
        return log

    def _write(self, device: int, words: reports.Words) -> None:
        host = words.__array_interface__["data"][0]
        self._call("cuMemcpyHtoDAsync", device, host, words.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def _read_log(self, log: int) -> reports.Words:
        head = self._read(log, LOG_HEAD_WORDS)
        return self._read(log, min(int(head[0]), reports.LOG_WORDS))

    def _read(self, device: int, words: int) -> reports.Words:
        read = np.zeros(words, np.uint32)
        host = read.__array_interface__["data"][0]
        self._call("cuMemcpyDtoHAsync", host, device, read.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        return read


class _Parameters:
    """The parameters of one entry in memory: dims and strides are there, the rest is written."""

    def __init__(self, driver: Driver, entry: Entry, arguments: Sequence[Argument]) -> None:
        self._driver = driver
        sizes = [_SIZES[type(slot)](slot) for slot in entry.slots]
        offsets, end = [], 0
        for size in sizes:
            align = min(size, PARAMETER_ALIGN_BYTES)
            offsets.append(-(-end // align) * align)
            end = offsets[-1] + size
        self._memory = (ctypes.c_char * (end + PARAMETER_ALIGN_BYTES))()
        base = -(-ctypes.addressof(self._memory) // PARAMETER_ALIGN_BYTES) * PARAMETER_ALIGN_BYTES
        self._pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(base + o for o in offsets))
        self._address = ctypes.addressof(self._pointers)
        self._writers: list[tuple[int, Callable[[Any], None]]] = []
        self._scalars: list[tuple[int, Callable[[Any], None]]] = []
        self._last: list[Any] = []
        for slot, offset in zip(entry.slots, offsets, strict=True):
            self._prepare(slot, arguments[slot.param], base + offset)

    def _prepare(self, slot: Slot, argument: Argument, address: int) -> None:
        write = _WRITERS[type(slot)](self._driver, slot, argument, address)
        if write is not None:
            is_scalar = isinstance(slot, ScalarSlot)
            (self._scalars if is_scalar else self._writers).append((slot.param, write))

    def filled(self, values: Sequence[Any]) -> int:
        """Write what a launch passes; return the address of the parameters' addresses."""
        if values != self._last:
            self._last = list(values)
            for param, write in self._writers:
                write(values[param])
        # Numbers that compare equal, 0.0 and -0.0, are not always the same.
        for param, write in self._scalars:
            write(values[param])
        return self._address


def _write_pointer(
    driver: Driver, slot: PointerSlot, argument: Argument, address: int
) -> Callable[[Any], None]:
    cell = ctypes.c_uint64.from_address(address)

    def write(value: Any) -> None:
        cell.value = value

    return write


def _write_scalar(
    driver: Driver, slot: ScalarSlot, argument: Argument, address: int
) -> Callable[[Any], None]:
    size = slot.dtype.numpy.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    cell: np.ndarray[Any, Any] = np.ndarray((1,), slot.dtype.numpy, memory)

    def write(value: Any) -> None:
        cell[0] = value

    return write


def _write_dim(driver: Driver, slot: DimSlot, argument: Argument, address: int) -> None:
    assert argument.geometry is not None, "a dim is an array's"
    ctypes.c_int64.from_address(address).value = argument.geometry.shape[slot.axis]


def _write_stride(driver: Driver, slot: StrideSlot, argument: Argument, address: int) -> None:
    assert argument.geometry is not None, "a stride is an array's"
    ctypes.c_int64.from_address(address).value = launch_strides(argument.geometry)[slot.axis]


def _write_map(
    driver: Driver, slot: MapSlot, argument: Argument, address: int
) -> Callable[[Any], None]:
    assert argument.geometry is not None, "a tensor map is an array's"
    fields = map_fields(slot, argument.geometry)
    kept: dict[int, bytes] = {}

    def write(array: int) -> None:
        found = kept.get(array)
        if found is None:
            if len(kept) >= MAX_MAPS:
                kept.clear()
            found = kept[array] = encode_map(driver, fields, array)
        ctypes.memmove(address, found, MAP_BYTES)

    return write


def encode_map(driver: Driver, fields: MapFields, address: int) -> bytes:
    """Return the driver's 128 bytes of a tensor map."""
    api = driver.api
    encoded = driver.call(
        "cuTensorMapEncodeTiled",
        getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_DRIVER_TYPES[fields.type]}"),
        len(fields.dims),
        address,
        [api.cuuint64_t(n) for n in fields.dims],
        [api.cuuint64_t(n) for n in fields.strides_bytes],
        [api.cuuint32_t(n) for n in fields.box],
        [api.cuuint32_t(1) for _ in fields.dims],
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[fields.swizzle_bytes]}"),
        api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(encoded.getPtr(), MAP_BYTES)


_SIZES: dict[type, Callable[[Any], int]] = {
    PointerSlot: lambda slot: 8,
    ScalarSlot: lambda slot: int(slot.dtype.numpy.itemsize),
    DimSlot: lambda slot: 8,
    StrideSlot: lambda slot: 8,
    MapSlot: lambda slot: MAP_BYTES,
}
_WRITERS: dict[type, Callable[[Driver, Any, Argument, int], Callable[[Any], None] | None]] = {
    PointerSlot: _write_pointer,
    ScalarSlot: _write_scalar,
    DimSlot: _write_dim,
    StrideSlot: _write_stride,
    MapSlot: _write_map,
}
