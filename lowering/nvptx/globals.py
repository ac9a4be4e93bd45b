"""What the kernels of an LLVM module share: declarations, definitions, types, metadata nodes.

Invariant: each is written once, however often it is asked for.
"""

from __future__ import annotations

_NO_UNROLL = '!{!"llvm.loop.unroll.disable"}'
# Weights of the two ways; the numbers are LLVM's own for what is expected.
_LIKELY = '!{!"branch_weights", i32 2000, i32 1}'


class Globals:
    """The parts of a module outside its kernels, collected while these are written."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.units: list[str] = []
        self.nodes: list[str] = []
        self._numbers: dict[str, str] = {}
        self._structures: dict[str, str] = {}

    def declare(self, name: str, declaration: str) -> None:
        """Declare a function; the same declaration may be given again."""
        _put_once(self.declarations, name, declaration)

    def define(self, name: str, definition: str) -> None:
        """Add a global or function as text (libdevice); equal text may be given again."""
        _put_once(self.definitions, name, definition)

    def result_type(self, types: tuple[str, ...]) -> str:
        """Give the type of what a call returns; a structure by its name, since LLVM reads it often.

        Each of 128 registers that a product returns is taken out by a line with this type.
        """
        if len(types) < 2:
            return types[0] if types else "void"
        structure = "{ " + ", ".join(types) + " }"
        if structure not in self._structures:
            self._structures[structure] = f"%results.{len(self._structures)}"
        return self._structures[structure]

    @property
    def structures(self) -> list[str]:
        """The definitions of the named structures."""
        return [f"{name} = type {text}" for text, name in self._structures.items()]

    def add_unit(self, node: str) -> None:
        """Register a compile unit, which turns line information on."""
        self.units.append(node)

    def node(self, text: str) -> str:
        """Give the number of a metadata node, ``!7``; equal nodes share one unless distinct."""
        found = self._numbers.get(text)
        if found is None or text.startswith("distinct"):
            found = f"!{len(self.nodes)}"
            self.nodes.append(text)
            self._numbers[text] = found
        return found

    def likely_node(self) -> str:
        """Make the metadata of a branch that goes to its first block."""
        return self.node(_LIKELY)

    def loop_node(self) -> str:
        """Make the metadata of a loop that must not be unrolled."""
        disable = self.node(_NO_UNROLL)
        number = f"!{len(self.nodes)}"
        self.nodes.append(f"distinct !{{{number}, {disable}}}")
        return number


def _put_once(table: dict[str, str], name: str, text: str) -> None:
    if table.setdefault(name, text) != text:
        raise AssertionError(f"two different texts for @{name}")
