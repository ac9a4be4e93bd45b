"""No sleeping: what breaks the synchronisation of our kernels is found, one instruction at a time.

A part of the mutants is judged here; `python -m tests.emulator.mutation` judges all of them.
"""

from __future__ import annotations

import re
import zlib

import pytest

from tests.emulator.equivalence import equivalence
from tests.emulator.mutants import Mutant, mutants
from tests.emulator.mutation import FAILURES, MODELLED, SCHEDULES, main, recorded, verdicts
from tests.emulator.programs import SUBJECTS
from tests.emulator.recording import Program

STEP = 30
TEXT = """mbarrier.init.shared::cta.b64 [%r5], %r6;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 512;
mbarrier.try_wait.parity.shared::cta.b64 done, [%r5], %r7;
wgmma.wait_group.sync.aligned 1;
add.u32 %r1, %r2, %r3;
barrier.sync %r1, 128;
mapa.shared::cluster.u32 %r2, %r3, %r4;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster\
 [%r1], [%d2, {%r3, %r4}], [%r5], %h1;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], %r2;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;
ld.acquire.gpu.global.b32 %r1, [%d1];
barrier.cluster.arrive.release.aligned;
fence.acq_rel.gpu;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];
@own bar.red.and.pred %p1, 2, 128, %p2;
"""


@pytest.fixture(scope="module", params=list(SUBJECTS))
def program(request: pytest.FixtureRequest) -> Program:
    return recorded(request.param)


def test_a_program_that_is_not_mutated_is_silent(program: Program) -> None:
    assert [program.trial(program.ptx, schedule) for schedule in SCHEDULES] == [""] * 4


def test_every_mutant_is_found_or_equivalent_for_a_reason(program: Program) -> None:
    every = list(mutants(program.ptx))
    first = zlib.crc32(program.name.encode()) % min(STEP, len(every))
    judged = verdicts(program, every[first::STEP])
    assert not [f"{mutant}: {what}" for mutant, what in judged.items() if what in FAILURES]


def test_every_instruction_of_synchronisation_has_mutants() -> None:
    found: dict[int, list[str]] = {}
    for mutant in mutants(TEXT):
        found.setdefault(mutant.line, []).append(mutant.change)
    sizes = ["16 bytes more", "16 bytes less", "twice the bytes", "half the bytes"]
    assert found == {
        0: ["deleted", "one arrival more", "one arrival less"],
        1: ["deleted", "next barrier", *sizes, "relaxed"],
        2: ["deleted", "other parity", "next barrier", "relaxed"],
        3: ["deleted", "one group more in flight"],
        5: ["deleted", "other barrier", "32 threads more", "32 threads less"],
        6: ["other block"],
        7: ["next barrier", "other slot", "other blocks"],
        8: ["16 bytes more", "16 bytes less", "other slot"],
        9: ["half the columns"],
        10: ["relaxed"],
        11: ["deleted", "relaxed"],
        12: ["deleted"],
        13: ["next barrier", "other slot"],
        14: ["other barrier", "32 threads more", "32 threads less"],
    }


def test_some_order_finds_warps_that_go_by_what_each_was_told() -> None:
    program = recorded("spinning")
    agree = re.compile(r"bar\.red\.and\.pred (%\w+), 2, 128, (%\w+);")
    changed = agree.sub(r"mov.pred \1, \2;", program.ptx, count=1)
    assert changed != program.ptx
    found = {program.trial(changed, {"completion": seed, "order": seed}) for seed in range(12)}
    assert found == {"", "E210"}


def test_a_mutant_changes_one_operand_and_keeps_the_guard() -> None:
    line = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], %r6;"
    more = next(m for m in mutants(line) if m.change == "16 bytes more")
    assert more.after == (
        "{ .reg .b32 changed; add.u32 changed, %r6, 16; "
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], changed; }"
    )
    assert more.apply(f"{line}\nret;\n") == f"{more.after}\nret;\n"


def test_a_fence_of_products_is_equivalent_where_another_follows_the_last_access() -> None:
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1}, %rd1, %rd2, 1, 1, 1;"
    fence = "wgmma.fence.sync.aligned;"
    lines = [".visible .entry k(", "mov.f32 %f0, 0f00000000;", fence, fence, product]
    mutants_of = [Mutant(line, "deleted", fence, "") for line in (2, 3)]
    assert all(equivalence(lines, mutant) for mutant in mutants_of)
    lines[2:4] = [fence, "mov.f32 %f1, %f0;", fence]
    assert [bool(equivalence(lines, Mutant(n, "deleted", fence, ""))) for n in (2, 4)] == [
        True,
        False,
    ]
    assert not equivalence([*lines[:2], *lines[4:]], Mutant(2, "deleted", fence, ""))


