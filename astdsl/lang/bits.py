"""Bits of elements: reinterpreting them, and random ones.

Invariant: exact on every device; nothing here rounds.
"""

from __future__ import annotations

from astdsl.errors import ShapeMismatch, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, INT, UINT, u32, u64
from astdsl.lang.elementwise import cast, joint_edges, require_kind, settle, sources
from astdsl.lang.ragged import LOST, ZERO
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, as_operand, require_dtype

# Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD_BITS = 32


def bitcast(x: object, dtype: object) -> Tile:
    """Return the same bits as another dtype of the same width; `astype` converts values.

    Errors: TypeMismatch where the widths differ, and for bools.
    """
    tile, wanted = settle(x, "`bitcast`"), require_dtype(dtype, "`bitcast`")
    if wanted is tile.dtype:
        return tile
    if wanted.bits != tile.dtype.bits or BOOL in (wanted.kind, tile.kind):
        raise fault(
            TypeMismatch,
            f"`bitcast` of {tile} to {wanted}, which has {wanted.bits} bits an element",
            *sources(tile),
            help="`astype` converts values; the widths of a bitcast are equal",
        )
    value = emit(ops.Bitcast, x=tile.value, dtype=wanted).result
    return Tile(value, dims=tile.dims, edges=joint_edges(_bits_state, tile.shape, tile))


def _bits_state(state: str) -> str:
    """Say what the outside holds: the bits of zero are zero in every dtype."""
    return ZERO if state == ZERO else LOST


def random_bits(seed: object, offset: object) -> Tile:
    """Return 32 random bits for each element of `offset`, as u32: equal arguments, equal bits.

    The first word of Philox4x32-10 whose key is `seed` (an integer, 64 bits) and whose counter is
    `offset` (integers, extended to 64 bits). Composed of integer operations, so that every device
    gives the same. Uniform in [0, 1): `(random_bits(s, i) >> 8).astype(f32) * 2**-24`.
    Errors: TypeMismatch, ShapeMismatch.
    """
    what = "`random_bits`"
    key, counter = (_words(operand, what) for operand in (seed, offset))
    if key[0].shape:
        raise fault(
            ShapeMismatch,
            f"{what} takes one seed, got {as_operand(seed, what)}",
            help="mix what differs by element into the offset",
        )
    nothing = counter[0] ^ counter[0]
    words = (*counter, nothing, nothing)
    for _ in range(_ROUNDS):
        words = _round(words, key)
        key = (key[0] + _KEY_STEPS[0], key[1] + _KEY_STEPS[1])
    return words[0]


def _words(x: object, what: str) -> tuple[Tile, Tile]:
    """Return the low and the high word of integers of 64 bits."""
    operand = as_operand(x, what)
    require_kind(what, (INT, UINT), operand)
    number = cast(operand.number % 2**64, u64) if not isinstance(operand, Tile) else None
    wide = cast(operand, u64) if number is None else number
    return cast(wide, u32), cast(wide >> _WORD_BITS, u32)


def _round(
    words: tuple[Tile, Tile, Tile, Tile], key: tuple[Tile, Tile]
) -> tuple[Tile, Tile, Tile, Tile]:
    high0, low0 = _product(words[0], _MULTIPLIERS[0])
    high1, low1 = _product(words[2], _MULTIPLIERS[1])
    return high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0


def _product(word: Tile, factor: int) -> tuple[Tile, Tile]:
    """Return the high and the low word of a product."""
    whole = cast(word, u64) * factor
    return cast(whole >> _WORD_BITS, u32), cast(whole, u32)
