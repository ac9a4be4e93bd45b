"""Texts of LLVM functions that move data: nested loops over addresses.

Invariant: each function writes what the NumPy code beside its caller would; counts are at least
one, and vectors are read and written at any alignment that their elements have.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FUNCTIONS", "UNITS_AT_A_TIME", "Function", "Level", "nested"]


class Level(NamedTuple):
    """A loop: `variable` goes from 0 to `limit`, excluded; `lines` begin its body."""

    variable: str
    limit: str
    step: int
    lines: str


class Function(NamedTuple):
    """A function's name, its text, and its number of arguments, each 64 bits wide."""

    name: str
    text: str
    n_arguments: int


def nested(name: str, arguments: str, levels: list[Level]) -> Function:
    """Return a function of nested loops, the outermost first; `ptr` and `i64` arguments."""
    names = arguments.split()
    declared = ", ".join(
        f"ptr %{each[1:]}" if each.startswith("*") else f"i64 %{each}" for each in names
    )
    lines = [f"define void @{name}({declared}) {{", "entry:", "  br label %level0"]
    for number, level in enumerate(levels):
        before = "entry" if number == 0 else f"level{number - 1}"
        last = number == len(levels) - 1
        back = f"level{number}" if last else f"after{number + 1}"
        lines += [
            f"level{number}:",
            f"  %{level.variable} = phi i64 [ 0, %{before} ], [ %next{number}, %{back} ]",
            level.lines,
        ]
        if not last:
            lines.append(f"  br label %level{number + 1}")
    for number in reversed(range(len(levels))):
        level = levels[number]
        if number < len(levels) - 1:
            lines.append(f"after{number + 1}:")
        lines += [
            f"  %next{number} = add i64 %{level.variable}, {level.step}",
            f"  %more{number} = icmp slt i64 %next{number}, %{level.limit}",
            f"  br i1 %more{number}, label %level{number}, label %after{number}",
        ]
    return Function(name, "\n".join([*lines, "after0:", "  ret void", "}"]), len(names))


# Float16 to float32, eight at a time.
_WIDEN = nested(
    "widen", "*source *target n",
    [Level("i", "n", 8, """
  %from = getelementptr half, ptr %source, i64 %i
  %narrow = load <8 x half>, ptr %from, align 2
  %wide = fpext <8 x half> %narrow to <8 x float>
  %to = getelementptr float, ptr %target, i64 %i
  store <8 x float> %wide, ptr %to, align 4""")],
)  # fmt: skip

# The 16-byte chunks of a list, of each row of memory, from float16 to float32.
_WIDEN_CHUNKS = nested(
    "widen_chunks", "*memory row_bytes *chunks n_chunks n_rows *target",
    [Level("row", "n_rows", 1, """
  %skip = mul i64 %row, %row_bytes
  %base = getelementptr i8, ptr %memory, i64 %skip
  %done = mul i64 %row, %n_chunks"""),
     Level("i", "n_chunks", 1, """
  %entry.at = getelementptr i64, ptr %chunks, i64 %i
  %chunk = load i64, ptr %entry.at, align 8
  %from = getelementptr <8 x half>, ptr %base, i64 %chunk
  %narrow = load <8 x half>, ptr %from, align 16
  %wide = fpext <8 x half> %narrow to <8 x float>
  %place = add i64 %done, %i
  %to = getelementptr <8 x float>, ptr %target, i64 %place
  store <8 x float> %wide, ptr %to, align 4""")],
)  # fmt: skip

# 16-byte units: global ones by the addresses of boxes' corners and what is added for each unit;
# those of a list in the rows of shared memory that boxes lie in; and values, [boxes, units].
_BOX = """
  %first = mul i64 %box, %n_units"""
_SHARED_ROW = """
  %row.at = getelementptr i64, ptr %rows, i64 %box
  %row = load i64, ptr %row.at, align 8
  %skip = mul i64 %row, %row_bytes
  %base = getelementptr i8, ptr %memory, i64 %skip"""
_CORNER = """
  %corner.at = getelementptr i64, ptr %corners, i64 %box
  %corner.address = load i64, ptr %corner.at, align 8
  %corner = inttoptr i64 %corner.address to ptr"""
