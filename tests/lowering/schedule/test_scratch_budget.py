"""Tiles that change their layout pass through shared memory, which must have room for them."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import In, Out, exp, f32, kernel
from astdsl.errors import OutOfSharedMemory


@kernel
def turned(x: In[f32, "128 256"], o: Out[f32, "256 128"]):
    t = exp(x[...])
    o[...] = t.T + x[0:128, 0:128].sum() + t.reshape(256, 128)


def test_room_for_tiles_that_change_their_layout_is_counted_with_the_buffers() -> None:
    x = np.zeros((128, 256), np.float32)
    with pytest.raises(OutOfSharedMemory, match="131072 of them for tiles") as caught:
        _ = turned.lower(x, target="sm_90a").ptx
    assert caught.value.help == "smaller blocks take less"
