"""What is shown: plain where it is piped, coloured on a terminal."""

import io
import re

import pytest
from rich.console import Console

from astdsl.cli.render import STYLES, Screen, as_object
from astdsl.errors import BadCommand, TypeMismatch
from astdsl.source import Span

REPORT = TypeMismatch("one kind", (Span("f.py", 1, 2, 1, 4), "here"), help="do")


def screen_on_a_terminal(screen: Screen) -> io.StringIO:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", markup=False)
    screen._out = screen._err = console
    return file


def test_what_is_piped_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().show("%0: i64 = Add [red]%1[/red] :smile:", "ir")
    assert capsys.readouterr().out == "%0: i64 = Add [red]%1[/red] :smile:\n"


@pytest.mark.parametrize("language", STYLES)
def test_a_terminal_gets_colour_and_the_same_text(language: str) -> None:
    text = (
        'A104: "a"\n  %r = Add 1 // if\n  add.s32 %r1, 2;\n  /*0010*/  MOV R1, R2 ;\n  ^^^^ here\n'
    )
    screen = Screen()
    file = screen_on_a_terminal(screen)
    screen.show(text, language)
    shown = file.getvalue()
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == text


def test_a_report_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().complain(BadCommand("no", help="yes"))
    assert capsys.readouterr() == ("", "A701: no\n  help: yes\n")


def test_an_error_as_an_object_has_its_places() -> None:
    found = as_object(REPORT)
    assert (found["code"], found["message"], found["help"]) == ("A104", "one kind", "do")
    (place,) = found["places"]
    assert (place["file"], place["line"], place["column"], place["note"]) == ("f.py", 1, 2, "here")


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().show_table([("a", "one"), ("long", "two")])
    assert capsys.readouterr().out == "a     one\nlong  two\n"
