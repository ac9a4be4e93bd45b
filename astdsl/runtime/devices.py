"""The devices: which there are, which one is chosen, and how each runs a kernel.

Invariant: this module, `native.py`, `backend.py` and `on_demand.py` hold the package's only late
imports; choosing or listing a device loads nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from astdsl.errors import DeviceError, DeviceUnavailable, did_you_mean
from astdsl.ir.core import OUT, SCRATCH
from astdsl.ir.launch import DimSlot, MapSlot, PointerSlot, ScalarSlot, Slot, StrideSlot
from astdsl.records import dataclass
from astdsl.runtime import reports
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.classes import launch_strides
from astdsl.runtime.emulation import check_options, emulated, emulation
from astdsl.runtime.launch import Argument, Counts, Launcher, array_of
from astdsl.runtime.maps import map_fields
from astdsl.runtime.scratch import scratch_argument, scratch_array
from astdsl.source import Span, source_line

if TYPE_CHECKING:
    from typing import Unpack

    from astdsl.runtime.emulation import Emulation

DEFAULT_TARGET = "sm_90a"
DRIVER_LIBRARY = "libcuda.so.1"


class Device(Protocol):
    """Something that runs kernels.

    `needs_ptx` says what it runs: PTX, or the typed IR.
    """

    name: str
    description: str
    needs_ptx: bool

    @property
    def needs_cubin(self) -> bool:
        """Whether it wants the PTX assembled."""

    def target(self) -> str:
        """Name the target that this device asks for; empty if any will do."""

    def missing(self) -> str:
        """Say why this device cannot be used here; empty if it can."""

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Return the launcher of a kernel for arguments of one geometry."""


