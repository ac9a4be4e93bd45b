"""The one exception that the emulator raises at a program: a fault with its place.

Invariant: every fault names what went wrong in its message; the machine fills in where (kernel
line, PTX line, block, warp) for faults raised while an instruction executes.
"""

from __future__ import annotations

KernelLine = tuple[str, int, int]

_FENCE = "what threads wrote is seen by asynchronous work after a proxy fence (`commit_smem()`)"
_MBARRIER = (
    "count the arrivals and bytes of each phase: one `barrier_wait` for each completed phase"
)
_COPY = "the box, strides and addresses of a copy obey PTX ISA section 5.5 (multiples of 16 bytes)"
_PRODUCT = "commit and wait for a product before its registers or its buffers are used again"
_TENSOR = "allocate, use and free tensor memory in the order of PTX ISA section 9.7.16"
_DESCRIPTOR = "the fields of the descriptor follow PTX ISA sections 9.7.15 and 9.7.16"

# What to do about a fault, by its code, where the place that raises it does not say.
HELP = {
    "E200": "the text must be PTX as `ptxas` takes it",
    "E201": "run it on a GPU, or write it with the instructions of docs/emulator.md",
    "E202": "launch with a grid, block and cluster that the target allows",
    "E203": "pass one argument for each parameter, of its size",
    "E210": "every wait needs an arrival (or a copy) that comes for sure: compare the conditions "
    "of both sides, and the number of arrivals each barrier expects",
    "E211": "the target of a jump or call is computed wrongly",
    "E212": "the kernel ends itself by `trap`: an assertion of it does not hold",
    "E213": "all threads that a barrier counts must reach the same one, equally often",
    "E214": "all 32 lanes of a warp run a collective instruction together: guard it by a condition "
    "that is the same for the warp",
    "E215": "a loop that waits for memory needs another thread that writes it",
    "E216": "release registers before others take them; the sums of all warpgroups stay the same",
    "E220": "keep windows inside the array: a load or store under a guard, or a larger array",
    "E221": "an access of n bytes starts at a multiple of n",
    "E222": "annotate the parameter as `InOut` or `Out` to write it",
    "E223": "load it without `.nc`, or write to other memory",
    "E230": 'write it before it is read: an initial value (`Out[f32, "M N", 0]`), `InOut`, or a '
    "wait for the copy that fills it",
    "E231": "write it, or wait for the copy that fills it, before asynchronous work reads it",
    "E232": "order the two accesses by a barrier, or let one thread do both",
    "E233": "order the two accesses by a barrier, or use an atomic operation",
    "E234": "wait on the barrier, or pass a barrier after who did, before asynchronous work starts",
    "E235": "let each step write its own window, use an atomic operation, or `pipeline`, which "
    "keeps the order",
    **dict.fromkeys([f"E24{n}" for n in range(10)], _MBARRIER),
    "E250": "wait for the operation first: its mbarrier, or its group",
    "E251": "wait for the operation in flight before another one uses its memory",
    "E252": _FENCE,
    "E253": "keep barriers and data apart in shared memory",
    "E254": "show the changed tensor map to copies by fences of the tensormap proxy",
    "E256": "wait for everything in flight before the block ends",
    **dict.fromkeys(["E255", "E257", "E258", "E259"], _COPY),
    **dict.fromkeys([f"E26{n}" for n in range(10)], _PRODUCT),
    **dict.fromkeys([f"E27{n}" for n in range(10)], _TENSOR),
    "E279": "execute `tcgen05.fence::before_thread_sync` before the signal and "
    "`tcgen05.fence::after_thread_sync` after the wait",
    **dict.fromkeys([f"E28{n}" for n in range(10)], _DESCRIPTOR),
}


class DeviceFault(Exception):
    """A program did what the hardware forbids, or what the emulator does not model.

    `code` is stable (`E2xx`), `kernel_line` is (file, line, column) from `.loc`, `ptx_line` counts
    from 1, `block` is the (x, y, z) index in the grid, `warp` the warp's number in the block;
    `help` says what to do, by default what its code's row of `HELP` says.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        kernel_line: KernelLine | None = None,
        ptx_line: int | None = None,
        block: tuple[int, int, int] | None = None,
        warp: int | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kernel_line = kernel_line
        self.ptx_line = ptx_line
        self.block = block
        self.warp = warp
        self.help = help or HELP[code]

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.kernel_line is not None:
            lines.append("  kernel: {}:{}:{}".format(*self.kernel_line))
        if self.ptx_line is not None:
            lines.append(f"  PTX line {self.ptx_line}")
        if self.block is not None:
            where = "" if self.warp is None else f", warp {self.warp}"
            lines.append(f"  block {self.block}{where}")
        lines.append(f"  help: {self.help}")
        return "\n".join(lines)


class Unsupported(DeviceFault):
    """The program uses something that the emulator refuses by name, before the run."""

    def __init__(self, message: str, ptx_line: int | None = None) -> None:
        super().__init__("E201", message, ptx_line=ptx_line)


class PtxSyntaxError(DeviceFault):
    """The text is not PTX as the ISA's grammar has it (PTX ISA section 4)."""

    def __init__(self, message: str, ptx_line: int) -> None:
        super().__init__("E200", message, ptx_line=ptx_line)
