"""What threads know of each other, and every access of memory that a later one may race with.

What `causality.py` reckons with. It is written apart from `astdsl.emulator.clocks` and `races`, and
differs from them: it knows of threads, not of warps; each asynchronous operation is an actor of its
own; all accesses since the last write of a word count, not the last one alone; and where something
is not clear it counts as not ordered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
WARP = 32
ALWAYS = 1 << 30
# Up to when the accesses of each thread are ordered before something: those of threads, those of
# the async proxy, and those of tensor memory where fences order them; and when it has happened.
DATA, PROXY, TENSOR, CAUSE = range(4)


class Known(NamedTuple):
    """What is ordered before something, or has caused it.

    `times` are by kind, and by thread of the cluster. `done` says of asynchronous parts, as bits,
    that they are ordered before it, and `over` that they have happened.
    """

    times: Array
    done: int
    over: int

    def knows(self, other: Known) -> bool:
        """Say whether all that has caused the other has happened before."""
        caused = (self.times[CAUSE] >= other.times[CAUSE]).all()
        return bool(caused) and self.over & other.over == other.over

    def caused(self) -> Known:
        """Return the same as that which has happened, and is no more ordered than that."""
        times = np.zeros_like(self.times)
        times[CAUSE] = self.times[CAUSE]
        return Known(times, 0, self.over)


def nothing(n_threads: int) -> Known:
    """Return what is known at the start."""
    return Known(np.zeros((4, n_threads), np.int32), 0, 0)


def join(a: Known, b: Known) -> Known:
    """Return what is ordered before either of two things."""
    return Known(np.maximum(a.times, b.times), a.done | b.done, a.over | b.over)


class Threads:
    """What each thread of a machine knows; `now` counts its accesses and signals.

    Threads are numbered through all blocks; `n` threads of a cluster follow each other, and know
    of no others.
    """

    def __init__(self, n_threads: int, n: int) -> None:
        self.n, self.now = n, 0
        self.times = np.zeros((4, n_threads, n), np.int32)
        every = np.arange(n_threads)
        for kind in (DATA, CAUSE):
            self.times[kind, every, every % n] = ALWAYS
        self.done, self.over = [0] * n_threads, [0] * n_threads
        # What its last tcgen05.fence::after_thread_sync has let each thread rely on.
        self.fenced = np.zeros((n_threads, n), np.int32)
        self.fenced[every, every % n] = ALWAYS
        self.fenced_done = [0] * n_threads

    def tick(self) -> int:
        """Begin the next moment."""
        self.now += 1
        return self.now

    def past(self, threads: Array) -> Known:
        """Return what any of the threads knows or has done up to now."""
        times = self.times[:, threads].max(axis=1)
        times[DATA, threads % self.n] = times[CAUSE, threads % self.n] = self.now
        done = over = 0
        for thread in threads.tolist():
            done, over = done | self.done[thread], over | self.over[thread]
        return Known(times, done, over)

    def common(self, threads: Array, *, fenced: bool = False) -> Known:
        """Return what all of the threads know; `fenced`, of tensor memory behind their fences."""
        times = self.times[:, threads].min(axis=1)
        if fenced:
            times[DATA] = self.fenced[threads].min(axis=0)
        done, over = -1, -1
        for thread in threads.tolist():
            done &= self.fenced_done[thread] if fenced else self.done[thread]
            over &= self.over[thread]
        return Known(times, done, over)

    def learn(self, threads: Array, known: Known) -> None:
        """Let threads know something."""
        self.times[:, threads] = np.maximum(self.times[:, threads], known.times[:, None])
        for thread in threads.tolist():
            self.over[thread] |= known.over
            self.done[thread] |= known.done

    def fence_proxy(self, threads: Array) -> None:
        """Run fence.proxy.async: what threads know of and did is shown to the async proxy."""
        proxy, data = self.times[PROXY], self.times[DATA]
        proxy[threads] = np.maximum(proxy[threads], data[threads])
        proxy[threads, threads % self.n] = self.now

    def fence_tensor(self, threads: Array, *, after: bool) -> None:
        """Run tcgen05.fence: what threads have learnt counts from here on, or what they did."""
        if not after:
            self.times[TENSOR, threads, threads % self.n] = self.now
            return
        self.fenced[threads] = self.times[TENSOR, threads]
        self.fenced[threads, threads % self.n] = ALWAYS
        for thread in threads.tolist():
            self.fenced_done[thread] = self.done[thread]


class History:
    """The accesses of each word by each warp: when the last of a kind was, and by which lanes.

    The shape is rows, words of each, and warps of a cluster, which alone come to its memory.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._kinds: dict[str, tuple[Array, Array]] = {}

    def _of(self, kind: str) -> tuple[Array, Array]:
        if kind not in self._kinds:
            self._kinds[kind] = np.zeros(self._shape, np.int32), np.zeros(self._shape, np.uint32)
        return self._kinds[kind]

    def is_late(self, kind: str, rows: Array, words: Array, known: Array, who: Array) -> bool:
        """Say whether an access of a kind, to words [n, k] of n rows, is not known of.

        The row `who[i]` of `known` is what the i-th knows, by thread.
        """
        if kind not in self._kinds:
            return False
        times, masks = self._kinds[kind]
        found = times[rows[:, None], words]
        if not found.any():
            return False
        mine = known[who].reshape(len(rows), -1, WARP)
        late = found > mine.min(axis=2)[:, None, :]
        if not late.any():
            return False
        at, word, warp = np.nonzero(late)
        lanes = masks[rows[at], words[at, word], warp][:, None] >> np.arange(WARP) & 1 > 0
        return bool((lanes & (found[late][:, None] > mine[at, warp])).any())

    def note(self, kind: str, rows: Array, words: Array, threads: Array, now: int) -> None:
        """Note an access of a kind to words [n, k] by n threads, numbered through all blocks."""
        times, masks = self._of(kind)
        own = threads % (self._shape[2] * WARP)
        place = rows[:, None], words, (own // WARP)[:, None]
        times[place] = now
        np.bitwise_or.at(masks, place, (1 << (own % WARP))[:, None].astype(np.uint32))

    def clear(self, rows: Array, words: Array) -> None:
        """Forget accesses: something that is ordered after them all has written the words."""
        for times, masks in self._kinds.values():
            times[rows[:, None], words] = masks[rows[:, None], words] = 0