class Reference:
    """Evaluates the typed IR with NumPy."""

    name = "reference"
    description = "evaluates the typed IR with NumPy"
    needs_ptx = False
    needs_cubin = False

    def target(self) -> str:
        """Any target will do."""
        return ""

    def missing(self) -> str:
        """Nothing is missing: it is a part of the package."""
        return ""

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Evaluate the module, which counts its own blocks and checks its own assertions."""
        from astdsl.ir.evaluate import evaluate

        module = artifact.module

        def launch(counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
            pairs = zip(arguments, values, arrays, strict=True)
            evaluate(module, [array_of(x) if a.geometry else v for a, v, x in pairs])

        return launch


class Emulator:
    """Runs the emitted PTX on the CPU."""

    name = "emulator"
    description = "runs the emitted PTX on the CPU"
    needs_ptx = True
    needs_cubin = False

    def target(self) -> str:
        """Any target will do."""
        return ""

    def missing(self) -> str:
        """Nothing is missing: it is a part of the package."""
        return ""

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Run the PTX by the launch plan."""
        from astdsl.emulator.arguments import Unwritten
        from astdsl.emulator.device import run
        from astdsl.emulator.faults import DeviceFault

        plan, ptx, warpgroups = artifact.plan, artifact.ptx, artifact.module.warpgroups
        assert plan is not None, "the emulator launches by a plan"

        def launch(counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
            memory = [
                array_of(x) if a.geometry else x for a, x in zip(arguments, arrays, strict=True)
            ]
            scratch = [
                scratch_argument(each, shape)
                for each, shape in zip(plan.scratch, counts.scratch, strict=True)
            ]
            made = [scratch_array(each) for each in scratch]
            log = reports.new_log() if plan.reports else None
            if log is not None:
                scratch, made = [*scratch, reports.log_argument()], [*made, log]
            every, memory = [*arguments, *scratch], [*memory, *made]
            addresses = [*values, *(x.__array_interface__["data"][0] for x in made)]
            unwritten = {i: Unwritten(x) for i, x in _unwritten(every, memory)}
            options = emulation()
            for entry, grid in zip(plan.entries, counts.grids, strict=True):
                given = [_encode(slot, every, addresses, memory) for slot in entry.slots]
                passed = {slot.param for slot in entry.slots}
                try:
                    run(
                        ptx, entry.name, (grid, 1, 1), (entry.threads, 1, 1), given,
                        shared_bytes=entry.shared_bytes, exclusive=True,
                        crew_threads=entry.threads // warpgroups if warpgroups else 0,
                        uninitialised=[x for i, x in unwritten.items() if i in passed],
                        # Our compiler leaves no fence or wait to the assembler.
                        strict=True, **options,
                    )  # fmt: skip
                except DeviceFault as fault:
                    if log is not None:
                        reports.deliver(log, plan.reports)
                    names = [every[slot.param].where.name for slot in entry.slots]
                    raise _device_error(fault, ptx, names) from None
                if log is not None:
                    reports.deliver(log, plan.reports)

        return launch


class Cuda:
    """A GPU with sm_90 or sm_100."""

    name = "cuda"
    description = "runs on a GPU with sm_90 or sm_100"
    needs_ptx = True

    @property
    def needs_cubin(self) -> bool:
        """Whether our assembler is there; without it the driver takes the PTX."""
        return _has_assembler()

    def target(self) -> str:
        """Name the target of the first GPU."""
        return str(_driver().gpus[0].target)

    def missing(self) -> str:
        """Say why no GPU can be used here."""
        return why_no_gpu()

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Load the kernel on the GPU of its arguments."""
        from astdsl.runtime.cuda import load

        return load(_driver(), artifact, arguments)


@cache
def why_no_gpu() -> str:
    """Say why no GPU can be used here; empty if one can. The driver is asked once."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return f"no NVIDIA driver is installed ({DRIVER_LIBRARY} is not found)"
    return str(_driver().why_not())


@cache
def _driver() -> Any:
    from cuda.bindings import driver

    from astdsl.runtime.driver import Driver

    return Driver(driver)


@cache
def _has_assembler() -> bool:
    import shutil
    from importlib.util import find_spec

    return bool(shutil.which("ptxas")) or find_spec("nvidia") is not None


DEVICES: dict[str, Device] = {d.name: d for d in (Cuda(), Emulator(), Reference())}
_selected: ContextVar[str] = ContextVar("selected", default="")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A line of `devices()`: `reason` says why a device is not available."""

    name: str
    description: str
    available: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.description}{self.reason and f' (not here: {self.reason})'}"


def devices() -> tuple[DeviceInfo, ...]:
    """List every device, available here or not."""
    reasons = {name: device.missing() for name, device in DEVICES.items()}
    return tuple(
        DeviceInfo(name, device.description, not reasons[name], reasons[name])
        for name, device in DEVICES.items()
    )


@contextmanager
def device(name: str, **options: Unpack[Emulation]) -> Iterator[None]:
    """Run kernels on a device inside the `with`, with options of the emulator.

    `device("emulator", completion="early", order=7, fp8_accumulate="hardware")`: asynchronous work
    completes as "late" (the default) or as "early" as is legal, or at moments drawn from a seed;
    the threads that are behind ("min-pc", the default), ahead ("max-pc"), each in turn
    ("round-robin") or drawn from a seed go first; FP8 products of `wgmma` are summed "exact" (the
    default) or in the 14 bits that Hopper keeps ("hardware"). Raises DeviceUnavailable.
    """
    chosen = find_device(name).name
    check_options(chosen, options)
    token = _selected.set(chosen)
    try:
        with emulated(options):
            yield
    finally:
        _selected.reset(token)


def selected_device() -> str:
    """Name the device of a call that names none: the `with`'s, `ASTDSL_DEVICE`, a GPU if any."""
    return _selected.get() or _environment(b"ASTDSL_DEVICE") or _default_device()


# What `os.environ` keeps, bytes by bytes, where it does: every call asks twice, and encoding the
# name and decoding the answer take longer than all the rest of it.
_VARIABLES: Any = getattr(os.environ, "_data", None)
_IS_BYTES = type(_VARIABLES) is dict and all(type(name) is bytes for name in _VARIABLES)


def _environment(name: bytes) -> str:
    found = _VARIABLES.get(name) if _IS_BYTES else os.environb.get(name)
    return os.fsdecode(found) if found else ""


def _default_device() -> str:
    return Emulator.name if why_no_gpu() else Cuda.name


def selected_target(device: str) -> str:
    """Name the target of a call that names none: `ASTDSL_TARGET`, the GPU's own, else sm_90a."""
    return settled_target(device) or DEFAULT_TARGET


def settled_target(device: str) -> str:
    """Name the target that `ASTDSL_TARGET` or the GPU settles; empty where none does."""
    wanted = _environment(b"ASTDSL_TARGET")
    if wanted:
        return wanted
    return find_device(device).target() if device == Cuda.name else ""


def check_places(device: Device, arguments: Sequence[Argument]) -> None:
    """Refuse arrays in memory that a device does not read. Raises DeviceUnavailable."""
    for argument in arguments:
        if argument.device is not None and device.name != Cuda.name:
            raise DeviceUnavailable(
                f"`{argument.where.name}` is in memory of GPU {argument.device}, which the device "
                f"`{device.name}` does not read",
                argument.where.place,
                help='use the device "cuda", or copy it to the host, for example by `.cpu()`',
            )


def find_device(name: str) -> Device:
    """Return an available device. Raises DeviceUnavailable, which says what to do instead."""
    found = DEVICES.get(name)
    if found is None:
        raise DeviceUnavailable(
            f"there is no device `{name}`",
            help=did_you_mean(name, DEVICES) or f"devices are {', '.join(DEVICES)}",
        )
    if reason := found.missing():
        raise DeviceUnavailable(
            f"the device `{name}` cannot be used: {reason}",
            help='use the device "emulator", which runs the same PTX, or "reference"',
        )
    return found


def _encode(
    slot: Slot, arguments: Sequence[Argument], values: Sequence[Any], memory: Sequence[Any]
) -> Any:
    return _ENCODERS[type(slot)](
        slot, arguments[slot.param], values[slot.param], memory[slot.param]
    )


def _encode_pointer(slot: PointerSlot, argument: Argument, value: Any, memory: Any) -> Any:
    return memory


def _encode_scalar(slot: ScalarSlot, argument: Argument, value: Any, memory: Any) -> Any:
    return slot.dtype.numpy.type(value)


def _encode_dim(slot: DimSlot, argument: Argument, value: Any, memory: Any) -> int:
    assert argument.geometry is not None, "a dim is an array's"
    return argument.geometry.shape[slot.axis]


def _encode_stride(slot: StrideSlot, argument: Argument, value: Any, memory: Any) -> int:
    assert argument.geometry is not None, "a stride is an array's"
    return launch_strides(argument.geometry)[slot.axis]


def _encode_map(slot: MapSlot, argument: Argument, value: int, memory: Any) -> Any:
    from astdsl.emulator.formats.swizzle import Swizzle
    from astdsl.emulator.formats.tensormap import TensorDataType, TensorMap

    assert argument.geometry is not None, "a tensor map is an array's"
    fields = map_fields(slot, argument.geometry)
    return TensorMap(
        TensorDataType[fields.type],
        value,
        fields.dims,
        fields.strides_bytes,
        fields.box,
        swizzle=Swizzle[SWIZZLES[fields.swizzle_bytes]],
        arrays=(memory,),
    )


SWIZZLES = {0: "NONE", 32: "B32", 64: "B64", 128: "B128"}
_ENCODERS: dict[type, Any] = {
    PointerSlot: _encode_pointer,
    ScalarSlot: _encode_scalar,
    DimSlot: _encode_dim,
    StrideSlot: _encode_stride,
    MapSlot: _encode_map,
}


def _unwritten(
    arguments: Sequence[Argument], memory: Sequence[Any]
) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yield plain outputs, whose contents may not be read, with their positions.

    The emulator tracks whole ranges of bytes, so an output between whose rows another argument
    lies is left out.
    """
    arrays = [x for a, x in zip(arguments, memory, strict=True) if a.geometry is not None]
    for position, (argument, array) in enumerate(zip(arguments, memory, strict=True)):
        is_plain = argument.role in (OUT, SCRATCH) and argument.initial is None
        others = (x for x in arrays if x is not array)
        if is_plain and not any(np.may_share_memory(array, x) for x in others):
            yield position, array


def _device_error(fault: Any, ptx: str, names: Sequence[str]) -> DeviceError:
    """Turn the emulator's fault into an error with the kernel's and the PTX's lines.

    The emulator knows arguments by number; `names` are the parameters that they belong to.
    """
    notes = []
    if fault.ptx_line is not None:
        lines = ptx.splitlines()
        text = lines[fault.ptx_line - 1] if fault.ptx_line <= len(lines) else ""
        text = text.strip().removesuffix(";")
        notes.append(f"PTX line {fault.ptx_line}: {text}")
    if fault.block is not None:
        warp = "" if fault.warp is None else f", warp {fault.warp}"
        notes.append(f"block {fault.block}{warp}")
    named = re.sub(r"\bargument (\d+)\b", lambda m: f"`{names[int(m[1])]}`", fault.message)
    message = f"{named} [{fault.code}]"
    places = [] if fault.kernel_line is None else [(_span(*fault.kernel_line), "; ".join(notes))]
    where = [] if places else notes
    return DeviceError(message, *places, help="; ".join([fault.help, *where]))


def _span(file: str, line: int, column: int) -> Span:
    """Return the rest of a line from a column, which DWARF counts from 1."""
    start = max(column - 1, 0)
    end = len(source_line(file, line).encode())
    return Span(file, line, start, line, max(end, start + 1))