_SIDES = {
    "shared": """
  %unit.at{j} = getelementptr i64, ptr %units, i64 %u{j}
  %unit{j} = load i64, ptr %unit.at{j}, align 8
  %shared{j} = getelementptr <2 x i64>, ptr %base, i64 %unit{j}""",
    "global": """
  %relative.at{j} = getelementptr i64, ptr %relative, i64 %u{j}
  %relative{j} = load i64, ptr %relative.at{j}, align 8
  %global{j} = getelementptr i8, ptr %corner, i64 %relative{j}""",
    "value": """
  %value{j} = getelementptr <2 x i64>, ptr %values, i64 %number{j}""",
}
_MOVE = """
  %bits{j} = load <2 x i64>, ptr %{source}{j}, align 1
  store <2 x i64> %bits{j}, ptr %{target}{j}, align 1"""
_UNIT = """
  %u{j} = add i64 %u, {j}
  %number{j} = add i64 %first, %u{j}"""
# Several at a time: the fewer instructions, the more misses of the cache go on side by side.
UNITS_AT_A_TIME = 8
_SHARED_ARGUMENTS = "*memory row_bytes *rows *units n_units"


def _units(name: str, arguments: str, source: str, target: str, width: int) -> Function:
    """Return the loop for numbers of units that are multiples of the width."""
    head = _BOX + (_SHARED_ROW if "shared" in (source, target) else "")
    head += _CORNER if "global" in (source, target) else ""
    body = "".join(
        (_UNIT + _SIDES[source] + _SIDES[target] + _MOVE).format(j=j, source=source, target=target)
        for j in range(width)
    )
    levels = [Level("box", "n_boxes", 1, head), Level("u", "n_units", width, body)]
    return nested(name, arguments, levels)


_MOVES = {
    "fill": (f"{_SHARED_ARGUMENTS} *corners *relative n_boxes", "global", "shared"),
    "collect": (f"{_SHARED_ARGUMENTS} *values n_boxes", "shared", "value"),
    "scatter": ("*values n_units *corners *relative n_boxes", "value", "global"),
}


# The accumulator of wgmma: register r of a thread, in each block, is an element of its tile.
_FRAGMENT_ARGUMENTS = (
    "*tiles tile_elements *positions *registers n_registers n_threads n_blocks adds"
)
_FRAGMENT_LEVELS = [
    Level("r", "n_registers", 1, """
  %register.at = getelementptr i64, ptr %registers, i64 %r
  %register.address = load i64, ptr %register.at, align 8
  %register = inttoptr i64 %register.address to ptr
  %row = mul i64 %r, %n_threads"""),
    Level("t", "n_threads", 1, """
  %entry.number = add i64 %row, %t
  %position.at = getelementptr i64, ptr %positions, i64 %entry.number
  %position = load i64, ptr %position.at, align 8
  %from0 = getelementptr float, ptr %tile, i64 %position
  %first = mul i64 %t, %n_blocks"""),
]  # fmt: skip


def _fragment(name: str, width: int) -> Function:
    """Return the loop for numbers of blocks that are multiples of the width.

    Some blocks at a time, so that their tiles stay in the cache.
    """
    kind = f"<{width} x float>"
    body, value = "", "poison"
    for block in range(width):
        body += f"""
  %part{block} = load float, ptr %from{block}, align 4
  %product{block} = insertelement {kind} {value}, float %part{block}, i32 {block}
  %from{block + 1} = getelementptr float, ptr %from{block}, i64 %tile_elements"""
        value = f"%product{block}"
    # Of two NaNs the first one's bits, whichever way round LLVM adds them.
    body += f"""
  %lane = add i64 %first, %b
  %to = getelementptr float, ptr %register, i64 %lane
  %old = load {kind}, ptr %to, align 4
  %total = fadd {kind} %old, {value}
  %is_nan = fcmp uno {kind} %old, %old
  %quiet = fadd {kind} %old, %old
  %sum = select <{width} x i1> %is_nan, {kind} %quiet, {kind} %total
  %new = select i1 %is_sum, {kind} %sum, {kind} {value}
  store {kind} %new, ptr %to, align 4"""
    blocks = Level("b", "n_blocks", width, """
  %skip = mul i64 %b, %tile_elements
  %tile = getelementptr float, ptr %tiles, i64 %skip
  %is_sum = icmp ne i64 %adds, 0""")  # fmt: skip
    registers, threads = _FRAGMENT_LEVELS
    threads = threads._replace(lines=threads.lines + body)
    return nested(name, _FRAGMENT_ARGUMENTS, [blocks, registers, threads])


