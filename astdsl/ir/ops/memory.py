"""Windows of memory: reading, writing, allocating, copying.

Invariant: a window is `starts` (one i64 scalar an axis of the ref), static `sizes` and `steps`,
and `kept`, which says of each axis whether it is an axis of the tile. Of global memory a window
may cross the edge: elements outside read as `fill`, and are dropped on store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astdsl.ir.core import ACTS, READS, WRITES, Op, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.transforms import Transform
from astdsl.ir.types import (
    GMEM,
    INDEX,
    SMEM,
    TMA_ALIGN_BYTES,
    TMA_MAX_RANK,
    TMEM,
    RefType,
    TileType,
    Type,
)


class Dim(Op):
    """The extent of a ref's axis, i64."""

    ref: Value
    axis: int

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)

    def result_hint(self) -> str:
        return f"{self.ref.hint}_dim{self.axis}" if self.ref.hint else ""


class Window(Op):
    """An operation on one window of a ref."""

    ref: Value
    starts: tuple[Value, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    kept: tuple[bool, ...]

    @classmethod
    def implied(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        rank = len(fields["sizes"])
        return {"steps": (1,) * rank, "kept": (True,) * rank}

    @property
    def window_type(self) -> TileType:
        """The tile that the window holds."""
        shape = tuple(s for s, k in zip(self.sizes, self.kept, strict=True) if k)
        return TileType(shape, self.ref.ref.dtype)

    def verify(self) -> None:
        rank = self.ref.ref.rank
        lengths = {len(self.starts), len(self.sizes), len(self.steps), len(self.kept)}
        assert lengths == {rank}, f"{type(self).__name__}: window of {lengths} axes on rank {rank}"
        assert all(v.type is INDEX or v.type == INDEX for v in self.starts), "window starts are i64"
        dropped = zip(self.sizes, self.kept, strict=True)
        assert all(k or s == 1 for s, k in dropped), "a dropped axis has extent 1"


class Load(Window):
    """Read the window as a tile; outside global memory an element is `fill`.

    `stages` is the number of slots of its ring in a pipeline, 0 for that of the pipeline; a slot is
    held for `delay_release` steps after the one that it is of, -1 for as many as its readers take.
    `transforms` are the physical layout of slots, empty for what follows from their uses.
    """

    effect = READS
    fill: float | int | bool = 0
    stages: int = 0
    delay_release: int = -1
    transforms: tuple[Transform, ...] = ()

    def result_types(self) -> tuple[Type, ...]:
        return (self.window_type,)


class Prefetch(Window):
    """Begin to bring the window into the cache that all multiprocessors share; nothing changes."""

    effect = WRITES


class Store(Window):
    """Write a tile to the window; elements outside global memory are dropped.

    `transforms` are the physical layout of what is copied out, if it is.
    """

    effect = WRITES
    value: Value
    transforms: tuple[Transform, ...] = ()

    def verify(self) -> None:
        super().verify()
        expected = self.window_type
        assert self.value.type == expected, f"Store: {self.value.type} into {expected}"


class AllocGmem(Op):
    """Global memory of one call, unwritten: scratch that later launches see.

    Stands outside of every region. `dims` are the extents of the axes that `shape` leaves open
    (None), known on the host. `label` names it in messages.
    """

    effect = ACTS
    dims: tuple[Value, ...]
    shape: tuple[int | None, ...]
    dtype: DType
    label: str = ""

    def result_types(self) -> tuple[Type, ...]:
        rank = len(self.shape)
        # Rows are padded (`ir.launch.Scratch`), so all strides but the last are known at run time.
        return (
            RefType(
                shape=self.shape,
                dtype=self.dtype,
                space=GMEM,
                strides=(*(None,) * (rank - 1), 1),
                tma=rank <= TMA_MAX_RANK,
                align_bytes=TMA_ALIGN_BYTES,
            ),
        )

    def result_hint(self) -> str:
        return self.label

    def verify(self) -> None:
        assert self.shape, "AllocGmem: at least one axis"
        assert self.shape.count(None) == len(self.dims), "AllocGmem: one dim an open axis"
        assert all(v.type == INDEX for v in self.dims), "AllocGmem: dims are i64"


class AllocSmem(Op):
    """Shared memory of a block, unwritten. The first axis counts the slots where it is a ring.

    With `owners`, each of these warpgroups, which run the program themselves, has its own.
    `label` names it in messages; `transforms` state its physical layout: see `ir.transforms`.
    """

    effect = ACTS
    shape: tuple[int, ...]
    dtype: DType
    label: str = ""
    transforms: tuple[Transform, ...] = ()
    owners: tuple[int, ...] = ()

    def result_types(self) -> tuple[Type, ...]:
        return (RefType(shape=self.shape, dtype=self.dtype, space=SMEM),)


class Overlap(Op):
    """Let groups of buffers take turns in one region, each group side by side.

    All are in shared memory, or all in tensor memory.

    `sizes` are the numbers of buffers of the groups. Writing to one group loses what others hold.
    """

    effect = ACTS
    refs: tuple[Value, ...]
    sizes: tuple[int, ...]

    def groups(self) -> list[tuple[Value, ...]]:
        """Return the buffers by group."""
        left = iter(self.refs)
        return [tuple(next(left) for _ in range(size)) for size in self.sizes]

    def verify(self) -> None:
        assert sum(self.sizes) == len(self.refs), "Overlap: sizes of the groups"
        spaces = {v.ref.space for v in self.refs}
        assert spaces in ({SMEM}, {TMEM}), f"Overlap: of shared or tensor memory, not {spaces}"


class StateLayout(Op):
    """State more of the physical layout of a shared buffer, for the whole kernel.

    `transforms` begin with what was stated before.
    """

    effect = ACTS
    ref: Value
    transforms: tuple[Transform, ...]

    def verify(self) -> None:
        assert self.ref.ref.space == SMEM, "StateLayout: of shared memory"


class Copy(Window):
    """An asynchronous copy between a window of global memory and a slot of shared memory.

    `slot` holds the leading starts into `buffer`, whose remaining axes are the window's kept
    ones. Where `predicate` (none, or one bool) is false nothing is copied.
    """

    effect = ACTS
    buffer: Value
    slot: tuple[Value, ...] = ()
    predicate: tuple[Value, ...] = ()

    def verify(self) -> None:
        super().verify()
        assert self.ref.ref.space == GMEM, "Copy: one side is global memory"
        tail = self.buffer.ref.shape[len(self.slot) :]
        assert tail == self.window_type.shape, f"Copy: {self.window_type} to a slot of {tail}"


class CopyIn(Copy):
    """Copy the window into the slot; then one arrival, with the bytes, on `barrier[index]`.

    The arrival also happens where `predicate` is false. Elements outside are zero.
    """

    barrier: Value
    index: Value


class CopyOut(Copy):
    """Copy the slot into the window, as a part of the thread's group of copies."""


class CommitGroup(Op):
    """Close the group of copies out issued so far."""

    effect = ACTS


class WaitGroup(Op):
    """Wait until at most `pending` newest groups are in flight; `read_only`: have not read yet.

    The thread that issues copies waits for its groups; if `meets`, all the others for it.
    """

    effect = ACTS
    pending: int
    read_only: bool = False
    meets: bool = True
