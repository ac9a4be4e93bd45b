"""All devices accept the same kernels: what no GPU could launch, the reference refuses too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import SMEM, In, Out, cdiv, f16, f32, kernel, pipeline, tile, zeros
from astdsl.errors import KernelError, OutOfSharedMemory, TileTooLarge

X = np.ones((512, 512), np.float32)


@kernel
def much_memory(x: In[f32, "M N"], o: Out[f32, "M N"]):
    held = SMEM((256, 256), f32)
    held[...] = x[0:256, 0:256]
    o[0:256, 0:256] = held[...]


@kernel
def many_slots(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    total = zeros((128, 128), f32)
    with pipeline(cdiv(a.shape[1], 64), stages=12) as k:
        total += a[0:128, tile(k, 64)] @ b[tile(k, 64), 0:128]
    o[0:128, 0:128] = total


@kernel
def wide_product(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    total = zeros((512, 512), f32)
    with pipeline(cdiv(a.shape[1], 16)) as k:
        total += a[0:512, tile(k, 16)] @ b[tile(k, 16), 0:512]
    o[0:512, 0:512] = total


H = X.astype(np.float16)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("refused", "arrays", "error"),
    [
        (much_memory, (X,), OutOfSharedMemory),
        (many_slots, (H, H), OutOfSharedMemory),
        (wide_product, (H, H), TileTooLarge),
    ],
    ids=["memory", "slots", "registers"],
)
def test_what_no_block_has_room_for_is_refused_by_every_device(
    refused: Any, arrays: tuple[Any, ...], error: type[KernelError], target: str
) -> None:
    said = []
    for device in ("reference", "emulator"):
        with pytest.raises(error) as caught:
            refused.on(device, target=target)(*arrays)
        said.append(str(caught.value))
    assert said[0] == said[1]
