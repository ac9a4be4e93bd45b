"""Every form of arithmetic that the emulator takes, on random bits, against its meaning.

The forms are those of the emulator's own tables, so that a form without a meaning fails here, and
one that is not modelled must be refused.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.forms import arithmetic, floating, values
from astdsl.emulator.program import prepare
from astdsl.emulator.text import parse
from tests.emulator.exact import FORMATS
from tests.emulator.meanings import Meaning, Near, Result, bits_of
from tests.emulator.meanings_of_bits import meaning

Form = tuple[str, int]
Case = tuple[Form, Meaning, tuple[list[int], ...]]
Codes = np.ndarray[Any, Any]
Rng = np.random.Generator
LANES = 64
TOGETHER = 120
NAMES, RESULTS = "abcf", "de"
WIDE = {"count": "u32", "wide u8": "u32", "wide s8": "s32"}
WIDTHS = {"o": "b8", "h": "b16", "r": "b32", "l": "b64"}
REGISTERS = {1: "p", 4: "o", 8: "o", 16: "h", 32: "r", 64: "l"}
HEADER = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
  .reg .pred %p<9>; .reg .b8 %o<9>; .reg .b16 %h<9>; .reg .b32 %r<12>; .reg .b64 %l<12>;
  .reg .b128 %q<2>;
  ld.param.u64 %l10, [x]; ld.param.u64 %l11, [y];
  mov.u32 %r10, %tid.x; mul.wide.u32 %l9, %r10, 8;
  add.u64 %l10, %l10, %l9; add.u64 %l11, %l11, %l9;
"""


def expanded() -> dict[Form, bool]:
    """Return the forms that the tables allow, and whether they are Blackwell's alone."""
    found: dict[Form, bool] = {}
    for table in (arithmetic, floating, values):
        for line in filter(None, map(str.strip, table.FORMS.splitlines())):
            syntax, operands, needs = [*line.split(";"), ""][:3]
            slots = syntax.strip().split(".")
            words = [[""] * slot.endswith("?") + slot.rstrip("?").split("/") for slot in slots]
            for chosen in itertools.product(*words):
                form = ".".join(filter(None, chosen)), len(operands.split())
                found[form] = bool(needs) and found.get(form, True)
    return found


def is_modelled(opcode: str) -> bool:
    """Say what the page of the emulator says: no `.oob`, random bits and packs of less than 8."""
    words = opcode.split(".")
    few = words[1] == "pack" and words[3][1:] in ("2", "4")
    return not ("oob" in words or few or (words[1] == "rs" and words[-2].endswith("x4")))


def family(form: Form) -> str:
    """Return the name by which forms are tested together."""
    return form[0].partition(".")[0] + " of sm_100" * FORMS[form]


FORMS = expanded()
MODELLED = [form for form in FORMS if is_modelled(form[0])]


# Operands.


def codes(kind: str, draw: Rng, n: int) -> Codes:
    """Return random codes of a type, many of them where rules change."""
    if kind in ("bool", "pred"):
        return draw.integers(0, 2, n, np.uint64)
    if kind == "count":
        large = draw.integers(0, 1 << 32, n, np.uint64)
        return np.where(draw.random(n) < 0.9, draw.integers(0, 80, n, np.uint64), large)
    element, _, packed = kind.removeprefix("wide ").partition("x")
    if packed:
        width = bits_of(element)
        parts = (codes(element, draw, n) << np.uint64(i * width) for i in range(int(packed)))
        return np.array(np.bitwise_or.reduce(list(parts)))
    bits = 32 if kind.startswith("wide") else bits_of(element)
    found = draw.integers(0, 1 << bits, n, np.uint64)
    special = _special_floats(element) if element in FORMATS else _special_integers(bits)
    found[::3] = draw.choice(np.array(special, np.uint64), len(found[::3]))
    if element in FORMATS:
        form = FORMATS[element]
        # Numbers of about the same size, and such as integers have.
        some = found[1::3]
        powers = np.where(
            draw.random(len(some)) < 0.5,
            draw.integers(-3, 4, len(some)),
            draw.integers(-4, min(66, form.bias), len(some)),
        )
        kept = some & np.uint64(form.sign | (1 << form.mantissa) - 1)
        found[1::3] = kept | (powers + form.bias).astype(np.uint64) << np.uint64(form.mantissa)
    return found


def _special_integers(bits: int) -> list[int]:
    top = 1 << (bits - 1)
    return [0, 1, 2, 5, 7, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]


def _special_floats(kind: str) -> list[int]:
    form = FORMATS[kind]
    one = form.bias << form.mantissa
    half = 1 << (form.mantissa - 1)
    sizes = [
        0, 1, half, (1 << form.mantissa) - 1, 1 << form.mantissa, one, one + 1, one + half,
        one - (1 << form.mantissa), form.top - 1, form.top, form.top + half, one + (3 * half),
        form.encode(20.0), form.encode(130.0),
    ]  # fmt: skip
    return [size | sign for size in sizes for sign in (0, form.sign)]


@cache
def operands(sources: tuple[str, ...]) -> tuple[list[int], ...]:
    """Return codes for all sources; some are those of the first one, or its negative."""
    draw = np.random.default_rng(zlib.crc32(repr(sources).encode()))
    drawn = [codes(kind, draw, LANES) for kind in sources]
    for at, kind in enumerate(sources[1:], 1):
        if kind == sources[0] and kind != "count":
            drawn[at][::7] = drawn[0][::7]
            width = bits_of(kind.partition("x")[0])
            signs = sum(1 << (i + width - 1) for i in range(0, bits_of(kind), width))
            drawn[at][5::11] = drawn[0][5::11] ^ np.uint64(signs)
    return tuple(row.tolist() for row in drawn)


