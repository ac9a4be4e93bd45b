"""Basic blocks of LLVM assembly: their phis and lines, and bodies behind a branch.

Invariant: a block is printed once it has ended, and nothing follows its end.
"""

from __future__ import annotations

from collections.abc import Set

from astdsl.lowering.nvptx.known import Known
from astdsl.lowering.nvptx.values import LV, Label


class BasicBlock:
    """A basic block: its phis, which may still grow, its lines, and what is known in it.

    `is_movable` is whether its lines may stand elsewhere: they only compute, or use variables.
    """

    __slots__ = ("ended", "is_movable", "known", "label", "lines", "phis")

    def __init__(self, label: Label, known: Known) -> None:
        self.label = label
        self.lines: list[str] = []
        self.phis: list[Phi] = []
        self.ended = False
        self.is_movable = True
        self.known = known

    def text(self, unused: Set[str] = frozenset()) -> str:
        """Spell the block, but for the lines that are `unused`."""
        if not self.ended:
            raise AssertionError(f"block {self.label.name} does not end in a branch or return")
        lines = [line for line in self.lines if line not in unused] if unused else self.lines
        return "\n".join([f"{self.label.name}:", *(phi.text() for phi in self.phis), *lines])


class Guard:
    """A body for the threads where a predicate holds, its end, and the blocks around it."""

    __slots__ = ("_is_plain", "after", "before", "body", "predicate")

    def __init__(
        self, predicate: LV, before: BasicBlock, body: BasicBlock, after: BasicBlock
    ) -> None:
        self.predicate = predicate
        self.before, self.body, self.after = before, body, after
        self._is_plain = False

    def leave_from(self, block: BasicBlock) -> None:
        """Note in which block the body ends, before it ends."""
        self._is_plain = block.known is self.body.known and not block.known.uses_variables
        self.body = block
        if not self._is_plain:
            self.after.known.forget_variables()

    def reopen(self) -> bool:
        """Take the body's end away; what was computed since then moves in front of the branch."""
        if not (self._is_plain and self.after.is_movable):
            return False
        self.before.lines[-1:-1] = self.after.lines
        self.after.lines.clear()
        self.body.lines.pop()
        self.body.ended = False
        return True


class Phi:
    """A value chosen by the block we came from; arms are added as they become known."""

    __slots__ = ("_arms", "value")

    def __init__(self, value: LV) -> None:
        self.value = value
        self._arms: list[str] = []

    def add(self, value: LV, source: Label) -> None:
        """Give the value that arrives from the block `source`."""
        require_type(value, self.value.type, "phi")
        self._arms.append(f"[ {value.name}, %{source.name} ]")

    def text(self) -> str:
        """Spell the instruction."""
        return f"  {self.value.name} = phi {self.value.type} {', '.join(self._arms)}"


def require_type(value: LV, type: str, operation: str) -> None:
    """Refuse, as a bug of ours, a value of another type than `operation` takes."""
    if value.type != type:
        raise AssertionError(f"{operation}: expected {type}, got {value.typed}")
