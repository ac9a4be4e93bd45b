"""Warpgroup matrix products of sm_90a.

Source: PTX ISA 9.7.15.5.

Invariant: the registers of an accumulator are declared by us and named in the text; LLVM knows
nothing of them. So it copies none while a product is in flight, and has nothing to allocate: of
64 values that go in and come out of every product it would spend half of its time on.
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
_PTX_REGISTERS = {"float": "f32", "i32": "b32"}


class Accumulator(NamedTuple):
    """The registers of a thread for one accumulator: `type` is LLVM's, `number` tells it apart."""

    number: int
    type: str
    size: int

    @property
    def prefix(self) -> str:
        """How the names of its registers begin; they are numbered from 0."""
        return f"%acc{self.number}_"

    def names(self, first: int, count: int) -> tuple[str, ...]:
        """Spell some of its registers."""
        if not 0 <= first <= first + count <= self.size:
            raise AssertionError(f"an accumulator of {self.size} has no {count} from {first}")
        return tuple(f"{self.prefix}{number}" for number in range(first, first + count))


def declare(accumulator: Accumulator) -> AsmRow:
    """Make the row that declares the registers, before all that name them (PTX ISA 5.4.4)."""
    kind = _PTX_REGISTERS[accumulator.type]
    return AsmRow(
        name="wgmma.accumulator.declare",
        text=f".reg .{kind} {accumulator.prefix}<{accumulator.size}>;",
        effect=Effect.ACTS,
        requires=WGMMA,
    )


@cache
def read(accumulator: Accumulator) -> AsmRow:
    """Make the row that gives what the registers hold."""
    names = accumulator.names(0, accumulator.size)
    return AsmRow(
        name="wgmma.accumulator.read",
        text="\n".join(f"mov.b32 $d{k}, {name};" for k, name in enumerate(names)),
        effect=Effect.ACTS,
        requires=WGMMA,
        outputs={f"d{k}": accumulator.type for k in range(accumulator.size)},
    )


@cache
def write(accumulator: Accumulator) -> AsmRow:
    """Make the row that puts values into the registers."""
    names = accumulator.names(0, accumulator.size)
    return AsmRow(
        name="wgmma.accumulator.write",
        text="\n".join(f"mov.b32 {name}, $s{k};" for k, name in enumerate(names)),
        effect=Effect.ACTS,
        requires=WGMMA,
        inputs={f"s{k}": accumulator.type for k in range(accumulator.size)},
    )


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
def wait(pending: int) -> AsmRow:
    """Make the row that waits until at most `pending` groups are in flight.

    The registers of the groups still in flight must not be touched.
    """
    return AsmRow(
        name="wgmma.wait_group",
        text=f"wgmma.wait_group.sync.aligned {pending};",
        effect=Effect.ACTS,
        requires=WGMMA,
    )


class Types(NamedTuple):
    """The element types of a product, as PTX spells them: of D, A and B."""

    d: str
    a: str
    b: str


@cache
def mma(
    accumulators: tuple[str, ...],
    n: int,
    types: Types,
    *,
    a_in_registers: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> AsmRow:
    """Make the row D[64, n] = (scale_d ? D : 0) + A[64, k] B[k, n]; k elements are 32 bytes.

    D is in the registers `accumulators` of a thread: n/2, or n/4 pairs of f16. Operands: A as a
    descriptor or as four registers, B as a descriptor, scale_d.  A transposed operand is
    contiguous along M (A) or N (B), of 16-bit types alone; A in registers cannot be.
    """
    _check(n, types, transpose_a or transpose_b, a_in_registers and transpose_a)
    if len(accumulators) != registers(n, types.d):
        raise AssertionError(f"{n} columns of {types.d} are not {len(accumulators)} registers")
    a_operands, a_text = _a_operand(a_in_registers)
    k = K_BYTES // ELEMENT_BYTES[types.a]
    signs = [] if types.d == "s32" else [1, 1]
    transposes = [transpose_b] if a_in_registers else [transpose_a, transpose_b]
    numbers = [*signs, *(map(int, transposes) if ELEMENT_BYTES[types.a] == 2 else ())]
    immediates = "".join(f", {value}" for value in numbers)
    return AsmRow(
        name=f"wgmma.m64n{n}k{k}.{'.'.join(types)}",
        text=(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{'.'.join(types)} "
            f"{{{', '.join(accumulators)}}}, {a_text}, $b, $scale_d{immediates};"
        ),
        effect=Effect.ACTS,
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
    accumulator: Accumulator,
    steps: tuple[Step, ...],
    types: Types,
    *,
    a_in_registers: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> AsmRow:
    """Make the row of a whole product: the fence, every instruction, the commit of the group.

    One row, so that nothing comes between them. Operands by name: descriptors `a0 a1 ... b0 b1
    ...`, `accumulate` for the steps that do not continue, and `always`, which is true. With A in
    registers `a0 a1 ...` are those, and a step's `a` is the first of its four.
    """
    parts: list[tuple[AsmRow, dict[str, str]]] = [(FENCE, {})]
    for step in steps:
        row = mma(
            accumulator.names(step.first, registers(step.n, types.d)),
            step.n,
            types,
            a_in_registers=a_in_registers,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        fragment = {f"a{number}": f"a{step.a + number}" for number in range(A_REGISTERS)}
        names = fragment if a_in_registers else {"a": f"a{step.a}"}
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
