"""Asynchronous copies between global and shared memory.

Source: PTX ISA 9.7.9.25 (cp.async.bulk, cp.async.bulk.tensor).  Tensor coordinates are
signed 32-bit, fastest dimension first.
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect

MAXIMUM_RANK = 5

BULK_COMMIT = AsmRow(
    name="cp.async.bulk.commit_group", text="cp.async.bulk.commit_group;", effect=Effect.ACTS
)


@cache
def tma_load(rank: int) -> AsmRow:
    """Make the row that copies a box of a tensor map into shared memory.

    It completes on the barrier by the bytes of the whole box, also those outside the array.
    Operands: destination, map, coordinates, barrier.
    """
    names, list_text = _coordinates(rank)
    return AsmRow(
        name=f"tma.load.{rank}d",
        text=(
            f"cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[$destination], [$map, {list_text}], [$bar];"
        ),
        effect=Effect.ACTS,
        inputs={"destination": "i32", "map": "ptr"} | names | {"bar": "i32"},
    )


@cache
def tma_store(rank: int) -> AsmRow:
    """Make the row that copies from shared memory into a box of a tensor map.

    Operands: map, coordinates, source.  Completion is by `BULK_COMMIT` and `bulk_wait`.
    """
    names, list_text = _coordinates(rank)
    return AsmRow(
        name=f"tma.store.{rank}d",
        text=(
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
            f"[$map, {list_text}], [$source];"
        ),
        effect=Effect.ACTS,
        inputs={"map": "ptr"} | names | {"source": "i32"},
    )


@cache
def bulk_wait(pending: int, *, read: bool) -> AsmRow:
    """Make the row that waits until at most `pending` of this thread's groups are incomplete.

    With `read`, only until their sources in shared memory have been read and may be reused.
    """
    suffix = ".read" if read else ""
    return AsmRow(
        name="cp.async.bulk.wait_group",
        text=f"cp.async.bulk.wait_group{suffix} {pending};",
        effect=Effect.ACTS,
    )


def _coordinates(rank: int) -> tuple[dict[str, str], str]:
    if not 1 <= rank <= MAXIMUM_RANK:
        raise AssertionError(f"a tensor map has 1 to {MAXIMUM_RANK} dimensions, not {rank}")
    names = [f"c{dimension}" for dimension in range(rank)]
    operands = dict.fromkeys(names, "i32")
    return operands, "{" + ", ".join(f"${name}" for name in names) + "}"
