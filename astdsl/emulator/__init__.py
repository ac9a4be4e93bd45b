"""Runs PTX on the CPU: `run(ptx, kernel, grid, block, args)`.

It reads PTX text only and knows nothing of the rest of the package.
"""

from astdsl.emulator.arguments import VirtualBuffer
from astdsl.emulator.device import entries, run
from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import TensorMap

__all__ = ["DeviceFault", "Swizzle", "TensorMap", "VirtualBuffer", "entries", "run"]
