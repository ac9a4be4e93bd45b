"""Layouts that a tile's shape allows, as a kernel states them."""

from __future__ import annotations

from math import prod

from tests.fuzz.program import Draw, Shape

# Names, and the extents of which a tile's are multiples.
NAMED: dict[str, Shape] = {
    "WGMMA": (64, 8), "WGMMA_8BIT": (64, 16), "WGMMA_UPCAST_2X": (64, 16),
    "WGMMA_UPCAST_4X": (64, 32), "WGMMA_TRANSPOSED": (8, 64), "TCGEN05": (128, 8),
    "TCGEN05_TRANSPOSED": (8, 128), "TCGEN05_TMEM_NATIVE": (128, 1), "TMA_INDICES": (16,),
    "WGMMA.reduce(1)": (64,), "WGMMA.reduce(0)": (8,), "TCGEN05.reduce(1)": (128,),
    "WGMMA_TRANSPOSED.reduce(0)": (64,), "WGMMA_UPCAST_4X.reduce(0)": (32,),
}  # fmt: skip
THREAD_DIGITS = 7
# Tiles that layouts of products fit.
SHAPES: tuple[Shape, ...] = ((64, 8), (64, 16), (8, 64), (128, 8), (64,), (128,), (16,), (32, 32))


def layout(draw: Draw, shape: Shape) -> str:
    """Return a layout of a tile with one axis or more."""
    fitting = [
        name for name, extents in NAMED.items()
        if len(extents) == len(shape)
        and all(n % m == 0 for n, m in zip(shape, extents, strict=True))
    ]  # fmt: skip
    vectors = [v for v in (1, 2, 4, 8) if shape[-1] % v == 0]
    made = [f"WG_STRIDED({shape}, {draw.pick(vectors)})", _tiled(draw, shape)]
    made += ["WG_SPLAT"] * (prod(shape) <= 16)
    made += [f"SMEM_GMEM_COPY({shape}, {draw.pick(['f16', 'f32', 'i8'])}, 64)"]
    return "Layout." + draw.pick(fitting if fitting and draw.chance(0.6) else made)


def _tiled(draw: Draw, shape: Shape) -> str:
    """Return bits of the index along each axis, dealt out to registers and threads."""
    bits = [(2, axis, 2**k) for axis, n in enumerate(shape) for k in range((n - 1).bit_length())]
    bits = draw.random.sample(bits, len(bits))
    threads, registers = bits[:THREAD_DIGITS], bits[THREAD_DIGITS:]
    threads += [(2, -1, 0)] * (THREAD_DIGITS - len(threads))
    return f"TILED({shape}, {tuple(registers)}, {tuple(threads)})"
