"""The `.global` and `.const` variables of a module: their memory and what it holds at first.

Invariant: every variable is an allocation of its own; global and constant variables have one
address, which is generic.
Source: PTX ISA 5.4.4 "Initializers".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.layout import size_bytes
from astdsl.emulator.operands import immediate_value
from astdsl.emulator.scalars import TYPES, UNSIGNED, Array, Scalar
from astdsl.emulator.syntax import Initial, Masked, Symbol, Variable

if TYPE_CHECKING:
    from astdsl.emulator.global_memory import GlobalMemory
    from astdsl.emulator.layout import Layout

__all__ = ["place_variables"]


def place_variables(layout: Layout, memory: GlobalMemory) -> list[int]:
    """Allocate the variables of a module, with their initial values; return their addresses."""
    storage = [_storage(each) for each in layout.variables]
    addresses = [int(data.ctypes.data) for data in storage]
    for variable, data, address in zip(layout.variables, storage, addresses, strict=True):
        _fill(layout, addresses, variable, data)
        memory.add_host(
            address,
            address + data.size,
            f"variable {variable.name}",
            data,
            read_only=variable.space == "const",
        )
    return addresses


def _storage(variable: Variable) -> Array:
    """Return zeros for a variable, aligned as it is declared."""
    size, to = max(size_bytes(variable), 1), variable.align_bytes
    raw = np.zeros(size + to - 1, np.uint8)
    skip = -int(raw.ctypes.data) % to
    return raw[skip : skip + size]


def _fill(layout: Layout, addresses: list[int], variable: Variable, data: Array) -> None:
    scalar = TYPES[variable.type]
    if scalar.count > 1:
        raise _wrong(variable, f"a value of .{scalar.name}")
    mask = (1 << scalar.bits) - 1
    bits = [_bits(layout, addresses, variable, scalar, each) & mask for each in variable.initial]
    words = np.array(bits, UNSIGNED[scalar.bits])
    data[: words.nbytes] = words.view(np.uint8)


def _bits(
    layout: Layout, addresses: list[int], variable: Variable, scalar: Scalar, initial: Initial
) -> int:
    """Return the bits of one element."""
    if isinstance(initial, Masked):
        shift = (initial.mask & -initial.mask).bit_length() - 1
        value = _bits(layout, addresses, variable, scalar, initial.value)
        return (value & initial.mask) >> shift
    if isinstance(initial, Symbol):
        found = layout.module_symbols.get(initial.name)
        if found is None or found[0] not in ("global", "function"):
            raise _wrong(variable, f"`{initial.name}`")
        start = addresses[found[1]] if found[0] == "global" else found[1]
        return start + initial.offset
    if initial.kind == "int" or not scalar.is_float:
        return initial.value
    return int(np.asarray(immediate_value(initial, scalar)).view(UNSIGNED[scalar.bits]))


def _wrong(variable: Variable, what: str) -> DeviceFault:
    return DeviceFault("E203", f"`{variable.name}` is initialised with {what}, which cannot be")