# Pairs of float16 in registers, [entries, blocks], to rows of float32, [blocks, elements].
_WIDEN_PAIRS = nested(
    "widen_pairs", "*registers *positions n_entries n_blocks tile_elements *target",
    [Level("e", "n_entries", 1, """
  %position.at = getelementptr i64, ptr %positions, i64 %e
  %position = load i64, ptr %position.at, align 8
  %element = getelementptr float, ptr %target, i64 %position
  %first = mul i64 %e, %n_blocks"""),
     Level("b", "n_blocks", 1, """
  %number = add i64 %first, %b
  %from = getelementptr <2 x half>, ptr %registers, i64 %number
  %narrow = load <2 x half>, ptr %from, align 4
  %wide = fpext <2 x half> %narrow to <2 x float>
  %skip = mul i64 %b, %tile_elements
  %to = getelementptr float, ptr %element, i64 %skip
  store <2 x float> %wide, ptr %to, align 4""")],
)  # fmt: skip


def _transpose() -> Function:
    """Return the transpose of 32-bit elements, rows of both sides given by their addresses."""
    outer = _addresses("source", "r")
    inner = _addresses("target", "c")
    loads = "".join(
        f"\n  %a{i} = getelementptr i32, ptr %source{i}, i64 %c"
        f"\n  %x0.{i} = load <8 x i32>, ptr %a{i}, align 4"
        for i in range(8)
    )
    # Exchange neighbours, then pairs, then halves: three rounds of four pairs each.
    rounds = "".join(_round(number) for number in range(3))
    stores = "".join(
        f"\n  %b{i} = getelementptr i32, ptr %target{i}, i64 %r"
        f"\n  store <8 x i32> %x3.{i}, ptr %b{i}, align 4"
        for i in range(8)
    )
    return nested(
        "transpose",
        "*sources *targets n_rows n_columns",
        [
            Level("r", "n_rows", 8, outer),
            Level("c", "n_columns", 8, inner + loads + rounds + stores),
        ],
    )


def _addresses(side: str, variable: str) -> str:
    return f"\n  %{side}s.at = getelementptr i64, ptr %{side}s, i64 %{variable}" + "".join(
        f"\n  %{side}{i}.at = getelementptr i64, ptr %{side}s.at, i64 {i}"
        f"\n  %{side}{i}.address = load i64, ptr %{side}{i}.at, align 8"
        f"\n  %{side}{i} = inttoptr i64 %{side}{i}.address to ptr"
        for i in range(8)
    )


def _round(number: int) -> str:
    """Return one round: rows whose numbers differ in a bit exchange elements that do."""
    bit = 1 << number
    low = [e if not e & bit else 8 + (e ^ bit) for e in range(8)]
    high = [e ^ bit if not e & bit else 8 + e for e in range(8)]
    lines = []
    for i in range(8):
        if not i & bit:
            for to, order in ((i, low), (i | bit, high)):
                mask = ", ".join(f"i32 {e}" for e in order)
                lines.append(
                    f"\n  %x{number + 1}.{to} = shufflevector <8 x i32> %x{number}.{i}, "
                    f"<8 x i32> %x{number}.{i | bit}, <8 x i32> <{mask}>"
                )
    return "".join(lines)


FUNCTIONS: dict[str, Function] = {
    "widen": _WIDEN,
    "widen_chunks": _WIDEN_CHUNKS,
    "widen_pairs": _WIDEN_PAIRS,
    **{
        f"{name}{width}": _units(f"{name}{width}", *row, width)
        for name, row in _MOVES.items()
        for width in (1, UNITS_AT_A_TIME)
    },
    "fragment": _fragment("fragment", 1),
    "fragment8": _fragment("fragment8", 8),
    "transpose": _transpose(),
}
