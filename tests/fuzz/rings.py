"""Rings of slots by hand, right ones and ones with a mistake in a line that synchronises.

Invariant: without a mistake every witness is silent and right. With one, the check before the
launch and the emulator both report it, or both do not.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from astdsl import KernelError
from tests.fuzz.program import HEADER, Argument, Draw, Program
from tests.fuzz.trial import TARGETS, Finding, emulator_options, findings, kernel_of

# A ring of S slots of H rows: the template's text, its warpgroups, what it computes.
# `A` is how many steps ahead copies are issued.
AHEAD = """
ring, full = SMEM((S, H, 32), f32), Barrier(num_barriers=S)
for q in range(min(A, steps)):
    copy_gmem_to_smem(x.at[tile(q, H), :], ring.at[q % S], full[q % S])
for k in range(steps):
    if k + A < steps:
        copy_gmem_to_smem(x.at[tile(k + A, H), :], ring.at[(k + A) % S], full[(k + A) % S])
    barrier_wait(full[k % S])
    o[tile(k, H), :] = ring[k % S] + 1
"""
OUT = """
out = SMEM((S, H, 32), f32)
for k in range(steps):
    wait_smem_to_gmem(S1, wait_read_only=True)
    out[k % S] = x[tile(k, H), :].filled(0) + 1
    commit_smem()
    copy_smem_to_gmem(out.at[k % S], o.at[tile(k, H), :])
wait_smem_to_gmem(0)
"""
IN_PLACE = """
ring, full = SMEM((S, H, 32), f32), Barrier(num_barriers=S)
for k in range(steps):
    wait_smem_to_gmem(S1, wait_read_only=True)
    copy_gmem_to_smem(x.at[tile(k, H), :], ring.at[k % S], full[k % S])
    barrier_wait(full[k % S])
    ring[k % S] = ring[k % S] + 1
    commit_smem()
    copy_smem_to_gmem(ring.at[k % S], o.at[tile(k, H), :])
wait_smem_to_gmem(0)
"""
ROLES = """
ring, out = SMEM((S, H, 32), f32), SMEM((H, 32), f32)
full, empty = Barrier(num_barriers=S), Barrier(num_barriers=S)
if warpgroup_id() == 0:
    if warp_id() == 0:
        for k in range(steps):
            if k >= S:
                barrier_wait(empty[k % S])
            copy_gmem_to_smem(x.at[tile(k, H), :], ring.at[k % S], full[k % S])
else:
    for k in range(steps):
        barrier_wait(full[k % S])
        wait_smem_to_gmem(0, wait_read_only=True)
        out[...] = ring[k % S] + 1
        barrier_arrive(empty[k % S])
        commit_smem()
        copy_smem_to_gmem(out, o.at[tile(k, H), :])
    wait_smem_to_gmem(0)
"""
CONSUMERS = """
ring, more = SMEM((S, H, 32), f32), SMEM((S, H, 32), f32)
full, empty = (Barrier(num_arrivals=2, num_barriers=S) for _ in range(2))
if warpgroup_id() == 2:
    for k in range(steps):
        if k >= S:
            barrier_wait(empty[k % S])
        copy_gmem_to_smem(x.at[tile(k, H), :], ring.at[k % S], full[k % S])
        copy_gmem_to_smem(x.at[tile(k, H), :], more.at[k % S], full[k % S])
else:
    own = ds(warpgroup_id() * H2, H2)
    for k in range(steps):
        barrier_wait(full[k % S])
        total = ring[k % S, own, :] * 2 - more[k % S, own, :]
        o[ds(k * H + warpgroup_id() * H2, H2), :] = total + 1
        barrier_arrive(empty[k % S])
