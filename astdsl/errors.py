"""The mistakes a kernel author can make, each a class with a stable code.

Invariant: every error has a code, one sentence, the source spans involved and a way out. Our own
bugs are `AssertionError`s, never one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from astdsl.source import Span, excerpt


class KernelError(Exception):
    """A kernel, or a call of one, that is wrong.

    `message` is one sentence without a full stop; `places` are the spans involved, the mistake
    first, each with a note for its caret line; `help` says what to do instead.
    """

    code: ClassVar[str] = "A000"

    def __init__(self, message: str, *places: tuple[Span, str], help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.places = places
        self.help = help

    @property
    def span(self) -> Span | None:
        """The span of the mistake itself."""
        return self.places[0][0] if self.places else None

    def report(self) -> str:
        """Return the whole report as plain text: code, sentence, excerpts, way out."""
        lines = [f"{self.code}: {self.message}"]
        for span, note in self.places:
            lines += _place(span, note)
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.report()


def _place(span: Span, note: str) -> list[str]:
    lines = [f"  {span}", *excerpt(span, note)]
    for caller in span.stack:
        lines += [f"  called from {caller}", *excerpt(caller)]
    return lines


class UnsupportedSyntax(KernelError):
    """Python that has no meaning on kernel values."""

    code = "A101"


class UnsupportedFeature(KernelError):
    """Something the language has, which this version or target does not do."""

    code = "A102"


class UnknownName(KernelError):
    """A misspelt or missing name."""

    code = "A103"


class TypeMismatch(KernelError):
    """Operands or arguments of the wrong dtype or kind."""

    code = "A104"


class ShapeMismatch(KernelError):
    """Shapes that do not fit together."""

    code = "A105"


class BadWindow(KernelError):
    """A window that a ref cannot be indexed by."""

    code = "A106"


class NotConstant(KernelError):
    """A kernel value where a compile-time constant is needed."""

    code = "A107"


class BranchMismatch(KernelError):
    """A name that two paths leave with different types."""

    code = "A108"


class OutOfScope(KernelError):
    """A kernel value used outside the block that made it."""

    code = "A109"


class HiddenMutation(KernelError):
    """A Python object changed inside a kernel block."""

    code = "A110"


class OutsideLost(KernelError):
    """A ragged tile used where its outside elements would count."""

    code = "A111"


class BadSignature(KernelError):
    """A kernel whose parameters or annotations are malformed."""

    code = "A201"


class BadArgument(KernelError):
    """A call whose arguments do not fit the kernel's signature."""

    code = "A202"


class AliasedOutput(KernelError):
    """An output that shares memory with another argument."""

    code = "A203"


class FailedAssertion(KernelError):
    """An `assert` of the kernel that does not hold for these arguments."""

    code = "A204"


class SourceUnavailable(KernelError):
    """A function whose source text Python does not keep, or whose file changed."""

    code = "A205"


class WrittenInput(KernelError):
    """A write to an `In` parameter."""

    code = "A301"


class UnwrittenRead(KernelError):
    """A read of an output window that is not proved written."""

    code = "A302"


class ScatteredAccumulation(KernelError):
    """An accumulation into a window again after other windows came between."""

    code = "A303"


class OverlappingWindows(KernelError):
    """Windows of one output that are neither equal nor disjoint."""

    code = "A304"


class ParallelConflict(KernelError):
    """Steps of a `parallel` that are proved to depend on each other."""

    code = "A305"


class BadPipeline(KernelError):
    """A pipeline whose arguments or place are wrong."""

    code = "A306"


class RepeatedIndex(KernelError):
    """A scatter stores two different values in one element."""

    code = "A307"


class OutOfSharedMemory(KernelError):
    """Buffers that exceed the target's shared memory."""

    code = "A401"


class TileTooLarge(KernelError):
    """A tile that does not fit the registers."""

    code = "A402"


class WrongTarget(KernelError):
    """A name that needs another target."""

    code = "A403"


class DeviceUnavailable(KernelError):
    """A device that this machine does not have."""

    code = "A404"


class ProtocolError(KernelError):
    """Barriers, copies and waits that cannot work together."""

    code = "A501"


class DeviceError(KernelError):
    """A fault while a kernel ran, with its kernel and PTX lines."""

    code = "A601"


class BadCommand(KernelError):
    """A command line that is wrong."""

    code = "A701"


def in_words(number: int, noun: str) -> str:
    """Return a number of things: "1 axis", "2 axes", "1 element", "2 elements", ..."""
    many = _PLURALS.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else many}"


_PLURALS = {"axis": "axes", "index": "indices"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`?" for the known name closest to `name`, empty where none is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""
