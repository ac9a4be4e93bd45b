"""Operands that only some runs of a kernel evaluate: what tracing them changed is taken back.

Invariant: names that an operand assigns (by `:=`, or a function that it calls by `nonlocal`) hold
what they held before wherever the running kernel does not evaluate it; objects stay unchanged.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from astdsl.lang.names import BlockFunction, BlockNames, Watch, restore, states
from astdsl.lang.tracing import require_trace


class Effects:
    """The names that blocks may assign, with what they held before, and the objects reached."""

    __slots__ = ("_watch", "before", "cells")

    def __init__(self, *blocks: BlockFunction) -> None:
        self.cells = {name: cell for block in blocks for name, cell in block.cells.items()}
        self.before = states(self.cells)
        self._watch = Watch(*blocks)

    def taken_back(self) -> dict[str, Any]:
        """Return what names hold now, and let them hold what they did. Errors: HiddenMutation."""
        self._watch.require_unchanged()
        left = states(self.cells)
        restore(self.cells, self.before)
        return left


def effects_of(mentioned: FunctionType, assigned: FunctionType | None) -> Effects:
    """Return the effects of operands, by functions that mention all their names, and some.

    The functions are never called: they close over the names.
    """
    code = mentioned.__code__
    names = BlockNames(
        bound=assigned.__code__.co_freevars if assigned is not None else (),
        read=(*code.co_freevars, *code.co_names),
        exposed=frozenset(),
        after=frozenset(),
        span=require_trace("an operand").locate(),
    )
    return Effects(BlockFunction(mentioned, names))
