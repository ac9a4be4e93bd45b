"""The rows that describe the targets."""

import pytest

from astdsl.lowering.target import (
    SM_90A,
    SM_100A,
    TARGETS,
    TCGEN05,
    WGMMA,
    Target,
)


def test_targets_are_found_by_the_name_that_users_and_ptxas_spell() -> None:
    assert TARGETS == {"sm_90a": SM_90A, "sm_100a": SM_100A}


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_each_target_has_exactly_one_matrix_unit(target: Target) -> None:
    assert target.has(WGMMA) != target.has(TCGEN05)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_one_block_with_all_its_shared_memory_fits_a_multiprocessor(target: Target) -> None:
    used_bytes = target.shared_bytes_per_block + target.shared_reserved_bytes_per_block
    assert used_bytes == target.shared_bytes_per_multiprocessor


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_tensor_memory_exists_where_tcgen05_does(target: Target) -> None:
    assert bool(target.tmem_columns and target.tmem_lanes) == target.has(TCGEN05)
