"""The assembler's process: started early or by the text, and gone afterwards."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import pytest

from astdsl.lowering.nvptx import ptxas, tools
from astdsl.lowering.nvptx.ptxas import AssemblyFailed, Ptxas
from astdsl.lowering.target import SM_90A

EMPTY = ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n"


@pytest.fixture
def path() -> str:
    found = tools.find_tool("ptxas")
    if found is None:
        pytest.skip("ptxas is not installed")
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """All processes that the test starts."""
    every: list[subprocess.Popen[bytes]] = []

    popen: Any = subprocess.Popen

    def begin(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        every.append(popen(*arguments, **options))
        return every[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    return every


def test_a_process_that_was_started_early_makes_the_same_cubin(
    path: str, started: list[subprocess.Popen[bytes]]
) -> None:
    with Ptxas(path, SM_90A) as late:
        expected, _ = late.assemble(EMPTY)
    with Ptxas(path, SM_90A) as early:
        early.start()
        assert len(started) == 2
        image, said = early.assemble(EMPTY)
    assert len(started) == 2
    assert image == expected
    assert "Used" in said


def test_one_that_gets_no_text_is_ended_with_its_folder(
    path: str, started: list[subprocess.Popen[bytes]]
) -> None:
    with Ptxas(path, SM_90A) as unused:
        unused.start()
        assert started[0].poll() is None
        folder = Path(str(started[0].args[-1])).parent  # type: ignore[index]
        assert folder.is_dir()
    assert started[0].returncode is not None
    assert not folder.exists()


def test_a_second_text_starts_a_second_process(
    path: str, started: list[subprocess.Popen[bytes]]
) -> None:
    with Ptxas(path, SM_90A) as twice:
        assert twice.assemble(EMPTY)[0] == twice.assemble(EMPTY)[0]
    assert [each.wait(timeout=60) for each in started] == [0, 0]


@pytest.mark.parametrize("wait_seconds", [None, 0.0, 0.01, 0.03, 0.3])
def test_a_text_is_taken_whenever_it_comes(
    path: str, started: list[subprocess.Popen[bytes]], wait_seconds: float | None
) -> None:
    """At once, while the process gets ready, and when it waits at the pipe."""
    long = EMPTY + "// a comment that no pipe holds at once\n" * 10_000
    with Ptxas(path, SM_90A) as early:
        if wait_seconds is not None:
            early.start()
            time.sleep(wait_seconds)
        image, _ = early.assemble(long)
    assert image.startswith(b"\x7fELF")
    assert len(started) == 1


@pytest.mark.parametrize("is_early", [True, False])
def test_a_text_that_is_refused_is_called_kernel_ptx(path: str, is_early: bool) -> None:
    with Ptxas(path, SM_90A) as wrong:
        if is_early:
            wrong.start()
        with pytest.raises(AssemblyFailed, match=r"ptxas kernel\.ptx, line 6; error"):
            wrong.assemble(EMPTY.replace("ret;", "no.such r1;"))


@pytest.mark.parametrize("reads", ["", "cat < $4 > /dev/null; ", "head -c 9 < $4 > /dev/null; "])
def test_a_process_that_ends_by_itself_is_not_waited_for(tmp_path: Path, reads: str) -> None:
    script = tmp_path / "ptxas"
    script.write_text(f"#!/bin/sh\n{reads}echo too bad\nexit 3\n")
    script.chmod(0o700)
    with Ptxas(str(script), SM_90A) as ends:
        ends.start()
        time.sleep(0.1)
        with pytest.raises(AssemblyFailed, match="too bad"):
            ends.assemble(EMPTY * 10_000)


def test_a_pipe_that_cannot_be_opened_is_not_tried_for_ever(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with Ptxas(path, SM_90A) as early:
        early.start()
        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(OSError, match="too many open files"):
            early._hand_over(EMPTY.encode(), cast("subprocess.Popen[bytes]", early._process))
        monkeypatch.undo()


def test_without_pipes_the_text_starts_the_process(
    path: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkfifo", refused)
    with Ptxas(path, SM_90A) as late:
        late.start()
        assert not started
        assert late.assemble(EMPTY)[0].startswith(b"\x7fELF")


def test_tunables_of_the_user_come_after_ours(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "ptxas"
    script.write_text('#!/bin/sh\necho "$GLIBC_TUNABLES" "$TMPDIR" >&2\nexit 3\n')
    script.chmod(0o700)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
    with pytest.raises(AssemblyFailed) as caught, Ptxas(str(script), SM_90A) as told:
        told.assemble(EMPTY)
    tunables, folder = str(caught.value).split()
    assert tunables.startswith("glibc.malloc.hugetlb=1:")
    assert tunables.endswith(":glibc.malloc.perturb=1")
    assert folder != os.environ.get("TMPDIR")


def _folder_it_sees(tmp_path: Path) -> Path:
    script = tmp_path / "ptxas"
    script.write_text('#!/bin/sh\necho "$TMPDIR" >&2\nexit 3\n')
    script.chmod(0o700)
    with pytest.raises(AssemblyFailed) as caught, Ptxas(str(script), SM_90A) as told:
        told.assemble(EMPTY)
    return Path(str(caught.value).strip())


def test_its_folder_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert _folder_it_sees(tmp_path).parent == tmp_path


def test_its_folder_is_on_the_disk_where_none_can_be_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(ptxas, "_MEMORY", str(tmp_path / "missing"))
    assert _folder_it_sees(tmp_path).parent == Path(tempfile.gettempdir())


def _speaking(tmp_path: Path, cubin: bytes, *said: str) -> str:
    """Return a program that writes a cubin, says lines, and then takes long to end."""
    (tmp_path / "image").write_bytes(cubin)
    lines = "\n".join(f"echo '{line}'" for line in said)
    script = tmp_path / "ptxas"
    script.write_text(f'#!/bin/sh\nfor out; do :; done\ncp {tmp_path}/image "$out"\n{lines}\n')
    with script.open("a") as more:
        more.write(f"while [ ! -e {tmp_path}/enough ]; do sleep 0.01; done\nexit 3\n")
    script.chmod(0o700)
    return str(script)


def test_nobody_waits_for_the_end_of_a_process_that_has_said_all(path: str, tmp_path: Path) -> None:
    with Ptxas(path, SM_90A) as first:
        cubin, _ = first.assemble(EMPTY)
    script = _speaking(tmp_path, cubin, "ptxas info : Compile time = 1 ms")
    with Ptxas(script, SM_90A) as told:
        assert told.assemble(EMPTY) == (cubin, "ptxas info : Compile time = 1 ms\n")
    (tmp_path / "enough").touch()


@pytest.mark.parametrize("lacking", ["words", "cubin", "entry"])
def test_the_end_is_awaited_where_something_is_lacking(
    lacking: str, path: str, tmp_path: Path
) -> None:
    with Ptxas(path, SM_90A) as first:
        cubin, _ = first.assemble(EMPTY)
    said = "nothing" if lacking == "words" else "ptxas info : Compile time = 1 ms"
    script = _speaking(tmp_path, cubin[:-1] if lacking == "cubin" else cubin, said)
    (tmp_path / "enough").touch()
    text = EMPTY + EMPTY.partition(".address_size 64\n")[2] if lacking == "entry" else EMPTY
    with pytest.raises(AssemblyFailed), Ptxas(script, SM_90A) as told:
        told.assemble(text)
