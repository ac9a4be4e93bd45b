"""Forms of integer arithmetic, bit fields, logic and shifts (PTX ISA 9.7.1, 9.7.2, 9.7.8)."""

FORMS = """
add.u16/u32/u64/s16/s32/s64/u16x2/s16x2; t t t
add/sub.sat.s32; t t t
add/sub.cc.u32/s32/u64/s64; t t t
sub.u16/u32/u64/s16/s32/s64; t t t
addc/subc.u16/s16; t t t
addc/subc.cc?.u32/s32/u64/s64; t t t
mul.lo/hi.u16/u32/u64/s16/s32/s64; t t t
mul.wide.u16/s16; b32 t t
mul.wide.u32/s32; b64 t t
mad.lo/hi.u16/u32/u64/s16/s32/s64; t t t t
mad.wide.u16/s16; b32 t t b32
mad.wide.u32/s32; b64 t t b64
mad.hi.sat.s32; t t t t
mad.lo/hi.cc.u32/s32/u64/s64; t t t t
madc.lo/hi.u16/s16; t t t t
madc.lo/hi.cc?.u32/s32/u64/s64; t t t t
mul24.lo/hi.u32/s32; t t t
mad24.lo/hi.u32/s32; t t t t
mad24.hi.sat.s32; t t t t
sad.u16/u32/u64/s16/s32/s64; t t t t
div/rem.u16/u32/u64/s16/s32/s64; t t t
abs/neg.s16/s32/s64; t t
min/max.u16/u32/u64/s16/s32/s64/u16x2/s16x2; t t t
min/max.relu.s32/s16x2; t t t
popc.b32/b64; u32 t
clz.b32/b64; u32 t
bfind.shiftamt?.u32/u64/s32/s64; u32 t
brev.b32/b64; t t
fns.b32; t b32 b32 s32
bfe.u32/u64/s32/s64; t t u32 u32
bfi.b32/b64; t t t u32 u32
szext.clamp/wrap.u32/s32; t t u32
bmsk.clamp/wrap.b32; t u32 u32
dp4a.u32/s32.u32/s32; b32 b32 b32 b32
dp2a.lo/hi.u32/s32.u32/s32; b32 b32 b32 b32
and/or/xor.pred/b16/b32/b64; t t t
not.pred/b16/b32/b64; t t
cnot.b16/b32/b64; t t
lop3.b32; t t t t imm
lop3.or/and.b32; t|pred t t t imm pred
shf.l/r.clamp/wrap.b32; t t t u32
shl.b16/b32/b64; t t u32
shr.b16/b32/b64/u16/u32/u64/s16/s32/s64; t t u32
prmt.b32.f4e/b4e/rc8/ecl/ecr/rc16?; t t t b32
"""
