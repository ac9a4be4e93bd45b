"""Replay saved kernels on a GPU, with NumPy and cuda-python only.

`python -m bench.gpu_smoke make FOLDER`, where astdsl is, saves kernels with inputs and what the
reference computes. `python gpu_smoke.py run FOLDER`, where a GPU is, launches them and compares:
it reads the files by itself, so it tells a fault of the code from one of astdsl's launcher.
"""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import argparse
import ctypes
import json
import operator
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-3
MAP_BYTES = 128
WITHOUT_GPU = (
    "run this where an NVIDIA driver and a GPU of compute capability 9.0 or 10.0 are; "
    "`astdsl run` with `--device emulator` runs a kernel without one"
)
TYPES = {"f2": "FLOAT16", "f4": "FLOAT32", "f8": "FLOAT64", "i4": "INT32", "i8": "INT64",
         "u4": "UINT32", "u8": "UINT64", "i2": "UINT16", "u2": "UINT16"}  # fmt: skip
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "minimum": min, "maximum": max, "negate": operator.neg, "absolute": abs,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "shift_left": operator.lshift, "shift_right": operator.rshift,
    "not": operator.not_, "select": lambda c, x, y: x if c else y, "least": min, "greatest": max,
    **dict.fromkeys(("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"), int),
    **dict.fromkeys(("f64", "f32", "tf32", "f16", "bf16"), float), "bool": bool,
}  # fmt: skip
Array = np.ndarray[Any, Any]


def evaluated(expression: Any, arguments: Sequence[Array]) -> Any:
    """Return the number that a host expression of a launch plan is for these arguments."""
    if not isinstance(expression, list):
        return expression
    name, *operands = expression
    if name == "dim":
        return arguments[operands[0]].shape[operands[1]]
    if name == "scalar":
        return arguments[operands[0]].item()
    return OPERATIONS[name](*(evaluated(x, arguments) for x in operands))


