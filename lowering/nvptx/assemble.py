"""The one seam from PTX to a cubin, and from a cubin to SASS.

Invariant: every message of the assembler beyond the register count is kept, so that a spill, a
serialised ``wgmma`` (C7510-C7519) or an ignored instruction (C75xx) cannot pass unseen.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astdsl.errors import DeviceUnavailable
from astdsl.lowering.nvptx import jitlink
from astdsl.lowering.nvptx.ptxas import AssemblyFailed, Ptxas
from astdsl.lowering.nvptx.tools import find_tool
from astdsl.lowering.target import Target

_REGISTERS = re.compile(r"used (\d+) registers", re.IGNORECASE)
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SPILLED = re.compile(r"(?i)function properties for (\w+)\s*\n.*, [1-9]\d* bytes spill loads")
_STACK = re.compile(r"(\d+) bytes stack frame")
_PTX_LINE = re.compile(r"line (\d+)")
_ROUTINE = re.compile(
    r"info\s*: (\d+ bytes gmem|compiling entry function|function properties|used \d+ registers"
    r"|compile time)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """A kernel ready to be loaded, and what it costs."""

    image: bytes
    registers: int
    """Registers of a thread."""
    spill_bytes: int
    """Bytes a thread stores to and loads from local memory for lack of registers."""
    stack_bytes: int
    messages: tuple[str, ...]
    """What the assembler said beyond the costs: warnings, and notes with a code C75xx."""
    assembler: str
    spilled: tuple[str, ...] = ()
    """The entries that spill."""


class RejectedPTX(AssertionError):
    """PTX that the assembler does not take: our bug, with the lines it complains about."""

    def __init__(self, complaint: str, ptx: str) -> None:
        super().__init__(f"{complaint.strip()}\n{_quoted_lines(complaint, ptx)}".rstrip())
        self.complaint = complaint


class Assembler:
    """Makes one PTX text a cubin: by ptxas if it is found, else by nvJitLink in this process.

    The process of ptxas can be started before there is a text. Used in a `with` block, which ends
    it.
    """

    def __init__(self, target: Target) -> None:
        path = find_tool("ptxas")
        self._target = target
        self._ptxas = Ptxas(path, target) if path else None

    def __enter__(self) -> Assembler:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._ptxas is not None:
            self._ptxas.__exit__(*raised)

    def start(self) -> None:
        """Get ready for a text that will follow."""
        if self._ptxas is not None:
            self._ptxas.start()

    def assemble(self, ptx: str) -> Cubin:
        """Assemble a text.

        Where one more block would fit beside the others, the assembler spills a few registers for
        it. Such an entry is assembled again with the promise of one block a multiprocessor (PTX
        ISA 11.4.4, ``.minnctapersm``), which leaves it every register. Raises RejectedPTX for PTX
        that is wrong.
        """
        cubin = self._assemble_once(ptx)
        promising = _promise_one_block(ptx, cubin.spilled)
        if promising == ptx:
            return cubin
        again = self._assemble_once(promising)
        return again if again.spill_bytes < cubin.spill_bytes else cubin

    def _assemble_once(self, ptx: str) -> Cubin:
        if self._ptxas is None:
            return assemble_by_nvjitlink(ptx, self._target)
        return assemble_by_ptxas(ptx, self._ptxas)


def assemble(ptx: str, target: Target) -> Cubin:
    """Assemble a text for a target, as an `Assembler` does."""
    with Assembler(target) as assembler:
        return assembler.assemble(ptx)


def _promise_one_block(ptx: str, entries: Sequence[str]) -> str:
    """Add the promise to some entries, unless they promise already."""
    for name in entries:
        head = rf"(\.entry {name}\([^)]*\)\n\.(?:max|req)ntid [^\n]*\n)(?!\.m)"
        ptx = re.sub(head, r"\1.minnctapersm 1\n", ptx)
    return ptx


def assemble_by_ptxas(ptx: str, ptxas: Ptxas) -> Cubin:
    """Assemble with the program `ptxas`, a process of its own."""
    try:
        image, said = ptxas.assemble(ptx)
    except AssemblyFailed as error:
        raise RejectedPTX(str(error), ptx) from error
    return _cubin(image, said, "ptxas")


def assemble_by_nvjitlink(ptx: str, target: Target) -> Cubin:
    """Assemble in this process; see `jitlink` for what that cannot do."""
    try:
        image, said = jitlink.link(ptx, target.name)
    except jitlink.LinkFailed as error:
        raise RejectedPTX(str(error), ptx) from error
    return _cubin(image, said, "nvJitLink")


def disassemble(cubin: Cubin) -> str:
    """Print the machine code of a cubin, SASS, by nvdisasm or cuobjdump.

    Raises DeviceUnavailable if neither is found.
    """
    with tempfile.TemporaryDirectory(prefix="astdsl-") as folder:
        image = Path(folder, "kernel.cubin")
        image.write_bytes(cubin.image)
        done = _run([*_disassembler(), str(image)])
    if done.returncode:
        raise AssertionError(f"a cubin of ours cannot be disassembled: {done.stderr.strip()}")
    return done.stdout


def _disassembler() -> list[str]:
    nvdisasm = find_tool("nvdisasm")
    if nvdisasm:
        return [nvdisasm, "--print-code"]
    cuobjdump = find_tool("cuobjdump")
    if cuobjdump:
        return [cuobjdump, "--dump-sass"]
    raise DeviceUnavailable(
        "SASS needs nvdisasm or cuobjdump, and neither is installed",
        help="pip install nvidia-cuda-nvdisasm, or set CUDA_HOME",
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # The command is a path that `find_tool` found and arguments of ours.
    return subprocess.run(  # noqa: S603
        command, capture_output=True, check=False, text=True, errors="replace"
    )


def _cubin(image: bytes, said: str, assembler: str) -> Cubin:
    registers = [int(number) for number in _REGISTERS.findall(said)]
    if not registers:
        raise AssertionError(f"{assembler} does not say how many registers it used: {said!r}")
    spills = [int(stores) + int(loads) for stores, loads in _SPILLS.findall(said)]
    return Cubin(
        image=image,
        registers=max(registers),
        spill_bytes=sum(spills),
        stack_bytes=max((int(size) for size in _STACK.findall(said)), default=0),
        messages=tuple(line.strip() for line in said.splitlines() if _is_message(line)),
        assembler=assembler,
        spilled=tuple(_SPILLED.findall(said)),
    )


def _is_message(line: str) -> bool:
    is_detail = bool(_SPILLS.search(line) or _STACK.search(line))
    return bool(line.strip()) and not is_detail and not _ROUTINE.search(line)


def _quoted_lines(complaint: str, ptx: str) -> str:
    lines = ptx.splitlines()
    numbers = dict.fromkeys(int(number) for number in _PTX_LINE.findall(complaint))
    return "\n".join(
        f"  {number}: {lines[number - 1].strip()}" for number in numbers if 0 < number <= len(lines)
    )
