"""The blocks of `emit_pipeline`: which part of an array a step works on, and how it is kept.

Invariant: a block is a window of global memory; what is stated of its copies changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from astdsl.errors import BadPipeline, TypeMismatch, UnsupportedFeature, in_words
from astdsl.ir.types import GMEM as GLOBAL
from astdsl.lang.elementwise import require_fits
from astdsl.lang.memory import GMEM, SMEM, refuse_options
from astdsl.lang.refs import Ref
from astdsl.lang.shapes import as_extent
from astdsl.lang.staging import DERIVED, Staging
from astdsl.lang.tracing import fault
from astdsl.lang.transforms import checked_transforms
from astdsl.lang.values import Literal, as_operand
from astdsl.lang.windows import ds, tile
from astdsl.records import dataclass, replace


class Squeezed:
    """An axis of a `BlockSpec` that the block has not: `index_map` gives one index of it."""


@dataclass(frozen=True, slots=True)
class Element:
    """An axis of a `BlockSpec`, `size` elements from where `index_map` says, in elements."""

    size: Any


class BlockSpec:
    """Which block of an array a step of `emit_pipeline` works on.

    `index_map(*indices)` gives for each axis the number of the block; `block_shape` its extents: a
    number, `Element(n)` for an offset in elements, or None or `Squeezed` for an axis that is
    dropped. Without a shape the block is the whole array.

    What the schedule derives may be stated. `transforms` are the physical layout of the slots of
    blocks, as in `SMEM`; a part of a block that is read by itself is laid out by its uses. A slot
    is filled again `delay_release` steps after the one that reads it: products in flight take 1,
    other readers 0; more takes as many more stages, less is refused. Elements outside the array
    are read as `oob_fill`. Errors: TypeMismatch, ShapeMismatch, BadPipeline; UnsupportedFeature for
    `collective_axes`.
    """

    __slots__ = ("_delay_release", "_fill", "_transforms", "block_shape", "index_map")

    def __init__(
        self,
        block_shape: Sequence[Any] | None = None,
        index_map: Callable[..., Any] | None = None,
        *,
        memory_space: object = SMEM,
        transforms: object = None,
        delay_release: object = None,
        collective_axes: object = None,
        oob_fill: object = 0,
    ) -> None:
        refuse_options("BlockSpec", "each block loads its own", collective_axes=collective_axes)
        if memory_space is GMEM and (transforms is not None or delay_release is not None):
            raise fault(
                TypeMismatch,
                "`transforms` and `delay_release` of `BlockSpec` are of blocks on chip",
                help="leave out `memory_space=GMEM`, or them",
            )
        self._transforms = transforms
        self._delay_release = _delay(delay_release)
        self._fill = _number(oob_fill)
        if memory_space not in (SMEM, GMEM):
            raise fault(
                TypeMismatch,
                f"`memory_space` of `BlockSpec` is `SMEM` or `GMEM`, got {memory_space!r}",
                help="leave it out: the schedule brings blocks on chip",
            )
        if not isinstance(block_shape, tuple | list | None):
            raise fault(
                TypeMismatch,
                f"`block_shape` of `BlockSpec` is a tuple, got {block_shape!r}",
                help="one extent an axis: `(64, None)` takes 64 rows and drops the other axis",
            )
        if index_map is not None:
            require_function(index_map, "`index_map` of `BlockSpec`")
        self.block_shape = None if block_shape is None else tuple(block_shape)
        self.index_map = index_map

    def window(self, ref: Ref, indices: tuple[Any, ...]) -> Ref:
        """Return the block of a step."""
        block = self._window(ref, indices)
        is_plain = self._transforms is None and self._delay_release == DERIVED and not self._fill
        if is_plain or block.space != GLOBAL:
            return block
        return block.with_root(replace(block.root, staging=self._staging(block)))

    def require_fits(self, stages: int, *, is_output: bool) -> None:
        """Refuse slots that are held for longer than `stages` (0: automatic) allow."""
        if self._delay_release == DERIVED:
            return
        if is_output:
            raise fault(
                TypeMismatch,
                "`delay_release` of `BlockSpec` is of inputs, and this is an output",
                help="leave it out: an output's slot is free when its copy has been read",
            )
        if stages and self._delay_release >= stages:
            raise fault(
                BadPipeline,
                f"`delay_release={self._delay_release}` takes "
                f"{in_words(self._delay_release + 1, 'stage')} or "
                f"more, and `max_concurrent_steps` is {stages}",
                help="state more stages, or leave `delay_release` out: it is derived",
            )

    def _staging(self, block: Ref) -> Staging:
        require_fits(self._fill, block.dtype)
        if self._transforms is None:
            return Staging((), (), self._delay_release, self._fill)
        if block.root.packed:
            raise fault(
                UnsupportedFeature,
                f"`BlockSpec(..., transforms=)` of {block.dtype} is not in this version",
                help="leave it out: the physical layout follows from the uses",
            )
        shape = block.as_window("`BlockSpec`").static_shape
        transforms = checked_transforms(self._transforms, shape, block.dtype)
        return Staging(shape, transforms, self._delay_release, self._fill)

    def _window(self, ref: Ref, indices: tuple[Any, ...]) -> Ref:
        if self.block_shape is None:
            return ref
        found = self.index_map(*indices) if self.index_map else (0,) * len(self.block_shape)
        index = found if isinstance(found, tuple | list) else (found,)
        if not len(index) == len(self.block_shape) == ref.ndim:
            raise fault(
                TypeMismatch,
                f"a block of {in_words(len(self.block_shape), 'axis')} at "
                f"{in_words(len(index), 'index')} of "
                f"{ref}",
                help="`block_shape` and `index_map` say something of every axis of the array",
            )
        return ref.at[tuple(map(_axis, self.block_shape, index))]


def require_function(given: object, what: str) -> None:
    """Refuse what cannot be called."""
    if not callable(given):
        raise fault(
            TypeMismatch,
            f"{what} is a function, got {given!r}",
            help="`lambda i: (i, 0)`, or a nested `def`",
        )


def _delay(steps: object) -> int:
    if steps is None:
        return DERIVED
    found = as_extent(steps, "`delay_release` of `BlockSpec`")
    if found < 0:
        raise fault(
            TypeMismatch,
            f"`delay_release` of `BlockSpec` is a number of steps, got {found}",
            help="leave it out: it is derived",
        )
    return found


def _number(fill: object) -> bool | int | float:
    found = as_operand(fill, "`oob_fill` of `BlockSpec`")
    if isinstance(found, Literal):
        return found.number
    raise fault(
        TypeMismatch,
        f"`oob_fill` of `BlockSpec` is a constant, got {found}",
        help="`load(ref, fill=x)` in the body fills with a kernel value",
    )


def _axis(size: Any, index: Any) -> Any:
    """Return how one axis of an array is indexed."""
    if size is None or size is Squeezed or isinstance(size, Squeezed):
        return index
    return ds(index, size.size) if isinstance(size, Element) else tile(index, size)
