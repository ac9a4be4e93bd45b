"""Forms of floating-point arithmetic (PTX ISA 9.7.3, 9.7.4, 9.7.5)."""

FORMS = """
add/sub.rn/rz/rm/rp?.ftz?.sat?.f32; t t t
add/sub.rn/rz/rm/rp?.f64; t t t
add/sub.rn/rz/rm/rp?.ftz?.f32x2; t t t; sm_100
add/sub.rn?.ftz?.sat?.f16/f16x2; t t t
add/sub.rn?.bf16/bf16x2; t t t
add/sub.rn/rz/rm/rp?.sat?.f32.f16/bf16; f32 t f32; sm_100
mul.rn/rz/rm/rp?.ftz?.sat?.f32; t t t
mul.rn/rz/rm/rp?.f64; t t t
mul.rn/rz/rm/rp?.ftz?.f32x2; t t t; sm_100
mul.rn?.ftz?.sat?.f16/f16x2; t t t
mul.rn?.bf16/bf16x2; t t t
fma.rn/rz/rm/rp.ftz?.sat?.f32; t t t t
fma.rn/rz/rm/rp.f64; t t t t
fma.rn/rz/rm/rp.ftz?.f32x2; t t t t; sm_100
fma.rn.ftz?.sat/relu?.f16/f16x2; t t t t
fma.rn/rz/rm/rp.relu?.oob?.bf16/bf16x2; t t t t
fma.rn.sat/relu?.oob.f16/f16x2; t t t t
fma.rn/rz/rm/rp.sat?.f32.f16/bf16; f32 t t f32; sm_100
mad.rn/rz/rm/rp.ftz?.sat?.f32; t t t t
mad.rn/rz/rm/rp.f64; t t t t
div.approx/full/rn/rz/rm/rp.ftz?.f32; t t t
div.rn/rz/rm/rp.f64; t t t
abs/neg.ftz?.f32/f16/f16x2; t t
abs/neg.f64/bf16/bf16x2; t t
min/max.ftz?.NaN?.f32/f16/f16x2; t t t
min/max.ftz?.NaN?.xorsign.abs.f32/f16/f16x2; t t t
min/max.NaN?.bf16/bf16x2; t t t
min/max.NaN?.xorsign.abs.bf16/bf16x2; t t t
min/max.ftz?.NaN?.abs?.f32; t t t t; sm_100
min/max.f64; t t t
testp.finite/infinite/number/notanumber/normal/subnormal.f32/f64; pred t
copysign.f32/f64; t t t
rcp.approx/rn/rz/rm/rp.ftz?.f32; t t
rcp.rn/rz/rm/rp.ftz?.f64; t t
rcp.approx.ftz.f64; t t
sqrt.approx/rn/rz/rm/rp.ftz?.f32; t t
sqrt.rn/rz/rm/rp.f64; t t
rsqrt.approx.ftz?.f32/f64; t t
sin/cos/lg2.approx.ftz?.f32; t t
ex2.approx.ftz?.f32; t t
ex2.approx.f16/f16x2; t t
ex2.approx.ftz.bf16/bf16x2; t t
tanh.approx.f32/f16/f16x2/bf16/bf16x2; t t
"""
