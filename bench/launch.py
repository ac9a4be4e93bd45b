"""Time a call of a compiled kernel up to the driver: 5 NumPy arrays that were seen before.

The device is a stub that does nothing, so what is timed is all that a call does on the host: which
argument is which, its class, aliases, whether what the trace read is still valid. Figure: at most
20 us. Run it on an idle machine: `python bench/launch.py`.
"""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import sys
import timeit
from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl import In, Out, f32, kernel
from astdsl.runtime import devices
from astdsl.runtime.artifact import Artifact
from astdsl.runtime.launch import Argument, Counts, Launcher

LIMIT_US = 20.0
CALLS, REPEATS = 5000, 5
SHAPE = (64, 64)


@kernel
def add4(
    a: In[f32, "M N"],
    b: In[f32, "M N"],
    c: In[f32, "M N"],
    d: In[f32, "M N"],
    o: Out[f32, "M N"],
    *,
    bm=64,
    bn=64,
):
    o[0:bm, 0:bn] = a[0:bm, 0:bn] + b[0:bm, 0:bn] + c[0:bm, 0:bn] + d[0:bm, 0:bn]


class Stub:
    """A device whose driver does nothing; it takes the typed IR so that nothing is lowered."""

    name = "stub"
    description = "launches nothing"
    needs_ptx = False

    def missing(self) -> str:
        """Nothing is missing."""
        return ""

    def load(self, artifact: Artifact, arguments: Sequence[Argument]) -> Launcher:
        """Return the driver call, which does nothing."""

        def launch(counts: Counts, values: Sequence[Any], arrays: Sequence[Any]) -> None:
            pass

        return launch


def seconds_per_call(*, omitted: bool) -> float:
    """Return the least time of a call, with the output passed or allocated."""
    arrays = [np.zeros(SHAPE, np.float32) for _ in range(4 if omitted else 5)]
    placed = add4.on("stub")
    placed(*arrays)
    return min(timeit.repeat(lambda: placed(*arrays), number=CALLS, repeat=REPEATS)) / CALLS


def main() -> int:
    devices.DEVICES["stub"] = Stub()
    passed = seconds_per_call(omitted=False) * 1e6
    allocated = seconds_per_call(omitted=True) * 1e6
    print(f"call, 5 arrays: {passed:.1f} us of at most {LIMIT_US:.0f} ({passed / LIMIT_US:.2f})")
    print(f"call, 4 arrays and an allocated output: {allocated:.1f} us")
    return 0 if passed <= LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
