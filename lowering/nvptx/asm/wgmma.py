"""Warpgroup matrix products of sm_90a.

Source: PTX ISA 9.7.15.5.  The accumulators of a product are tied: the registers go in and come
out, and may not be touched before the `wait` that ties them again.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect, sequence
from astdsl.lowering.target import WGMMA

M_PER_WARPGROUP = 64
K_PER_PRODUCT = {"f16": 16, "bf16": 16}
A_REGISTERS = 4

COMMIT = AsmRow(
    name="wgmma.commit_group",
    text="wgmma.commit_group.sync.aligned;",
    effect=Effect.ACTS,
    requires=WGMMA,
)


FENCE = AsmRow(
    name="wgmma.fence",
    text="wgmma.fence.sync.aligned;",
    effect=Effect.ACTS,
    requires=WGMMA,
)


@cache
def wait(pending: int, registers: int = 0, type: str = "float") -> AsmRow:
    """Make the row that waits until at most `pending` groups are in flight.

    It ties the `registers` that it makes valid.  With `pending` above zero tie none: the
    registers of the groups still in flight must not be touched.
    """
    return AsmRow(
        name="wgmma.wait_group",
        text=f"wgmma.wait_group.sync.aligned {pending};",
        effect=Effect.ACTS,
        outputs={f"d{number}": type for number in range(registers)},
        tied=registers,
        requires=WGMMA,
    )


@cache
def mma(
    n: int,
    type: str,
    *,
    a_in_registers: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> AsmRow:
    """Make the row D[64, n] = (scale_d ? D : 0) + A[64, 16] B[16, n] with D in f32.

    `type` is ``f16`` or ``bf16``.  Operands: the n/2 accumulators of a thread (tied), A as a
    descriptor or as four registers of two elements, B as a descriptor, scale_d.  A transposed
    operand is contiguous along M (A) or N (B); A in registers cannot be.
    """
    _check_shape(n, type, a_in_registers and transpose_a)
    outputs = {f"d{number}": "float" for number in range(n // 2)}
    a_operands, a_text = _a_operand(a_in_registers)
    transposes = [int(transpose_b)] if a_in_registers else [int(transpose_a), int(transpose_b)]
    accumulators = ", ".join(f"${name}" for name in outputs)
    immediates = ", ".join(str(value) for value in [1, 1, *transposes])
    k = K_PER_PRODUCT[type]
    return AsmRow(
        name=f"wgmma.m64n{n}k{k}.{type}",
        text=(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{type}.{type} "
            f"{{{accumulators}}}, {a_text}, $b, $scale_d, {immediates};"
        ),
        effect=Effect.ACTS,
        outputs=outputs,
        tied=len(outputs),
        inputs=a_operands | {"b": "i64", "scale_d": "i1"},
        requires=WGMMA,
    )


class Step(NamedTuple):
    """One instruction of a product: its accumulators, and the numbers of its descriptors."""

    first: int
    n: int
    a: int
    b: int
    continues: bool
    """It adds to what an earlier step of the product left."""


@cache
def product(
    steps: tuple[Step, ...],
    type: str,
    *,
    a_in_registers: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> AsmRow:
    """Make the row of a whole product: the fence, every instruction, the commit of the group.

    One row, so that LLVM sees the accumulators go in and come out once. Operands: the accumulators
    (tied) in the order of the steps; by name descriptors `a0 a1 ... b0 b1 ...`, `accumulate` for
    the steps that do not continue, and `always`, which is true. With A in registers `a0 a1 ...` are
    those, and a step's `a` is the first of its four.
    """
    parts: list[tuple[AsmRow, dict[str, str]]] = [(FENCE, {})]
    for step in steps:
        row = mma(
            step.n,
            type,
            a_in_registers=a_in_registers,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        names = {f"d{number}": f"d{step.first + number}" for number in range(step.n // 2)}
        registers = {f"a{number}": f"a{step.a + number}" for number in range(A_REGISTERS)}
        names |= registers if a_in_registers else {"a": f"a{step.a}"}
        scale = "always" if step.continues else "accumulate"
        parts.append((row, names | {"b": f"b{step.b}", "scale_d": scale}))
    return sequence("wgmma.product", [*parts, (COMMIT, {})])


def _a_operand(in_registers: bool) -> tuple[dict[str, str], str]:
    if not in_registers:
        return {"a": "i64"}, "$a"
    names = [f"a{number}" for number in range(A_REGISTERS)]
    return dict.fromkeys(names, "i32"), "{" + ", ".join(f"${name}" for name in names) + "}"


def _check_shape(n: int, type: str, transposes_registers: bool) -> None:
    if n % 8 or not 8 <= n <= 256:
        raise AssertionError(f"wgmma has n = 8, 16, ..., 256, not {n}")
    if type not in K_PER_PRODUCT:
        raise AssertionError(f"wgmma rows are written for f16 and bf16, not {type}")
    if transposes_registers:
        raise AssertionError("wgmma cannot transpose A in registers")
