"""Block views: a ref cut into blocks, each named by its numbers.

Invariant: `ref.blocks(bm, bn)[i, j]` is `ref[tile(i, bm), tile(j, bn)]`.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import BadWindow, TypeMismatch, did_you_mean
from astdsl.lang.arith import cdiv
from astdsl.lang.tracing import fault
from astdsl.lang.values import UnknownAttribute
from astdsl.lang.windows import Window, tile


class Named:
    """What has few attributes, and no elements: others are refused with a way out, `way_out`."""

    __slots__ = ()
    # Python would count indices up without end.
    __iter__ = None
    what = ""
    way_out = ""

    def __repr__(self) -> str:
        return self.what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        raise fault(
            UnknownAttribute,
            f"`{self.what}` has no attribute `{name}`",
            help=did_you_mean(name, known) or self.way_out,
        )


class Blocks(Named):
    """A ref cut into blocks: indexed by one block number an axis."""

    what = "blocks(...)"
    way_out = "`blocks(bm, bn)[i, j]` reads a block, `blocks(bm, bn).at[i, j]` is one as a ref"

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
    def shape(self) -> tuple[Any, ...]:
        """How many blocks there are along each axis, the last one perhaps in part."""
        return tuple(cdiv(n, size) for n, size in zip(self.ref.shape, self.sizes, strict=True))

    @property
    def at(self) -> BlocksAt:
        """`ref.blocks(bm, bn).at[i, j]` is a block as a ref."""
        return BlocksAt(self)


class BlocksAt(Named):
    """What stands between `blocks.at` and its block numbers."""

    what = "blocks(...).at"
    way_out = "block numbers follow it: `blocks(bm, bn).at[i, j]`"

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