# Runs.


def register(kind: str, number: int) -> str:
    """Return the register of an operand, of the width of its type."""
    bits = 32 if kind in ("bool", "count") or kind.startswith("wide") else bits_of(kind)
    return f"%{REGISTERS[bits]}{number}"


def loads(sources: tuple[str, ...], row: int) -> str:
    """Return code that loads the operands, from rows on."""
    lines = []
    for i, kind in enumerate(sources):
        name, at = register(kind, i), f"[%l10 + {8 * LANES * (row + i)}]"
        if kind == "pred":
            lines.append(f"ld.global.b32 %r11, {at}; setp.ne.u32 {name}, %r11, 0;")
        else:
            lines.append(f"ld.global.{WIDTHS[name[1]]} {name}, {at};")
    return "\n".join(lines)


def instruction(opcode: str, known: Meaning, row: int) -> str:
    """Return code that runs one form, and stores its results in rows."""
    names = {"op": opcode}
    names |= {NAMES[i]: register(kind, i) for i, kind in enumerate(known.sources)}
    names |= {RESULTS[i]: register(kind, 5 + i) for i, kind in enumerate(known.results)}
    listed = ", ".join(f"{{{NAMES[i]}}}" for i in range(len(known.sources)))
    lines = [(known.code or f"{{op}} {{d}}, {listed};").format(**names)]
    for i, kind in enumerate(known.results):
        name, at = names[RESULTS[i]], f"[%l11 + {8 * LANES * (row + i)}]"
        if kind == "pred":
            lines.append(f"selp.b32 %r11, 1, 0, {name}; st.global.b32 {at}, %r11;")
        else:
            lines.append(f"st.global.{WIDTHS[name[1]]} {at}, {name};")
    return "\n".join(lines)


def results(cases: list[Case]) -> list[list[list[int]]]:
    """Run forms in one kernel; returns for each of them the codes of its results."""
    body: list[str] = []
    rows: list[list[int]] = []
    n_results, loaded = 0, None
    for (opcode, _), known, drawn in cases:
        if drawn is not loaded:
            body.append(loads(known.sources, len(rows)))
            rows, loaded = [*rows, *drawn], drawn
        body.append(instruction(opcode, known, n_results))
        n_results += len(known.results)
    x = np.array(rows, np.uint64)
    y = np.zeros((n_results, LANES), np.uint64)
    run(HEADER + "\n".join(body) + "\nret;\n}\n", "k", (1,), (LANES,), [x, y])
    left = iter(y.tolist())
    return [[next(left) for _ in known.results] for _, known, _ in cases]


def is_as_wanted(wanted: Result, got: int, kind: str) -> bool:
    """Compare the code of a result with what is known of it."""
    if isinstance(wanted, int) or wanted is None:
        return wanted is None or wanted == got
    found = FORMATS[kind].decode(got)
    if not isinstance(wanted, Near):
        return math.isnan(found)
    same = found == wanted.value and math.copysign(1, found) == math.copysign(1, wanted.value)
    return same or (wanted.error > 0 and abs(found - wanted.value) <= wanted.error)


def wrong(case: Case, got: list[list[int]]) -> Iterator[str]:
    """Yield what is not as the ISA says."""
    (opcode, _), known, drawn = case
    for lane, sources in enumerate(zip(*drawn, strict=True)):
        for kind, want, each in zip(known.results, known.function(*sources), got, strict=True):
            if not is_as_wanted(want, each[lane], kind):
                shown = ", ".join(f"{code:#x}" for code in sources)
                says = f"{want:#x}" if isinstance(want, int) else want
                yield f"{opcode} {shown}: {each[lane]:#x}, not {says}"


def faults(cases: list[Case]) -> list[str]:
    """Return what is wrong with forms, one line for each that is."""
    found = zip(cases, results(cases), strict=True)
    return [line for case, got in found for line in itertools.islice(wrong(case, got), 1)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(map(family, MODELLED))))
def test_every_form_computes_what_the_isa_says(name: str) -> None:
    forms = [form for form in MODELLED if family(form) == name]
    cases = [(form, known, operands(known.sources)) for form in forms for known in [meaning(*form)]]
    cases.sort(key=lambda case: case[1].sources)
    found = []
    for begin in range(0, len(cases), TOGETHER):
        found += faults(cases[begin : begin + TOGETHER])
    assert not found, "\n".join(found)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELLED), st.data())
def test_any_bits_give_what_the_isa_says(form: Form, data: st.DataObject) -> None:
    known = meaning(*form)
    drawn = []
    for kind in known.sources:
        bits = 1 if kind in ("bool", "pred") else bits_of(WIDE.get(kind, kind))
        one = st.integers(0, (1 << bits) - 1)
        drawn.append(data.draw(st.lists(one, min_size=LANES, max_size=LANES)))
    assert faults([(form, known, tuple(drawn))]) == []


def test_forms_that_are_not_modelled_are_refused_by_name() -> None:
    refused = [form for form in FORMS if not is_modelled(form[0])]
    assert len(refused) > 30
    for form in refused:
        if "rs" in form[0].split("."):
            result = "%h5" if "e2m1" in form[0] else "%r5"
            code = f"{form[0]} {result}, {{%r1, %r2, %r3, %r4}}, %r6;"
        else:
            code = instruction(form[0], meaning(*form), 0)
        with pytest.raises(DeviceFault, match=r"model|random bits|not known here"):
            prepare(parse(HEADER + code + "ret; }"), "k")


def test_every_form_has_a_meaning() -> None:
    assert len(MODELLED) > 5000
    unknown = [form for form in MODELLED if not callable(meaning(*form).function)]
    assert unknown == []