"""
TURNS = """
ring, full, empty = SMEM((S, H, 32), f32), Barrier(num_barriers=S), Barrier(num_barriers=S)
if warpgroup_id() == 0:
    for k in range(steps):
        if k >= S:
            barrier_wait(empty[k % S], completion=k // S - 1)
        ring[k % S] = x[tile(k, H), :].filled(0)
        barrier_arrive(full[k % S])
else:
    for k in range(steps):
        barrier_wait(full[k % S], completion=k // S)
        o[tile(k, H), :] = ring[k % S] + 1
        barrier_arrive(empty[k % S])
"""
BESIDE_A_PIPELINE = """
buffer, full = SMEM((H, 32), f32), Barrier()
for k in range(steps):
    copy_gmem_to_smem(x.at[tile(k, H), :], buffer, full)
    total = zeros((H, 32), f32)
    with pipeline(2, stages=S) as r:
        total += x[tile(k, H), :]
    barrier_wait(full)
    o[tile(k, H), :] = total - buffer[...] + 1
"""
TEMPLATES = {"ahead": (AHEAD, 0), "out": (OUT, 0), "in place": (IN_PLACE, 1), "roles": (ROLES, 2),
             "consumers": (CONSUMERS, 3), "turns": (TURNS, 2),
             "beside a pipeline": (BESIDE_A_PIPELINE, 0)}  # fmt: skip
SYNCHRONISES = re.compile(r"barrier_|copy_|wait_|commit|Barrier\(|if k")
MAKES = re.compile(r":$|SMEM|Barrier\(")
Mistake = Callable[[Draw, list[str], int], None]


def _leave_out(draw: Draw, lines: list[str], at: int) -> None:
    if not MAKES.search(lines[at]):
        lines[at] = re.sub(r"\S.*", "pass", lines[at])


def _repeat(draw: Draw, lines: list[str], at: int) -> None:
    if not MAKES.search(lines[at]):
        lines.insert(at, lines[at])


def _change_a_number(draw: Draw, lines: list[str], at: int) -> None:
    spots = list(re.finditer(r"(?<![\w.])[0-4]\b", lines[at]))
    if spots:
        m = draw.pick(spots)
        number = max(0, int(m.group()) + draw.pick([-1, 1]))
        lines[at] = f"{lines[at][: m.start()]}{number}{lines[at][m.end() :]}"


def _swap(draw: Draw, lines: list[str], at: int) -> None:
    pair = lines[at : at + 2]
    depths = {len(line) - len(line.lstrip()) for line in pair}
    if len(pair) == 2 and len(depths) == 1 and not any(map(MAKES.search, pair)):
        lines[at : at + 2] = pair[::-1]


MISTAKES: tuple[tuple[float, Mistake], ...] = (
    (3, _leave_out), (3, _change_a_number), (1.5, _swap), (1, _repeat),
)  # fmt: skip


def ring(seed: int) -> Program:
    """Return the ring of a seed; `notes` say which, and the line with the mistake, if any."""
    draw = Draw(seed)
    name = draw.pick(TEMPLATES)
    text, warpgroups = TEMPLATES[name]
    slots, rows, steps = draw.pick([1, 2, 2, 3, 4]), draw.pick([8, 16]), draw.pick([1, 2, 3, 4, 5])
    numbers = {"S1": slots - 1, "S": slots, "H2": rows // 2, "H": rows}
    numbers["A"] = draw.number(0, slots - 1)
    for symbol, number in numbers.items():
        text = re.sub(rf"\b{symbol}\b", str(number), text)
    lines = text.strip().split("\n")
    wrong = ""
    if draw.chance(0.85):
        at = draw.pick(n for n, line in enumerate(lines) if SYNCHRONISES.search(line))
        draw.weighted(MISTAKES)(draw, lines, at)
        wrong = lines[at].strip() if "\n".join(lines) != text.strip() else ""
    body = textwrap.indent("\n".join(["steps = x.shape[0] // " + str(rows), *lines]), "    ")
    option = f"(warpgroups={warpgroups})" if warpgroups else ""
    head = 'def k(x: In[f32, "M 32"], o: Out[f32, "M 32"]):'
    parameters: dict[str, Argument | int] = {
        name: Argument(name, role, "f32", ("M", 32)) for name, role in (("x", "In"), ("o", "Out"))
    }
    written = f"{HEADER}@kernel{option}\n{head}\n{body}\n"
    program = Program(written, parameters, {"M": rows * steps}, seed)
    program.notes = {"ring": name, "mistake": wrong}
    return program


def judge_ring(program: Program) -> str:
    """Return what all witnesses say: "right", "wrong" or "reported", or the code of a refusal."""
    rng = random.Random(program.seed)  # noqa: S311 (the same for the same seed)
    target = rng.choice(TARGETS)
    told = _said(program, program.text, "lower", target)
    if told and told != "A501":
        return told
    unchecked = re.sub(r"@kernel\(?", "@kernel(check=False, ", program.text)
    unchecked = re.sub(r"check=False, \n", "check=False)\n", unchecked)
    modes = [{"completion": "late"}, {"completion": "early"}, emulator_options(rng)]
    found = [_said(program, unchecked, "emulator", target, **mode) for mode in modes]
    is_reported = any(f.startswith("A") for f in found)
    evidence = f"{program.notes} for {target}: check {told or 'silent'}, emulator {found}"
    if bool(told) != is_reported:
        raise Finding("the check and the emulator disagree", evidence)
    if not program.notes["mistake"] and (is_reported or {*found} != {"right"}):
        raise Finding("a right ring is not", evidence)
    if not is_reported and len({*found}) > 1:
        raise Finding("the emulator tells nothing, and results differ", evidence)
    return "reported" if is_reported else found[0]


def _said(program: Program, text: str, device: str, target: str, **options: Any) -> str:
    """Return the code of a report, or whether the result is right; of `lower` empty or a code."""
    given = program.arguments()
    given[1][...] = 77
    try:
        with findings(device), contextlib.redirect_stdout(io.StringIO()):
            if device == "lower":
                kernel_of(text).lower(*given, target=target)
                return ""
            kernel_of(text).on(device, target=target, **options)(*given)
    except KernelError as error:
        return error.code
    return "right" if np.array_equal(given[1], given[0] + 1) else "wrong"
