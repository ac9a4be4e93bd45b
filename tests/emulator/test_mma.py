"""Tests of mma.sync: fragments by the ISA's figures, products by NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator import run
from astdsl.emulator.faults import DeviceFault, Unsupported
from tests.emulator.running import module

DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64,
    "s8": np.int8, "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
RESULTS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}
LANE = np.arange(32)
GROUP, QUAD = LANE // 4, LANE % 4


def operand_fragment(values: Any, per: int) -> Any:
    """Return [lane, register, element] of an operand [rows, k] (PTX ISA 9.7.14.5.8 and on)."""
    rows, k = values.shape
    halves = rows // 8
    parts = []
    for r in range(halves * k // (4 * per)):
        row, first = GROUP + 8 * (r % halves), r // halves * 4 * per + QUAD * per
        parts.append(np.stack([values[row, first + i] for i in range(per)], axis=-1))
    return np.stack(parts, axis=1)


def result_fragment(values: Any) -> Any:
    """Return [lane, register, element] of an accumulator [rows, 8]."""
    halves = len(values) // 8
    if values.dtype == np.float16:
        parts = [[values[GROUP + 8 * r, 2 * QUAD + i] for i in range(2)] for r in range(halves)]
    else:
        parts = [[values[GROUP + 8 * (r // 2), 2 * QUAD + r % 2]] for r in range(2 * halves)]
    return np.array(parts).transpose(2, 0, 1)


def numbers(shape: tuple[int, int], name: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if name == "u8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    return rng.integers(-4, 5, shape).astype(DTYPES[name])


FORMS = [
    ("m16n8k8", "f32", "f16"), ("m16n8k16", "f32", "f16"), ("m16n8k16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16"), ("m16n8k8", "f32", "bf16"), ("m16n8k4", "f32", "tf32"),
    ("m16n8k8", "f32", "tf32"), ("m16n8k32", "s32", "s8"), ("m16n8k16", "s32", "u8"),
    ("m16n8k32", "f32", "e4m3"), ("m16n8k32", "f32", "e5m2"), ("m8n8k4", "f64", "f64"),
    ("m16n8k8", "f64", "f64"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "to", "name"), FORMS)
def test_products_of_fragments(shape: str, to: str, name: str) -> None:
    rows, k = int(shape[1:].partition("n")[0]), int(shape.split("k")[1])
    word = 8 if name == "f64" else 4
    per = word // np.dtype(DTYPES[name]).itemsize
    a, b = numbers((rows, k), name, 1), numbers((8, k), name, 2)
    wide = a.astype(np.float64) @ b.astype(np.float64).T
    c = np.random.default_rng(3).integers(-9, 9, (rows, 8)).astype(RESULTS[to])
    given = [operand_fragment(a, per), operand_fragment(b, per), result_fragment(c)]
    expected = result_fragment((wide + c.astype(np.float64)).astype(RESULTS[to]))
    assert product(f"{shape}.row.col.{to}.{name}.{name}.{to}", given).tolist() == expected.tolist()


def product(form: str, fragments: list[Any]) -> Any:
    """Run one mma.sync on fragments [lane, register, element]."""
    sizes = [f.shape[2] * f.dtype.itemsize for f in fragments]
    counts = [f.shape[1] for f in fragments]
    fragments = [np.ascontiguousarray(f) for f in fragments]
    out = np.zeros(fragments[2].shape, fragments[2].dtype)
    lines, names = ["mov.u32 %i, %tid.x;"], []
    for k, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        lines.append(f"ld.param.u64 %base, [p{k}]; mad.wide.u32 %at, %i, {size * count}, %base;")
        names.append([f"%v{k}_{r}" for r in range(count)])
        for r, register in enumerate(names[-1]):
            lines.append(
                f".reg .b{8 * size} {register}; ld.global.b{8 * size} {register}, [%at+{r * size}];"
            )
    vectors = ["{" + ", ".join(each) + "}" for each in names]
    lines.append(f"mma.sync.aligned.{form} {vectors[2]}, {vectors[0]}, {vectors[1]}, {vectors[2]};")
    lines.append(f"ld.param.u64 %base, [p3]; mad.wide.u32 %at, %i, {sizes[2] * counts[2]}, %base;")
    for r, register in enumerate(names[2]):
        lines.append(f"st.global.b{8 * sizes[2]} [%at+{r * sizes[2]}], {register};")
    text = module("\n".join(lines), ["u64"] * 4, ".reg .b64 %at, %base; .reg .b32 %i;")
    run(text, "k", (1,), (32,), [*fragments, out])
    return out


UNDEFINED = """
  .shared .align 16 .b8 smem[128]; .reg .f32 %f<4>;
  mov.u32 %i, smem; ld.param.u64 %base, [p0]; ld.shared.b32 %r1, [%i]; mov.b32 %r2, 0;
  mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
  mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2}, {%r2},
    {%f0, %f1, %f2, %f3};
