"""Random kernels mean the same to every witness; `python -m tests.fuzz` judges any number."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections import Counter

import numpy as np
import pytest

from astdsl.errors import BadWindow, OutsideLost, TypeMismatch
from astdsl.source import Span
from tests.fuzz import plain
from tests.fuzz.__main__ import GENERATORS, main
from tests.fuzz.kernels import kernel
from tests.fuzz.products import product
from tests.fuzz.refusals import is_right
from tests.fuzz.rings import judge_ring, ring
from tests.fuzz.trial import Finding, compare, judge

# A kernel that is refused says so by a code below those of the devices; that the program deserves
# it is looked at there (`tests.fuzz.refusals`).
REFUSED = ("A1", "A3")


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


TEXT = "@kernel\ndef k(x: In[f32, 'M']):\n    y = x[tile(0, 4)]\n    return y[-1]\n"


def test_a_refusal_is_right_if_the_program_has_what_it_is_about() -> None:
    linecache.cache["<refused>"] = (len(TEXT), None, TEXT.splitlines(True), "<refused>")
    there, here = (Span("<refused>", line, 4, line, 9) for line in (3, 4))
    sentence = "the constant -1 as an index of `x` is ambiguous: from the end, or before the start"
    assert is_right(OutsideLost("which elements lie outside the array", (here, "")), TEXT)
    assert not is_right(OutsideLost("which elements lie outside the array", (here, "")), "k()")
    assert is_right(BadWindow(sentence, (here, "")), TEXT)
    assert not is_right(BadWindow(sentence, (there, "")), TEXT)
    assert not is_right(TypeMismatch(sentence, (here, "")), TEXT)


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
