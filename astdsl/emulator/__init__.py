"""Runs PTX on the CPU: `run(ptx, kernel, grid, block, args)`.

It reads PTX text only and knows nothing of the rest of the package.
"""

from astdsl.emulator.arguments import VirtualBuffer
from astdsl.emulator.device import run
from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.formats.tensormap import TensorMap

__all__ = ["DeviceFault", "TensorMap", "VirtualBuffer", "run"]
