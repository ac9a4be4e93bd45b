"""Block views: a ref cut into blocks, each named by its numbers.

Invariant: `ref.blocks(bm, bn)[i, j]` is `ref[tile(i, bm), tile(j, bn)]`.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import BadWindow, TypeMismatch
from astdsl.lang.tracing import fault
from astdsl.lang.windows import Window, tile


class Blocks:
    """A ref cut into blocks: indexed by one block number an axis."""

    __slots__ = ("ref", "sizes")

    def __init__(self, ref: Any, sizes: tuple[int, ...]) -> None:
        self.ref = ref
        self.sizes = sizes

    def key(self, key: object) -> tuple[Window, ...]:
        """Return the windows of the block with these numbers."""
        items = key if isinstance(key, tuple) else (key,)
        if len(items) != len(self.sizes):
            raise fault(
                BadWindow,
                f"blocks of `{self.ref.root.name}` take {len(self.sizes)} block numbers",
                help="one block number an axis; `ref[...]` takes other windows",
            )
        return tuple(tile(i, n) for i, n in zip(items, self.sizes, strict=True))

    def __getitem__(self, key: object) -> Any:
        return self.ref[self.key(key)]

    def __setitem__(self, key: object, value: object) -> None:
        self.ref[self.key(key)] = value

    @property
    def at(self) -> BlocksAt:
        """`ref.blocks(bm, bn).at[i, j]` is a block as a ref."""
        return BlocksAt(self)


class BlocksAt:
    """What stands between `blocks.at` and its block numbers."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks

    def __getitem__(self, key: object) -> Any:
        return self.blocks.ref.view(self.blocks.key(key))

    def __setitem__(self, key: object, value: object) -> None:
        raise fault(
            TypeMismatch,
            "`blocks(...).at[...]` names a part of memory, and is not assigned",
            help="`blocks(...)[i, j] = x` writes",
        )
