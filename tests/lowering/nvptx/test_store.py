"""The private folder of texts that are slow to make."""

from pathlib import Path

import pytest

from astdsl.lowering.nvptx import store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_written_is_read_back() -> None:
    store.write("key", "größe\nline\n")
    assert store.read("key") == "größe\nline\n"


def test_an_unknown_key_reads_as_nothing() -> None:
    assert store.read("key") is None


def test_the_folder_and_its_files_are_private(folder: Path) -> None:
    store.write("key", "text")
    assert folder.stat().st_mode & 0o077 == 0
    assert only_file(folder).stat().st_mode & 0o077 == 0


def test_a_damaged_file_reads_as_nothing(folder: Path) -> None:
    store.write("key", "text")
    only_file(folder).write_text(only_file(folder).read_text() + "more")
    assert store.read("key") is None


def test_a_file_under_another_name_reads_as_nothing(folder: Path) -> None:
    store.write("key", "text")
    first = only_file(folder)
    store.write("other", "other text")
    (second,) = set(folder.iterdir()) - {first}
    first.replace(second)
    assert store.read("other") is None


def test_bytes_that_are_no_text_read_as_nothing(folder: Path) -> None:
    store.write("key", "text")
    only_file(folder).write_bytes(b"\xff\xfe\n")
    assert store.read("key") is None


def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    store.write("key", "text")
    folder.chmod(0o777)
    assert store.private_folder() is None
    assert store.read("key") is None
    store.write("key", "text")


def test_a_place_that_cannot_be_a_folder_only_costs_time(folder: Path) -> None:
    folder.write_text("a file")
    store.write("key", "text")
    assert store.read("key") is None


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.private_folder() == tmp_path / "astdsl"


def test_nothing_is_left_behind_when_writing(folder: Path) -> None:
    for _ in range(3):
        store.write("key", "text")
    assert len(list(folder.iterdir())) == 1
