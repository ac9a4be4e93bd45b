"""From the arguments of a launch to parameter bytes and the table of global memory.

Invariant: an array's emulated address is its real one; nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.global_memory import Allocation, GlobalMemory
from astdsl.emulator.layout import size_bytes
from astdsl.emulator.options import is_integer, told
from astdsl.emulator.scalars import FLOATS, TYPES, Array, BoolArray
from astdsl.emulator.syntax import Variable
from astdsl.emulator.variables import place_variables

if TYPE_CHECKING:
    from astdsl.emulator.program import Program


# Kinds of scalars of NumPy that are no numbers: texts, times, objects.
_NO_NUMBERS = "USOMm"
# Where virtual memory ends.
_VIRTUAL_END = 1 << 60


@runtime_checkable
class Opaque(Protocol):
    """An argument passed by value as bytes (`TensorMap`); `arrays` are what it points at."""

    @property
    def arrays(self) -> Sequence[Array]:
        """Return the arrays that the argument points at."""

    def to_bytes(self) -> bytes:
        """Return what the kernel sees."""


@dataclass(frozen=True, slots=True, eq=False)
class VirtualBuffer:
    """Memory at a chosen address with storage behind some windows only.

    `windows` maps byte offsets to arrays; every other address of the buffer is out of bounds. For
    tests of offsets past 2^31 elements without the memory; all of it must lie below 2^60.
    """

    address: int
    windows: dict[int, Array]


@dataclass(slots=True, eq=False)
class Unwritten:
    """An array whose contents count as unwritten; passed to several runs, what they all wrote."""

    array: Array
    written: BoolArray | None = None


def bind(
    program: Program,
    args: Sequence[Any],
    memory: GlobalMemory,
    uninitialised: Sequence[Array | Unwritten],
) -> tuple[Array, list[int]]:
    """Return the parameter bytes, and the addresses of the module's variables."""
    layout = program.layout
    if len(args) != len(layout.parameters):
        raise DeviceFault(
            "E203",
            f"kernel `{program.kernel.name}` takes {len(layout.parameters)} parameters,"
            f" {len(args)} were given",
        )
    raw = bytearray(layout.parameter_bytes)
    for number, ((variable, offset), value) in enumerate(zip(layout.parameters, args, strict=True)):
        data = _encode(variable, value, number, memory)
        raw[offset : offset + len(data)] = data
    for each in uninitialised:
        _track(memory, each if isinstance(each, Unwritten) else Unwritten(each))
    return np.frombuffer(bytes(raw), np.uint8), place_variables(layout, memory)


def _encode(variable: Variable, value: Any, number: int, memory: GlobalMemory) -> bytes:
    if isinstance(value, np.ndarray):
        map_array(memory, value, f"argument {number}")
        return int(value.ctypes.data).to_bytes(8, "little")
    if isinstance(value, VirtualBuffer):
        _map_windows(memory, value, f"argument {number}")
        return int(value.address).to_bytes(8, "little")
    if isinstance(value, Opaque) and not isinstance(value, type):
        for array in value.arrays:
            map_array(memory, array, f"argument {number}")
        data = value.to_bytes()
    elif isinstance(value, bytes):
        data = value
    else:
        return _number(variable, value, number)
    size = size_bytes(variable)
    if len(data) != size:
        raise DeviceFault("E203", f"argument {number} has {len(data)} bytes, the parameter {size}")
    return data


