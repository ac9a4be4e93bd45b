"""Atomic updates, and loads of several words, that happen where a predicate holds.

Source: PTX ISA 9.7.13.5 (atom) and 9.7.9.8 (ld). The result is tied to the value that it has where
nothing happens.
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.nvptx.values import GLOBAL

WORD_BYTES = 4


@cache
def atomic(operation: str, type: str, *, is_shared: bool, order: str, scope: str) -> AsmRow:
    """Make the row of `atom.{order}.{scope}.{space}.{operation}` on registers of `type`.

    `operation` ends in the PTX type (`add.noftz.f16`); `cas` takes what it compares before the
    value. Shared addresses are `i32`.
    """
    space, address = ("shared::cta", "i32") if is_shared else ("global", GLOBAL)
    is_cas = operation.startswith("cas")
    compared = {"compared": type} if is_cas else {}
    operands = "$compared, $value" if is_cas else "$value"
    return AsmRow(
        name=f"atom.{operation}",
        text=f"@$ok atom.{order}.{scope}.{space}.{operation} $old, [$address], {operands};",
        effect=Effect.ACTS,
        outputs={"old": type},
        tied=1,
        inputs={"address": address, **compared, "value": type, "ok": "i1"},
    )


@cache
def add_floats(count: int, *, order: str, scope: str) -> AsmRow:
    """Make the row that adds to `count` neighbouring f32 of global memory where `$ok`.

    `order` is relaxed or release (PTX ISA 9.7.13.7, red).
    """
    names = [f"value{k}" for k in range(count)]
    listed = ", ".join(f"${name}" for name in names)
    return AsmRow(
        name=f"red.add.v{count}",
        text=f"@$ok red.{order}.{scope}.global.add.v{count}.f32 [$address], {{{listed}}};",
        effect=Effect.ACTS,
        inputs={"address": GLOBAL, **dict.fromkeys(names, "float"), "ok": "i1"},
    )


@cache
def guarded_words(count: int) -> AsmRow:
    """Make the row that loads `count` neighbouring 32-bit words from global memory where `$ok`."""
    names = [f"word{k}" for k in range(count)]
    listed = ", ".join(f"${name}" for name in names)
    value, suffix = (f"{{{listed}}}", f".v{count}") if count > 1 else (listed, "")
    return AsmRow(
        name=f"ld.global{suffix}",
        text=f"@$ok ld.global{suffix}.b32 {value}, [$address];",
        effect=Effect.ACTS,
        outputs=dict.fromkeys(names, "i32"),
        tied=count,
        inputs={"address": GLOBAL, "ok": "i1"},
    )
