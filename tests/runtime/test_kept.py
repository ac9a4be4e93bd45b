"""Compiled kernels on disk: hits, misses, damage, and processes at once."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astdsl import backend, store
from astdsl.lowering.nvptx.assemble import Assembler

KERNEL = """
import sys
from astdsl import In, Out, cdiv, f32, kernel, pipeline, spec, tile

UNUSED = 1
{more}
@kernel
def double(x: In[f32, "N"], o: Out[f32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[tile(i, b)] = x[tile(i, b)] * {factor}

def made(**constants):
    return double.lower(spec(256, f32), **constants)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(store.SWITCH, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the targets that modules are lowered for."""
    seen: list[str] = []
    lower = backend.compile_module

    def noted(module: Any, target: str) -> Any:
        seen.append(target)
        return lower(module, target)

    monkeypatch.setattr(backend, "compile_module", noted)
    return seen


def load(path: Path, factor: int = 2, more: str = "") -> Any:
    """Write a file with a kernel, and run it as a process of its own would."""
    text = KERNEL.format(factor=factor, more=more)
    path.write_text(text)
    scope: dict[str, Any] = {"__name__": path.stem}
    linecache.checkcache(str(path))
    exec(compile(text, str(path), "exec"), scope)  # noqa: S102 (the text is above)
    return scope["made"]


def test_a_kernel_compiled_before_is_not_lowered_again(tmp_path: Path, lowered: list[str]) -> None:
    first = load(tmp_path / "k.py")()
    again = load(tmp_path / "k.py")()
    assert (again.ptx, again.plan) == (first.ptx, first.plan)
    assert lowered == ["sm_90a"]


def test_a_kernel_assembled_before_is_not_assembled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path / "k.py")()
    resources = first.resources
    monkeypatch.setattr(Assembler, "start", pytest.fail)
    monkeypatch.setattr(Assembler, "assemble", pytest.fail)
    again = load(tmp_path / "k.py")()
    assert (again.cubin, again.resources) == (first.cubin, resources)


def test_an_edit_of_the_kernel_misses(tmp_path: Path, lowered: list[str]) -> None:
    assert load(tmp_path / "k.py")().ptx != load(tmp_path / "k.py", factor=3)().ptx
    assert len(lowered) == 2


def test_an_edit_that_moves_the_kernel_misses(tmp_path: Path, lowered: list[str]) -> None:
    assert load(tmp_path / "k.py")().ptx != load(tmp_path / "k.py", more="\n\n")().ptx
    assert len(lowered) == 2


def test_an_edit_elsewhere_hits(tmp_path: Path, lowered: list[str]) -> None:
    assert load(tmp_path / "k.py")().ptx == load(tmp_path / "k.py", more="OTHER = 2")().ptx
    assert len(lowered) == 1


@pytest.mark.parametrize("constants", [{"b": 32}], ids=["constant"])
def test_another_constant_misses(
    tmp_path: Path, lowered: list[str], constants: dict[str, int]
) -> None:
    made = load(tmp_path / "k.py")
    assert made().ptx != made(**constants).ptx
    assert len(lowered) == 2


def test_another_target_misses(tmp_path: Path, lowered: list[str]) -> None:
    made = load(tmp_path / "k.py")
    assert made().ptx != made(target="sm_100a").ptx
    assert lowered == ["sm_90a", "sm_100a"]


def test_another_compiler_misses(
    tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path / "k.py")().ptx
    monkeypatch.setattr(backend, "compiler_identity", lambda: "another")
    load(tmp_path / "k.py")().ptx
    assert len(lowered) == 2


def rewrite(folder: Path, change: Any) -> None:
    """Change the content of the only file, digest and all, as one who can write the folder."""
    (path,) = folder.iterdir()
    _, _, content = path.read_bytes().partition(b"\n")
    head, _, body = content.partition(b"\n")
    path.write_bytes(b"0" * 64 + b"\n" + json.dumps(change(json.loads(head))).encode() + body)


@pytest.mark.parametrize("size", [0, 1, 64, 65, 300, -1])
def test_a_truncated_entry_is_a_miss_and_is_written_again(
    tmp_path: Path, folder: Path, lowered: list[str], size: int
) -> None:
    first = load(tmp_path / "k.py")().ptx
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert load(tmp_path / "k.py")().ptx == first
    assert path.read_bytes() == whole
    assert len(lowered) == 2


def test_a_tampered_entry_is_a_miss(tmp_path: Path, folder: Path, lowered: list[str]) -> None:
    first = load(tmp_path / "k.py")().ptx
    rewrite(folder, lambda head: head | {"target": "sm_100a"})
    assert load(tmp_path / "k.py")().ptx == first
    assert len(lowered) == 2


def test_an_entry_that_is_no_plan_is_a_miss(
    tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "read", lambda key: b'{"target": 1}\nptx')
    load(tmp_path / "k.py")().ptx
    assert len(lowered) == 1


@pytest.mark.filterwarnings("error")
def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: Path, folder: Path, lowered: list[str]
) -> None:
    folder.write_text("a file stands where the folder would be")
    assert load(tmp_path / "k.py")().ptx == load(tmp_path / "k.py")().ptx
    assert len(lowered) == 2


def test_eight_processes_compile_one_kernel_at_once(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(KERNEL.format(factor=2, more="") + "\nprint(hash(made().ptx))\n")
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    running = [
        subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, env=environment)
        for _ in range(8)
    ]
    said = {process.communicate(timeout=300)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 8
    assert len(said) == 1
    assert len([p for p in folder.iterdir() if p.suffix == store.SUFFIX]) == 1
