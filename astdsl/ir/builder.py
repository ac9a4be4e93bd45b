"""Building IR: a stack of open blocks to which operations are appended.

Invariant: an operation goes to the innermost open block, and may use only values made in a block
that is open; `visible` tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from astdsl.ir.core import Block, Op, Value
from astdsl.ir.types import Type
from astdsl.records import dataclass, field

AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass(slots=True)
class OpenBlock:
    """A block being built; `close()` is called by the builder when its `with` ends."""

    args: tuple[Value, ...]
    ops: list[Op] = field(default_factory=list)

    @property
    def block(self) -> Block:
        """The block as built so far."""
        return Block(args=self.args, ops=tuple(self.ops))


class Builder:
    """Appends operations to the innermost open block."""

    def __init__(self, args: Sequence[Value] = ()) -> None:
        self._stack = [OpenBlock(tuple(args))]
        self._home: dict[Value, OpenBlock] = dict.fromkeys(args, self._stack[0])

    @property
    def depth(self) -> int:
        """Number of open blocks."""
        return len(self._stack)

    @property
    def current(self) -> OpenBlock:
        """The innermost open block."""
        return self._stack[-1]

    @contextmanager
    def block(self, types: Sequence[Type] = (), hints: Sequence[str] = ()) -> Iterator[OpenBlock]:
        """Open a block with arguments of `types`; it is closed, not yet used, at the end."""
        names = [*hints, *[""] * (len(types) - len(hints))]
        opened = OpenBlock(tuple(Value(t, h) for t, h in zip(types, names, strict=True)))
        self._home.update(dict.fromkeys(opened.args, opened))
        self._stack.append(opened)
        try:
            yield opened
        finally:
            closed = self._stack.pop()
            assert closed is opened, "blocks close in the order that they were opened"

    def add(self, op: AnyOp) -> AnyOp:
        """Append an operation and return it."""
        self.current.ops.append(op)
        self._home.update(dict.fromkeys(op.results, self.current))
        return op

    @contextmanager
    def reopened(self, closed: OpenBlock) -> Iterator[OpenBlock]:
        """Append to a block that was closed; what its values were used for must not be built."""
        self._stack.append(closed)
        try:
            yield closed
        finally:
            popped = self._stack.pop()
            assert popped is closed, "blocks close in the order that they were opened"

    def mark(self) -> int:
        """Return a place in the innermost block, for `cut`."""
        return len(self.current.ops)

    def cut(self, mark: int) -> OpenBlock:
        """Take the operations since `mark` off the innermost block, as a closed block."""
        taken = OpenBlock((), self.current.ops[mark:])
        del self.current.ops[mark:]
        for op in taken.ops:
            self._home.update(dict.fromkeys(op.results, taken))
        return taken

    def visible(self, value: Value) -> bool:
        """Whether a value was made in a block that is still open."""
        return any(self._home.get(value) is opened for opened in self._stack)

    def finish(self) -> Block:
        """Return the outermost block; every other one must be closed."""
        assert self.depth == 1, "a block is still open"
        return self._stack[0].block
