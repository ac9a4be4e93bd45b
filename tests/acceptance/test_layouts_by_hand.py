"""Acceptance 2: shared memory whose physical layout the kernel states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    SMEM,
    Barrier,
    In,
    Out,
    SwizzleTransform,
    TilingTransform,
    TransposeTransform,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    f16,
    f32,
    kernel,
    tile,
    transform_ref,
    transpose_ref,
    wait_smem_to_gmem,
)
from tests.witnesses import agree

X = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32)
BY_COLUMNS = TransposeTransform((1, 0, 2, 3))
LAYOUTS: dict[str, Any] = {
    "inferred": None,
    "tiled": (TilingTransform((8, 32)),),
    "tiled and swizzled": (TilingTransform((8, 32)), SwizzleTransform(128)),
    "tiles by columns": (TilingTransform((8, 32)), BY_COLUMNS, SwizzleTransform(128)),
    "swizzled by 64": (TilingTransform((8, 16)), SwizzleTransform(64)),
    "swizzled by 32": (TilingTransform((16, 8)), SwizzleTransform(32)),
    "rows of tiles": (TilingTransform((64,)),),
}


@kernel
def in_four_steps(x: In[f32, "64 256"], o: Out[f32, "64 256"], *, times, transforms):
    into = SMEM((2, 64, 64), f32, transforms=transforms)
    out = SMEM((2, 64, 64), f32, transforms=transforms)
    full = Barrier(num_barriers=2)
    for _ in range(times):
        copy_gmem_to_smem(x.at[:, 0:64], into.at[0], full[0])
        for k in range(4):
            slot = k % 2
            if k + 1 < 4:
                copy_gmem_to_smem(x.at[:, tile(k + 1, 64)], into.at[1 - slot], full[1 - slot])
            barrier_wait(full[slot])
            wait_smem_to_gmem(1, wait_read_only=True)
            out[slot] = into[slot] + 1
            commit_smem()
            copy_smem_to_gmem(out.at[slot], o.at[:, tile(k, 64)])
        wait_smem_to_gmem(0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_2_four_steps_add_one_whatever_the_layout(layout: str) -> None:
    found = agree(
        in_four_steps, lambda: (X,), targets=("sm_90a",), times=1, transforms=LAYOUTS[layout]
    )
    assert np.array_equal(found, X + 1)


@pytest.mark.parametrize("layout", ["inferred", "tiled", "tiled and swizzled"])
def test_2_the_steps_may_be_run_ten_times_in_one_kernel(layout: str) -> None:
    found = in_four_steps.on("emulator", target="sm_100a")(X, times=10, transforms=LAYOUTS[layout])
    assert np.array_equal(found, X + 1)


@kernel
def turned(x: In[f16, "32 64"], o: Out[f16, "64 32"]):
    into, out, full = SMEM((32, 64), f16), SMEM((64, 32), f16), Barrier()
    stated = transform_ref(into, (TilingTransform((8, 32)), SwizzleTransform(64)))
    copy_gmem_to_smem(x.at[...], stated, full)
    barrier_wait(full)
    out[...] = transpose_ref(into, (1, 0))[...]
    commit_smem()
    copy_smem_to_gmem(transform_ref(out, SwizzleTransform(64)), o.at[...])
    wait_smem_to_gmem(0)


def test_a_layout_stated_later_holds_for_the_whole_kernel() -> None:
    x = X[:32, :64].astype(np.float16)
    assert np.array_equal(agree(turned, lambda: (x,)), x.T)


@kernel
def unaligned_windows(x: In[f32, "64 64"], o: Out[f32, "64 64"], *, transforms):
    into, full = SMEM((64, 64), f32, transforms=transforms), Barrier()
    copy_gmem_to_smem(x.at[...], into, full)
    barrier_wait(full)
    for k in range(4):
        into[k * 16 : (k + 1) * 16, 1:4] = into[k * 16 : (k + 1) * 16, 1:4] + 1
        into[k, ::8] = into[k, ::8] * 2
    o[...] = into[...]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_window_of_a_stated_layout_is_read(layout: str) -> None:
    expected = X[:, :64].copy()
    expected[:, 1:4] += 1
    expected[:4, ::8] *= 2
    found = agree(
        unaligned_windows, lambda: (X[:, :64],), targets=("sm_90a",), transforms=LAYOUTS[layout]
    )
    assert np.array_equal(found, expected)


@kernel
def narrow(x: In[f16, "M N"], o: Out[f16, "M N"]):
    into, full = SMEM((8, 4), f16), Barrier()
    copy_gmem_to_smem(x.at[0:8, 0:4], into, full)
    barrier_wait(full)
    o[0:8, 0:4] = into[...]


def test_rows_too_short_for_tma_are_copied_by_the_threads() -> None:
    x = np.arange(8 * 64, dtype=np.float16).reshape(8, 64)
    found = agree(narrow, lambda: (x, np.zeros_like(x)))
    assert np.array_equal(found[:, :4], x[:, :4])
