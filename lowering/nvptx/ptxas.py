"""The program `ptxas` as a process that may be started before there is a text to assemble.

Its start, about ten milliseconds of loading and relocating fifty megabytes, then goes on while the
text is being made. Most of what it does for a small kernel is to touch fresh memory, so it is asked
to take that in large pages, by the tunables of its C library; elsewhere they mean nothing.

Invariant: a process that was started is gone, and its folder with it, when the `with` block ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from astdsl.lowering.target import Target

_TUNABLES = "GLIBC_TUNABLES"
# glibc manual, Memory Allocation Tunables: transparent huge pages, taken in large steps, kept.
_LARGE_PAGES = (
    "glibc.malloc.hugetlb=1",
    f"glibc.malloc.top_pad={16 << 20}",
    f"glibc.malloc.mmap_threshold={256 << 20}",
    f"glibc.malloc.trim_threshold={1 << 30}",
)
# What it calls the text that it reads from its input.
_INPUT_NAME = re.compile(r"[^\s']*tmpxft_\w+-0_stdin")


class AssemblyFailed(Exception):
    """The assembler refused a text; the message is what it said."""


class Ptxas:
    """One run of the assembler: started early, or by the text."""

    def __init__(self, path: str, target: Target) -> None:
        self._path = path
        self._target = target
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Ptxas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()  # Nothing, if it has ended.
            self._process.communicate()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def start(self) -> None:
        """Start the process, which then waits for the text."""
        self._begin()

    def assemble(self, ptx: str) -> tuple[bytes, str]:
        """Return the cubin and what the assembler said. Raises AssemblyFailed."""
        process, image = self._begin()
        said, _ = process.communicate(ptx)
        self._process = None
        said = _INPUT_NAME.sub("kernel.ptx", said)
        if process.returncode:
            raise AssemblyFailed(said)
        return image.read_bytes(), said

    def _begin(self) -> tuple[subprocess.Popen[str], Path]:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="astdsl-")
        image = Path(self._folder.name, "kernel.cubin")
        if self._process is None:
            options = [f"-arch={self._target.name}", "-O3", "-v", "-", "-o", str(image)]
            # The command is a path that `find_tool` found and arguments of ours.
            self._process = subprocess.Popen(  # noqa: S603
                [self._path, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(self._folder.name),
                encoding="utf-8",
                errors="replace",
            )
        return self._process, image


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of the process: its own folder for its files, and large pages."""
    tunables = [*_LARGE_PAGES, *filter(None, [os.environ.get(_TUNABLES)])]
    return os.environ | {"TMPDIR": folder, _TUNABLES: ":".join(tunables)}
