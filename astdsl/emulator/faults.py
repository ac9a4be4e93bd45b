"""The one exception that the emulator raises at a program: a fault with its place.

Invariant: every fault names what went wrong in its message; the machine fills in where (kernel
line, PTX line, block, warp) for faults raised while an instruction executes.
"""

from __future__ import annotations

KernelLine = tuple[str, int, int]


class DeviceFault(Exception):
    """A program did what the hardware forbids, or what the emulator does not model.

    `code` is stable (`E2xx`), `kernel_line` is (file, line, column) from `.loc`, `ptx_line` counts
    from 1, `block` is the (x, y, z) index in the grid, `warp` the warp's number in the block.
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
        self.help = help

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.kernel_line is not None:
            lines.append("  kernel: {}:{}:{}".format(*self.kernel_line))
        if self.ptx_line is not None:
            lines.append(f"  PTX line {self.ptx_line}")
        if self.block is not None:
            where = "" if self.warp is None else f", warp {self.warp}"
            lines.append(f"  block {self.block}{where}")
        if self.help is not None:
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
