"""What a running kernel says: the text of a `print`, the error of an assertion that fails.

Invariant: it is the same on every device. A print is one line; a tile is written as NumPy writes
it, long ones summarised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from astdsl.errors import DeviceError
from astdsl.source import Span

# What an assertion says that the host checks and that has no message.
UNMET = "an assertion of the kernel does not hold for these arguments"
_LINE_BREAK = re.compile(r"\n\s*")


def printed(pieces: Sequence[str], values: Sequence[Any]) -> str:
    """Return the text of a print: NumPy values between pieces of text."""
    parts = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        parts += [_LINE_BREAK.sub(" ", str(value)), piece]
    return "".join(parts)


def failed_assertion(message: str, span: Span, block: int | None = None) -> DeviceError:
    """Return the error of an assertion of a running kernel that does not hold."""
    said = message or "an assertion of the kernel does not hold"
    return DeviceError(
        said,
        (span, "" if block is None else f"in block {block}"),
        help="it depends on what the kernel computes: `print` beside it shows the values",
    )
