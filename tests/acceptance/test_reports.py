"""`print` and `assert` on kernel values: every witness says the same."""

# Kernels print, and that is what is tested.
# ruff: noqa: T201

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import (
    DeviceError,
    In,
    KernelError,
    Out,
    bf16,
    cdiv,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    isnan,
    kernel,
    pipeline,
    tile,
    warpgroup_id,
    zeros,
)
from astdsl.errors import FailedAssertion, NotConstant
from astdsl.runtime import reports
from tests.witnesses import TARGETS, agree

PLACES = (("reference", "sm_90a"), *(("emulator", target) for target in TARGETS))


def said_by_all(capsys: pytest.CaptureFixture[str], run: Callable[[Any], Any]) -> list[str]:
    """Run on the reference and the emulator; return the lines, which must be the same."""
    every = []
    for place in PLACES:
        run(place)
        every.append(sorted(capsys.readouterr().out.splitlines()))
    assert every[1:] == every[:-1]
    return every[0]


@kernel
def stepped(x: In[f32, "N"], o: Out[f32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        t = x[tile(i, b)]
        print("block", i, "sum =", t.sum(), t[:4])
        o[tile(i, b)] = t + 1


def test_each_block_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(150, dtype=np.float32)
    lines = said_by_all(capsys, lambda place: stepped.on(place[0], target=place[1])(x))
    assert lines == [
        "block 0 sum = 2016.0 [0. 1. 2. 3.]",
        "block 1 sum = 6112.0 [64. 65. 66. 67.]",
        "block 2 sum = 3047.0 [128. 129. 130. 131.]",
    ]


def test_a_schedule_says_what_the_program_says(capsys: pytest.CaptureFixture[str]) -> None:
    agree(stepped, lambda: [np.arange(150, dtype=np.float32)])
    counts = Counter(capsys.readouterr().out.splitlines())
    assert len(counts) == 3
    assert len(set(counts.values())) == 1


@kernel
def ordered(x: In[f32, "M N"], o: Out[f32, "M"], *, b=32, limit=1e9):
    M, N = x.shape
    with pipeline(cdiv(M, b)) as i:
        acc = zeros((b,), f32)
        with pipeline(cdiv(N, 32), stages=3) as j:
            acc += x[tile(i, b), tile(j, 32)].sum(axis=1)
            if j != 1:
                print("step", i, j, acc[0])
            assert acc[0] < limit, "acc is below the limit"
        o[tile(i, b)] = acc


def rows() -> Any:
    return np.arange(64 * 100, dtype=np.float32).reshape(64, 100)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_block_prints_in_the_order_of_its_program(
    capsys: pytest.CaptureFixture[str], device: str
) -> None:
    ordered.on(device)(rows())
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("step 0")] == [
        "step 0 0 496.0",
        "step 0 2 4560.0",
        "step 0 3 4950.0",
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_assertion_that_fails_is_an_error_with_its_line(device: str, target: str) -> None:
    with pytest.raises(DeviceError, match="acc is below the limit") as caught:
        ordered.on(device, target=target)(rows(), limit=300.0)
    assert 'assert acc[0] < limit, "acc is below the limit"' in str(caught.value)


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_assertion_on_shapes_under_a_branch_is_checked_where_it_stands(device: str) -> None:
    @kernel
    def guarded(x: In[f32, "N"], o: Out[f32, "N"]):
        if x[0] > 0:
            assert x.shape[0] % 4 == 0, "N is a multiple of 4"
        o[...] = x[...]

    guarded.on(device)(np.zeros(6, np.float32))
    guarded.on(device)(np.ones(8, np.float32))
    with pytest.raises(DeviceError, match="N is a multiple of 4"):
        guarded.on(device)(np.ones(6, np.float32))


@kernel
def product(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], n: i32, *, bk=32):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 64), cdiv(N, 64)) as (i, j):
        acc = zeros((64, 64), f32)
        with pipeline(cdiv(K, bk), stages=2) as k:
            acc += a[tile(i, 64), tile(k, bk)] @ b[tile(k, bk), tile(j, 64)]
            if k == n:
                print("acc", acc, "k", k)
        for q in range(n):
            if q > 1:
                print("q", q)
        assert not isnan(acc).any(), "no NaN"
        c[tile(i, 64), tile(j, 64)] = acc


