"""Random kernels mean the same to every witness; `python -m tests.fuzz` judges any number."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter

import numpy as np
import pytest

from tests.fuzz import plain
from tests.fuzz.__main__ import GENERATORS, main
from tests.fuzz.kernels import kernel
from tests.fuzz.products import product
from tests.fuzz.rings import judge_ring, ring
from tests.fuzz.trial import Finding, compare, judge

# A kernel that is refused says so by a code below those of the devices.
REFUSED = ("A1", "A2", "A3", "A4")


@pytest.mark.parametrize("seed", range(4))
def test_a_random_kernel_means_the_same_to_every_witness(seed: int) -> None:
    verdict = judge(kernel(seed))
    assert verdict == "agrees" or verdict.startswith(REFUSED)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_product_means_the_same_to_every_witness(seed: int) -> None:
    verdict = judge(product(seed))
    assert verdict == "agrees" or verdict.startswith(REFUSED)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["elementary", "scaled", "structures", "views", "warpgroups"])
def test_a_random_program_of_a_kind_means_the_same_to_every_witness(kind: str, seed: int) -> None:
    make, judged = GENERATORS[kind]
    verdict = judged(make(seed))
    assert verdict == "agrees" or verdict.startswith(REFUSED)


@pytest.mark.parametrize("seed", range(8))
def test_the_check_and_the_emulator_agree_about_a_ring(seed: int) -> None:
    assert judge_ring(ring(seed)).startswith(("right", "wrong", "reported", *REFUSED))


def test_a_program_follows_from_its_seed() -> None:
    for make, _ in GENERATORS.values():
        assert make(5) == make(5)
        assert make(5).text != make(6).text


def test_whatever_is_not_the_same_bits_is_a_finding() -> None:
    zeros, nans = np.zeros(3, np.float32), np.full(3, np.nan, np.float32)
    compare([zeros, nans], [zeros, -nans], "a witness")
    for other in (-zeros, zeros + 1, nans):
        with pytest.raises(Finding, match="differs"):
            compare([other], [zeros], "a witness")


def test_python_itself_is_a_witness_of_many_programs() -> None:
    known: Counter[str] = Counter()
    kinds = [name for name in GENERATORS if name not in ("elementary", "rings")]
    for name, seed in itertools.product(kinds, range(8)):
        program = GENERATORS[name][0](seed)
        with contextlib.suppress(plain.Unknown):
            plain.run(program, program.arguments())
            known[name] += 1
    assert set(known) == set(kinds)
    assert known.total() >= 15


def test_the_command_tells_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rings", "--count", "2"]) == 0
    assert capsys.readouterr().out.startswith(("1 ", "2 "))
