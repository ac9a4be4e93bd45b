"""Exchanges among the lanes of a warp, and choices by the lane's number, from tables of 32.

Source: PTX ISA 9.7.9.6 (shfl.sync). Invariant: every lane of the warp takes part.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.lowering.nvptx.asm import warp
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.values import INTEGER_BITS, LV, bits_of, constant, i32

# A segment of 32 lanes: nothing clamped below the last, or for `up` above the first.
_WHOLE_WARP = {"bfly": 0x1F, "idx": 0x1F, "up": 0}
_WORD_BITS = 32
_LANE_BITS = 5


def shuffled(builder: Builder, value: LV, mode: str, lane: LV) -> LV:
    """Return another lane's value: that of lane `lane`, or so many up or across (`bfly`)."""
    bits = bits_of(value.type)
    whole = f"i{bits}"
    number = value if value.type in INTEGER_BITS else builder.cast("bitcast", value, whole)
    if bits <= _WORD_BITS:
        word = _exchanged(builder, builder.cast("zext", number, "i32"), mode, lane)
        number = builder.cast("trunc", word, whole)
    else:
        upper = builder.lshr(number, constant(whole, _WORD_BITS))
        words = (builder.cast("trunc", x, "i32") for x in (number, upper))
        low, high = (
            builder.cast("zext", _exchanged(builder, word, mode, lane), whole) for word in words
        )
        number = builder.or_(low, builder.shl(high, constant(whole, _WORD_BITS)))
    return number if value.type in INTEGER_BITS else builder.cast("bitcast", number, value.type)


def _exchanged(builder: Builder, word: LV, mode: str, lane: LV) -> LV:
    control = i32(_WHOLE_WARP[mode])
    (result,) = builder.asm(warp.shuffle(mode), word, lane, control, i32(warp.FULL_MASK))
    return result


class LaneTables:
    """Writes choices and shuffles that tables of 32 entries describe."""

    def __init__(self, builder: Builder, thread: LV) -> None:
        self._builder = builder
        self._lane = builder.and_(thread, i32(_WORD_BITS - 1))
        self._flags: dict[int, LV] = {}

    def picked(self, choices: Sequence[LV], numbers: Sequence[int]) -> LV:
        """Return `choices[numbers[lane]]`."""
        first, *others = dict.fromkeys(numbers)
        chosen = choices[first]
        for number in others:
            mask = sum(1 << lane for lane, n in enumerate(numbers) if n == number)
            chosen = self._builder.select(self._flag(mask), choices[number], chosen)
        return chosen

    def heard(self, value: LV, lanes: Sequence[int]) -> LV:
        """Return the value of lane `lanes[lane]`."""
        across = {lane ^ other for lane, other in enumerate(lanes)}
        if len(across) == 1:
            return shuffled(self._builder, value, "bfly", i32(across.pop()))
        return shuffled(self._builder, value, "idx", self._number(lanes))

    def _flag(self, mask: int) -> LV:
        """Return whether the bit of this lane is set in a mask."""
        if mask not in self._flags:
            bit = self._builder.lshr(i32(mask), self._lane)
            self._flags[mask] = self._builder.cast("trunc", bit, "i1")
        return self._flags[mask]

    def _number(self, lanes: Sequence[int]) -> LV:
        """Return `lanes[lane]`: bits of the lane that stay, and the others one by one."""
        builder, kept, total = self._builder, 0, None
        for bit in range(_LANE_BITS):
            mask = sum((other >> bit & 1) << lane for lane, other in enumerate(lanes))
            if all((lane ^ other) >> bit & 1 == 0 for lane, other in enumerate(lanes)):
                kept |= 1 << bit
                continue
            one = builder.and_(builder.lshr(i32(mask), self._lane), i32(1))
            placed = builder.shl(one, i32(bit))
            total = placed if total is None else builder.or_(total, placed)
        same = builder.and_(self._lane, i32(kept))
        return same if total is None else builder.or_(total, same)
