"""A private folder for texts that are slow to make: one file for each key.

Invariant: the folder belongs to the user and nobody else can write it (mode 0700), a file appears
whole or not at all, and what is read back carries the digest of its content.  A store that cannot
be used only costs time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "ASTDSL_CACHE_DIR"


def private_folder() -> Path | None:
    """Give the folder, made if necessary; None if there is none that only the user can write.

    It is ``$ASTDSL_CACHE_DIR``, else ``astdsl`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    others_can_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if status.st_uid != os.getuid() or others_can_write else folder


def read(key: str) -> str | None:
    """Read the text stored under `key`; None if it is missing or damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return text if digest == _digest(key, text) else None


def write(key: str, text: str) -> None:
    """Store a text under `key`, at once for all readers."""
    path = _path(key)
    if path is None:
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"{_digest(key, text)}\n{text}")
        Path(file.name).replace(path)
    except OSError:
        return  # A full or read-only disk: the text is made again next time.


def _folder() -> Path:
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "astdsl"


def _path(key: str) -> Path | None:
    folder = private_folder()
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}.ll" if folder else None


def _digest(key: str, text: str) -> str:
    # The key is part of the digest, so that a file copied under another name is refused.
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()
