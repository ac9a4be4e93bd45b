"""Vector clocks of single threads, and every access of memory that a later one may race with.

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


class Known(NamedTuple):
    """What is ordered before something, or has caused it.

    `data` and `proxy` are times by thread of the cluster: up to which its accesses are ordered
    before what follows here, of threads and of the async proxy; `cause` those up to which they have
    happened at all.
    `done` and `over` say the same of asynchronous parts, as bits: ordered, and happened.
    """

    data: Array
    proxy: Array
    cause: Array
    done: int
    over: int

    def knows(self, other: Known) -> bool:
        """Say whether all that has caused the other has happened before."""
        return bool((self.cause >= other.cause).all()) and self.over & other.over == other.over


def nothing(n_threads: int) -> Known:
    """Return what is known at the start."""
    data, proxy, cause = (np.zeros(n_threads, np.int32) for _ in range(3))
    return Known(data, proxy, cause, 0, 0)


def join(a: Known, b: Known, *, relaxed: bool = False) -> Known:
    """Return what both know; of a relaxed `b`, that it has happened and no more."""
    cause, over = np.maximum(a.cause, b.cause), a.over | b.over
    if relaxed:
        return a._replace(cause=cause, over=over)
    data, proxy = np.maximum(a.data, b.data), np.maximum(a.proxy, b.proxy)
    return Known(data, proxy, cause, a.done | b.done, over)


class Threads:
    """What each thread of a machine knows; `now` counts its accesses and signals.

    Threads are numbered through all blocks; `n` threads of a cluster follow each other, and know
    of no others.
    """

    def __init__(self, n_threads: int, n: int) -> None:
        self.n, self.now = n, 0
        self.data, self.proxy, self.cause = (np.zeros((n_threads, n), np.int32) for _ in range(3))
        every = np.arange(n_threads)
        for known in (self.data, self.cause):
            known[every, every % n] = ALWAYS
        self.done, self.over = [0] * n_threads, [0] * n_threads

    def tick(self) -> int:
        """Begin the next moment."""
        self.now += 1
        return self.now

    def past(self, threads: Array) -> Known:
        """Return what any of the threads knows or has done up to now."""
        data, proxy, cause = (
            known[threads].max(axis=0) for known in (self.data, self.proxy, self.cause)
        )
        data[threads % self.n] = cause[threads % self.n] = self.now
        done = over = 0
        for thread in threads.tolist():
            done, over = done | self.done[thread], over | self.over[thread]
        return Known(data, proxy, cause, done, over)

    def common(self, threads: Array) -> Known:
        """Return what all of the threads know."""
        data, proxy, cause = (
            known[threads].min(axis=0) for known in (self.data, self.proxy, self.cause)
        )
        done = over = -1
        for thread in threads.tolist():
            done, over = done & self.done[thread], over & self.over[thread]
        return Known(data, proxy, cause, done, over)

    def learn(self, threads: Array, known: Known, *, relaxed: bool = False) -> None:
        """Let threads know something."""
        self.cause[threads] = np.maximum(self.cause[threads], known.cause)
        if not relaxed:
            self.data[threads] = np.maximum(self.data[threads], known.data)
            self.proxy[threads] = np.maximum(self.proxy[threads], known.proxy)
        for thread in threads.tolist():
            self.over[thread] |= known.over
            self.done[thread] |= 0 if relaxed else known.done

    def fence(self, threads: Array) -> None:
        """Run fence.proxy.async: what threads know of and did is shown to the async proxy."""
        self.proxy[threads] = np.maximum(self.proxy[threads], self.data[threads])
        self.proxy[threads, threads % self.n] = self.now


class History:
    """The accesses of each word by each warp: when the last of a kind was, and by which lanes.

    The shape is blocks, words of each, and warps of a cluster, which alone come to its memory.
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
