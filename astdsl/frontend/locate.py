"""Where the user's code stands now: the span of the running operation, and the helpers around it.

Invariant: only frames of rewritten code count. The frames of one function's blocks and
comprehensions are one place, that of the innermost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, TracebackType

from astdsl.lang.names import BlockNames, Names
from astdsl.records import dataclass, field
from astdsl.source import NOWHERE, Span

COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(slots=True)
class Codes:
    """The code objects of rewritten functions: which of them are parts of a function around."""

    # What runs the kernel: nothing around it is looked at.
    runner: CodeType | None = None
    # Names of scopes around a nested function that it may assign, by the id of its code.
    shared: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _parts: dict[int, bool] = field(default_factory=dict)
    _blocks: dict[int, BlockNames] = field(default_factory=dict)
    _positions: dict[int, list[tuple[int | None, ...]]] = field(default_factory=dict)
    _plain: set[int] = field(default_factory=set)
    _kept: list[CodeType] = field(default_factory=list)

    def add(
        self, code: CodeType, blocks: dict[str, BlockNames], shared: Names = frozenset()
    ) -> None:
        """Add the code of a rewritten function with all that is nested in it.

        `shared` are the names that nested functions declare `nonlocal`.
        """
        if id(code) in self._parts:
            return
        if not code.co_flags & CO_OPTIMIZED:  # the body of a class
            self._below_classes(code)
            return
        self._kept.append(code)
        names = blocks.get(code.co_name)
        self._parts[id(code)] = names is not None or code.co_name in COMPREHENSIONS
        if names is not None:
            self._blocks[id(code)] = names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.add(constant, blocks, shared)
                self._note_shared(constant, shared)

    def _note_shared(self, nested: CodeType, shared: Names) -> None:
        names = tuple(name for name in nested.co_freevars if name in shared)
        if names and not self._parts.get(id(nested), True):
            self.shared[id(nested)] = names

    def _below_classes(self, code: CodeType) -> None:
        """Note the functions of a class body: they are not rewritten until they are called."""
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._kept.append(constant)
                self._plain.add(id(constant))
                self._below_classes(constant)

    def is_ours_unchanged(self, code: CodeType) -> bool:
        """Whether a code object was compiled by us, from the user's text as it stands."""
        return id(code) in self._plain

    def __contains__(self, code: CodeType) -> bool:
        return id(code) in self._parts

    def block(self, code: CodeType) -> BlockNames:
        """Return the names of a block, by its code."""
        return self._blocks[id(code)]

    def locate(self) -> Span:
        """Return the span of the operation that runs now, with the calls of helpers around it."""
        return self._innermost(self._running())

    def reached(self, trace: Sequence[TracebackType]) -> Span:
        """Return the span where a traceback ends, with the calls of helpers around it."""
        steps = [(t.tb_frame.f_code, t.tb_lasti, t.tb_lineno) for t in reversed(trace)]
        return self._innermost(step for step in steps if id(step[0]) in self._parts)

    def _innermost(self, steps: Iterable[tuple[CodeType, int, int]]) -> Span:
        places: list[Span] = []
        is_inside = False  # of the function whose place is the last one
        for step in steps:
            if not is_inside:
                places.append(self.place(*step))
            is_inside = self._parts[id(step[0])]
        if not places:
            return NOWHERE
        return places[0].within(tuple(places[1:]))

    def _running(self) -> Iterator[tuple[CodeType, int, int]]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self.runner:
            if id(frame.f_code) in self._parts:
                yield frame.f_code, frame.f_lasti, frame.f_lineno
            frame = frame.f_back

    def place(self, code: CodeType, instruction: int, line_number: int) -> Span:
        """Return the span of one instruction of rewritten code."""
        positions = self._positions.get(id(code))
        if positions is None:
            positions = self._positions[id(code)] = list(code.co_positions())
        line, end_line, column, end_column = positions[instruction // 2]
        if line is None or end_line is None:
            return Span(code.co_filename, line_number, 0, line_number, 0)
        # Python started with `-X no_debug_ranges` knows lines only: the whole line is shown.
        whole = (0, 1 << 20)
        start, end = (column, end_column) if column is not None else whole
        return Span(code.co_filename, line, start, end_line, end if end is not None else whole[1])
