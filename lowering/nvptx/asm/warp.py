"""Exchanges among the threads of a warp, elections, and matrix moves through shared memory.

Source: PTX ISA 9.7.9.6 (shfl), 9.7.13 (vote, redux), 9.7.14 (ldmatrix, stmatrix).  Every row
takes the mask of the members last.
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.target import REDUX_F32

FULL_MASK = 0xFFFFFFFF
SHUFFLE_MODES = ("idx", "up", "down", "bfly")
REDUX_OPERATIONS = ("add.s32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32")
REDUX_OF_FLOATS = ("min.NaN.f32", "max.NaN.f32")
MATRICES = (1, 2, 4)

ELECT = AsmRow(
    name="elect.sync",
    text="elect.sync _|$elected, $members;",
    effect=Effect.CONVERGES,
    outputs={"elected": "i1"},
    inputs={"members": "i32"},
)
"""True in exactly one of the member threads of the warp, the same one each time."""


@cache
def shuffle(mode: str) -> AsmRow:
    """Make the row that reads another lane's register.

    `control` is ``(segment mask << 8) | clamp``; out of range gives the thread's own value.
    """
    if mode not in SHUFFLE_MODES:
        raise AssertionError(f"shfl has the modes {SHUFFLE_MODES}, not {mode}")
    return AsmRow(
        name=f"shfl.{mode}",
        text=f"shfl.sync.{mode}.b32 $result, $value, $lane, $control, $members;",
        effect=Effect.CONVERGES,
        outputs={"result": "i32"},
        inputs={"value": "i32", "lane": "i32", "control": "i32", "members": "i32"},
    )


@cache
def redux(operation: str) -> AsmRow:
    """Make the row that reduces integers or floats over the members."""
    if operation not in (*REDUX_OPERATIONS, *REDUX_OF_FLOATS):
        raise AssertionError(f"redux has {REDUX_OPERATIONS + REDUX_OF_FLOATS}, not {operation}")
    is_float = operation in REDUX_OF_FLOATS
    type = "float" if is_float else "i32"
    return AsmRow(
        name=f"redux.{operation}",
        text=f"redux.sync.{operation} $result, $value, $members;",
        effect=Effect.CONVERGES,
        outputs={"result": type},
        inputs={"value": type, "members": "i32"},
        requires=REDUX_F32 if is_float else None,
    )


@cache
def vote(mode: str) -> AsmRow:
    """Make the row that combines predicates: ``any``, ``all`` or ``uni``."""
    if mode not in ("any", "all", "uni"):
        raise AssertionError(f"vote has the modes any, all and uni, not {mode}")
    return AsmRow(
        name=f"vote.{mode}",
        text=f"vote.sync.{mode}.pred $result, $predicate, $members;",
        effect=Effect.CONVERGES,
        outputs={"result": "i1"},
        inputs={"predicate": "i1", "members": "i32"},
    )


@cache
def load_matrix(matrices: int, *, transpose: bool = False) -> AsmRow:
    """Make the row that loads 8x8 matrices of 16 bits; lane 8m + r gives the row r of matrix m."""
    outputs = _registers(matrices)
    return AsmRow(
        name=f"ldmatrix.x{matrices}",
        text=f"{_spelling('ldmatrix', matrices, transpose)} {_listed(outputs)}, [$address];",
        effect=Effect.ACTS,
        outputs=outputs,
        inputs={"address": "i32"},
    )


@cache
def store_matrix(matrices: int, *, transpose: bool = False) -> AsmRow:
    """Make the row that stores 8x8 matrices of 16 bits, the reverse of `load_matrix`."""
    inputs = _registers(matrices)
    return AsmRow(
        name=f"stmatrix.x{matrices}",
        text=f"{_spelling('stmatrix', matrices, transpose)} [$address], {_listed(inputs)};",
        effect=Effect.ACTS,
        inputs={"address": "i32"} | inputs,
    )


def _spelling(opcode: str, matrices: int, transpose: bool) -> str:
    suffix = ".trans" if transpose else ""
    return f"{opcode}.sync.aligned.m8n8.x{matrices}{suffix}.shared.b16"


def _registers(matrices: int) -> dict[str, str]:
    if matrices not in MATRICES:
        raise AssertionError(f"1, 2 or 4 matrices move at once, not {matrices}")
    return {f"r{number}": "i32" for number in range(matrices)}


def _listed(names: dict[str, str]) -> str:
    return "{" + ", ".join(f"${name}" for name in names) + "}"
