"""The seam to the back end: what the compiler asks of it, and the late import that finds it.

Invariant: `astdsl.lowering`, and LLVM with it, is loaded by the first kernel that needs PTX.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from astdsl.errors import DeviceUnavailable, WrongTarget, did_you_mean
from astdsl.ir.core import Module
from astdsl.ir.launch import LaunchPlan


class Compiled(Protocol):
    """What lowering makes of a module for one target."""

    @property
    def scheduled(self) -> Module:
        """The module in explicit operations."""

    @property
    def llvm(self) -> str:
        """LLVM's text."""

    @property
    def ptx(self) -> str:
        """The PTX."""

    @property
    def plan(self) -> LaunchPlan:
        """How to launch it."""

    @property
    def shared(self) -> Any:
        """The map of a block's shared memory, for each launch, for reports."""


class Cubin(Protocol):
    """An assembled kernel, and what it costs."""

    @property
    def image(self) -> bytes:
        """The file that the driver loads."""

    @property
    def registers(self) -> int:
        """Registers of a thread."""

    @property
    def spill_bytes(self) -> int:
        """Bytes that a thread moves to and from local memory for lack of registers."""

    @property
    def stack_bytes(self) -> int:
        """Bytes of a thread's stack."""

    @property
    def messages(self) -> tuple[str, ...]:
        """What the assembler said beyond the costs."""


class Assembler(Protocol):
    """What makes PTX a cubin."""

    def start(self) -> None:
        """Get ready for a text that will follow, beside what else is done until then."""

    def assemble(self, ptx: str) -> Cubin:
        """Assemble a text."""


def check_outputs(module: Module) -> None:
    """Refuse what a kernel must not do with its outputs, on whatever device it would run.

    Raises UnwrittenRead, ScatteredAccumulation and OverlappingWindows.
    """
    from astdsl.lowering.schedule.outputs import check_outputs as check

    check(module)


def check_written(module: Module) -> None:
    """Refuse outputs that nothing writes. Raises UnwrittenRead."""
    from astdsl.lowering.schedule.outputs import check_written as check

    check(module)


def settle_streams(module: Module, target: str) -> Module:
    """Return the module with the number of parts that a target's streams have."""
    from astdsl.lowering.schedule.stream_k import settle_streams as settle

    return settle(module, _target(target))


def place_assertions(module: Module) -> Module:
    """Move the assertions that the host checks out of blocks; the others are the device's."""
    from astdsl.lowering.schedule.assertions import hoist_assertions

    return hoist_assertions(module)


def compile_module(module: Module, target: str) -> Compiled:
    """Lower a module for a target; its PTX is made when it is asked for."""
    from astdsl.lowering.compiler import compile_module as lower

    compiled: Compiled = lower(module, target)
    return compiled


def assembler(target: str) -> AbstractContextManager[Assembler]:
    """Return what assembles one PTX text for a target, in a `with` block."""
    from astdsl.lowering.nvptx.assemble import Assembler as Program

    made: AbstractContextManager[Assembler] = Program(_target(target))
    return made


def disassemble(cubin: Any) -> str:
    """Return the SASS of what `assemble` returned.

    Raises DeviceUnavailable where no disassembler is installed.
    """
    from astdsl.lowering.nvptx.assemble import disassemble as run_disassembler

    text: str = run_disassembler(cubin)
    return text


def tools() -> dict[str, str]:
    """Return where the assembler and the disassembler are, empty where one is not found."""
    from astdsl.lowering.nvptx.tools import find_tool

    return {name: find_tool(name) or "" for name in ("ptxas", "nvdisasm", "cuobjdump")}


# The rooms whose text decides what PTX a module becomes.
COMPILER_ROOMS = ("astdsl.ir", "astdsl.passes", "astdsl.lowering")


@cache
def compiler_identity() -> str:
    """Name everything besides a module that its PTX depends on: our text, LLVM, libdevice.

    Files count by name, size and time of change, so that an edited compiler is another one.
    """
    import hashlib

    import llvmlite

    from astdsl.lowering.nvptx.tools import find_file

    digest = hashlib.sha256()
    for room in COMPILER_ROOMS:
        spec = importlib.util.find_spec(room)
        assert spec is not None, f"the room {room} is a part of this package"
        for folder in spec.submodule_search_locations or ():
            for line in sorted(_files(folder)):
                digest.update(line.encode())
    try:
        elementary = _identity(find_file("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm"))
    except DeviceUnavailable:
        elementary = "none"
    versions = f"llvmlite {llvmlite.__version__} libdevice {elementary}"
    return f"{versions} compiler {digest.hexdigest()}"


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}\n"


@cache
def assembler_identity() -> str:
    """Name the assembler that `assemble` uses: a changed program is another one."""
    path = tools()["ptxas"]
    if not path:
        spec = importlib.util.find_spec("nvidia.nvjitlink") or importlib.util.find_spec("nvidia")
        return f"nvJitLink {spec and spec.submodule_search_locations}"
    return _identity(Path(path))


def needed_target(module: Module) -> str:
    """Name the target that a kernel's names need, the default one where they need none."""
    from astdsl.lowering.needs import needed_target as needed

    name: str = needed(module)
    return name


def check_target(name: str) -> str:
    """Return a target's name. Raises WrongTarget for one that there is not."""
    return str(_target(name).name)


def _target(name: str) -> Any:
    from astdsl.lowering.target import TARGETS

    if name not in TARGETS:
        raise WrongTarget(
            f"there is no target `{name}`",
            help=did_you_mean(name, TARGETS) or f"choose one of {', '.join(TARGETS)}",
        )
    return TARGETS[name]
