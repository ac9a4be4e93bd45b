"""The whole back end, as a table of contents: schedule, layouts, LLVM, PTX.

Invariant: a function of the module and the target alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from astdsl.errors import WrongTarget
from astdsl.ir.core import Module
from astdsl.ir.launch import LaunchPlan
from astdsl.ir.passes import run_passes
from astdsl.lowering.layout.shared import SharedPlan
from astdsl.lowering.nvptx.emit import emit
from astdsl.lowering.nvptx.pipeline import generate
from astdsl.lowering.schedule.kernel import schedule
from astdsl.lowering.small_floats import widen_small_floats
from astdsl.lowering.target import TARGETS, Target
from astdsl.passes import STANDARD


@dataclass(frozen=True)
class Compiled:
    """A kernel's scheduled IR, LLVM as it was written, PTX, launch plan, maps of shared memory.

    The PTX is generated when it is asked for: what a kernel is refused for is known before.
    """

    scheduled: Module
    llvm: str
    plan: LaunchPlan
    shared: tuple[SharedPlan, ...]
    target: Target

    @cached_property
    def ptx(self) -> str:
        """The PTX, by LLVM."""
        return generate(self.llvm, self.target)


def compile_module(module: Module, target: str) -> Compiled:
    """Compile a kernel for a target, `sm_90a` or `sm_100a`."""
    architecture = find_target(target)
    scheduled = run_passes(widen_small_floats(schedule(module, architecture)), STANDARD)
    emitted = emit(scheduled, architecture)
    return Compiled(scheduled, emitted.text, emitted.plan, emitted.shared, architecture)


def find_target(name: str) -> Target:
    """Return a target's row."""
    if name not in TARGETS:
        raise WrongTarget(
            f"there is no target `{name}`", help=f"choose one of {', '.join(TARGETS)}"
        )
    return TARGETS[name]
