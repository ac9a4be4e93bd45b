"""Tracebacks end at the user's own lines."""

from __future__ import annotations

import json
import traceback
from types import FunctionType
from typing import Any

import pytest

from astdsl.errors import BadArgument
from astdsl.runtime.boundary import Boundary


def ours(name: str, function: Any) -> Any:
    """Return a copy of a function that counts as one of the package's."""
    space = {**function.__globals__, "__name__": name}
    return FunctionType(function.__code__, space, function.__name__, None, function.__closure__)


def cross(call: Any) -> None:
    """Call as the package does: through a frame of its own, inside the boundary."""

    def enter() -> None:
        with Boundary("k"):
            call()

    ours("astdsl.kernel", enter)()


def frames(caught: Any) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_a_kernel_error_keeps_no_frame_inside_the_boundary() -> None:
    def refuse() -> None:
        raise BadArgument("no") from ValueError("inner")

    with pytest.raises(BadArgument) as caught:
        cross(refuse)
    assert "refuse" not in frames(caught)
    assert "enter" not in frames(caught)
    assert caught.value.__suppress_context__


def test_the_users_exception_keeps_the_users_frames_and_gets_a_note() -> None:
    def users() -> None:
        raise ValueError("theirs")

    def hook() -> None:
        users()

    with pytest.raises(ValueError, match="theirs") as caught:
        cross(ours("astdsl.frontend.hooks", hook))
    assert frames(caught)[-1] == "users"
    assert "hook" not in frames(caught)
    assert caught.value.__notes__[0].startswith("in kernel `k`, test_boundary.py:")


def test_our_own_fault_keeps_every_frame() -> None:
    def inside() -> None:
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours") as caught:
        cross(ours("astdsl.lowering.compiler", inside))
    assert frames(caught)[-2:] == ["enter", "inside"]
    assert not hasattr(caught.value, "__notes__")


def test_our_own_fault_inside_a_library_keeps_every_frame() -> None:
    def inside() -> None:
        json.loads("{")

    with pytest.raises(json.JSONDecodeError) as caught:
        cross(ours("astdsl.lowering.compiler", inside))
    assert "inside" in frames(caught)
    assert not hasattr(caught.value, "__notes__")


def test_a_call_that_does_not_fit_the_users_function_is_the_users() -> None:
    def helper(x: int) -> int:
        return x

    def plainly() -> None:
        helper()  # type: ignore[call-arg]

    def kernel_code() -> None:
        ours("astdsl.frontend.calls", plainly)()

    with pytest.raises(TypeError, match="missing 1 required") as caught:
        cross(kernel_code)
    assert frames(caught)[-1] == "kernel_code"
    assert caught.value.__notes__


def test_the_library_of_kernels_counts_as_the_users() -> None:
    def kernel_code() -> None:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs") as caught:
        cross(ours("astdsl.stdlib.softmax", kernel_code))
    assert frames(caught)[-1] == "kernel_code"
    assert caught.value.__notes__