"""


def test_a_product_of_what_nothing_has_written_is_undefined() -> None:
    declared, out = ".reg .b64 %base; .reg .b32 %i, %r<4>;", np.zeros(4, np.float32)
    run(module(UNDEFINED, ["u64"], declared), "k", (1,), (32,), [out])
    text = module(UNDEFINED + "st.global.f32 [%base], %f1;", ["u64"], declared)
    with pytest.raises(DeviceFault, match="undefined"):
        run(text, "k", (1,), (32,), [out])


def test_integer_products_saturate_when_asked() -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    c = np.full((16, 8), 2**31 - 5, np.int32)
    given = [operand_fragment(a, 4), operand_fragment(b, 4), result_fragment(c)]
    got = product("m16n8k32.row.col.satfinite.s32.s8.s8.s32", given)
    assert (got == 2**31 - 1).all()


NARROW = [
    ("m8n8k32", "s4", "u4"), ("m16n8k32", "u4", "s4"), ("m16n8k64", "s4", "s4"),
    ("m8n8k128", "b1", "b1"), ("m16n8k128", "b1", "b1"), ("m16n8k256", "b1", "b1"),
]  # fmt: skip


def narrow(shape: tuple[int, int], name: str, seed: int) -> tuple[Any, Any]:
    """Return random values [rows, k], and their fragment [lane, register, 1] of words."""
    bits = 1 if name == "b1" else 4
    codes = np.random.default_rng(seed).integers(0, 1 << bits, shape)
    values = np.where(codes >= 8, codes - 16, codes) if name == "s4" else codes
    places = bits * np.arange(32 // bits)
    packed = (operand_fragment(codes, 32 // bits) << places).sum(axis=-1).astype(np.uint32)
    return values, packed[..., None]


@pytest.mark.parametrize(("shape", "a_type", "b_type"), NARROW)
@pytest.mark.parametrize("combine", ["and", "xor"])
def test_products_of_narrow_integers(shape: str, a_type: str, b_type: str, combine: str) -> None:
    rows, k = int(shape[1:].partition("n")[0]), int(shape.split("k")[1])
    (a, given_a), (b, given_b) = narrow((rows, k), a_type, 1), narrow((8, k), b_type, 2)
    wide = a @ b.T
    if a_type == "b1" and combine == "xor":
        wide = (a[:, None, :] != b[None, :, :]).sum(axis=-1)
    c = np.random.default_rng(3).integers(-9, 9, (rows, 8)).astype(np.int32)
    count = f".{combine}.popc" if a_type == "b1" else ""
    got = product(
        f"{shape}.row.col.s32.{a_type}.{b_type}.s32{count}", [given_a, given_b, result_fragment(c)]
    )
    assert got.tolist() == result_fragment((wide + c).astype(np.int32)).tolist()


@pytest.mark.parametrize(
    "form",
    [
        "m16n8k16.row.row.f32.f16.f16.f32",
        "m16n8k64.row.col.f32.s4.s4.f32",
        "m8n8k128.row.col.s32.b1.b1.s32",
    ],
)
def test_other_forms_are_refused_by_name(form: str) -> None:
    text = module(
        f"mma.sync.aligned.{form} {{%r0}}, {{%r1}}, {{%r2}}, {{%r3}};", [], ".reg .b32 %r<4>;"
    )
    with pytest.raises(Unsupported, match=r"mma\.sync"):
        run(text, "k", (1,), (32,), [])
