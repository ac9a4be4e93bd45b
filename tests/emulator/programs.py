"""The programs whose synchronisation is mutated: kernels of ours, of the library, peers', written.

Invariant: results are compared with NumPy's when a program is recorded; data are whole numbers
where sums are compared bit for bit.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from astdsl.stdlib import reference
from astdsl.stdlib.attention import attention
from astdsl.stdlib.matmul import matvec
from tests.acceptance import test_copies_of_written_memory as copies
from tests.acceptance import test_indexed as indexed
from tests.acceptance import test_tensor_core_by_hand as by_hand
from tests.acceptance import test_warpgroups as groups
from tests.acceptance.test_deletions import PROGRAMS
from tests.emulator.recording import Subject, ours, peer, written
from tests.emulator.written import WRITTEN
from tests.emulator.written_clusters import WRITTEN_CLUSTERS

Array = np.ndarray[Any, Any]
HOPPER, BLACKWELL = "sm_90a", "sm_100a"


def whole(*shape: int, dtype: Any = np.float16) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def product(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32)


def _scheduled() -> dict[str, Subject]:
    """Kernels that the scheduler pipelines."""
    found = {
        name: ours(kernel, target, arguments, expected)
        for name, (kernel, arguments, expected, target) in PROGRAMS.items()
    }
    q, k, v = (whole(1, 1, 64, 64, dtype=np.float32).astype(np.float16) / 4 for _ in "qkv")
    k, v = np.concatenate([k, -k] * 3, axis=2), np.concatenate([v, v + 1] * 3, axis=2)
    out, sums = (np.asarray(x) for x in cast(Any, reference).attention(q, k, v))
    for target in (HOPPER, BLACKWELL):
        found[f"attention {target}"] = ours(
            attention, target, (q, k, v), (out, sums), tolerance=1e-2
        )
    found["attention of 128 rows"] = ours(
        attention, BLACKWELL, (q, k, v), (out, sums), tolerance=1e-2, bq=128
    )
    # So many that the rings of both kernels, the sums' and that of the parts' sum, are refilled.
    a, x = whole(16, 2048, dtype=np.float32), whole(2048, dtype=np.float32)
    found["sums in parts"] = ours(matvec, HOPPER, (a, x), a @ x, parts=5, bk=64)
    a, b = whole(64, 192), whole(192, 64)
    found["split by atomics"] = ours(indexed.split_k, HOPPER, (a, b), product(a, b))
    x = whole(512, dtype=np.int32) + 3
    counts = np.bincount(x, minlength=16).astype(np.int32)
    found["shared histogram"] = ours(indexed.shared_histogram, HOPPER, (x,), counts, n=2)
    return found


def _by_hand() -> dict[str, Subject]:
    """Kernels that state their barriers, copies, products and registers themselves."""
    found = {}
    x = whole(64, 128)
    found["traded registers"] = ours(groups.copied, HOPPER, (x,), x, repeats=2)
    y = whole(64, 128, dtype=np.float32)
    found["stores of warpgroups"] = ours(groups.added, HOPPER, (y, y + 1), 2 * y + 1)
    a, b = whole(128, 320), whole(320, 128)
    found["wgmma of warpgroups"] = ours(groups.multiplied, HOPPER, (a, b), product(a, b))
    found["roles of warps"] = ours(groups.roles_of_warps, BLACKWELL, (a, b), product(a, b))
    y = whole(5, 64, dtype=np.float32)
    found["turns"] = ours(groups.ping_pong, HOPPER, (y,), 2 * y)
    y = whole(64, dtype=np.float32)
    found["spinning"] = ours(groups.spun, HOPPER, (y,), y)
    y = whole(4, 32, dtype=np.float32)
    found["warps side by side"] = ours(groups.warps_side_by_side, HOPPER, (y,), y)
    y = whole(64, 64, dtype=np.float32)
    both = np.stack([y, y + 1])
    turned = both.transpose(0, 2, 1) + both.max(axis=2)[:, :, None] - both.sum(axis=1)[:, None]
    found["conversions"] = ours(groups.turned, HOPPER, (y,), turned)
    y = whole(128, 64, dtype=np.float32)
    found["copies of what is stored"] = ours(copies.through_scratch, HOPPER, (y,), 2 * y + 2)
    y = whole(96, 64, dtype=np.float32)
    found["two grids"] = ours(groups.two_grids, HOPPER, (y, 2.0), y * 2 + y[0] + 1)
    constants = {"N": 128, "turned": False}
    for name, kernel, target in (
        ("ring by hand, wgmma", by_hand.by_wgmma, HOPPER),
        ("ring by hand, tcgen05", by_hand.by_tcgen05, BLACKWELL),
    ):
        found[name] = ours(kernel, target, (a, b), product(a, b), **constants)
    a, b = whole(128, 128), whole(128, 192)
    expected = 2 * product(a, b)
    expected[:, :96] += 1
    found["operand in registers"] = ours(by_hand.from_registers, HOPPER, (a, b), expected)
    a, b = by_hand.squares()
    found["tensor memory"] = ours(by_hand.everything, BLACKWELL, (a, b), 2 * product(a, b))
    a, b = by_hand.rows_and_squares()
    found["tensor memory in turns"] = ours(
        by_hand.in_turns, BLACKWELL, (a, b), product(product(a, b), b)
    )
    y = whole(64, 64, dtype=np.float32)
    found["round trip"] = ours(by_hand.round_trip, BLACKWELL, (y,), y + 1)
    return found


PEERS = (
    "matmul-sm_90a", "matmul-sm_100a", "matmul_pairs-sm_100a", "attention-sm_90a",
    "attention-sm_100a", "sort_rows-sm_90a", "prefix_sums-sm_90a", "histogram-sm_90a",
)  # fmt: skip
SUBJECTS: dict[str, Subject] = {
    **_scheduled(),
    **_by_hand(),
    **{stem: peer(stem) for stem in PEERS},
    **{name: written(make) for name, make in {**WRITTEN, **WRITTEN_CLUSTERS}.items()},
}
