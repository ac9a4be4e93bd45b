"""Which target the names of a hand-written kernel need.

Invariant: a name of one target's tensor core never reaches the schedule of another.
"""

from __future__ import annotations

from collections.abc import Callable

from astdsl.errors import WrongTarget
from astdsl.ir import ops
from astdsl.ir.core import Module, Op, walk
from astdsl.lowering.target import TARGETS, TCGEN05, WGMMA, Target

_WAY_OUT = {
    TCGEN05: "`ACC` and `wgmma` are the names of sm_90a; `a @ b` in a pipeline runs on both",
    WGMMA: "`TMEM` and `tcgen05_mma` are the names of sm_100a; `a @ b` in a pipeline runs on both",
}


def _in_registers(op: Op) -> bool:
    return isinstance(op, ops.AllocAccumulator) and op.in_registers


# What is needed, by whom, and how the author wrote it: of a kernel that is not scheduled yet.
_NEEDS: tuple[tuple[Callable[[Op], bool], str, str], ...] = (
    (_in_registers, WGMMA, "`ACC`, an accumulator in registers,"),
    (lambda op: isinstance(op, ops.ProductWait), WGMMA, "`wgmma_wait`"),
    (lambda op: isinstance(op, ops.AllocTmem), TCGEN05, "`TMEM`, tensor memory,"),
    (lambda op: isinstance(op, ops.TensorCommit), TCGEN05, "`tcgen05_commit_arrive`"),
    (lambda op: isinstance(op, ops.TmemCommit), TCGEN05, "`commit_tmem`"),
    (lambda op: isinstance(op, ops.TmemWaitLoad), TCGEN05, "`wait_load_tmem`"),
)


def needed_target(module: Module) -> str:
    """Name the first target that has what the names of a kernel need; sm_90a where all have."""
    found = [feature for op in walk(module.body) for used, feature, _ in _NEEDS if used(op)]
    having = (t.name for t in TARGETS.values() if all(t.has(feature) for feature in found[:1]))
    return next(having)


def check_target(module: Module, target: Target) -> None:
    """Refuse names that the target has no instruction for, naming the one that has."""
    for op in walk(module.body):
        for is_used, feature, written in _NEEDS:
            if is_used(op) and not target.has(feature):
                having = " or ".join(t.name for t in TARGETS.values() if t.has(feature))
                raise WrongTarget(
                    f"{written} needs {having}, and this kernel is compiled for {target.name}",
                    (op.span, f"needs {having}"),
                    help=f"compile it for {having}: `kernel.on(target=...)`; {_WAY_OUT[feature]}",
                )
