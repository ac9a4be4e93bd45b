"""What need not be written again: values made by then, and what variables hold.

Invariant: a value is found only where the block that makes it dominates; what a variable holds is
known only along a straight run of instructions, the branches around it not counted.
"""

from __future__ import annotations

from astdsl.lowering.nvptx.values import LV


class Known:
    """What is known in a block; `outer` is what is known where the block was made."""

    __slots__ = ("_outer", "made", "uses_variables", "variables")

    def __init__(self, outer: Known | None = None) -> None:
        self._outer = outer
        self.made: dict[str, LV] = {}
        self.variables: dict[str, LV] = {}
        self.uses_variables = False

    def inside(self) -> Known:
        """Return what is known in a block that is dominated from here."""
        return Known(self)

    def find(self, text: str) -> LV | None:
        """Return the value that an instruction has already made."""
        known: Known | None = self
        while known is not None:
            value = known.made.get(text)
            if value is not None:
                return value
            known = known._outer
        return None

    def forget_variables(self) -> None:
        """Note that variables have changed on some way here."""
        self.variables.clear()
        self.uses_variables = True
