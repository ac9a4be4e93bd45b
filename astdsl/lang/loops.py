"""`range` of kernel values, which a `for` turns into a loop of the kernel.

Invariant: the three numbers are integer scalars or Python integers; the step is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astdsl.errors import NotConstant, TypeMismatch
from astdsl.lang.blocks import BlockFunction, trace_for
from astdsl.lang.tracing import fault


@dataclass(frozen=True, slots=True)
class KernelRange:
    """`range(low, high, step)` where a number is known only when the kernel runs."""

    low: object
    high: object
    step: object = 1

    def __kernel_for__(self, body: BlockFunction) -> None:
        trace_for(self.low, self.high, self.step, body)

    def __iter__(self) -> Iterator[object]:
        raise fault(
            NotConstant,
            "a range of kernel values can be a `for` statement only",
            help="a comprehension or `unroll` needs a constant count; in a `for` statement the "
            "loop runs in the kernel",
        )


def kernel_range(*numbers: object) -> KernelRange:
    """Return the range of one to three numbers, as Python's `range` reads them."""
    if not 1 <= len(numbers) <= 3:
        raise fault(TypeMismatch, f"`range` takes 1 to 3 numbers, got {len(numbers)}")
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) == 3 else 1
    if isinstance(step, int) and step == 0:
        raise fault(TypeMismatch, "the step of a range is not 0", help="the step is often 1")
    return KernelRange(low, high, step)
