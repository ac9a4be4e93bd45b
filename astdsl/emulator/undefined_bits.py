"""How undefined bits pass through instructions: the rules that families name beside their opcodes.

A rule takes the `Operands` of an instruction that is prepared, and returns a `Flow`. Most rules say
with which values in place of its undefined bits an instruction is to be executed, and take the bits
of the results that differ, so that what an instruction means is written once. Invariant: a bit of a
result that another choice of the undefined bits would change is always found. `extremes` finds no
other where each bit of the result copies one bit or grows with all; `bitwise` where it is made from
one bit of each operand; `compared` and `summed` of integers.

Source: Memcheck (Nethercote and Seward, "Using Valgrind to Detect Undefined Value Errors with
Bit-Precision", 2005); LLVM, `KnownBits::computeForAddCarry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.scalars import UNSIGNED, Array
from astdsl.emulator.undefined import every_bit, lanes_of, row_of

if TYPE_CHECKING:
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.registers import Place
    from astdsl.emulator.undefined import Flow

Rule = Callable[["Operands"], "Flow"]
# By register, values or undefined bits of them, and the least and greatest value it may hold.
Values = dict["Place", Array]
Ends = dict["Place", tuple[Array, Array]]
# What is tried in place of the undefined bits.
Choices = Callable[["Machine", "Lanes", Ends], Iterator[Values]]
# A register, and the first of the bits of it that matter and their number.
Part = tuple["Place", int, int]

ALL_BITS = (1 << 64) - 1


# Rules that look at undefined bits alone.


def anything(ops: Operands) -> Flow:
    """Take all of each result as undefined where any bit that is read is: if no rule is named."""
    writes = tuple(ops.writes)

    def flow(m: Machine, lanes: Lanes, step: Execute, found: Values) -> list[Array]:
        some = np.logical_or.reduce([lanes_of(bits) for bits in found.values()])
        return [filled(m, place, lanes, some) for place in writes]

    return flow


def filled(m: Machine, place: Place, lanes: Lanes, some: Array) -> Array:
    """Return all bits of a register where a mask of lanes is true."""
    row = row_of(m, place)[lanes.sel]
    return np.where(some if row.ndim == 1 else some[:, None], every_bit(row), np.zeros_like(row))


def smeared(ops: Operands) -> Flow:
    """Take all from the lowest undefined bit on: products, no bit of which needs a higher one."""
    writes = tuple(ops.writes)

    def flow(m: Machine, lanes: Lanes, step: Execute, found: Values) -> list[Array]:
        bits = np.bitwise_or.reduce([each.astype(np.uint64) for each in found.values()])
        upwards = bits | (np.uint64(0) - bits)
        return [upwards.astype(row_of(m, place).dtype) for place in writes]

    return flow


def by_element(ops: Operands) -> Flow:
    """Let each element of a packed type come from the same element of the operands."""
    scalar = ops.last_type()
    if scalar.count == 1:
        return anything(ops)
    width, sources = scalar.element_bits, ops.args[1:]
    return elements(
        ops,
        width,
        [
            [part for operand in sources for part in part_of(ops, operand, width * i, width)]
            for i in range(scalar.count)
        ],
    )


def part_of(ops: Operands, operand: Any, first: int, width: int) -> list[Part]:
    """Return some bits of an operand as what a result comes from; nothing for a literal."""
    return [(place, first, width) for place in ops.registers(operand)]


def elements(ops: Operands, width: int, parts: Sequence[Sequence[Part]]) -> Flow:
    """Let each element of the result, of so many bits, come from its parts; the lowest is first.

    With as many results as elements each result is one.
    """
    writes = tuple(ops.writes)
    apart = len(writes) == len(parts)

    def flow(m: Machine, lanes: Lanes, step: Execute, found: Values) -> list[Array]:
        given = [_some_of(lanes, each, found) for each in parts]
        if apart:
            return [
                filled(m, place, lanes, some) for place, some in zip(writes, given, strict=True)
            ]
        dtype = row_of(m, writes[0]).dtype
        ones = [dtype.type(((1 << width) - 1) << (width * i)) for i in range(len(parts))]
        every = zip(given, ones, strict=True)
        return [np.bitwise_or.reduce([np.where(some, one, dtype.type(0)) for some, one in every])]

    return flow


def _some_of(lanes: Lanes, parts: Sequence[Part], found: Values) -> Array:
    """Say in which lanes a bit of the parts is undefined."""
    some = np.zeros(lanes.n, np.bool_)
    for place, first, width in parts:
        bits = found.get(place)
        if bits is not None:
            some |= bits.astype(np.uint64) >> np.uint64(first) & np.uint64((1 << width) - 1) != 0
    return some


# Rules that execute the instruction.


def extremes(ops: Operands, decides: Mapping[int, int] | None = None) -> Flow:
    """Try undefined bits that are all 0, or all 1: moves, shifts, extensions, permutations.

    `decides` has the operands that say what moves where, by number, and the bits of them that
    matter: where one of these is undefined, all of the result is.
    """
    return tried(ops, both_ends, decides or {})


def bitwise(ops: Operands) -> Flow:
    """Try all 0 or all 1 in each register: what makes a bit from one bit of each operand."""
    return tried(ops, _all_ends, {})


def summed(ops: Operands) -> Flow:
    """Take a sum or difference as undefined where an operand is, or the carry from below.

    The carry is greatest with the greatest operands, and least with the least.
    """
    if not _of_one_width(ops, ops.args):
        return anything(ops)
    differs = ops.instruction.opcode.startswith("sub")
    less = ops.registers(ops.args[2]) if differs else ()

    def choices(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
        for end in (0, 1):
            yield {place: both[end ^ (place in less)] for place, both in ends.items()}

    carried = tried(ops, choices, {})

    def flow(m: Machine, lanes: Lanes, step: Execute, found: Values) -> list[Array]:
        return [
            reduce(np.bitwise_or, found.values(), bits) for bits in carried(m, lanes, step, found)
        ]

    return flow


def _of_one_width(ops: Operands, operands: Sequence[Any]) -> bool:
    """Say whether registers have the width of the instruction's type."""
    places = [place for operand in operands for place in ops.registers(operand)]
    return {width for width, _ in places} <= {ops.last_type().bits}