def _number(variable: Variable, value: Any, number: int) -> bytes:
    words = isinstance(value, np.generic) and value.dtype.kind in _NO_NUMBERS
    if words or not isinstance(value, int | float | np.generic):
        raise DeviceFault(
            "E203",
            f"argument {number} is a {type(value).__name__}",
            help="pass an array of NumPy, a number, a `TensorMap` or bytes",
        )
    scalar = TYPES[variable.type]
    is_real = isinstance(value, float | np.floating)
    # LLVM declares a parameter of 16-bit floats as an array of bytes.
    is_rounded = is_real and scalar.kind in ("u", "s")
    if isinstance(value, np.generic) and value.nbytes == size_bytes(variable) and not is_rounded:
        return value.tobytes()
    if variable.is_array or scalar.count > 1:
        raise DeviceFault("E203", f"argument {number} needs {size_bytes(variable)} bytes")
    if scalar.kind == "f" or (is_real and scalar.kind == "b"):
        # LLVM declares floats as `.b32`; a Python float takes the parameter's width.
        return _real(value, scalar.bits, number)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not value.is_integer():
        raise DeviceFault(
            "E203", f"argument {number}: {value} is no integer, as .{scalar.name} needs"
        )
    whole = int(value)
    if not -(1 << (scalar.bits - 1)) <= whole < 1 << scalar.bits:
        raise DeviceFault("E203", f"argument {number}: {whole} does not fit into .{scalar.name}")
    return (whole & ((1 << scalar.bits) - 1)).to_bytes(scalar.bytes, "little")


def _real(value: Any, bits: int, number: int) -> bytes:
    """Return a number as a float of so many bits; what is too large for it is no infinity."""
    dtype = FLOATS.get(bits)
    if dtype is None:
        raise DeviceFault("E203", f"argument {number}: {value} does not fit into {bits} bits")
    try:
        given = float(value)
        with np.errstate(over="ignore"):
            found = np.asarray(given).astype(dtype)
        fits = math.isinf(given) or not np.isinf(found)
    except OverflowError:
        fits = False
    if not fits:
        raise DeviceFault("E203", f"argument {number}: {told(value)} does not fit into .f{bits}")
    return found.tobytes()


def _map_windows(memory: GlobalMemory, buffer: VirtualBuffer, name: str) -> None:
    """Make the windows of a buffer global memory."""
    windows: Any = buffer.windows
    if not is_integer(buffer.address) or not isinstance(windows, dict):
        raise DeviceFault("E203", f"{name}: a VirtualBuffer has an address, and arrays by offset")
    end = int(buffer.address)
    for offset in sorted(windows, key=lambda key: (not is_integer(key), key)):
        array = windows[offset]
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise DeviceFault("E203", f"{name}: the windows of a VirtualBuffer are arrays of NumPy")
        if not array.flags.c_contiguous:
            raise DeviceFault("E203", "the arrays of a VirtualBuffer must be contiguous")
        if not is_integer(offset) or buffer.address + offset < end:
            raise DeviceFault("E203", f"{name}: windows overlap, or lack an offset")
        low = int(buffer.address + offset)
        end = low + array.nbytes
        memory.add(Allocation(low, array.reshape(-1).view(np.uint8), name))
    if buffer.address < 0 or end > _VIRTUAL_END:
        raise DeviceFault("E203", f"{name}: a VirtualBuffer lies from address 0 to 2**60")


def map_array(memory: GlobalMemory, array: Array, name: str) -> None:
    """Make an array's bytes, from the lowest to the highest of its elements, global memory."""
    if array.size == 0:
        return
    if array.dtype.hasobject:
        raise DeviceFault("E203", f"{name} holds objects of Python, which no kernel may touch")
    low, high = np.lib.array_utils.byte_bounds(array)
    memory.add_host(int(low), int(high), name, array, read_only=not array.flags.writeable)


def _track(memory: GlobalMemory, unwritten: Unwritten) -> None:
    array = unwritten.array
    if not isinstance(array, np.ndarray):
        raise DeviceFault("E203", f"uninitialised is a list of arrays of NumPy, not {told(array)}")
    if array.size == 0:
        return
    allocation = memory.find(int(np.lib.array_utils.byte_bounds(array)[0]))
    if allocation is None:
        raise DeviceFault("E203", "an array in `uninitialised` is not among the arguments")
    kept = unwritten.written
    if kept is not None and np.shape(kept) != allocation.data.shape:
        raise DeviceFault("E203", f"what an `Unwritten` keeps is not of {allocation.name}")
    try:
        unwritten.written = allocation.track(kept)
    except MemoryError:
        raise DeviceFault(
            "E203",
            f"{allocation.name} spans {allocation.data.size} bytes from its first element to its "
            "last, more than there is memory to note which of them are written",
            help="pass an array whose elements lie closer together, or one that holds initial "
            "values (`InOut`, or `Out` with a number), of which nothing is noted",
        ) from None
