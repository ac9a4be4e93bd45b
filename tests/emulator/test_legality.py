"""Which instructions there are: the emulator refuses what `ptxas` refuses, and nothing else.

A row is a syntax that is wider than the ISA's, and operands: forms are drawn from it, of which most
do not exist. `ptxas` says which do.
"""

import contextlib
import itertools
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from astdsl.emulator.faults import DeviceFault, Unsupported
from astdsl.emulator.forms.check import check_form
from astdsl.emulator.layout import lay_out
from astdsl.emulator.operands import Operands, Site
from astdsl.emulator.program import prepare
from astdsl.emulator.scalars import TYPES
from astdsl.emulator.text import parse
from astdsl.lowering.nvptx import tools

HEADER = """.version 9.0
.target {target}
.address_size 64
.visible .entry k()
{{
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .b128 %q<9>;
"""
LINES = HEADER.count("\n")
REGISTERS = {1: "%p", 8: "%h", 16: "%h", 32: "%r", 64: "%d", 128: "%q"}
EVERY = "/".join(TYPES)
NUMBERS = "u16/s16/u32/s32/u64/s64/f16/bf16/f32/f64/f16x2/bf16x2/f32x2/u16x2/b32"
R = "rn/rz/rm/rp?"
COMPARE = "eq/ne/lt/le/gt/ge/lo/ls/hi/hs/equ/neu/ltu/geu/num/nan"
SPACE = "global/shared/shared::cta/shared::cluster/local?"
STRONG = "weak/volatile/relaxed/acquire/release?.cta/gpu/sys?"
AT = "global/shared?"
UPDATE = "add/min/max/inc/dec/and/or/xor"
ROWS = f"""
add.cc?.{R}.ftz?.sat?.{NUMBERS}; t t t
sub.{R}.ftz?.sat?.{NUMBERS}; t t t
add/sub.{R}.ftz?.sat?.f32.f16/bf16/f64; f32 t f32
mul.lo/hi/wide?.{R}.ftz?.sat?.{NUMBERS}; t t t
mad/madc.lo/hi/wide?.{R}.sat?.cc?.{NUMBERS}; t t t t
fma.{R}.ftz?.sat?.relu?.{NUMBERS}; t t t t
min/max.ftz?.NaN?.xorsign?.abs?.relu?.{NUMBERS}; t t t
min/max.ftz?.NaN?.abs?.f32/f16/f64; t t t t
mul24/sad/div/rem/abs/neg.lo/hi/approx/full/rn?.ftz?.{EVERY}; t t t
div/rcp/sqrt.approx/full/rn/rz?.ftz?.f16/f32/f64; t t t
rcp/sqrt/rsqrt/sin/cos/lg2/ex2/tanh/abs/neg/not.approx/rn?.ftz?.{EVERY}; t t
and/or/xor/not/cnot/shl/shr/bfe/bfi.{EVERY}; t t u32
popc/clz/bfind/brev.shiftamt?.{EVERY}; u32 t
bfe.{EVERY}; t t u32 u32
prmt.b32/u32/b64.f4e/b4e/rc8/rc16?; t t t b32
shf.l/r?.clamp/wrap?.b32/b64; t t t u32
copysign.{EVERY}; t t t
testp.finite/normal/subnormal.{EVERY}; pred t
selp.{EVERY}; t t t pred
setp.{COMPARE}.ftz?.{EVERY}; pred t t
setp.{COMPARE}.and/or/xor.ftz?.{EVERY}; pred t t pred
set.{COMPARE}.ftz?.u32/s32/f32/f16/bf16/f16x2/u16.{EVERY}; 1 t t
mov.{EVERY}; t t
cvt.rn/rz/rm/rp/rna/rni/rzi/rmi/rpi?.ftz?.sat/satfinite/relu?.{EVERY}.{EVERY}; 1 t
cvt.rn/rz/rm/rp/rni/rzi/rmi/rpi?.sat?.{EVERY}.f16/f32/f64/s32/u64; 1 t
ld.{STRONG}.{SPACE}.nc/ca/cs?.v2/v4?.{EVERY}; t mem
ld.global.nc?.L1::evict_first/L1::no_allocate?.L2::64B/L2::128B?.{EVERY}; t mem
st.{STRONG}.{SPACE}.wb/cs?.{EVERY}; mem t
atom.relaxed/acquire/acq_rel?.gpu/cta?.{AT}.{UPDATE}/exch.noftz?.{EVERY}; t mem t
red.relaxed/acquire/acq_rel?.gpu/cta?.{AT}.{UPDATE}/exch.noftz?.{EVERY}; mem t
vote.sync.all/any/uni/ballot.pred/b32; t pred b32
match.any/all.sync?.b32/b64/u32; b32 t b32
redux.sync.add/min/max/and/xor.abs?.NaN?.u32/s32/b32/f32; t t b32
fence.sc/acq_rel/acquire/release?.cta/cluster/gpu/sys/gl?;
membar.cta/gl/sys/gpu;
barrier.cluster.arrive/wait.release/acquire/relaxed?.aligned?;
bar/barrier.cta?.sync/arrive.aligned?; u32 u32
mbarrier.arrive.expect_tx?.release/relaxed?.cta?.shared::cta/shared::cluster.b64; b64 mem
mbarrier.test_wait/try_wait.parity?.acquire/relaxed?.cta?.shared.b64; pred mem u32
cp.async.bulk.shared::cta/shared::cluster/global.shared::cta/global.bulk_group?; mem mem u32
wgmma/tcgen05.fence/wait::ld/commit_group.sync?.aligned?;
stmatrix.sync.aligned.m8n8/m16n8.x1.trans?.shared.b8/b16; mem b32*
"""
DRAWN = 100