def test_an_accumulator_is_printed_from_its_own_layout(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (64, 100)).astype(np.float16)
    b = random.integers(-3, 4, (100, 70)).astype(np.float16)
    lines = said_by_all(capsys, lambda place: product.on(place[0], target=place[1])(a, b, n=3))
    whole = np.zeros((64, 128), np.float32)
    whole[:, :70] = a.astype(np.float32) @ b.astype(np.float32)
    tiles = [re.sub(r"\n\s*", " ", str(half)) for half in np.hsplit(whole, 2)]
    assert lines == [*sorted(f"acc {t} k 3" for t in tiles), "q 2", "q 2"]


@kernel
def typed(x: In[i64, "N"], o: Out[f32, "N"]):
    t = x[...]
    kinds = (i8, f64, f16, bf16)
    print(t, *[t.astype(kind) for kind in kinds], t > 3, t[0], sep=" | ")
    o[...] = 0


def test_every_kind_of_element_is_printed_as_numpy_prints_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = np.arange(-2, 5)
    (line,) = said_by_all(capsys, lambda place: typed.on(place[0], target=place[1])(x))
    kinds = (np.int64, np.int8, np.float64, np.float16, ml_dtypes.bfloat16)
    assert line.split(" | ") == [*(str(x.astype(kind)) for kind in kinds), str(x > 3), "-2"]


@kernel
def long(x: In[f32, "N"], o: Out[f32, "N"]):
    print(x[...])
    o[...] = x[...]


def test_a_long_tile_is_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(2048, dtype=np.float32)
    lines = said_by_all(capsys, lambda place: long.on(place[0], target=place[1])(x))
    assert lines == [str(x)]


def test_what_does_not_fit_into_the_log_is_said_to_be_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LOG_WORDS", 64)
    stepped.on("emulator")(np.zeros(640, np.float32))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == reports.LOST.rstrip()
    assert 1 < len(lines) < 11


@kernel
def twice(x: In[f32, "N"], o: Out[f32, "N"], y: Out[f32, "N"]):
    with pipeline(cdiv(x.shape[0], 32)) as i:
        o[tile(i, 32)] = x[tile(i, 32)] * 2
        assert i < 1, "the first launch fails"
    with pipeline(cdiv(x.shape[0], 32)) as i:
        print("second", i)
        y[tile(i, 32)] = o[tile(i, 32)] * 2


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_launch_after_a_failed_one_does_not_run(
    capsys: pytest.CaptureFixture[str], device: str
) -> None:
    with pytest.raises(DeviceError, match="the first launch fails"):
        twice.on(device)(np.ones(64, np.float32))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [({"file": object()}, "standard output"), ({"flush": True}, "standard output")],
)
def test_options_of_print_that_have_no_meaning_are_refused(
    options: dict[str, Any], message: str
) -> None:
    @kernel
    def to_file(x: In[f32, "N"], o: Out[f32, "N"]):
        print(x[0], **options)
        o[...] = x[...]

    with pytest.raises(KernelError, match=message):
        to_file.on("reference")(np.zeros(4, np.float32))


def test_a_kernel_value_inside_a_list_is_not_printed_as_its_type() -> None:
    @kernel
    def listed(x: In[f32, "N"], o: Out[f32, "N"]):
        print([x[0]])
        o[...] = x[...]

    with pytest.raises(KernelError, match="one by one"):
        listed.on("reference")(np.zeros(4, np.float32))


