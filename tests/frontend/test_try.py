"""`try` and `del` in a kernel do to Python's values what they do in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astdsl.errors import KernelError
from astdsl.ir.dtypes import i32
from tests.frontend.test_spans import module_of
from tests.frontend.tracing import agrees, array, trace

TABLE = {"a": 2, "c": 5}


def a_handler(n: Any, o: Any) -> None:
    try:
        factor = TABLE["b"]
    except KeyError as error:
        factor = len(error.args)
    except (TypeError, ValueError):
        factor = 9
    o[0] = n * factor


def else_and_finally(n: Any, o: Any) -> None:
    seen = []
    for key in ("a", "b", "c"):
        try:
            found = TABLE[key]
        except KeyError:
            seen.append(n)
        else:
            seen.append(n + found)
        finally:
            seen.append(1)
    o[0], o[1], o[2] = sum(seen), len(seen), seen[2]


def nested_and_raised(n: Any, o: Any) -> None:
    try:
        try:
            raise ValueError("x")
        except KeyError:
            kind = 1
        finally:
            inner = 3
    except ValueError:
        kind = 2
    try:
        raise RuntimeError
    except:  # noqa: E722
        last = kind + inner
    o[0] = n + last


def leaving_a_try(n: Any, o: Any) -> None:
    def found(x: Any, key: str) -> Any:
        try:
            return TABLE[key]
        except KeyError:
            return x + 100

    total = n
    for key in ("a", "z", "b", "c"):
        try:
            if key == "z":
                continue
            step = TABLE[key]
        except KeyError:
            total += 1
            break
        total += step
    o[0], o[1], o[2] = total, found(n, "b"), total + n


def in_branches_and_loops(n: Any, o: Any) -> None:
    total = 0
    if n > 2:
        try:
            factor = TABLE["q"]
        except KeyError:
            factor = 3
        total = n * factor
    for k in range(n):
        try:
            step = TABLE["a"]
        except KeyError:
            step = 7
        total += step + k
    o[0] = total


def a_branch_before_the_exception(n: Any, o: Any) -> None:
    def name_of(part: Any) -> Any:
        try:
            key = "none"
            if type(part) is str:
                key = part
            return TABLE[key]
        except KeyError:
            return len(key)

    o[0], o[1] = n + name_of("a"), n + name_of(n)


def a_helper_raises(n: Any, o: Any) -> None:
    def checked(key: str) -> int:
        if key not in TABLE:
            raise LookupError(key)
        return TABLE[key]

    try:
        factor = checked("d")
    except LookupError:
        factor = checked("c")
    o[0] = n * factor


def deletions(n: Any, o: Any) -> None:
    unused, parts, named = 3, [n, n + 1, n + 2], {"a": n, "b": 7}
    del unused
    del parts[0], named["b"]
    first, *_ = parts
    o[0], o[1], o[2] = first, len(parts), len(named)
    for k in range(n):
        twice = k * 2
        o[3] = twice
        del twice
    unused = n
    o[4] = unused


KERNELS = [value for value in list(globals().values()) if getattr(value, "__code__", None)]
KERNELS = [k for k in KERNELS if k.__module__ == __name__]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_kernel_does_what_python_does(kernel: Any, n: int) -> None:
    agrees(kernel, n)


def test_what_no_handler_takes_is_the_users(tmp_path: Path) -> None:
    source = "def kernel(n, o):\n    try:\n        {}['k']\n    finally:\n        pass\n"
    module = module_of(tmp_path / "kernel.py", source)
    with pytest.raises(KeyError):
        trace(module.kernel, n=i32, o=array(None, dtype=i32))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("leave", ["return", "break", "continue"])
def test_leaving_a_finally_is_refused(leave: str, tmp_path: Path) -> None:
    source = f"""
def kernel(n, o):
    for k in (1, 2):
        try:
            m = 1
        finally:
            {leave}
"""
    module = module_of(tmp_path / "kernel.py", source)
    with pytest.raises(KernelError, match=f"`{leave} in finally` is not supported") as caught:
        trace(module.kernel, n=i32, o=array(None, dtype=i32))
    assert caught.value.help == "leave behind the `try`"