def test_a_barrier_of_all_threads_may_have_another_number_where_every_one_is_such() -> None:
    lines = [".visible .entry k(", ".maxntid 128", "bar.sync 0, 128;", "bar.sync 0, 128;"]
    mutant = Mutant(3, "other barrier", lines[3], "bar.sync 1, 128;")
    assert equivalence(lines, mutant)
    for other in ("bar.sync 1, 64;", "@%p1 bar.sync 1, 128;", "bar.arrive 1, 128;"):
        assert not equivalence([*lines, other], mutant)


def test_the_first_barrier_of_all_threads_may_have_another_number() -> None:
    lines = [".visible .entry k(", ".maxntid 256", "bar.sync 0, 256;", "@own bar.sync 1, 128;"]
    assert equivalence(lines, Mutant(2, "other barrier", lines[2], "bar.sync 1, 256;"))
    lines[2], lines[3] = lines[3], lines[2]
    assert not equivalence(lines, Mutant(3, "other barrier", lines[3], "bar.sync 1, 256;"))


def test_what_threads_agree_at_may_have_a_number_that_nothing_else_has() -> None:
    agree = "@own bar.red.and.pred %p1, 2, 128, %p2;"
    lines = [".visible .entry k(", ".maxntid 256", "bar.sync 0, 256;", agree]
    mutant = Mutant(3, "other barrier", agree, "")
    assert equivalence(lines, mutant)
    for other in ("bar.arrive 3, 64;", "bar.sync %r1, 64;", "bar.red.or.pred %p1, 3, 64, %p2;"):
        assert not equivalence([*lines, other], mutant)


SPIN = """.visible .entry k(
mov.b32 %r1, smem;
mov.b32 %r2, 1;
$ask:
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], %r2;
@own bar.red.and.pred %p2, 1, 128, %p1;
@%p2 bra $go;
bra.uni $ask;
$go:
mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], 1;"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@%p2", "@!%p2"),
        ("%r2, 1", "%r2, 0"),
        ("test_wait.parity", "test_wait.parity.relaxed.cta"),
        ("$ask:\n", "@%p3 bra $go;\n$ask:\n"),
        ("128, %p1", "128, %p3"),
        ("$ask:\n", "$ask:\nadd.u32 %r1, %r1, 8;\n"),
        ("@%p2 bra", "not.pred %p2, %p2;\n@%p2 bra"),
    ],
)
def test_a_wait_is_needed_unless_a_test_has_said_yes(before: str, after: str) -> None:
    for text, is_equivalent in ((SPIN, True), (SPIN.replace(before, after), False)):
        *rest, wait = text.splitlines()
        mutant = Mutant(len(rest), "deleted", wait, "setp.eq.u32 done, 0, 0;")
        assert bool(equivalence([*rest, wait], mutant)) == is_equivalent


def test_a_fence_of_tensor_memory_counts_what_other_threads_do() -> None:
    fence = "tcgen05.fence::after_thread_sync;"
    lines = [".visible .entry k(", fence, "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r2};"]
    assert equivalence(lines, Mutant(1, "deleted", fence, ""))
    of_another = ["@%p1 bra $other;", *lines[1:], "ret;", "$other:", "tcgen05.mma.cta_group::1;"]
    assert not equivalence([lines[0], *of_another], Mutant(2, "deleted", fence, ""))


def test_a_run_proves_nothing_of_fences_that_its_order_does_not_model() -> None:
    modelled = "@%p1 bar.sync 0;", "tcgen05.fence::after_thread_sync;", "mbarrier.arrive.b64"
    others = "wgmma.fence.sync.aligned;", "fence.mbarrier_init.release.cluster;", "fence.acq_rel"
    assert [bool(MODELLED.match(each)) for each in modelled + others] == [True] * 3 + [False] * 3


def test_the_score_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ring", "--part", "3/40"]) == 0
    assert "ring: 1 mutants: 1 reported" in capsys.readouterr().out
