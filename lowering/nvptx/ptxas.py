"""The program `ptxas` as a process that may be started before there is a text to assemble.

Half of what it takes for a small kernel is its start: loading and relocating fifty megabytes,
filling its tables. It is done when the program opens the text, so a process that is started early
finds a pipe there, at whose opening it waits; when the text has been made, a file takes the pipe's
place, for the program opens its input twice, and the text goes through the pipe. A process that
comes late finds the file.

The rest is mostly touching fresh memory, so it is asked to take that in large pages, by the
tunables of its C library; elsewhere they mean nothing.

Giving that memory back takes as long as assembling a small kernel, so nobody waits for it.

Invariant: when the `with` block ends, a process that was started has ended or ends by itself, and
its folder is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import tempfile
import threading
from contextlib import suppress
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
# Where Linux keeps files in memory: five small ones take a quarter of what they take on a disk.
_MEMORY = "/dev/shm"  # noqa: S108  (a folder of our own is made there)
_PIPE_BYTES = 1 << 20
# What it says of an entry ends so, after the cubin has been written.
_LAST_WORDS = b"Compile time"
# In the header of ELF-64: e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize, e_shnum.
_ELF_TABLES = struct.Struct("<32xQQ6xHHHH")
# How often a process that has not opened its text is looked at.
_LOOK_SECONDS = 0.002


class AssemblyFailed(Exception):
    """The assembler refused a text; the message is what it said."""


class Ptxas:
    """One run of the assembler: started early, or by the text."""

    def __init__(self, path: str, target: Target) -> None:
        self._path = path
        self._target = target
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

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
            _reap(self._process)
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def start(self) -> None:
        """Start the process, which gets ready and waits for the text; once."""
        if self._process is None:
            try:
                os.mkfifo(self._file("kernel.ptx"))
                os.link(self._file("kernel.ptx"), self._file("pipe"))
            except OSError:
                return  # Without pipes in the folder it starts when there is a text.
            self._begin()

    def assemble(self, ptx: str) -> tuple[bytes, str]:
        """Return the cubin and what the assembler said. Raises AssemblyFailed."""
        text = ptx.encode()
        self._file("text").write_bytes(text)
        self._file("text").replace(self._file("kernel.ptx"))
        if self._process is None:
            process = self._begin()
        else:
            process = self._process
            self._hand_over(text, process)
        heard = self._listen(process, max(1, text.count(b".entry")))
        said = heard.decode(errors="replace")
        said = said.replace(str(self._file("kernel.ptx")), "kernel.ptx")
        if self._process is not None and self._process.wait():
            raise AssemblyFailed(said)
        self._process = None
        return self._file("kernel.cubin").read_bytes(), said

    def _listen(self, process: subprocess.Popen[bytes], entries: int) -> bytes:
        """Return what the process says: until its end, or until it has said all of each entry.

        Then it only gives its memory back, and is left alone with that.
        """
        said = b""
        assert process.stdout is not None, "it was started with a pipe"
        while chunk := os.read(process.stdout.fileno(), _PIPE_BYTES):
            said += chunk
            if said.count(_LAST_WORDS) >= entries and said.endswith(b"\n") and self._is_complete():
                self._process = None
                threading.Thread(target=_reap, args=(process,), daemon=True).start()
                break
        return said

    def _is_complete(self) -> bool:
        """Whether the cubin reaches up to its tables, with which an ELF file ends."""
        try:
            image = self._file("kernel.cubin").read_bytes()
        except OSError:
            return False
        if len(image) < _ELF_TABLES.size:
            return False
        fields: tuple[int, ...] = _ELF_TABLES.unpack_from(image)
        programs, sections, program_bytes, n_programs, section_bytes, n_sections = fields
        ends = (programs + program_bytes * n_programs, sections + section_bytes * n_sections)
        return sections > 0 and len(image) >= max(ends)

    def _hand_over(self, text: bytes, process: subprocess.Popen[bytes]) -> None:
        """Give the text to a process that waits at the pipe; it may also find the file."""
        while process.poll() is None:
            try:
                pipe = os.open(self._file("pipe"), os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                _wait(process, _LOOK_SECONDS)  # Nobody waits there, or not yet.
                continue
            os.set_blocking(pipe, True)
            try:
                with os.fdopen(pipe, "wb") as waiting:
                    waiting.write(text)
            except BrokenPipeError:
                pass  # It ended before it had read everything, and has said why.
            return

    def _begin(self) -> subprocess.Popen[bytes]:
        files = [str(self._file("kernel.ptx")), "-o", str(self._file("kernel.cubin"))]
        # The command is a path that `find_tool` found and arguments of ours.
        self._process = subprocess.Popen(  # noqa: S603
            [self._path, f"-arch={self._target.name}", "-O3", "-v", *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(self._folder_name),
            # Python's own are not inherited anyhow, and it starts in half the time.
            close_fds=False,
        )
        assert self._process.stdout is not None, "it was started with a pipe"
        with suppress(OSError):
            # It may have much to say before it has read all of its text.
            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return self._process

    @property
    def _folder_name(self) -> str:
        if self._folder is None:
            self._folder = _private_folder()
        return self._folder.name

    def _file(self, name: str) -> Path:
        return Path(self._folder_name, name)


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only the user reads: in memory, unless the user names a place."""
    in_memory = None if os.environ.get("TMPDIR") else _MEMORY
    try:
        return tempfile.TemporaryDirectory(prefix="astdsl-", dir=in_memory)
    except OSError:
        return tempfile.TemporaryDirectory(prefix="astdsl-")


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of the process: its own folder for its files, and large pages."""
    tunables = [*_LARGE_PAGES, *filter(None, [os.environ.get(_TUNABLES)])]
    return os.environ | {"TMPDIR": folder, _TUNABLES: ":".join(tunables)}
