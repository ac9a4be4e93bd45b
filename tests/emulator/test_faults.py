"""Every fault says what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import astdsl.emulator
from astdsl.emulator.faults import HELP, DeviceFault

SOURCES = sorted(Path(astdsl.emulator.__file__).parent.rglob("*.py"))
CODES = sorted({code for path in SOURCES for code in re.findall(r'"(E2\d\d)"', path.read_text())})


@pytest.mark.parametrize("code", CODES)
def test_a_code_has_a_way_out(code: str) -> None:
    assert HELP[code] == DeviceFault(code, "it happened").help


def test_what_the_place_says_comes_before_what_the_code_says() -> None:
    assert DeviceFault("E220", "it happened", help="look here").help == "look here"
    assert "help: look here" in str(DeviceFault("E220", "it happened", help="look here"))
