"""The dtypes that kernels compute with, by family."""

from astdsl.ir.dtypes import (
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

FLOATS = (f64, f32, f16, bf16)
SIGNED = (i64, i32, i16, i8)
UNSIGNED = (u64, u32, u16, u8)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
EVERY = (*NUMBERS, boolean)
