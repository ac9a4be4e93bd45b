"""Texts of LLVM functions for ordinary accesses of shared memory, one for each form of them.

A form is a load or store of some registers of one width, by a base register or a constant. Its
function goes through the lanes of some threads of a group of blocks, several blocks at a time.
Invariant: an access that is out of bounds, misaligned or reads what is unwritten sets `bad`, and
touches the first bytes of its row instead; what has been moved then does not count.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from astdsl.emulator.native.loops import Function, Level, nested

__all__ = ["ENTRIES", "GO_THROUGH", "MOST_REGISTERS", "AccessForm", "access_function"]

# A descriptor: the address of a function, that of the base register (if any), the offset, and the
# addresses of registers.
ENTRIES = 8
MOST_REGISTERS = ENTRIES - 3
_WORD_BYTES = 8
_ARGUMENTS = "*data *marks row_bytes size_bytes first_lane n_threads group_blocks n_blocks *bad"


class AccessForm(NamedTuple):
    """What the code of an access depends on; `base_bits` is 0 where the address is a constant."""

    loads: bool
    bits: int
    n_registers: int
    base_bits: int

    @property
    def bytes(self) -> int:
        """Return how much one lane moves."""
        return self.bits // 8 * self.n_registers


# A list of accesses, for groups of neighbouring blocks one after the other, so that both their rows
# and their lanes of registers stay in the cache.
_PASSED = (
    "ptr %access, ptr %group.data, ptr %group.marks, i64 %row_bytes, i64 %size_bytes, "
    "i64 %group.lane, i64 %n_threads, i64 %group_blocks, i64 %n_blocks, ptr %bad"
)
GO_THROUGH = nested(
    "go_through", f"*list count n_groups {_ARGUMENTS}",
    [Level("g", "n_groups", 1, """
  %block = mul i64 %g, %group_blocks
  %skip = mul i64 %block, %row_bytes
  %group.data = getelementptr i8, ptr %data, i64 %skip
  %group.marks = getelementptr i8, ptr %marks, i64 %skip
  %group.lane = add i64 %first_lane, %block"""),
     Level("i", "count", 1, f"""
  %at = mul i64 %i, {_WORD_BYTES * ENTRIES}
  %access = getelementptr i8, ptr %list, i64 %at
  %function = load ptr, ptr %access, align 8
  call void %function({_PASSED})""")],
)  # fmt: skip


@lru_cache(maxsize=128)
def access_function(form: AccessForm, width: int) -> Function:
    """Return the function of a form, for groups of blocks that are multiples of `width`."""
    kind = "load" if form.loads else "store"
    name = f"{kind}{form.bits}x{form.n_registers}by{form.base_bits}at{width}"
    body = _places(form, width) + _moves(form, width) + _marks(form, width)
    levels = [
        Level("t", "n_threads", 1, _entries(form)),
        Level("b", "group_blocks", width, _LANE + body),
    ]
    return nested(name, f"*access {_ARGUMENTS}", levels)


def _entries(form: AccessForm) -> str:
    """Read the descriptor."""
    names = ["base", "offset", *(f"register{k}" for k in range(form.n_registers))]
    lines = ["", "  %thread.lane = mul i64 %t, %n_blocks"]
    for number, name in enumerate(names, 1):
        kind = "i64" if name == "offset" else "ptr"
        at = f"ptr %access, i64 {_WORD_BYTES * number}"
        lines += [
            f"  %{name}.at = getelementptr i8, {at}",
            f"  %{name} = load {kind}, ptr %{name}.at, align 8",
        ]
    return "\n".join(lines)


_LANE = """
  %block.lane = add i64 %thread.lane, %b
  %lane = add i64 %block.lane, %first_lane"""


def _places(form: AccessForm, width: int) -> str:
    """Compute the addresses of some blocks, check them together, and find them in memory."""
    lines = f"""
  %last = sub i64 %size_bytes, {form.bytes}
  %seen0 = add i64 0, 0
  %signs0 = add i64 0, 0"""
    for j in range(width):
        # Below zero if the address is, or is beyond the last.
        lines += (
            _address(form, j)
            + f"""
  %left{j} = sub i64 %last, %address{j}
  %sign{j} = or i64 %left{j}, %address{j}
  %signs{j + 1} = or i64 %signs{j}, %sign{j}
  %seen{j + 1} = or i64 %seen{j}, %address{j}"""
        )
    lines += f"""
  %beyond = icmp slt i64 %signs{width}, 0
  %low = and i64 %seen{width}, {form.bytes - 1}
  %askew = icmp ne i64 %low, 0
  %outside = or i1 %beyond, %askew
  %mask = select i1 %outside, i64 0, i64 -1
  %skip0 = mul i64 %b, %row_bytes"""
    for j in range(width):
        lines += f"""
  %inside{j} = and i64 %address{j}, %mask
  %place{j} = add i64 %skip{j}, %inside{j}
  %there{j} = getelementptr i8, ptr %data, i64 %place{j}
  %mark{j} = getelementptr i8, ptr %marks, i64 %place{j}
  %skip{j + 1} = add i64 %skip{j}, %row_bytes"""
    for k in range(form.n_registers):
        lines += f"\n  %here{k} = getelementptr i{form.bits}, ptr %register{k}, i64 %lane"
    return lines


def _address(form: AccessForm, j: int) -> str:
    """Compute one address, which wraps in the width of its register."""
    if not form.base_bits:
        return f"\n  %address{j} = add i64 %offset, 0"
    kind = f"i{form.base_bits}"
    lines = "" if j else f"\n  %bases = getelementptr {kind}, ptr %base, i64 %lane"
    lines += f"""
  %base{j} = getelementptr {kind}, ptr %bases, i64 {j}
  %read{j} = load {kind}, ptr %base{j}, align {form.base_bits // 8}"""
    if form.base_bits == 64:
        return lines + f"\n  %address{j} = add i64 %read{j}, %offset"
    return (
        lines
        + f"""
  %narrow{j} = trunc i64 %offset to {kind}
  %sum{j} = add {kind} %read{j}, %narrow{j}
  %address{j} = zext {kind} %sum{j} to i64"""
    )


def _moves(form: AccessForm, width: int) -> str:
    lines = ""
    for j in range(width):
        for k in range(form.n_registers):
            ends = (f"%there{j}", k), (f"%here{k}", j)
            (source, at), (target, to) = ends if form.loads else ends[::-1]
            lines += f"""
  %source{j}.{k} = getelementptr i{form.bits}, ptr {source}, i64 {at}
  %value{j}.{k} = load i{form.bits}, ptr %source{j}.{k}, align {form.bits // 8}
  %target{j}.{k} = getelementptr i{form.bits}, ptr {target}, i64 {to}
  store i{form.bits} %value{j}.{k}, ptr %target{j}.{k}, align {form.bits // 8}"""
    return lines


def _marks(form: AccessForm, width: int) -> str:
    """Mark what is stored as written, or look whether what is loaded is."""
    bits = min(8 * form.bytes, 64)
    parts = 8 * form.bytes // bits
    kind, written = f"i{bits}", int.from_bytes(b"\x01" * (bits // 8), "little")
    lines, all_ = f"\n  %all = add {kind} {written}, 0", "%all"
    for j in range(width):
        for part in range(parts):
            lines += f"\n  %at{j}.{part} = getelementptr {kind}, ptr %mark{j}, i64 {part}"
            if form.loads:
                lines += f"""
  %part{j}.{part} = load {kind}, ptr %at{j}.{part}, align 1
  %all{j}.{part} = and {kind} {all_}, %part{j}.{part}"""
                all_ = f"%all{j}.{part}"
            else:
                lines += f"\n  store {kind} {written}, ptr %at{j}.{part}, align 1"
    return (
        lines
        + f"""
  %unwritten = icmp ne {kind} {all_}, {written}
  %wrong = or i1 %outside, %unwritten
  %now = zext i1 %wrong to i64
  %before = load i64, ptr %bad, align 8
  %after = or i64 %before, %now
  store i64 %after, ptr %bad, align 8"""
    )
