"""Register arithmetic in machine code of the host, for all lanes at once.

Each form of an instruction (opcode, widths, which operands are constants) is one small loop over
lanes (`writer`, `rows`), compiled by LLVM once in a process (`host`); a run of instructions is a
list of forms and operands that one call goes through, some lanes at a time, so that the registers
stay in the processor's caches (`runs`). Invariant: every register holds the very bits that the
steps of `isa` would have left; what has no row in the table is executed by its step.
"""
