"""A private folder for what is slow to make: one file for each key.

Invariant: the folder belongs to the user and nobody else can write it (mode 0700), a file appears
whole or not at all, and what is read back carries the digest of its key and content.  A store that
cannot be used only costs time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER_VARIABLE = "ASTDSL_CACHE_DIR"
SWITCH = "ASTDSL_CACHE"
SUFFIX = ".kept"
LIMIT_BYTES = 512 << 20
# Files that a process which died has left behind are no longer being written.
ABANDONED_SECONDS = 3600.0


def private_folder() -> Path | None:
    """Give the folder, made if necessary; None if there is none that only the user can write.

    It is ``$ASTDSL_CACHE_DIR``, else ``astdsl`` below ``$XDG_CACHE_HOME`` or ``~/.cache``;
    ``ASTDSL_CACHE=0`` turns it off.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    others_can_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if status.st_uid != os.getuid() or others_can_write else folder


def read(key: str) -> bytes | None:
    """Read what is stored under `key`; None if it is missing or damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if digest == _digest(key, content) else None


def write(key: str, content: bytes) -> None:
    """Store bytes under `key`, at once for all readers; the oldest files make room for it."""
    path = _path(key)
    if path is None:
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(_digest(key, content) + b"\n" + content)
        Path(file.name).replace(path)
        _make_room(path.parent)
    except OSError:
        return  # A full or read-only disk: the content is made again next time.


def _folder() -> Path:
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "astdsl"


def _path(key: str) -> Path | None:
    folder = private_folder()
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}" if folder else None


def _digest(key: str, content: bytes) -> bytes:
    # The key is part of the digest, so that a file copied under another name is refused.
    return hashlib.sha256(key.encode() + b"\n" + content).hexdigest().encode()


def _make_room(folder: Path) -> None:
    """Remove the files written longest ago while all take more than `LIMIT_BYTES`."""
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    now = time.time()
    for written, size, path in files:
        is_abandoned = path.name.startswith(".") and now - written > ABANDONED_SECONDS
        if total > LIMIT_BYTES or is_abandoned:
            path.unlink(missing_ok=True)
            total -= size


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each file was written, its bytes and its path."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # another process has removed it
                continue
            is_ours = entry.name.endswith(SUFFIX) or entry.name.startswith(".")
            if is_ours and stat.S_ISREG(status.st_mode):
                yield status.st_mtime, status.st_size, Path(entry.path)
