"""Running one kernel on every witness there is, and demanding that they agree.

The reference evaluates the traced IR; the scheduled IR is evaluated again, for each target and in
two orders of the blocks; the emulator runs the PTX with asynchronous work completing as late and
as early as is legal. They share no code. Where there is a GPU it runs the kernel too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from astdsl.ir.evaluate import evaluate
from astdsl.ir.verify import verify
from astdsl.lowering.compiler import find_target
from astdsl.lowering.schedule.kernel import schedule
from astdsl.lowering.schedule.stream_k import settle_streams
from astdsl.runtime.devices import selected_target, why_no_gpu

TARGETS = ("sm_90a", "sm_100a")
Arguments = Callable[[], Sequence[Any]]


def agree(
    kernel: Any,
    arguments: Arguments,
    *,
    targets: Sequence[str] = TARGETS,
    tolerance: float = 0.0,
    emulate: bool = True,
    **constants: Any,
) -> Any:
    """Run a kernel on every witness; return what it writes: its outputs, then its `InOut`s.

    `arguments` makes fresh arguments for every run. Without a tolerance results are equal bit
    for bit. Parts of a stream differ between targets: their sums are compared on each.
    """
    expected = _results(kernel.on("reference", target=targets[0]), arguments, constants)
    for target in targets:
        lowered = kernel.lower(*arguments(), target=target, **constants)
        scheduled = schedule(lowered.module, find_target(target))
        if settle_streams(lowered.module, find_target(target)) is not lowered.module:
            expected = _results(kernel.on("reference", target=target), arguments, constants)
        verify(scheduled)
        for order in ("ascending", "descending"):
            found = _evaluated(scheduled, arguments, expected, order)
            _compare(found, expected, tolerance, f"the schedule for {target}, {order} blocks")
        for completion in ("late", "early") if emulate else ():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ASTDSL_COMPLETION", completion)
                placed = kernel.on("emulator", target=target)
                found = _results(placed, arguments, constants)
            _compare(found, expected, tolerance, f"the emulator for {target}, {completion}")
    if not why_no_gpu() and (target := selected_target("cuda")) in targets:
        expected = _results(kernel.on("reference", target=target), arguments, constants)
        found = _results(kernel.on("cuda"), arguments, constants)
        _compare(found, expected, tolerance, "the GPU")
    return expected[0] if len(expected) == 1 else tuple(expected)


def _results(placed: Any, arguments: Arguments, constants: dict[str, Any]) -> list[Any]:
    given = list(arguments())
    untouched = [np.copy(a) if isinstance(a, np.ndarray) else a for a in given]
    returned = placed(*given, **constants)
    found = [] if returned is None else [returned] if isinstance(returned, np.ndarray) else returned
    changed = [
        a
        for a, b in zip(given, untouched, strict=True)
        if isinstance(a, np.ndarray) and not any(a is r for r in found) and not np.all(_same(a, b))
    ]
    return [*found, *changed]


def _evaluated(module: Any, arguments: Arguments, expected: Sequence[Any], order: str) -> list[Any]:
    """Evaluate a scheduled module; omitted outputs are made like the expected ones."""
    given = list(arguments())
    missing = len(module.params) - len(given)
    made = [np.zeros_like(e) for e in expected[:missing]]
    given += made
    before = [np.copy(a) if isinstance(a, np.ndarray) else a for a in given]
    evaluate(module, given, order=order)
    roles = [p.role for p in module.params]
    outputs = [a for a, r in zip(given, roles, strict=True) if r == "out"]
    updates = [
        a
        for a, b, r in zip(given, before, roles, strict=True)
        if r == "inout" and not np.array_equal(a, b)
    ]
    return [*outputs, *updates]


def _compare(found: Sequence[Any], expected: Sequence[Any], tolerance: float, witness: str) -> None:
    assert len(found) == len(expected), f"{witness} gave {len(found)} results"
    for x, y in zip(found, expected, strict=True):
        if tolerance:
            a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=witness)
        else:
            differs = ~_same(np.asarray(x), np.asarray(y))
            assert not differs.any(), f"{witness} differs at {np.argwhere(differs)[:4].tolist()}"


def _same(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Any:
    """Whether elements are the same bits; a NaN is a NaN, as its payload is unspecified."""
    if x.dtype.kind in "biu" or x.shape != y.shape:
        return np.asarray(x == y)
    wide, also = x.astype(np.float64), y.astype(np.float64)
    equal = (wide == also) & (np.signbit(wide) == np.signbit(also))
    return equal | (np.isnan(wide) & np.isnan(also))
