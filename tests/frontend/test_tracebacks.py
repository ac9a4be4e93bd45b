"""What the user sees of an exception: their own lines, and none of ours."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import pytest

import astdsl
from astdsl import lowering
from astdsl.errors import KernelError
from tests.frontend.test_spans import module_of

HEADER = """
from astdsl import *
def helper(x):
    return [1, 2, 3].index(x)
@kernel
def f(x: In[f32, "N"], o: Out[f32, "N"]):
"""
FAILED = (ValueError, TypeError, KeyError, ZeroDivisionError, RuntimeError, KernelError)
FAILURES = {
    "o[0:4] = x[0:4] * helper(7)": "ValueError",
    "for a in 5: pass": "TypeError",
    "o[0:4] = x[0:4] if 3 in 5 else 0": "TypeError",
    "{}['a']": "KeyError",
    "print(1 / 0)": "ZeroDivisionError",
    "len(5)": "TypeError",
    "raise RuntimeError('mine')": "RuntimeError",
}


# The package's own folders, whatever that of the checkout is called.
OURS = [str(Path(str(module.__file__)).parent) for module in (astdsl, lowering)]


def shown(line: str, folder: Path) -> str:
    """Return the traceback of calling a kernel whose only line is `line`."""
    module = module_of(folder / "mine.py", HEADER + f"    {line}\n")
    with pytest.raises(FAILED) as caught:
        module.f.on("reference")(np.zeros(8, np.float32))
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("line", FAILURES)
def test_an_exception_of_the_user_s_python_shows_the_user_s_lines(
    line: str, tmp_path: Path
) -> None:
    text = shown(line, tmp_path)
    assert FAILURES[line] in text
    assert line.partition(":")[0] in text
    assert "in kernel `f`, mine.py:" in text
    assert not any(folder in text for folder in OURS)


def test_a_mistake_shows_no_traceback_of_ours(tmp_path: Path) -> None:
    text = shown("o[0:4] = zeroes((4,))", tmp_path)
    assert "did you mean `zeros`?" in text
    assert not any(folder in text for folder in OURS)
