"""Forms of comparison, selection, moves and conversion (PTX ISA 9.7.6, 9.7.7, 9.7.9)."""

_EQUAL = "eq/ne"
_ORDER = "eq/ne/lt/le/gt/ge"
_FLOAT = f"{_ORDER}/equ/neu/ltu/leu/gtu/geu/num/nan"
_UNSIGNED = f"{_ORDER}/lo/ls/hi/hs"
_LOGIC = "and/or/xor"

# Types, comparisons and a modifier of a comparison.
_COMPARED = (
    ("b16/b32/b64", _EQUAL, ""), ("s16/s32/s64", _ORDER, ""), ("u16/u32/u64", _UNSIGNED, ""),
    ("f32", _FLOAT, ".ftz?"), ("f64", _FLOAT, ""), ("f16/f16x2", _FLOAT, ".ftz?"),
    ("bf16/bf16x2", _FLOAT, ""),
)  # fmt: skip
# Results of `set` for the types that it compares.
_RESULTS = (
    ("b16/b32/b64", "u32/s32/f32/f16/bf16", _EQUAL, ""),
    ("s16/s32/s64", "u32/s32/f32/f16/bf16", _ORDER, ""),
    ("u16/u32/u64", "u32/s32/f32/f16/bf16", _UNSIGNED, ""),
    ("f32", "u32/s32/f32/f16", _FLOAT, ".ftz?"),
    ("f32", "bf16", _FLOAT, ""),
    ("f64", "u32/s32/f32/f16/bf16", _FLOAT, ""),
    ("f16", "u16/s16/u32/s32/f16", _FLOAT, ".ftz?"),
    ("f16", "bf16", _FLOAT, ""),
    ("bf16", "u16/s16/u32/s32/bf16", _FLOAT, ""),
    ("f16x2", "u32/s32/f16x2", _FLOAT, ".ftz?"),
    ("bf16x2", "u32/s32/bf16x2", _FLOAT, ""),
)


def _comparisons() -> list[str]:
    lines = []
    for types, words, ftz in _COMPARED:
        lines += [
            f"setp.{words}{ftz}.{types}; pred t t",
            f"setp.{words}.{_LOGIC}{ftz}.{types}; pred t t pred",
        ]
        if types not in ("f16/f16x2", "bf16/bf16x2"):
            lines.append(f"setp.{words}{ftz}.{types}; pred|pred t t")
            lines.append(f"setp.{words}.{_LOGIC}{ftz}.{types}; pred|pred t t pred")
    for types, ftz in (("f16x2", ".ftz?"), ("bf16x2", "")):
        lines.append(f"setp.{_FLOAT}{ftz}.{types}; pred|pred t t")
        lines.append(f"setp.{_FLOAT}.{_LOGIC}{ftz}.{types}; pred|pred t t pred")
    for types, results, words, ftz in _RESULTS:
        lines.append(f"set.{words}{ftz}.{results}.{types}; 1 t t")
        lines.append(f"set.{words}.{_LOGIC}{ftz}.{results}.{types}; 1 t t pred")
    return lines


