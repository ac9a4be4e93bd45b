"""Kernels with one token changed are refused in words, or mean the same to every witness.

A few dozen are judged here; `python -m tests.mutation` judges two thousand and prints the score.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.__main__ import verdicts
from tests.mutation.mutants import Mutant, mutant
from tests.mutation.subjects import BY_HAND, SUBJECTS, Subject, kernels_of_the_repository
from tests.mutation.trial import Run, Verdict, compare

ROOT = Path(__file__).resolve().parent.parent
# Kernels that are shown because they are refused.
LEFT_OUT = {
    "examples/tutorial/02_reduction.py:sum0_unwritten",
    "examples/tutorial/02_reduction.py:sum0_outermost",
}


def test_every_kernel_of_the_repository_is_mutated() -> None:
    mutated = {subject.name for subject in SUBJECTS} - {subject.name for subject in BY_HAND}
    assert set(kernels_of_the_repository()) - LEFT_OUT == mutated


def test_a_mutant_follows_from_its_seed_and_differs_in_one_line() -> None:
    for seed in range(24):
        made = mutant(seed)
        assert made == mutant(seed)
        before, after = made.subject.text.splitlines(), made.text.splitlines()
        changed = [
            n for n, pair in enumerate(zip(before, after, strict=True), 1) if len({*pair}) > 1
        ]
        assert changed == [made.line]


def test_mutants_are_refused_in_words_or_agree() -> None:
    # A loaded machine is no failure: the limit is for what never ends.
    options = ["--count", "48", "--seed", "40000", "--limit", "300"]
    command = [sys.executable, "-m", "tests.mutation", *options]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 fault, 0 crash, 0 hang" in done.stdout


HEADER = """\
import os
from astdsl import In, Out, f32, kernel

@kernel
def changed(x: In[f32, "8"], o: Out[f32, "8"]):
"""
SUBJECT = Subject("nowhere.py", "changed", (("f4", (8,)),), (("f4", (8,)),))

# What a mutant may do that is a fault of ours, each seen by the judge.
FAULTS = {
    "crash": ("os._exit(3)", "exit code 3"),
    "hang": ("while True: os.getpid()", "no answer in time"),
    "internal": ("from astdsl.ir.verify import verify; verify(1)", "an exception of ours"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_judge_sees_a_fault(name: str, tmp_path: Path) -> None:
    body, told = FAULTS[name]
    made = Mutant(SUBJECT, 0, 7, name, f"{HEADER}    {body}\n")
    ((_, verdict),) = verdicts([made], tmp_path, jobs=1, limit=2 if name == "hang" else 60)
    assert not verdict.is_good
    assert told in verdict.told


def test_the_judge_sees_witnesses_that_differ() -> None:
    ones = Run(results=(np.ones(3, np.float32),))
    assert compare(ones, ones) == Verdict("agrees")
    assert not compare(ones, Run(results=(np.full(3, 1.1, np.float32),))).is_good
    refused = Run(verdict=Verdict("refused", "A104"))
    assert not compare(refused, ones).is_good
    assert compare(ones, Run(verdict=Verdict("reported", "A601"))).is_good


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("o[...] = x[...] + 1", "agrees"),
        ("o[...] = x[...] + y", "refused"),
        ("o[...] = {}['x']", "python"),
    ],
)
def test_the_judge_knows_what_is_good(body: str, outcome: str, tmp_path: Path) -> None:
    made = Mutant(SUBJECT, 0, 7, "nothing", f"{HEADER}    {body}\n")
    ((_, verdict),) = verdicts([made], tmp_path, jobs=1, limit=60)
    assert (verdict.outcome, verdict.is_good) == (outcome, True)