def _register(kind: str, op: str, number: int) -> str:
    types = [word for word in op.split(".") if word in TYPES]
    name = kind.rstrip("*")
    name = {"t": types[-1], "1": types[0]}.get(name, name) if types else name
    vector = re.search(r"\.v([24])\b", op)
    register = f"{REGISTERS[TYPES[name].bits]}{number}"
    if kind == "t" and vector is not None:
        return "{" + ", ".join([register] * int(vector[1])) + "}"
    return "{" + register + "}" if kind.endswith("*") else register


def _drawn() -> list[str]:
    found = []
    for row in ROWS.strip().splitlines():
        syntax, operands = row.split(";")
        slots = [
            [f".{w}" for w in slot.rstrip("?").split("/")] + [""] * slot.endswith("?")
            for slot in syntax.split(".")
        ]
        draw = np.random.default_rng(zlib.crc32(row.encode()))
        for _ in range(DRAWN):
            op = "".join(slot[draw.integers(len(slot))] for slot in slots)[1:]
            address = "[%r8]" if "shared" in op or ".local" in op else "[%d8]"
            args = [
                address if kind == "mem" else _register(kind, op, number)
                for number, kind in enumerate(operands.split(), 1)
            ]
            found.append(f"{op} {', '.join(args)};")
    return sorted(set(found))


