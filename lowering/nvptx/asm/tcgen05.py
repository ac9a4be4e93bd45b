"""Matrix products and tensor memory of sm_100a, for one block (``cta_group::1``).

Source: PTX ISA 9.7.16.  Tensor-memory addresses are ``lane << 16 | column``, as ``i32``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.target import TCGEN05

LANE, HALF = "32x32b", "16x256b"
"""The shapes of loads and stores: a lane for each thread of a warp, or 16 lanes for all of them."""


class Shape(NamedTuple):
    """The columns and a thread's registers of one repetition, and how many there can be."""

    columns: int
    registers: int
    counts: tuple[int, ...]


SHAPES = {LANE: Shape(1, 1, (1, 2, 4, 8, 16, 32, 64, 128)), HALF: Shape(8, 4, (1, 2, 4, 8, 16, 32))}
ALLOCATIONS = (32, 64, 128, 256, 512)


def _row(name: str, text: str, **operands: str) -> AsmRow:
    return AsmRow(
        name=f"tcgen05.{name}", text=text, effect=Effect.ACTS, inputs=operands, requires=TCGEN05
    )


@cache
def alloc(columns: int) -> AsmRow:
    """Make the row with which one warp reserves columns; their address goes to shared memory."""
    _check_allocation(columns)
    return _row(
        "alloc",
        f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [$destination], {columns};",
        destination="i32",
    )


@cache
def dealloc(columns: int) -> AsmRow:
    """Make the row with which one warp frees columns."""
    _check_allocation(columns)
    return _row(
        "dealloc",
        f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 $address, {columns};",
        address="i32",
    )


def _check_allocation(columns: int) -> None:
    if columns not in ALLOCATIONS:
        raise AssertionError(f"tensor memory comes by {ALLOCATIONS} columns, not {columns}")


RELINQUISH = _row(
    "relinquish_alloc_permit", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
)

KINDS = ("f16", "tf32", "f8f6f4", "i8")


@cache
def mma(kind: str, *, a_in_tensor_memory: bool = False) -> AsmRow:
    """Make the row D = (accumulate ? D : 0) + A B, executed by one thread, D in tensor memory.

    B is given by a descriptor; so is A, unless it is in tensor memory.
    """
    if kind not in KINDS:
        raise AssertionError(f"tcgen05.mma has the kinds {KINDS}, not {kind}")
    a = "[$a]" if a_in_tensor_memory else "$a"
    return _row(
        f"mma.{kind}" + (".a_tmem" if a_in_tensor_memory else ""),
        f"tcgen05.mma.cta_group::1.kind::{kind} [$d], {a}, $b, $instruction, $accumulate;",
        d="i32",
        a="i32" if a_in_tensor_memory else "i64",
        b="i64",
        instruction="i32",
        accumulate="i1",
    )


SCALED_KINDS = {"mxf8f6f4": "1X", "mxf4": "2X", "mxf4nvf4": "4X"}
"""The kinds of block-scaled products: how many scales of each row an instruction reads."""


@cache
def scaled_mma(kind: str) -> AsmRow:
    """Make the row D = (accumulate ? D : 0) + (A scaled) (B scaled), scales in tensor memory."""
    if kind not in SCALED_KINDS:
        raise AssertionError(f"tcgen05.mma scales by blocks in {[*SCALED_KINDS]}, not {kind}")
    return _row(
        f"mma.{kind}",
        f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.scale_vec::{SCALED_KINDS[kind]} "
        "[$d], $a, $b, $instruction, [$a_scale], [$b_scale], $accumulate;",
        d="i32",
        a="i64",
        b="i64",
        instruction="i32",
        a_scale="i32",
        b_scale="i32",
        accumulate="i1",
    )


COPY_SCALES = _row(
    "cp.32x128b.warpx4",
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [$address], $source;",
    address="i32",
    source="i64",
)
"""Copy 32 rows of 16 bytes to 4 columns, the same in the lanes of each warp (PTX ISA 9.7.16.9)."""

COMMIT = _row(
    "commit",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$bar];",
    bar="i32",
)
"""Arrive once at a barrier when all earlier products of this thread are done."""

WAIT_ST = _row("wait.st", "tcgen05.wait::st.sync.aligned;")
FENCE_BEFORE = _row("fence.before", "tcgen05.fence::before_thread_sync;")
FENCE_AFTER = _row("fence.after", "tcgen05.fence::after_thread_sync;")


@cache
def load(count: int, shape: str = LANE) -> AsmRow:
    """Make the row that reads `count` times the columns of a shape into this thread's registers.

    The results may be used after `wait_load` on the same registers only.
    """
    outputs = _registers(count, shape)
    return AsmRow(
        name=f"tcgen05.ld.{shape}.x{count}",
        text=f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {_listed(outputs)}, [$address];",
        effect=Effect.ACTS,
        outputs=outputs,
        inputs={"address": "i32"},
        requires=TCGEN05,
    )


@cache
def store(count: int, shape: str = LANE) -> AsmRow:
    """Make the row that writes `count` times the columns of a shape from registers."""
    inputs = _registers(count, shape)
    return AsmRow(
        name=f"tcgen05.st.{shape}.x{count}",
        text=f"tcgen05.st.sync.aligned.{shape}.x{count}.b32 [$address], {_listed(inputs)};",
        effect=Effect.ACTS,
        inputs={"address": "i32"} | inputs,
        requires=TCGEN05,
    )


@cache
def wait_load(registers: int) -> AsmRow:
    """Make the row that waits for this thread's loads and ties the registers they fill."""
    return AsmRow(
        name="tcgen05.wait.ld",
        text="tcgen05.wait::ld.sync.aligned;",
        effect=Effect.ACTS,
        outputs={f"r{number}": "i32" for number in range(registers)},
        tied=registers,
        requires=TCGEN05,
    )


def _registers(count: int, shape: str) -> dict[str, str]:
    columns, registers, counts = SHAPES[shape]
    if count not in counts:
        raise AssertionError(
            f"tcgen05 moves 1, 2, 4, ..., {counts[-1]} times {columns} columns, not {count}"
        )
    return {f"r{number}": "i32" for number in range(registers * count)}


def _listed(names: dict[str, str]) -> str:
    return "{" + ", ".join(f"${name}" for name in names) + "}"
