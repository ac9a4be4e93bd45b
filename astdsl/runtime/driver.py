"""The CUDA driver: its GPUs, and its calls with every error reported.

Invariant: a call that fails is a DeviceError with the driver's name and number of the error.
Source: CUDA driver API; cuda.bindings.driver, whose functions return (error, *results).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from astdsl.errors import DeviceError
from astdsl.records import dataclass

# Compute capability -> the target whose code it runs; `a` targets run on no other GPU.
TARGETS = {(9, 0): "sm_90a", (10, 0): "sm_100a"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number, its name, its compute capability, and its primary context."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    context: Any

    @property
    def target(self) -> str:
        """The target that this GPU runs; empty for none."""
        return TARGETS.get(self.capability, "")


class Driver:
    """The driver through `api`, which is cuda.bindings.driver or what stands for it in a test."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; return its one result, or None."""
        error, *results = getattr(self.api, name)(*arguments)
        if int(error):
            raise self.failure(name, error)
        return results[0] if results else None

    def failure(self, name: str, error: Any) -> DeviceError:
        """Return the error of a call that failed."""
        _, code = self.api.cuGetErrorName(error)
        _, words = self.api.cuGetErrorString(error)
        return DeviceError(
            f"{name}: {_text(words)} [{_text(code)}, {int(error)}]",
            help='the device "emulator" runs the same PTX and says where it goes wrong',
        )

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU of the machine. Raises DeviceError where the driver does not start."""
        self.call("cuInit", 0)
        return tuple(map(self._gpu, range(self.call("cuDeviceGetCount"))))

    def _gpu(self, ordinal: int) -> Gpu:
        device = self.call("cuDeviceGet", ordinal)
        kinds = self.api.CUdevice_attribute
        major, minor = (
            self.call("cuDeviceGetAttribute", kind, device)
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        name = _text(self.call("cuDeviceGetName", 128, device))
        return Gpu(ordinal, name, (major, minor), self.call("cuDevicePrimaryCtxRetain", device))

    def why_not(self) -> str:
        """Say why no GPU here runs our kernels; empty where the first one does."""
        try:
            gpus = self.gpus
        except DeviceError as error:
            return error.message
        if not gpus:
            return "the driver finds no GPU"
        if not gpus[0].target:
            wanted = " and ".join(f"{a}.{b}" for a, b in TARGETS)
            found = "{}.{}".format(*gpus[0].capability)
            return f"{gpus[0].name} has compute capability {found}; {wanted} are supported"
        return ""


def _text(words: Any) -> str:
    return words.decode().rstrip("\0") if isinstance(words, bytes) else str(words)