def compared(ops: Operands) -> Flow:
    """Try what may decide a comparison of integers; of floats all from any."""
    scalar = ops.last_type()
    if scalar.is_float:
        return _compared_floats(ops)
    if not _of_one_width(ops, ops.args[1:3]):
        return anything(ops)
    if ops.modifiers[0] in ("eq", "ne"):
        return tried(ops, _agreeing(ops), {})
    if scalar.kind != "s":
        return bitwise(ops)
    signed = {place for operand in ops.args[1:3] for place in ops.registers(operand)}
    sign = UNSIGNED[scalar.bits].type(1 << (scalar.bits - 1))

    def choices(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
        for place in signed & {*ends}:
            least, greatest = ends[place]
            flips = (least ^ greatest) & sign
            ends[place] = least ^ flips, greatest ^ flips
        yield from _all_ends(m, lanes, ends)

    return tried(ops, choices, {})


def _compared_floats(ops: Operands) -> Flow:
    scalar = ops.last_type()
    if scalar.count == 1 or len(ops.writes) != scalar.count:
        return anything(ops)
    width = scalar.element_bits
    condition = part_of(ops, ops.args[3], 0, 1) if len(ops.args) > 3 else []
    sources = [
        [part for operand in ops.args[1:3] for part in part_of(ops, operand, width * i, width)]
        for i in range(scalar.count)
    ]
    return elements(ops, 1, [parts + condition for parts in sources])


def _agreeing(ops: Operands) -> Choices:
    """Return what makes two operands as equal as they can be, and as different."""
    name = f"b{ops.last_type().bits}"
    reads = [ops.source(operand, name) for operand in ops.args[1:3]]
    places = [ops.registers(operand) for operand in ops.args[1:3]]

    def choices(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
        values = [np.array(np.broadcast_to(read(m, lanes), lanes.n)) for read in reads]
        masks = [
            np.bitwise_xor(*ends[place[0]]) if {*place} & {*ends} else np.zeros_like(value)
            for value, place in zip(values, places, strict=True)
        ]
        rest = {place: both for place, both in ends.items() if (place,) not in places}
        for equal in (True, False):
            chosen = {
                places[one][0]: _follow(values, masks, one, equal=equal)
                for one in (0, 1)
                if places[one]
            }
            for others in _all_ends(m, lanes, rest):
                yield chosen | others

    return choices


def _follow(values: list[Array], masks: list[Array], one: int, *, equal: bool) -> Array:
    """Return an operand whose undefined bits are those of the other one, or unlike them.

    Bits that are undefined in both become 0 in both, or 0 and 1.
    """
    other = values[1 - one] & ~masks[1 - one]
    if not equal:
        other = ~other if one else other ^ ~masks[1]
    found: Array = (values[one] & ~masks[one]) | (masks[one] & other)
    return found


def both_ends(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
    """Yield the least values, and the greatest."""
    for end in (0, 1):
        yield {place: both[end] for place, both in ends.items()}


def _all_ends(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
    for chosen in product(*ends.values()):
        yield dict(zip(ends, chosen, strict=True))


def tried(ops: Operands, choices: Choices, decides: Mapping[int, int]) -> Flow:
    """Return the flow that executes the step with several values of what it reads.

    Where a deciding bit is undefined (see `extremes`), all of each result is.
    """
    writes = tuple(ops.writes)
    deciding = [
        (place, 0, bits.bit_length())
        for number, bits in decides.items()
        for place in ops.registers(ops.args[number])
    ]

    def flow(m: Machine, lanes: Lanes, step: Execute, found: Values) -> list[Array]:
        before = {place: np.array(row_of(m, place)[lanes.sel]) for place in {*found, *writes}}
        ends = {
            place: (before[place] & ~bits, before[place] | bits) for place, bits in found.items()
        }
        results = []
        for values in choices(m, lanes, ends):
            _put(m, lanes, before | values)
            step(m, lanes)
            results.append([np.array(row_of(m, place)[lanes.sel]) for place in writes])
        _put(m, lanes, before)
        undecided = _some_of(lanes, deciding, found) if deciding else None
        return [
            _differing(m, place, lanes, [result[k] for result in results], undecided)
            for k, place in enumerate(writes)
        ]

    return flow


def _differing(
    m: Machine, place: Place, lanes: Lanes, results: list[Array], undecided: Array | None
) -> Array:
    """Return the bits that are not the same in all results."""
    bits: Array = np.bitwise_or.reduce([result ^ results[0] for result in results])
    return bits if undecided is None else bits | filled(m, place, lanes, undecided)


def _put(m: Machine, lanes: Lanes, values: Values) -> None:
    for place, value in values.items():
        row_of(m, place)[lanes.sel] = value
