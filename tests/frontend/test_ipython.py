"""Kernels in the cells of IPython, of which Jupyter's are a kind, and in doctests."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import astdsl

HEADER = "import numpy as np\nfrom astdsl import *\nfrom astdsl import KernelError\n"
KERNEL = """
@kernel
def double(x: In[f32, "N"], o: Out[f32, "N"]):
    if x.shape[0] > 4:
        o[...] = twice(x[...])
    else:
        o[...] = x[...]
"""
HELPER = "def twice(t):\n    return t * {factor}\n"
CALL = 'double.on("reference")(np.ones(8, np.float32)).tolist()'
Cell = Callable[[str], Any]


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    """Give what runs the text of a cell, and returns its last value or raises its error."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shells: Any = pytest.importorskip(
        "IPython.core.interactiveshell", reason="IPython is not installed"
    )
    settings: Any = pytest.importorskip("traitlets.config", reason="IPython is not installed")
    config = settings.Config()
    config.HistoryManager.enabled = False
    shell = shells.InteractiveShell.instance(config=config)

    def run(text: str) -> Any:
        found = shell.run_cell(text, store_history=False)
        found.raise_error()
        return found.result

    run(HEADER)
    yield run
    shells.InteractiveShell.clear_instance()


def test_a_kernel_and_its_helper_work_in_cells(cell: Cell) -> None:
    cell(HELPER.format(factor=2))
    cell(KERNEL)
    assert cell(CALL) == [2.0] * 8


def test_a_helper_defined_again_in_a_later_cell_is_the_one_that_runs(cell: Cell) -> None:
    cell(HELPER.format(factor=2) + KERNEL)
    assert cell(CALL) == [2.0] * 8
    cell(HELPER.format(factor=3))
    assert cell(CALL) == [3.0] * 8


def test_a_mistake_shows_the_line_of_the_cell(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    cell("def twice(t):\n    return t + zeros((3,), f32)\n")
    cell(KERNEL)
    with pytest.raises(Exception, match="A105") as caught:
        cell(CALL)
    report = str(caught.value)
    assert "return t + zeros((3,), f32)" in report
    assert "o[...] = twice(x[...])" in report
    assert str(Path(astdsl.__file__).parent) not in capsys.readouterr().out


def test_parents_that_tools_hang_on_shared_nodes_are_no_part_of_a_tree(cell: Cell) -> None:
    with pytest.raises(ZeroDivisionError):
        cell("1 / 0")  # IPython's traceback uses `executing`, which does so
    cell(HELPER.format(factor=2) + KERNEL)
    assert cell(CALL) == [2.0] * 8


DOCUMENTED = f"""
>>> import numpy as np
>>> from astdsl import *
>>> def twice(t):
...     return t * 2
>>> @kernel
... def double(x: In[f32, "N"], o: Out[f32, "N"]):
...     if x.shape[0] > 4:
...         o[...] = twice(x[...])
>>> {CALL}
[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
"""


def test_a_kernel_works_in_a_doctest() -> None:
    module = ModuleType("documented")
    module.__doc__ = DOCUMENTED
    found = doctest.testmod(module)
    assert (found.failed, found.attempted) == (0, 5)
