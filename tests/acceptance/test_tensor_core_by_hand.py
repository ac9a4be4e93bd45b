"""Acceptance 14 to 16: the tensor core by its own names, in one warpgroup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    ACC,
    SMEM,
    Barrier,
    In,
    KernelError,
    Out,
    SwizzleTransform,
    TilingTransform,
    barrier_wait,
    commit_smem,
    copy_gmem_to_smem,
    f16,
    f32,
    full,
    kernel,
    wgmma,
    wgmma_accumulator_load,
    wgmma_wait,
)
from astdsl.errors import ProtocolError, WrongTarget
from tests.witnesses import agree

Array = np.ndarray[Any, Any]
TILED = (TilingTransform((8, 64)), SwizzleTransform(128))
RANDOM = np.random.default_rng(14)
A = RANDOM.integers(-3, 4, (64, 128)).astype(np.float16)
B = RANDOM.integers(-3, 4, (128, 192)).astype(np.float16)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32)
HOPPER = ("sm_90a",)


@kernel
def multiplied(a: In[f16, "64 128"], b: In[f16, "128 192"], c: Out[f32, "64 192"], *, layout=None):
    left, right = SMEM((64, 128), f16, transforms=layout), SMEM((128, 192), f16, transforms=layout)
    full_ = Barrier(num_arrivals=2)
    copy_gmem_to_smem(a.at[...], left, full_)
    copy_gmem_to_smem(b.at[...], right, full_)
    barrier_wait(full_)
    acc = ACC((64, 192))
    wgmma(acc, left, right)
    c[...] = acc[...]


@pytest.mark.parametrize("layout", [None, TILED], ids=["inferred", "stated"])
def test_14_a_product_of_shared_memory(layout: Any) -> None:
    found = agree(multiplied, lambda: (A, B), targets=HOPPER, layout=layout)
    assert np.array_equal(found, PRODUCT)


@kernel
def halves_swapped(a: In[f16, "64 128"], b: In[f16, "192 128"], c: Out[f32, "64 192"]):
    left, right, full_ = SMEM((64, 128), f16), SMEM((192, 128), f16), Barrier(num_arrivals=2)
    copy_gmem_to_smem(a.at[...], left, full_)
    copy_gmem_to_smem(b.at[...], right, full_)
    barrier_wait(full_)
    acc = ACC((64, 192))
    wgmma(acc.at[:, 0:96], left, right.at[96:192].T)
    wgmma(acc.at[:, 96:192], left, right.at[0:96].T)
    c[:, 0:64] = acc[:, 0:64]
    c[:, 64:192] = acc[:, 64:192]


def test_14_halves_of_the_accumulator_are_swapped() -> None:
    found = agree(halves_swapped, lambda: (A, np.ascontiguousarray(B.T)), targets=HOPPER)
    assert np.array_equal(found, np.concatenate([PRODUCT[:, 96:], PRODUCT[:, :96]], axis=1))


@kernel
def from_registers(a: In[f16, "128 128"], b: In[f16, "128 192"], c: Out[f32, "128 192"]):
    right, full_ = SMEM((128, 192), f16), Barrier()
    copy_gmem_to_smem(b.at[...], right, full_)
    doubled = a[...] * 2
    barrier_wait(full_)
    first, second = ACC.init(full((128, 96), 1.0, f32)), ACC((128, 96))
    wgmma(first, doubled, right.at[:, 0:96])
    wgmma(second, doubled, right.at[:, 96:192])
    c[:, 0:96] = wgmma_accumulator_load(first, 1)
    c[:, 96:192] = wgmma_accumulator_load(second)


def test_14_a_in_registers_and_two_accumulators_with_waits_one_then_none() -> None:
    a = np.concatenate([A, -A])
    found = agree(from_registers, lambda: (a, B), targets=HOPPER)
    expected = 2 * np.concatenate([PRODUCT, -PRODUCT])
    expected[:, :96] += 1
    assert np.array_equal(found, expected)


@kernel
def stored(a: In[f16, "64 64"], b: In[f16, "64 64"], c: Out[f32, "64 64"]):
    left, right = SMEM((2, 64, 64), f16), SMEM((64, 64), f16)
    left[1] = a[...]
    right[...] = b[...]
    commit_smem()
    acc = ACC((64, 64))
    wgmma(acc, left.at[1, :, 0:32].T.T, right.at[0:32])
    wgmma(acc, left.at[1, :, 32:64], right.at[32:64])
    c[...] = acc[...]


def test_14_parts_of_a_slot_add_up() -> None:
    a, b = A[:, :64].copy(), B[:64, :64].copy()
    found = agree(stored, lambda: (a, b), targets=HOPPER)
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@kernel
def unfenced(a: In[f16, "64 64"], b: In[f16, "64 64"], c: Out[f32, "64 64"], *, fence, wait):
    left, right = SMEM((64, 64), f16), SMEM((64, 64), f16)
    left[...] = a[...]
    right[...] = b[...]
    if fence:
        commit_smem()
    acc = ACC((64, 64))
    wgmma(acc, left, right)
    if wait:
        wgmma_wait(0)
    left[...] = right[...]
    c[...] = acc[...] + left[...]


@pytest.mark.parametrize(("fence", "wait"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_19_a_missing_fence_or_wait_around_a_product_is_reported(
    device: str, fence: bool, wait: bool
) -> None:
    a, b = A[:, :64].copy(), B[:64, :64].copy()
    if fence and wait:
        assert unfenced.on(device)(a, b, fence=fence, wait=wait).shape == (64, 64)
        return
    with pytest.raises(KernelError) as caught:
        unfenced.on(device)(a, b, fence=fence, wait=wait)
    assert caught.value.help
    if device == "reference":
        assert isinstance(caught.value, ProtocolError)


def test_accumulators_in_registers_are_refused_on_the_other_target_naming_both() -> None:
    with pytest.raises(WrongTarget, match="needs sm_90a, and this kernel is compiled for sm_100a"):
        multiplied.on("emulator", target="sm_100a")(A, B)
