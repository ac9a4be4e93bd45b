"""Machines with random registers, to run straight-line code by steps and in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.emulator.global_memory import GlobalMemory
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Launch, Machine
from astdsl.emulator.memory import Memory
from astdsl.emulator.native.host import host
from astdsl.emulator.native.runs import WIDTH, Run
from astdsl.emulator.program import Program, prepare
from astdsl.emulator.registers import RegisterFile
from astdsl.emulator.row_memory import RowMemory
from astdsl.emulator.special import Specials
from astdsl.emulator.text import parse

# Registers of each bank that programs may name: %p0..%p3, %h0.., %r0.., %d0...
N_REGISTERS = 4
_HEAD = """
.version 8.6
.target sm_100a
.address_size 64
.visible .entry k()
{
  .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %d<4>;
"""
# Bits that arithmetic treats in a way of their own, as the low bits of what they are cut to.
SPECIAL = (
    0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7C00, 0xFC00, 0x7C01, 0x3C00,
    0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFC0_1234, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF,
    0x0000_0001, 0x807F_FFFF, 0x0080_0000, 0x3F80_0000, 0xBF80_0000, 0x3F80_0001, 0x4300_0000,
    0xC316_0000, 0x477F_E000, 0x4780_0000, 0x3380_0000, 0x3300_0001, 0x7F7F_FFFF, 0x3F00_0000,
    0x7FFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0001,
    0x3F80_0000_8000_0000, 0x0000_0001_7FC0_0000,
)  # fmt: skip


def program_of(lines: list[str]) -> Program:
    """Return a program of some lines, on registers that are all declared."""
    # Touching all registers gives each its place.
    every = "".join(
        f"mov.b{bits} %{letter}{i}, %{letter}{i};"
        for letter, bits in (("h", 16), ("r", 32), ("d", 64))
        for i in range(N_REGISTERS)
    )
    every += "".join(f"mov.pred %p{i}, %p{i};" for i in range(N_REGISTERS))
    return prepare(parse(_HEAD + "\n".join(lines) + f"\nEND: {every} ret;\n}}"), "k")


def machine_of(program: Program, n_lanes: int, seed: int) -> Machine:
    """Return a machine with random bits in all registers, many of them special."""
    rng = np.random.default_rng(seed)
    registers = RegisterFile(program.layout.register_counts, n_lanes)
    for bits, bank in registers.banks.items():
        if bits == 1:
            bank[...] = rng.integers(0, 2, bank.shape).astype(np.bool_)
            continue
        whole = rng.integers(0, 1 << 64, bank.shape, dtype=np.uint64)
        special = np.array(SPECIAL, np.uint64)[rng.integers(0, len(SPECIAL), bank.shape)]
        bank[...] = np.where(rng.integers(0, 2, bank.shape) == 1, whole, special).astype(bank.dtype)
    zero = np.zeros(1, np.int64)
    launch = Launch((1, 1, 1), (n_lanes, 1, 1), (1, 1, 1), (zero, zero, zero), "late", check=False)
    thread = np.arange(n_lanes, dtype=np.uint32)
    special_registers = Specials(launch, thread, np.zeros(n_lanes, np.int64), 0, 0)
    none = RowMemory(1, 0)
    memory = Memory(GlobalMemory(), none, none, np.zeros(0, np.uint8), [])
    return Machine(program, launch, registers, memory, special_registers)


def run_of(program: Program, count: int) -> Run:
    """Return the run that the first instructions are; fails if one of them has no form."""
    on = host()
    assert on is not None
    instructions = program.native.instructions[:count]
    forms = [on.form(ops, WIDTH) for ops in instructions]
    assert None not in forms, [
        ops.instruction.opcode for ops, form in zip(instructions, forms, strict=True) if not form
    ]
    return Run(on, instructions, [form for form in forms if form is not None])


def disagreements(lines: list[str], n_lanes: int, first: int, seed: int) -> list[Any]:
    """Run lines both ways on the lanes from `first` on; return the registers that differ."""
    program = program_of(lines)
    stepped, compiled = (machine_of(program, n_lanes, seed) for _ in range(2))
    lanes = Lanes.span(first, n_lanes)
    with np.errstate(all="ignore"):
        for step in program.steps[: len(lines)]:
            step(stepped, lanes)
    assert run_of(program, len(lines)).execute(compiled, lanes)
    found = []
    for bits, bank in stepped.registers.banks.items():
        other = compiled.registers.banks[bits]
        for row, lane in np.argwhere(bank != other)[:3]:
            found.append((bits, int(row), hex(int(bank[row, lane])), hex(int(other[row, lane]))))
    return found
