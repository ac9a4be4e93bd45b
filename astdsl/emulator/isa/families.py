"""Every family of instructions: importing this module fills the table of opcodes.

Invariant: a family that is not listed here does not exist for a program.
"""

from __future__ import annotations

from astdsl.emulator.isa import (
    ROWS,
    Row,
    arith,
    atomic,
    bits,
    bulk,
    call,
    cluster,
    control,
    convert,
    copy,
    elementary,
    floating,
    launch_control,
    logic,
    matrix,
    mbarrier,
    memory,
    mma,
    registers,
    remote,
    stack,
    tcgen05,
    tensor_access,
    tensor_mma,
    tensormap,
    tma,
    warp,
    wgmma,
    wmma,
)

FAMILIES = (
    arith,
    atomic,
    bits,
    bulk,
    call,
    cluster,
    control,
    convert,
    copy,
    elementary,
    floating,
    launch_control,
    logic,
    matrix,
    mbarrier,
    memory,
    mma,
    registers,
    remote,
    stack,
    tcgen05,
    tensor_access,
    tensor_mma,
    tensormap,
    tma,
    warp,
    wgmma,
    wmma,
)


def lookup(opcode: str) -> Row | None:
    """Return the row with the longest dotted prefix of the opcode, None when there is none."""
    key = opcode
    while key:
        row = ROWS.get(key)
        if row is not None:
            return row
        key = key.rpartition(".")[0]
    return None
