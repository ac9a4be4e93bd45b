"""Kernels of several launches mean what they say, in every order of reads, writes and pipelines."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl import GMEM, InOut, cdiv, f32, kernel, pipeline, tile
from tests.witnesses import agree


@kernel
def story(x: InOut[f32, "N"], y: InOut[f32, "N"], *, steps=(), b=16):
    (N,) = x.shape
    kept = GMEM(N, f32)
    with pipeline(cdiv(N, b)) as i:
        kept[tile(i, b)] = x[tile(i, b)] - 1
    v, t = x[1], y[0:b]
    for step in steps:
        match step:
            case "read":
                v = v + y[2] - kept[3]
                t = t + x[0:b]
            case "write":
                x[2] = v
                kept[0:b] = t
            case "map":
                with pipeline(cdiv(N, b)) as i:
                    y[tile(i, b)] = x[tile(i, b)] + v
            case "map in place":
                with pipeline(cdiv(N, b)) as i:
                    x[tile(i, b)] = kept[tile(i, b)] + t + v
            case "add":
                with pipeline(cdiv(N, b), 2) as (i, r):
                    kept[tile(i, b)] += y[tile(i, b)] + r
            case "sum":
                with pipeline(cdiv(N, b)) as i:
                    v += x[tile(i, b)].sum()
            case "branch":
                if N > 40:
                    with pipeline(cdiv(N, b)) as i:
                        y[tile(i, b)] += 1
                else:
                    y[0] = v
    y[0] = v + t.sum()


STEPS = ("read", "write", "map", "map in place", "add", "sum", "branch")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=5), st.sampled_from((33, 48)))
def test_launches_mean_what_the_program_says_in_every_order(steps: list[str], n: int) -> None:
    rng = np.random.default_rng(len(steps))
    x, y = (rng.integers(-2, 3, n).astype(np.float32) for _ in range(2))
    agree(
        story,
        lambda: (x.copy(), y.copy()),
        targets=("sm_90a",),
        emulate=len(steps) < 3,
        steps=tuple(steps),
    )