@kernel(warpgroups=2)
def by_warpgroup(x: In[f32, "128"], o: Out[f32, "2 128"]):
    w = warpgroup_id()
    t = x[...] * (w + 1)
    print("warpgroup", w, t[:3], t.sum())
    o[w, :] = t
    assert t[1] < 2, "the second warpgroup doubles"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_each_warpgroup_says_its_own(
    capsys: pytest.CaptureFixture[str], device: str, target: str
) -> None:
    with pytest.raises(DeviceError, match="the second warpgroup doubles"):
        by_warpgroup.on(device, target=target)(np.arange(128, dtype=np.float32))
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "warpgroup 0 [0. 1. 2.] 8128.0",
        "warpgroup 1 [0. 2. 4.] 16256.0",
    ]


@kernel
def told(x: In[f32, "N"], o: Out[f32, "N"], *, b=4):
    (N,) = x.shape
    with pipeline(cdiv(N, b)) as i:
        part = x[tile(i, b)]
        print(f"block {i} of {b:02d}: {part.max()}", f"{b}{part.dtype!s:>5}", sep=" | ")
        o[tile(i, b)] = part


def test_an_f_string_tells_the_values_of_the_running_kernel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = np.arange(8, dtype=np.float32)
    lines = said_by_all(capsys, lambda place: told.on(place[0], target=place[1])(x))
    assert lines == ["block 0 of 04: 3.0 | 4  f32", "block 1 of 04: 7.0 | 4  f32"]


@kernel
def formatted(x: In[f32, "N"], o: Out[f32, "N"]):
    print(f"{x[0]:.2f}")
    o[0] = x[0]


def test_a_format_of_a_kernel_value_is_refused() -> None:
    with pytest.raises(NotConstant, match="known only when the kernel runs"):
        formatted(np.ones(1, np.float32))


@kernel
def bounded(x: In[f32, "N"], o: Out[f32, "N"], *, b=4, most=100):
    (N,) = x.shape
    with pipeline(cdiv(N, b)) as i:
        part = x[tile(i, b)]
        assert part.max() < most, f"block {i}: {part.max()} of {part} is over {most:.1f}"
        o[tile(i, b)] = part


def test_the_message_of_an_assertion_tells_the_values_of_the_running_kernel() -> None:
    x = np.arange(12, dtype=np.float32)
    assert np.array_equal(agree(bounded, lambda: (x,)), x)
    for device, target in PLACES:
        with pytest.raises(DeviceError) as caught:
            bounded.on(device, target=target)(x, most=7)
        assert caught.value.message == "block 1: 7.0 of [4. 5. 6. 7.] is over 7.0"
        assert [span.line for span, _ in caught.value.places]


@kernel
def bare(x: In[f32, "N"], o: Out[f32, "N"], *, b=4):
    with pipeline(cdiv(x.shape[0], b)) as i:
        assert x[i * b] < 4, x[i * b]
        o[tile(i, b)] = x[tile(i, b)]


def test_a_kernel_value_alone_is_a_message_too() -> None:
    for device, target in PLACES:
        with pytest.raises(DeviceError) as caught:
            bare.on(device, target=target)(np.arange(8, dtype=np.float32))
        assert caught.value.message == "4.0"


@kernel
def sized(x: In[f32, "N"], alpha: f32, o: Out[f32, "N"], *, b=4):
    (N,) = x.shape
    assert 2 * b >= N, f"{N} elements, alpha {alpha}, of at most {2 * b}"
    assert alpha > 0, f"alpha is {alpha}, for {N // b} blocks"
    with pipeline(cdiv(N, b)) as i:
        o[tile(i, b)] = x[tile(i, b)]


def test_the_message_of_an_assertion_of_the_host_tells_its_values() -> None:
    for device, target in PLACES:
        placed = sized.on(device, target=target)
        with pytest.raises(FailedAssertion) as caught:
            placed(np.ones(9, np.float32), 0.1)
        assert caught.value.message == "9 elements, alpha 0.1, of at most 8"
        with pytest.raises(FailedAssertion) as caught:
            placed(np.ones(8, np.float32), -0.1)
        assert caught.value.message == "alpha is -0.1, for 2 blocks"