def _accepted_by_ptxas(lines: list[str], target: str, path: str, folder: Path) -> set[str]:
    """Return the lines that the assembler takes; it names all wrong ones, mostly at once."""
    left = lines
    while left:
        file = folder / "forms.ptx"
        file.write_text(HEADER.format(target=target) + "\n".join(left) + "\nret;\n}\n")
        command = [path, "-arch", target, "-O0", str(file), "-o", str(folder / "forms.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 0:
            return set(left)
        places = re.findall(r"line (\d+); (?:error|fatal)", done.stdout + done.stderr)
        wrong = {int(place) - LINES - 1 for place in places}
        assert wrong, done.stderr
        left = [line for at, line in enumerate(left) if at not in wrong]
    return set()


def _accepted_here(lines: list[str], target: str) -> set[str]:
    found = set()
    for line in lines:
        module = parse(HEADER.format(target=target) + line + "\nret;\n}\n")
        function = module.functions["k"]
        site = Site(lay_out(module, function), function, 0, 0)
        with contextlib.suppress(Unsupported):
            check_form(Operands(function.instructions[0], site), target, set())
            found.add(line)
    return found


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_forms_are_those_that_ptxas_takes(target: str) -> None:
    path = tools.find_tool("ptxas")
    if path is None:
        pytest.skip("ptxas is not installed")
    lines = _drawn()
    with tempfile.TemporaryDirectory() as folder:
        there = _accepted_by_ptxas(lines, target, path, Path(folder))
    here = _accepted_here(lines, target)
    assert len(there) > 300
    assert sorted(here - there) == []
    assert sorted(there - here) == []


REFUSED = {
    "add.u16x2 %d1, %r1, %r2;": "operand 1 is a register of 32 bits, but %d1 has 64",
    "add.u32 %r1, %r2, 1.5;": "its constant is a float",
    "add.f32 %r1, %r2, 1;": "its constant is an integer",
    "fma.rn.f16 %h1, %h2, 0f3F800000, %h3;": "there are no constants of .f16",
    "add.u32 %r1, %r2;": "it has no form with 2 operands",
    "add.u32 %r1, %r2, s;": "`mov` takes the address of a variable",
    "tcgen05.wait::ld.sync.aligned;": "it needs .target sm_100a or sm_100f, not sm_90a",
    "add.rn.f32x2 %d1, %d2, %d3;": "it needs .target sm_100, not sm_90a",
    "fma.f32 %r1, %r2, %r3, %r4;": "PTX 9.0 has no such form",
    "ld.global.u32 %r1, [%r2];": "is an address of 64 bits, but its register has 32",
    "ld.global.u32 %r1, [s];": "names a variable of .shared memory",
    "@%r1 ret;": "its guard %r1 is not a predicate",
    "wgmma.fence;": "PTX 9.0 has no such form",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_no_assembler_takes_is_refused_by_name(line: str) -> None:
    text = HEADER.format(target="sm_90a") + f".shared .b32 s;\n{line}\nret;\n}}\n"
    with pytest.raises(DeviceFault) as caught:
        prepare(parse(text), "k")
    assert REFUSED[line] in str(caught.value)
    assert f"PTX line {LINES + 2}" in str(caught.value)


BODY = ".visible .entry k(.param .b64 x) {} {{ .reg .b64 %d<3>; .reg .f32 %f<3>; {} ret; }}"
FUNCTION = ".func f(.reg .b32 a) { ret; }\n"
MODULES = {
    ".version 8.0\n.target sm_100a\n" + BODY.format("", ""): "needs .version 8.6",
    ".target sm_90a\n" + BODY.format("", ""): "a module begins with `.version`",
} | {
    f".version 8.0\n.target sm_90a\n{top}" + BODY.format(directives, body): wanted
    for top, directives, body, wanted in (
        ("", ".reqntid 32 .maxntid 64", "", ".maxntid and .reqntid contradict each other"),
        ("", ".reqntid 0", "", ".reqntid has one to three positive numbers"),
        ("", ".blocksareclusters", "", "needs .reqntid and .reqnctapercluster"),
        ("", "", "L: bra L; L:", "label `L` stands in two places"),
        ("", "", ".reg .b32 a; .reg .f32 a;", "`a` is declared twice"),
        ("", "", ".reg .b64 %d<2>;", "`%d<...>` is declared twice"),
        ("", "", ".reg .bf16 a;", "`.bf16` is not a register type"),
        ("", "", "mov.u64 %d1, 08;", "`08` is not a number"),
        (".shared .b32 s = 3;\n", "", "", "which has no initial values"),
        (".global .b32 g[2] = {1, 2, 3};\n", "", "", "but 3 initial values"),
        (".global .f32 g = 1;\n", "", "", "initial values of `g` are no .f32"),
        (".const .b8 c[70000];\n", "", "", "are more than 65536"),
        (FUNCTION, "", "call f, (%d1);", "`a` has 32 bits, but its argument 64"),
        (".entry e() { ret; }\n", "", "call e;", "is a kernel, which cannot be called"),
    )
}


@pytest.mark.parametrize("text", MODULES)
def test_modules_that_no_assembler_takes_are_refused(text: str) -> None:
    with pytest.raises(DeviceFault) as caught:
        prepare(parse(text), "k")
    assert caught.value.code in ("E200", "E201")
    assert MODULES[text] in str(caught.value)


def test_words_of_an_opcode_may_stand_in_any_order() -> None:
    words = ("ftz", "rn", "sat", "f32")
    body = "\n".join(
        f"add.{'.'.join(order)} %r1, %r2, %r3;" for order in itertools.permutations(words)
    )
    module = parse(HEADER.format(target="sm_90a") + body + "\nret;\n}\n")
    function = module.functions["k"]
    site = Site(lay_out(module, function), function, 0, 0)
    for instruction in function.instructions[:-1]:
        check_form(Operands(instruction, site), "sm_90a", set())
