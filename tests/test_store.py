"""The private folder of what is slow to make."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from astdsl import store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(store.SWITCH, raising=False)
    return tmp_path / "cache"


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_written_is_read_back() -> None:
    store.write("key", "größe\nline\n".encode())
    assert store.read("key") == "größe\nline\n".encode()


def test_an_unknown_key_reads_as_nothing() -> None:
    assert store.read("key") is None


def test_the_folder_and_its_files_are_private(folder: Path) -> None:
    store.write("key", b"text")
    assert folder.stat().st_mode & 0o077 == 0
    assert only_file(folder).stat().st_mode & 0o077 == 0


def test_a_damaged_file_reads_as_nothing(folder: Path) -> None:
    store.write("key", b"text")
    only_file(folder).write_bytes(only_file(folder).read_bytes() + b"more")
    assert store.read("key") is None


def test_a_file_under_another_name_reads_as_nothing(folder: Path) -> None:
    store.write("key", b"text")
    first = only_file(folder)
    store.write("other", b"other text")
    (second,) = set(folder.iterdir()) - {first}
    first.replace(second)
    assert store.read("other") is None


def test_a_file_without_a_digest_reads_as_nothing(folder: Path) -> None:
    store.write("key", b"text")
    only_file(folder).write_bytes(b"\xff\xfe\n")
    assert store.read("key") is None


def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    store.write("key", b"text")
    folder.chmod(0o777)
    assert store.private_folder() is None
    assert store.read("key") is None
    store.write("key", b"text")


def test_a_place_that_cannot_be_a_folder_only_costs_time(folder: Path) -> None:
    folder.write_text("a file")
    store.write("key", b"text")
    assert store.read("key") is None


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.private_folder() == tmp_path / "astdsl"


def test_nothing_is_left_behind_when_writing(folder: Path) -> None:
    for _ in range(3):
        store.write("key", b"text")
    assert len(list(folder.iterdir())) == 1


def test_the_store_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.SWITCH, "0")
    store.write("key", b"text")
    assert store.read("key") is None
    assert not folder.exists()


def test_a_truncated_file_reads_as_nothing_and_is_written_again(folder: Path) -> None:
    store.write("key", b"text")
    path = only_file(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert store.read("key") is None
    store.write("key", b"text")
    assert store.read("key") == b"text"


def test_the_oldest_files_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("old", b"1" * 400)
    os.utime(only_file(folder), (1.0, 1.0))
    monkeypatch.setattr(store, "LIMIT_BYTES", 600)
    store.write("new", b"2" * 400)
    assert (store.read("old"), store.read("new")) == (None, b"2" * 400)


def test_what_a_dead_process_was_writing_is_removed_after_an_hour(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    dead, alive = folder / ".dead", folder / ".alive"
    for path in (dead, alive):
        path.write_bytes(b"half")
    os.utime(dead, (time.time() - 2 * store.ABANDONED_SECONDS,) * 2)
    store.write("key", b"text")
    assert (dead.exists(), alive.exists()) == (False, True)


def test_files_of_others_in_the_folder_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    other = folder / "notes.txt"
    other.write_bytes(b"3" * 400)
    os.utime(other, (1.0, 1.0))
    monkeypatch.setattr(store, "LIMIT_BYTES", 10)
    store.write("key", b"text")
    assert other.exists()


WRITER = """
import sys
from astdsl import store
for step in range(40):
    store.write("key", (b"%03d" % step) * 5000)
    found = store.read("key")
    if found is None or found != found[:3] * 5000:
        sys.exit(f"read {found!r}")
"""


def test_eight_processes_share_the_store() -> None:
    running = [subprocess.Popen([sys.executable, "-c", WRITER]) for _ in range(8)]
    assert [process.wait(timeout=120) for process in running] == [0] * 8
