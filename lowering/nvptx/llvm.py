"""LLVM modules for NVPTX, as text.

llvmlite.ir cannot print ``byval`` with opaque pointers, string attributes or bfloat, so the text
is written here and parsed by `llvmlite.binding`.  Invariant: what a `Module` prints means the same
to LLVM 20 and newer (LLVM 20 silently ignores the attributes that replace ``nvvm.annotations``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from astdsl.lowering.nvptx.builder import SHARED_ARRAY, Builder
from astdsl.lowering.nvptx.debug import quoted
from astdsl.lowering.nvptx.globals import Globals
from astdsl.lowering.nvptx.values import GENERIC, GLOBAL, LV

TENSOR_MAP_BYTES = 128
SHARED_ALIGNMENT_BYTES = 1024
"""What the widest swizzle repeats over, so that offsets decide the pattern."""

_KERNEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$][A-Za-z0-9_$]+")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel; make it with one of the class methods."""

    name: str
    type: str
    attributes: str = ""
    grid_constant: bool = False

    @classmethod
    def array(cls, name: str, *, align: int = 16, read_only: bool = False) -> Parameter:
        """Make a pointer to global memory.

        `read_only` promises that nobody writes the array while the kernel runs: loads become
        ``ld.global.nc``, also after an inline store that LLVM cannot see through.
        """
        promise = " noalias readonly" if read_only else ""
        return cls(name, GLOBAL, f"{promise} align {align}")

    @classmethod
    def tensor_map(cls, name: str) -> Parameter:
        """Make a TMA descriptor passed by value, read where the launch put it."""
        attributes = f" byval([{TENSOR_MAP_BYTES} x i8]) align 64"
        return cls(name, GENERIC, attributes, grid_constant=True)

    @classmethod
    def scalar(cls, name: str, type: str) -> Parameter:
        """Make a number passed by value."""
        return cls(name, type)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBounds:
    """What a kernel promises about its launch; zero leaves the promise out."""

    threads: int
    blocks_per_multiprocessor: int = 0
    registers_per_thread: int = 0
    cluster: tuple[int, int, int] | None = None
    exact_threads: bool = False
    """Promise exactly `threads` (``.reqntid``) and not at most as many (``.maxntid``)."""


class Module:
    """One LLVM module: kernels, declarations, definitions and metadata, collected once each."""

    def __init__(self) -> None:
        self.globals = Globals()
        self._kernels: list[tuple[str, Builder]] = []
        self._annotations: list[str] = []

    def kernel(self, name: str, parameters: Sequence[Parameter], bounds: LaunchBounds) -> Builder:
        """Begin a kernel; its builder stands at the end of the entry block.

        The name is a PTX identifier; the parameters keep their order in the PTX.
        """
        if not _KERNEL_NAME.fullmatch(name):
            raise AssertionError(f"{name!r} is not a PTX identifier")
        self._annotate(name, parameters, bounds)
        # The dollar keeps parameters (a user's names) apart from values; quotes allow UTF-8.
        values = {each.name: LV(each.type, f"%{quoted('$' + each.name)}") for each in parameters}
        signature = ", ".join(
            f"{each.type}{each.attributes} {values[each.name].name}" for each in parameters
        )
        builder = Builder(self.globals, name, values)
        self._kernels.append((f"define ptx_kernel void @{name}({signature})", builder))
        return builder

    def text(self) -> str:
        """Print the module as LLVM assembly."""
        kernels = [head + builder.text() for head, builder in self._kernels]
        named = self._named_metadata()
        shared = (
            f"{SHARED_ARRAY.name} = external addrspace(3) global [0 x i8], "
            f"align {SHARED_ALIGNMENT_BYTES}"
        )
        nodes = [f"!{number} = {node}" for number, node in enumerate(self.globals.nodes)]
        parts = [
            ['target triple = "nvptx64-nvidia-cuda"', "", shared, ""],
            [*self.globals.structures, ""],
            *([definition, ""] for definition in self.globals.definitions.values()),
            *([kernel, ""] for kernel in kernels),
            list(self.globals.declarations.values()),
            ["", *named, *nodes, ""],
        ]
        return "\n".join(line for part in parts for line in part)

    def _annotate(self, name: str, parameters: Sequence[Parameter], bounds: LaunchBounds) -> None:
        threads_key = "reqntid" if bounds.exact_threads else "maxntid"
        self._annotation(name, threads_key, "x", bounds.threads)
        if bounds.blocks_per_multiprocessor:
            self._annotation(name, "minctasm", "", bounds.blocks_per_multiprocessor)
        if bounds.registers_per_thread:
            self._annotation(name, "maxnreg", "", bounds.registers_per_thread)
        for axis, size in zip("xyz", bounds.cluster or (), strict=False):
            self._annotation(name, "cluster_dim_", axis, size)
        constants = [
            f"i32 {number}" for number, each in enumerate(parameters, 1) if each.grid_constant
        ]
        if constants:
            numbers = self.globals.node(f"!{{{', '.join(constants)}}}")
            self._annotations.append(f'!{{ptr @{name}, !"grid_constant", {numbers}}}')

    def _annotation(self, kernel: str, key: str, axis: str, value: int) -> None:
        self._annotations.append(f'!{{ptr @{kernel}, !"{key}{axis}", i32 {value}}}')

    def _named_metadata(self) -> list[str]:
        annotations = ", ".join(self.globals.node(each) for each in self._annotations)
        named = [f"!nvvm.annotations = !{{{annotations}}}"]
        if self.globals.units:
            version = self.globals.node('!{i32 2, !"Debug Info Version", i32 3}')
            named.append(f"!llvm.dbg.cu = !{{{', '.join(self.globals.units)}}}")
            named.append(f"!llvm.module.flags = !{{{version}}}")
        return named
