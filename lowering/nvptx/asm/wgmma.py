"""Warpgroup matrix products of sm_90a.

Source: PTX ISA 9.7.15.5.  The accumulators of a product are tied: the registers go in and come
out, and may not be touched before the `wait` that ties them again.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect, sequence
from astdsl.lowering.target import WGMMA

MOST_COLUMNS = 256
K_BYTES = 32
A_REGISTERS = 4
ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
_PAIRS = {
    "f16": ("f16",), "bf16": ("bf16",), "tf32": ("tf32",), "e4m3": ("e4m3", "e5m2"),
    "e5m2": ("e4m3", "e5m2"), "s8": ("s8", "u8"), "u8": ("s8", "u8"),
}  # fmt: skip
_RESULTS = {
    "f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f32", "f16"),
    "e5m2": ("f32", "f16"), "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip
REGISTERS = {"f32": "float", "s32": "i32", "f16": "i32"}
"""The LLVM type of an accumulator's register, by the type of D; f16 comes in pairs."""

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
def settle(types: tuple[str, ...]) -> AsmRow:
    """Make the row of a fence after which registers, of `types`, hold what was written to them.

    Tied, so that LLVM writes them here: while a product is in flight ptxas would wait for it first.
    """
    return AsmRow(
        name="wgmma.fence.tied",
        text="wgmma.fence.sync.aligned;",
        effect=Effect.ACTS,
        outputs={f"d{number}": type for number, type in enumerate(types)},
        tied=len(types),
        requires=WGMMA,
    )


@cache
def wait(pending: int, types: tuple[str, ...] = ()) -> AsmRow:
    """Make the row that waits until at most `pending` groups are in flight.

    It ties the registers, of `types`, that it makes valid.  With `pending` above zero tie none:
    the registers of the groups still in flight must not be touched.
    """
    return AsmRow(
        name="wgmma.wait_group",
        text=f"wgmma.wait_group.sync.aligned {pending};",
        effect=Effect.ACTS,
        outputs={f"d{number}": type for number, type in enumerate(types)},
        tied=len(types),
        requires=WGMMA,
    )


class Types(NamedTuple):
    """The element types of a product, as PTX spells them: of D, A and B."""

    d: str
    a: str
    b: str


@cache
def mma(
    n: int,
    types: Types,
    *,
    a_in_registers: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> AsmRow:
    """Make the row D[64, n] = (scale_d ? D : 0) + A[64, k] B[k, n]; k elements are 32 bytes.

    Operands: the accumulators of a thread (tied; n/2 registers, n/4 pairs of f16), A as a
    descriptor or as four registers, B as a descriptor, scale_d.  A transposed operand is
    contiguous along M (A) or N (B), of 16-bit types alone; A in registers cannot be.
    """
    _check(n, types, transpose_a or transpose_b, a_in_registers and transpose_a)
    outputs = dict.fromkeys(
        (f"d{number}" for number in range(registers(n, types.d))), REGISTERS[types.d]
    )
    a_operands, a_text = _a_operand(a_in_registers)
    accumulators = ", ".join(f"${name}" for name in outputs)
    k = K_BYTES // ELEMENT_BYTES[types.a]
    signs = [] if types.d == "s32" else [1, 1]
    transposes = [transpose_b] if a_in_registers else [transpose_a, transpose_b]
    numbers = [*signs, *(map(int, transposes) if ELEMENT_BYTES[types.a] == 2 else ())]
    immediates = "".join(f", {value}" for value in numbers)
    return AsmRow(
        name=f"wgmma.m64n{n}k{k}.{'.'.join(types)}",
        text=(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{'.'.join(types)} "
            f"{{{accumulators}}}, {a_text}, $b, $scale_d{immediates};"
        ),
        effect=Effect.ACTS,
        outputs=outputs,
        tied=len(outputs),
        inputs=a_operands | {"b": "i64", "scale_d": "i1"},
        requires=WGMMA,
    )


def registers(n: int, d: str) -> int:
    """Return how many registers of a thread an accumulator of n columns takes."""
    return n // 4 if d == "f16" else n // 2


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
    types: Types,
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
            types,
            a_in_registers=a_in_registers,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        count = registers(step.n, types.d)
        names = {f"d{number}": f"d{step.first + number}" for number in range(count)}
        fragment = {f"a{number}": f"a{step.a + number}" for number in range(A_REGISTERS)}
        names |= fragment if a_in_registers else {"a": f"a{step.a}"}
        scale = "always" if step.continues else "accumulate"
        parts.append((row, names | {"b": f"b{step.b}", "scale_d": scale}))
    return sequence("wgmma.product", [*parts, (COMMIT, {})])


def _a_operand(in_registers: bool) -> tuple[dict[str, str], str]:
    if not in_registers:
        return {"a": "i64"}, "$a"
    names = [f"a{number}" for number in range(A_REGISTERS)]
    return dict.fromkeys(names, "i32"), "{" + ", ".join(f"${name}" for name in names) + "}"


def has_columns(types: Types, n: int) -> bool:
    """Whether there is an instruction of n columns; those of integers are rarer (9.7.15.5.2)."""
    if not 8 <= n <= MOST_COLUMNS or n % 8:
        return False
    return types.d != "s32" or n % 16 == 0 or n in (8, 24)


def _check(n: int, types: Types, transposes: bool, transposes_registers: bool) -> None:
    if not has_columns(types, n):
        raise AssertionError(f"wgmma of {types} has no n = {n}")
    pairs = _PAIRS.get(types.a, ())
    if types.b not in pairs or types.d not in _RESULTS[types.a]:
        raise AssertionError(f"wgmma has no product of {types}")
    if transposes and ELEMENT_BYTES[types.a] != 2:
        raise AssertionError(f"wgmma transposes 16-bit operands alone, not {types.a}")
    if transposes_registers:
        raise AssertionError("wgmma cannot transpose A in registers")
