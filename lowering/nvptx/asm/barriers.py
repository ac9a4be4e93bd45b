"""Barriers, fences and elections.

Addresses in shared memory are 32 bit (`Builder.shared_address`).  Source: PTX ISA 9.7.13
(barriers, fences, elect, mbarrier).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect

_ADDRESS = {"bar": "i32"}

MBARRIER_INIT = AsmRow(
    name="mbarrier.init",
    text="mbarrier.init.shared::cta.b64 [$bar], $count;",
    effect=Effect.ACTS,
    inputs=_ADDRESS | {"count": "i32"},
)

MBARRIER_ARRIVE = AsmRow(
    name="mbarrier.arrive",
    text="mbarrier.arrive.shared::cta.b64 _, [$bar];",
    effect=Effect.ACTS,
    inputs=_ADDRESS,
)

MBARRIER_ARRIVE_EXPECT_TX = AsmRow(
    name="mbarrier.arrive.expect_tx",
    text="mbarrier.arrive.expect_tx.shared::cta.b64 _, [$bar], $bytes;",
    effect=Effect.ACTS,
    inputs=_ADDRESS | {"bytes": "i32"},
)

# The label is local to the braces, so the loop may be duplicated with its surroundings.
MBARRIER_WAIT = AsmRow(
    name="mbarrier.wait",
    text=(
        "{\n.reg .pred done;\nwaiting:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$bar], $parity;\n"
        "@!done bra waiting;\n}"
    ),
    effect=Effect.ACTS,
    inputs=_ADDRESS | {"parity": "i32"},
)
"""Wait until the phase of the given parity is complete."""

MBARRIER_TEST_WAIT = AsmRow(
    name="mbarrier.test_wait",
    text="mbarrier.test_wait.parity.shared::cta.b64 $done, [$bar], $parity;",
    effect=Effect.ACTS,
    outputs={"done": "i1"},
    inputs=_ADDRESS | {"parity": "i32"},
)

FENCE_PROXY_ASYNC = AsmRow(
    name="fence.proxy.async",
    text="fence.proxy.async.shared::cta;",
    effect=Effect.ACTS,
)
"""Order earlier generic accesses to shared memory before later asynchronous ones."""

FENCE_PROXY_ASYNC_GLOBAL = AsmRow(
    name="fence.proxy.async.global", text="fence.proxy.async.global;", effect=Effect.ACTS
)
"""Order earlier generic accesses to global memory before later asynchronous ones."""

FENCE_MBARRIER_INIT = AsmRow(
    name="fence.mbarrier_init",
    text="fence.mbarrier_init.release.cluster;",
    effect=Effect.ACTS,
)

WARP_SYNC = AsmRow(
    name="bar.warp.sync",
    text="bar.warp.sync $members;",
    effect=Effect.ACTS,
    inputs={"members": "i32"},
)


@cache
def bar_sync(barrier: int, threads: int) -> AsmRow:
    """Make the row that waits until `threads` threads are at named barrier `barrier`.

    Both are constants in the text: from registers, ptxas would reserve all sixteen barriers.
    """
    return AsmRow(name="bar.sync", text=f"bar.sync {barrier}, {threads};", effect=Effect.ACTS)


@cache
def bar_and(barrier: int, threads: int) -> AsmRow:
    """Make the row that waits as `bar_sync` does, and says whether `mine` holds for all."""
    return AsmRow(
        name="bar.red.and",
        text=f"bar.red.and.pred $all, {barrier}, {threads}, $mine;",
        effect=Effect.ACTS,
        outputs={"all": "i1"},
        inputs={"mine": "i1"},
    )


@cache
def of_own_group(
    row: Callable[[int, int], AsmRow], groups: int, first: int, threads: int
) -> AsmRow:
    """Make a `row` for the named barrier of a group: `first` and those after it.

    The group's number is in a register, 0 to `groups - 1`, the same in a warp; the barriers are
    constants in the text.
    """
    rows = [row(first + group, threads) for group in range(groups)]
    lines = [f"setp.eq.u32 own, $group, {k};\n@own {each.text}" for k, each in enumerate(rows)]
    return AsmRow(
        name=f"{rows[0].name}.of",
        text="{\n.reg .pred own;\n" + "\n".join(lines) + "\n}",
        effect=Effect.ACTS,
        outputs=rows[0].outputs,
        inputs={"group": "i32", **rows[0].inputs},
    )
