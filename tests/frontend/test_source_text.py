"""A function is found in its text wherever Python keeps it, and refused where it is not."""

from __future__ import annotations

import ast
import doctest
import linecache
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from astdsl.errors import SourceUnavailable
from astdsl.frontend.source_text import find_function
from astdsl.ir.dtypes import i32
from tests.frontend.test_spans import module_of
from tests.frontend.tracing import agrees, array, error_of, trace


def found(function: Any) -> str:
    """Return the text of a function's node, unparsed."""
    return ast.unparse(find_function(function).node)


def test_lambdas_of_one_line_are_told_apart() -> None:
    first, second = (lambda x: x + 1), (lambda x: x + 2)
    assert found(first) == "lambda x: x + 1"
    assert found(second) == "lambda x: x + 2"


def test_a_lambda_in_a_lambda_is_told_from_it() -> None:
    outer: Any = lambda x: lambda y: x + y  # noqa: E731
    assert found(outer) == "lambda x: lambda y: x + y"
    assert found(outer(1)) == "lambda y: x + y"


def test_a_lambda_in_a_default_is_told_from_the_one_around() -> None:
    outer: Any = lambda f=lambda: 7: f  # noqa: E731
    assert found(outer()) == "lambda: 7"
    assert found(outer) == "lambda f=lambda: 7: f"


def test_a_decorated_function_is_found_by_its_first_decorator() -> None:
    def plain(function: Any) -> Any:
        return function

    @plain
    @plain
    def decorated(x: int) -> int:
        return x

    assert find_function(decorated).node.name == "decorated"  # type: ignore[union-attr]


def test_a_method_knows_its_class() -> None:
    class Outer:
        class Inner:
            def method(self) -> None: ...

    assert find_function(Outer.Inner.method).class_name == "Inner"  # type: ignore[arg-type]


def made_by_exec(source: str, file: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "made"}
    exec(compile(source, file, "exec"), space)  # noqa: S102  (what is tested)
    return space


def test_code_of_exec_is_found_by_its_linecache_entry() -> None:
    source = "def f(n, o):\n    if n > 2:\n        o[0] = n\n"
    file = "<made for a test>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    function = made_by_exec(source, file)["f"]
    agrees(function, 1)
    agrees(function, 5)


def test_code_without_text_is_refused_with_the_way_out() -> None:
    function = made_by_exec("def f(n, o):\n    o[0] = n\n", "<no text>")["f"]
    error = error_of(function, n=i32, o=array(4))
    assert isinstance(error, SourceUnavailable)
    assert "does not keep the source text" in error.message
    assert "linecache" in error.help


def test_a_file_that_changed_since_import_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    module = module_of(path, "def f(n, o):\n    o[0] = n + 1\n")
    trace(module.f, n=i32, o=array(4))
    path.write_text("def f(n, o):\n    o[0] = n + 2\n")
    os.utime(path, (1, 1))
    error = error_of(module.f, n=i32, o=array(4))
    assert isinstance(error, SourceUnavailable)
    assert "changed" in error.message


def test_a_file_that_changed_elsewhere_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "growing.py"
    module = module_of(path, "def f(n, o):\n    o[0] = n + 1\n")
    path.write_text("def f(n, o):\n    o[0] = n + 1\n\n# more\n")
    os.utime(path, (1, 1))
    trace(module.f, n=i32, o=array(4))


def test_a_file_whose_lines_moved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "moving.py"
    module = module_of(path, "def f(n, o):\n    o[0] = n + 1\n")
    path.write_text("import os\ndef f(n, o):\n    o[0] = n + 1\n")
    os.utime(path, (1, 1))
    assert "changed" in error_of(module.f, n=i32, o=array(4)).message


WITH_WARNINGS = """
def g(n):
    "\\d"
    return n + 1

def f(n, o):
    if n is 3:
        o[0] = 1
    o[0] = g(n)
"""


def test_what_python_warned_of_is_not_warned_of_again(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = module_of(tmp_path / "warned.py", WITH_WARNINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(module.f, n=i32, o=array(4))


def test_functions_of_a_doctest_are_found() -> None:
    text = """
    >>> from tests.frontend.tracing import on_numbers
    >>> def f(n, o):
    ...     if n > 2:
    ...         o[0] = n
    >>> on_numbers(f, 4).tolist()[:2]
    [4, -1]
    """
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "doc"}, "doc", "doc.py", 0)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test).failed == 0


IN_A_PROMPT = """
from tests.frontend.tracing import on_numbers
def f(n, o):
    if n > 2:
        o[0] = n

print(on_numbers(f, 4).tolist()[:2])
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="older prompts keep no text")
def test_functions_of_a_prompt_are_found() -> None:
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=IN_A_PROMPT, capture_output=True, text=True, check=False
    )
    assert "[4, -1]" in done.stdout, done.stderr


@pytest.mark.skipif(sys.version_info < (3, 13), reason="older versions keep no text of -c")
def test_functions_of_a_command_are_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROMPT], capture_output=True, text=True, check=False
    )
    assert "[4, -1]" in done.stdout, done.stderr


def test_a_function_made_of_another_code_is_refused() -> None:
    def original(n: Any, o: Any) -> None:
        o[0] = n

    code = original.__code__.replace(co_name="renamed")
    function = types.FunctionType(code, {})
    assert isinstance(error_of(function, n=i32, o=array(4)), SourceUnavailable)
