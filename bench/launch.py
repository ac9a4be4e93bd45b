"""Time a call of a compiled kernel up to the driver: NumPy arrays that were seen before.

The device is a stub that does nothing, so what is timed is all that a call does on the host: which
argument is which, its class, aliases, whether what the trace read is still valid. Run it on an idle
machine: `python -m bench.launch`.
"""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl import In, Out, f32, kernel
from astdsl.runtime import devices
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.launch import Argument, Counts, Launcher
from bench import common

LIMIT_US = 10.0
CALLS = 5000
SHAPE = (32, 32)


@kernel
def add4(
    a: In[f32, "M N"],
    b: In[f32, "M N"],
    c: In[f32, "M N"],
    d: In[f32, "M N"],
    o: Out[f32, "M N"],
    *,
    bm=32,
    bn=32,
):
    o[0:bm, 0:bn] = a[0:bm, 0:bn] + b[0:bm, 0:bn] + c[0:bm, 0:bn] + d[0:bm, 0:bn]


@kernel
def add19(
    a: In[f32, "M N"], b: In[f32, "M N"], c: In[f32, "M N"], d: In[f32, "M N"], e: In[f32, "M N"],
    f: In[f32, "M N"], g: In[f32, "M N"], h: In[f32, "M N"], i: In[f32, "M N"], j: In[f32, "M N"],
    k: In[f32, "M N"], u: In[f32, "M N"], m: In[f32, "M N"], n: In[f32, "M N"], p: In[f32, "M N"],
    q: In[f32, "M N"], r: In[f32, "M N"], s: In[f32, "M N"], t: In[f32, "M N"], o: Out[f32, "M N"],
):  # fmt: skip
    whole = (slice(0, 32), slice(0, 32))
    o[whole] = sum(x[whole] for x in (a, b, c, d, e, f, g, h, i, j, k, u, m, n, p, q, r, s, t))


class Stub:
    """A device whose driver does nothing; it takes the typed IR, so that no PTX is made."""

    name = "stub"
    description = "launches nothing"
    needs_ptx = False
    needs_cubin = False

    def target(self) -> str:
        """Any target will do."""
        return ""

    def missing(self) -> str:
        """Nothing is missing."""
        return ""

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Return the driver call, which does nothing."""

        def launch(counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
            pass

        return launch


def call_us(called: Any, count: int, repeats: int) -> float:
    """Return the least time of a call with so many arrays."""
    arrays = [np.zeros(SHAPE, np.float32) for _ in range(count)]
    placed = called.on("stub")

    def call_often() -> None:
        for _ in range(CALLS):
            placed(*arrays)

    return common.least(call_often, repeats) / CALLS * 1e6


def figures(repeats: int) -> list[common.Figure]:
    """Return the times of a call up to the driver."""
    devices.DEVICES["stub"] = Stub()
    try:
        many = call_us(add19, 20, repeats)
        passed, allocated = (call_us(add4, count, repeats) for count in (5, 4))
    finally:
        del devices.DEVICES["stub"]
    return [
        common.Figure("call, 20 arrays seen before", many, "us", LIMIT_US),
        common.Figure("call, 5 arrays seen before", passed, "us"),
        common.Figure("call, 4 arrays and an allocated output", allocated, "us"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = common.options(__doc__).parse_args(arguments)
    return common.show(figures(chosen.repeats), as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
