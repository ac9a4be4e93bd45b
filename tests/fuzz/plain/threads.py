"""Warpgroups of the plain witness: threads of Python that take turns, and what they share.

Invariant: one thread runs at a time, until it waits for what has not come yet, or ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.plain import loops
from tests.fuzz.plain.memory import Ref
from tests.fuzz.plain.numbers import kind_of
from tests.fuzz.plain.tiles import STEPS


class Barrier:
    """Barriers by slot; each thread waits for completions in order."""

    def __init__(self, num_arrivals: int = 1, num_barriers: int = 1) -> None:
        self.needed, self.crew = num_arrivals, CREW[-1]
        self.arrived = [0] * num_barriers
        self.awaited: dict[tuple[int, int], int] = {}

    def __getitem__(self, slot: Any) -> Slot:
        return Slot(self, int(slot))


class Slot:
    """One barrier."""

    def __init__(self, barrier: Barrier, number: int) -> None:
        self.barrier, self.number = barrier, number

    def arrive(self) -> None:
        self.barrier.arrived[self.number] += 1

    def wait(self) -> None:
        whose = self.barrier.crew.turn, self.number
        wanted = self.barrier.awaited.get(whose, 0) + 1
        self.barrier.awaited[whose] = wanted
        needed = wanted * self.barrier.needed
        self.barrier.crew.wait(lambda: self.barrier.arrived[self.number] >= needed)


class Crew:
    """The warpgroups of a kernel."""

    def __init__(self, count: int) -> None:
        self.turn, self.blocked = 0, 0
        self.made: list[Any] = []
        self.counts = [0] * count
        self.turns = [threading.Semaphore(0) for _ in range(count)]
        self.running = list(range(count))
        self.failures: list[BaseException] = []

    def run(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run a kernel by every warpgroup."""
        threads = [
            threading.Thread(target=self._work, args=(number, kernel, arguments), daemon=True)
            for number in self.running
        ]
        for thread in threads:
            thread.start()
        self.turns[0].release()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _work(self, number: int, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.turns[number].acquire()
        try:
            with np.errstate(all="ignore"):
                if not self.failures:
                    kernel(*arguments)
        except BaseException as failure:  # noqa: BLE001 (it is raised where the crew is run)
            self.failures.append(failure)
        STEPS.clear()
        self.running.remove(number)
        self.blocked = 0
        if self.running:
            self._give(self.running[0])

    def _give(self, number: int) -> None:
        self.turn = number
        self.turns[number].release()

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Let others run until something has come."""
        while not is_ready():
            self.blocked += 1
            if self.failures or self.blocked > len(self.running):
                raise RuntimeError("every warpgroup waits")
            mine, steps = self.turn, list(STEPS)
            after = [n for n in self.running if n > mine] or self.running
            self._give(after[0])
            self.turns[mine].acquire()
            self.turn = mine
            STEPS[:] = steps
        self.blocked = 0

    def shared(self, make: Callable[[], Any]) -> Any:
        """Return what all warpgroups have: the first one that comes here makes it."""
        number = self.counts[self.turn]
        self.counts[self.turn] += 1
        if number == len(self.made):
            self.made.append(make())
        return self.made[number]


# The crew that runs.
CREW: list[Crew] = []


def run(count: int, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Run a kernel by so many warpgroups."""
    CREW[:] = [Crew(count)]
    CREW[0].run(kernel, arguments)


def smem(shape: tuple[int, ...], dtype: Any, transforms: Any = None) -> Ref:
    kind = kind_of(dtype)
    made: Ref = CREW[0].shared(lambda: Ref(np.zeros(shape, kind.numpy), kind))
    return made


def barrier(**options: int) -> Barrier:
    made: Barrier = CREW[0].shared(lambda: Barrier(**options))
    return made


def _slot(x: Any) -> Slot:
    return x if isinstance(x, Slot) else x[0]


def copied(source: Ref, target: Ref, full: Any = None) -> None:
    """Copy at once; elements outside are zeros, or are left out."""
    value = source.read()
    target[...] = value.filled(0)
    if full is not None:
        _slot(full).arrive()


class Anything:
    """What changes no result: a layout, or the warp that copies."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *arguments: Any) -> Anything:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def nd_loop(grid: Any, collective_axes: Any = None, **options: Any) -> loops.NDLoop:
    """Return the steps that this warpgroup has of a grid."""
    made = loops.NDLoop(grid, **options)
    if collective_axes is not None:
        made.deal(CREW[0].turn, len(CREW[0].counts))
    return made


FUNCTIONS: dict[str, Any] = {
    "nd_loop": nd_loop, "TilingTransform": Anything(), "SwizzleTransform": Anything(),
    "SMEM": smem, "Barrier": barrier, "copy_gmem_to_smem": copied, "copy_smem_to_gmem": copied,
    "barrier_arrive": lambda b: _slot(b).arrive(), "barrier_wait": lambda b: _slot(b).wait(),
    "warpgroup_id": lambda: CREW[0].turn, "commit_smem": lambda: None,
    "wait_smem_to_gmem": lambda *_, **__: None,
    "transpose_ref": lambda ref, order: ref.T,
    "layout_cast": lambda x, layout: x, "Layout": Anything(), "warp_id": Anything(),
}  # fmt: skip
