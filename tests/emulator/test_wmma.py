"""Tests of wmma: loads, products and stores of fragments, against NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.asm import faulting, kernel

Array = np.ndarray[Any, Any]
SHAPES = {"m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16)}
DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "u8": np.uint8,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip
FORMS = [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s8", "s32"), ("u8", "s32")]
LAYOUTS = [("row", "col"), ("col", "row")]
PAD = 16


def aligned(values: Array) -> Array:
    """Return a copy that begins at a multiple of 32 bytes."""
    raw = np.zeros(values.nbytes + 32, np.uint8)
    start = -raw.ctypes.data % 32
    made: Array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def count(shape: tuple[int, int], name: str, *, operand: bool) -> int:
    if operand and name == "f16":
        return 8
    return shape[0] * shape[1] * int(np.dtype(DTYPES[name]).itemsize) // 128


def code(shape: str, name: str, to: str, layouts: tuple[str, str]) -> str:
    """Return D = A B + C of matrices whose rows, or columns, lie PAD elements further apart."""
    m, n, k = SHAPES[shape]
    sizes = [count((m, k), name, operand=True), count((k, n), name, operand=True)]
    results = count((m, n), to, operand=False)
    a, b, c = registers(0, sizes[0]), registers(20, sizes[1]), registers(40, results)
    d = registers(60, results)
    strides = [(k if layouts[0] == "row" else m) + PAD, (n if layouts[1] == "row" else k) + PAD]
    kinds = f"{to}.{to}" if name == "f16" else f"{to}.{name}.{name}.{to}"
    return f"""
  ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; ld.param.u64 %d2, [a2]; mov.u32 %r99, {n};
  wmma.load.a.sync.aligned.{layouts[0]}.{shape}.global.{name} {a}, [%d0], {strides[0]};
  wmma.load.b.sync.aligned.{layouts[1]}.{shape}.global.{name} {b}, [%d1], {strides[1]};
  wmma.load.c.sync.aligned.row.{shape}.global.{to} {c}, [%d2], %r99;
  wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{kinds} {d}, {a}, {b}, {c};
  wmma.store.d.sync.aligned.row.{shape}.global.{to} [%d2], {d};
"""


def stored(values: Array, layout: str) -> Array:
    plain = values if layout == "row" else values.T
    return aligned(np.pad(plain, [(0, 0), (0, PAD)]))


def numbers(shape: tuple[int, int], name: str, seed: int) -> Array:
    low = 0 if name == "u8" else -8
    made: Array = np.random.default_rng(seed).integers(low, 9, shape).astype(DTYPES[name])
    return made


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "to"), FORMS)
def test_fragments_are_multiplied(shape: str, name: str, to: str, layouts: tuple[str, str]) -> None:
    m, n, k = SHAPES[shape]
    a, b, c = numbers((m, k), name, 1), numbers((k, n), name, 2), numbers((m, n), to, 3)
    out = aligned(c)
    text = kernel(code(shape, name, to, layouts), ["u64"] * 3)
    run(text, "k", (1,), (32,), [stored(a, layouts[0]), stored(b, layouts[1]), out])
    wide = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    assert np.array_equal(out, wide.astype(DTYPES[to]))


def launch(body: str, *, threads: int = 32, shift: int = 0) -> None:
    memory = aligned(np.zeros(4096, np.uint8))
    arrays = [memory[shift:], memory[:2048], memory[2048:]]
    run(kernel(body, ["u64"] * 3), "k", (1,), (threads,), arrays)


fault = faulting(launch)
PLAIN = code("m16n16k16", "f16", "f32", ("row", "col"))


def test_a_product_needs_its_whole_warp() -> None:
    fault("E214", PLAIN, threads=16)


def test_a_matrix_begins_at_a_multiple_of_its_fragment() -> None:
    fault("E221", PLAIN, shift=16)


def test_what_nothing_has_written_is_reported_when_it_is_stored() -> None:
    lines = [line for line in PLAIN.splitlines() if "load.b" not in line]
    assert "undefined" in fault("E230", "\n".join(lines))
    shared = PLAIN.replace("global.f16 {%r20", "shared.f16 {%r20").replace("[%d1]", "[%r98]")
    launched = "mov.u32 %r98, smem;" + shared
    with pytest.raises(DeviceFault, match="undefined"):
        run(kernel(launched, ["u64"] * 3, shared_bytes=2048), "k", (1,), (32,),
            [aligned(np.zeros(2048, np.uint8)) for _ in range(3)])  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"), [("m16n16k16", "m16n16k8"), (".f16", ".tf32"), ("f32.f32", "s32.s32")]
)
def test_other_forms_are_refused_by_name(old: str, new: str) -> None:
    fault("E201", PLAIN.replace(old, new))