def strides_of(array: Array) -> list[int]:
    """Return strides in elements; those of axes of extent 1 are free, and fit a tensor map."""
    long = [a for a in range(array.ndim) if array.shape[a] != 1]
    unit = max(1, 16 // array.itemsize)
    last = long[-1] if long else array.ndim - 1
    return [
        array.strides[a] // array.itemsize if a in long else 1 if a == last else unit
        for a in range(array.ndim)
    ]


class Gpu:
    """The first GPU; `api` is cuda.bindings.driver. Ends the program where there is none."""

    def __init__(self, api: Any) -> None:
        self.api = api
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:  # bindings raise one where they find no library
            sys.exit(f"no GPU can be used: {error}\n{WITHOUT_GPU}")
        device = self.call("cuDeviceGet", 0)
        self.call("cuCtxPushCurrent", self.call("cuDevicePrimaryCtxRetain", device))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; RuntimeError for what it refuses."""
        error, *results = getattr(self.api, name)(*arguments)
        if int(error):
            raise RuntimeError(f"{name}: error {int(error)}")
        return results[0] if results else None

    def encoded(self, slot: Sequence[Any], array: Array, address: int) -> bytes:
        """Return the bytes of a tensor map."""
        _, _, order, box, swizzle = slot
        strides, api = strides_of(array), self.api
        kind = TYPES.get(array.dtype.str[1:], "UINT8")
        made = self.call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
            len(order), address,
            [api.cuuint64_t(max(array.shape[a], 1)) for a in order],
            [api.cuuint64_t(strides[a] * array.itemsize) for a in order[1:]],
            [api.cuuint32_t(n) for n in box],
            [api.cuuint32_t(1) for _ in order],
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[swizzle]}"),
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        return ctypes.string_at(made.getPtr(), MAP_BYTES)

    def replay(self, saved: Path, arguments: Sequence[Array]) -> None:
        """Launch a saved kernel; the arrays are changed in place."""
        with zipfile.ZipFile(saved) as file:
            plan = json.loads(file.read("manifest.json"))["plan"]
            image = file.read("kernel.cubin")
        if plan["scratch"] or plan["reports"]:
            raise RuntimeError(f"{saved.name} needs scratch or a log, which this script has not")
        module = self.call("cuModuleLoadData", image)
        places = [self.call("cuMemAllocAsync", max(a.nbytes, 1), 0) for a in arguments]
        for array, place in zip(arguments, places, strict=True):
            self.call("cuMemcpyHtoDAsync", place, array.ctypes.data, array.nbytes, 0)
        for entry in plan["entries"]:
            self._launch(module, entry, arguments, list(map(int, places)))
        for array, place in zip(arguments, places, strict=True):
            self.call("cuMemcpyDtoHAsync", array.ctypes.data, place, array.nbytes, 0)
        self.call("cuStreamSynchronize", 0)
        for place in places:
            self.call("cuMemFreeAsync", place, 0)

    def _launch(
        self, module: Any, entry: Any, arguments: Sequence[Array], places: Sequence[int]
    ) -> None:
        function = self.call("cuModuleGetFunction", module, entry["name"].encode())
        limit = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, limit, entry["shared_bytes"])
        held = [self._bytes(slot, arguments[slot[1]], places[slot[1]]) for slot in entry["slots"]]
        # Tensor maps are aligned to 64 bytes.
        memory = [ctypes.create_string_buffer(len(x) + 64) for x in held]
        starts = [-(-ctypes.addressof(m) // 64) * 64 for m in memory]
        for start, content in zip(starts, held, strict=True):
            ctypes.memmove(start, content, len(content))
        pointers = (ctypes.c_void_p * max(len(starts), 1))(*starts)
        grid = int(evaluated(entry["grid"], arguments))
        if grid:
            self.call(
                "cuLaunchKernel", function, grid, 1, 1, entry["threads"], 1, 1,
                entry["shared_bytes"], 0, ctypes.addressof(pointers), 0,
            )  # fmt: skip

    def _bytes(self, slot: Sequence[Any], array: Array, address: int) -> bytes:
        numbers: dict[str, Callable[[], bytes]] = {
            "pointer": lambda: np.uint64(address).tobytes(),
            "scalar": array.tobytes,
            "dim": lambda: np.int64(array.shape[slot[2]]).tobytes(),
            "stride": lambda: np.int64(strides_of(array)[slot[2]]).tobytes(),
            "map": lambda: self.encoded(slot, array, address),
        }
        return numbers[slot[0]]()


def cases(folder: Path) -> Iterator[tuple[Path, list[Array], list[Array]]]:
    """Yield each saved kernel with its arguments before and after."""
    for saved in sorted(folder.glob("*.zip")):
        with np.load(saved.with_suffix(".npz"), allow_pickle=False) as held:
            count = len(held.files) // 2
            before = [held[f"before{k}"] for k in range(count)]
            yield saved, before, [held[f"after{k}"] for k in range(count)]


def run(api: Any, folder: Path) -> int:
    """Replay every case; return how many differ or cannot be launched."""
    if not any(folder.glob("*.zip")):
        sys.exit(f"{folder} holds no saved kernels: `python -m bench.gpu_smoke make FOLDER` does")
    gpu, wrong = Gpu(api), 0
    for saved, arguments, expected in cases(folder):
        try:
            gpu.replay(saved, arguments)
        except RuntimeError as error:
            wrong += 1
            print(f"{saved.stem}: cannot be launched, {error}")
            continue
        largest = max(_difference(a, b) for a, b in zip(arguments, expected, strict=True))
        is_good = largest <= TOLERANCE
        wrong += not is_good
        print(f"{saved.stem}: {'good' if is_good else 'WRONG'}, largest difference {largest:.3g}")
    return wrong


def _difference(found: Array, expected: Array) -> float:
    a, b = found.astype(np.float64), expected.astype(np.float64)
    scale = float(np.max(np.abs(b), initial=1.0))
    return float(np.max(np.abs(a - b), initial=0.0)) / scale


def make(folder: Path, target: str) -> None:
    """Save the kernels of the other benchmarks with inputs and what the reference computes."""
    from astdsl import kernel  # noqa: PLC0415 (the GPU's machine has no astdsl)
    from bench.kernels import add, matmul  # noqa: PLC0415

    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    x, y = (random.standard_normal((100, 300)).astype(np.float32) for _ in range(2))
    a = random.standard_normal((200, 136)).astype(np.float16)
    b = random.standard_normal((136, 264)).astype(np.float16)
    for function, given in ((add, [x, y]), (matmul, [a, b])):
        made = kernel(function)
        expected = made.on("reference")(*given)
        before, after = [*given, np.zeros_like(expected)], [*given, expected]
        path = folder / f"{function.__name__}-{target}.zip"
        made.lower(*given, target=target).save(path)
        held = {f"before{k}": array for k, array in enumerate(before)}
        held |= {f"after{k}": array for k, array in enumerate(after)}
        np.savez(path.with_suffix(".npz"), **held)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["make", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="sm_90a")
    chosen = parser.parse_args(arguments)
    if chosen.command == "make":
        try:
            make(chosen.folder, chosen.target)
        except OSError as error:
            sys.exit(f"nothing can be saved in {chosen.folder}: {error}")
        return 0
    try:
        from cuda.bindings import driver  # noqa: PLC0415 (only here is there a GPU)
    except ImportError as error:
        sys.exit(f"no GPU can be used: {error}\ninstall cuda-python, and {WITHOUT_GPU}")

    return 1 if run(driver, chosen.folder) else 0


if __name__ == "__main__":
    sys.exit(main())
