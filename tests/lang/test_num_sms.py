"""`num_sms`: as many as the target has, on every witness."""

from __future__ import annotations

import numpy as np

from astdsl import In, Out, axis_index, cdiv, f32, i32, kernel, nd_loop, num_sms, parallel, tile
from tests.witnesses import agree


@kernel
def persistent(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=16):
    grid = (cdiv(x.shape[0], b), cdiv(x.shape[1], b))
    with parallel(num_sms(), names=("sm",)):
        for info in nd_loop(grid, collective_axes="sm"):
            i, j = info.index
            o[tile(i, b), tile(j, b)] = x[tile(i, b), tile(j, b)] + 1


def test_a_grid_of_one_block_a_multiprocessor_shares_a_loop() -> None:
    x = np.random.default_rng(0).standard_normal((200, 250), np.float32)
    assert np.array_equal(agree(persistent, lambda: [x]), x + 1)
    for target, blocks in (("sm_90a", 132), ("sm_100a", 148)):
        assert f"blocks: {blocks} of" in persistent.lower(x, target=target).explain()


@kernel
def told(o: Out[i32, "2"]):
    o[0] = num_sms()
    with parallel(num_sms() // 4, names=("sm",)) as i:
        if i == num_sms() // 4 - 1:
            o[1] = axis_index("sm")


def test_the_number_is_that_of_the_target_on_every_device() -> None:
    for target, number in (("sm_90a", 132), ("sm_100a", 148)):
        for device in ("reference", "emulator"):
            found = told.on(device, target=target)()
            assert found.tolist() == [number, number // 4 - 1]
