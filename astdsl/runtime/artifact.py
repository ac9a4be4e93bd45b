"""What a device runs: the typed IR, for those that need it the PTX with its launch plan, a cubin.

Invariant: plain data; where there is PTX there is a plan.
"""

from __future__ import annotations

from astdsl.ir.core import Module
from astdsl.ir.launch import LaunchPlan
from astdsl.records import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """PTX, and how it is launched."""

    ptx: str
    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kernel ready for a device."""

    module: Module
    ptx: str = ""
    plan: LaunchPlan | None = None
    cubin: bytes = b""
