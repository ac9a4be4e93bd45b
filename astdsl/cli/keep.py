"""`--keep DIR`: every stage of a compilation as files, for other tools.

Invariant: what this machine cannot make is left out, everything else is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from astdsl.errors import BadCommand, DeviceUnavailable
from astdsl.lowered import Lowered

# The files by what follows the kernel's name; a saved kernel is added to them.
FILES: dict[str, Callable[[Lowered], str | bytes]] = {
    ".py": lambda lowered: lowered.source,
    ".ir": lambda lowered: lowered.ir,
    ".schedule.ir": lambda lowered: lowered.schedule,
    ".ll": lambda lowered: lowered.llvm,
    ".ptx": lambda lowered: lowered.ptx,
    ".cubin": lambda lowered: lowered.cubin,
    ".sass": lambda lowered: lowered.sass,
}
SAVED = ".zip"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--keep", metavar="DIR", default="", help="write every stage to files of this folder"
    )


def keep(folder: str, lowered: Lowered) -> list[Path]:
    """Write the stages; return the files. Raises BadCommand for a folder that is none."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return list(_written(Path(folder), lowered))
    except OSError as error:
        raise BadCommand(
            f"nothing can be kept in `{folder}`: {error.strerror}",
            help="name a folder that can be written, or made",
        ) from None


def _written(folder: Path, lowered: Lowered) -> Iterator[Path]:
    stem = f"{lowered.module.name}-{lowered.target}"
    for suffix, make in FILES.items():
        try:
            held = make(lowered)
        except DeviceUnavailable:  # no assembler or disassembler is installed
            continue
        path = folder / f"{stem}{suffix}"
        path.write_bytes(held.encode() if isinstance(held, str) else held)
        yield path
    path = folder / f"{stem}{SAVED}"
    lowered.save(path)
    yield path