_INTEGERS = "u8/s8/u16/s16/u32/s32/u64/s64"
_WIDE = "u16/s16/u32/s32/u64/s64"
_ROUND = "rn/rz/rm/rp"
_INTEGRAL = "rni/rzi/rmi/rpi"
_CONVERSIONS = f"""
cvt.{_INTEGERS}.{_INTEGERS}; 1+ 2+
cvt.sat.u8.s8/u16/s16/u32/s32/u64/s64; 1+ 2+
cvt.sat.s8.u8/u16/s16/u32/s32/u64/s64; 1+ 2+
cvt.sat.u16.s8/s16/u32/s32/u64/s64; 1+ 2+
cvt.sat.s16.u16/u32/s32/u64/s64; 1+ 2+
cvt.sat.u32.s8/s16/s32/u64/s64; 1+ 2+
cvt.sat.s32.u32/u64/s64; 1+ 2+
cvt.sat.u64.s8/s16/s32/s64; 1+ 2+
cvt.sat.s64.u64; 1+ 2+
cvt.{_ROUND}.sat?.f16/f64.{_INTEGERS}; 1+ 2+
cvt.{_ROUND}.ftz?.sat?.f32.{_INTEGERS}; 1+ 2+
cvt.{_ROUND}.bf16.{_WIDE}; 1+ 2+
cvt.{_INTEGRAL}.sat?.{_INTEGERS}.f16/f64; 1+ 2+
cvt.{_INTEGRAL}.ftz?.sat?.{_INTEGERS}.f32; 1+ 2+
cvt.{_INTEGRAL}.{_WIDE}.bf16; 1+ 2+
cvt.{_ROUND}.sat?.f16.f64; 1+ 2+
cvt.{_ROUND}?.f16.bf16; 1+ 2+
cvt.{_ROUND}?.bf16.f16; 1+ 2+
cvt.{_ROUND}?.f64.bf16; 1+ 2+
cvt.{_ROUND}.bf16.f64; 1+ 2+
cvt.{_INTEGRAL}?.sat?.f16.f16; 1+ 2+
cvt.{_INTEGRAL}?.sat?.f64.f64; 1+ 2+
cvt.{_INTEGRAL}?.bf16.bf16; 1+ 2+
cvt.{_INTEGRAL}?.ftz?.sat?.f32.f32; 1+ 2+
cvt.ftz?.sat?.f32.f16; 1+ 2+
cvt.ftz?.sat?.f64.f32; 1+ 2+
cvt.sat?.f64.f16; 1+ 2+
cvt.{_ROUND}?.ftz?.f32.bf16; 1+ 2+
cvt.{_ROUND}.ftz?.sat?.f32.f64; 1+ 2+
cvt.{_ROUND}.ftz?.sat?.f16.f32; 1+ 2+
cvt.{_ROUND}.ftz?.bf16.f32; 1+ 2+
cvt.rn/rz.relu?.satfinite?.f16/bf16.f32; 1+ 2+
cvt.rn/rz.relu?.tf32.f32; b32 2+
cvt.rna.satfinite?.tf32.f32; b32 2+
cvt.rn/rz.relu?.satfinite.tf32.f32; b32 2+; sm_100
cvt.rn/rz.relu?.satfinite?.f16x2/bf16x2.f32; b32 2 2
cvt.rs.relu?.satfinite?.f16x2/bf16x2.f32; b32 2 2 b32; sm_100a
cvt.rs.relu?.satfinite.e4m3x4/e5m2x4/e2m3x4/e3m2x4.f32; b32 f32*4 b32; sm_100a
cvt.rs.relu?.satfinite.e2m1x4.f32; b16 f32*4 b32; sm_100a
cvt.rn.relu?.satfinite.e4m3x2/e5m2x2.f32; b16 f32 f32
cvt.rn.relu?.satfinite.e4m3x2/e5m2x2.f16x2; b16 b32
cvt.rn.relu?.satfinite.e4m3x2/e5m2x2.bf16x2; b16 b32; family
cvt.rn.relu?.f16x2.e4m3x2/e5m2x2; b32 b16
cvt.rn.relu?.bf16x2.e4m3x2/e5m2x2; b32 b16; family
cvt.rn.relu?.satfinite.e2m3x2/e3m2x2.f32; b16 f32 f32; family
cvt.rn.relu?.f16x2.e2m3x2/e3m2x2; b32 b16; family
cvt.rn.relu?.satfinite.e2m1x2.f32; b8 f32 f32; family
cvt.rn.relu?.f16x2.e2m1x2; b32 b8; family
cvt.rn.relu?.bf16x2.e2m1x2; b32 b8; family
cvt.rz/rp.satfinite?.ue8m0x2.f32; b16 f32 f32; family
cvt.rz/rp.satfinite?.ue8m0x2.bf16x2; b16 b32; family
cvt.rn.bf16x2.ue8m0x2; b32 b16; family
cvt.pack.sat.u16/s16.s32; b32 s32 s32
cvt.pack.sat.u8/s8/u4/s4/u2/s2.s32.b32; b32 s32 s32 b32
"""

FORMS = (
    "\n".join(_comparisons())
    + _CONVERSIONS
    + """
selp.b16/b32/b64/u16/u32/u64/s16/s32/s64/f32/f64; t t t pred
slct.b16/b32/b64/u16/u32/u64/s16/s32/s64/f32/f64.s32; 1 1 1 s32
slct.ftz?.b16/b32/b64/u16/u32/u64/s16/s32/s64/f32/f64.f32; 1 1 1 f32
mov.pred/b16/b32/b64/b128/u16/u32/u64/s16/s32/s64/f32/f64; any any
"""
)
