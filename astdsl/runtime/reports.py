"""The log of a launch: what blocks said while they ran, put together from what threads wrote.

Invariant: threads write their records in the order of the program, so that the n-th records of a
report, block and value from all threads are one value of one execution.
Source: the layout of the log is in `ir.launch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from astdsl.ir.dtypes import u32
from astdsl.ir.launch import (
    ELEMENT_WORDS,
    LOG_HEAD_WORDS,
    NO_ELEMENT,
    RECORD_HEAD_WORDS,
    Report,
)
from astdsl.ir.printing import failed_assertion, printed
from astdsl.records import dataclass, field
from astdsl.runtime.arrays import Where
from astdsl.runtime.classes import Geometry
from astdsl.runtime.launch import Argument
from astdsl.runtime.scratch import NOT_PASSED
from astdsl.source import NOWHERE

LOG_WORDS = 4 << 20
LOST = "... and more, which did not fit into the log of 16 MiB\n"

Words = np.ndarray[Any, np.dtype[np.uint32]]


def log_argument() -> Argument:
    """Return the log as one more argument of the kernel."""
    geometry = Geometry((LOG_WORDS,), (1,), u32, 16)
    return Argument(Where("log", NOWHERE), NOT_PASSED, "inout", u32, geometry)


def head_of_log() -> Words:
    """Return the words that a new log begins with; all others are 0."""
    return np.array([LOG_HEAD_WORDS, LOG_WORDS], np.uint32)


def new_log() -> Words:
    """Return an empty log in memory of the host."""
    log = np.zeros(LOG_WORDS, np.uint32)
    log[:LOG_HEAD_WORDS] = head_of_log()
    return log


def deliver(log: Words, reports: Sequence[Report]) -> None:
    """Print what a launch said, and empty the log. Raises DeviceError for a failed assertion."""
    taken = int(log[0])
    written = log[: min(taken, LOG_WORDS)].copy()
    log[:taken] = 0
    log[:LOG_HEAD_WORDS] = head_of_log()
    failed = None
    for each in _said(written):
        report = reports[each.report]
        if report.is_assertion:
            told = printed(report.pieces, list(each.arrays(report)))
            failed = failed or failed_assertion(told, report.span, each.block)
        else:
            sys.stdout.write(printed(report.pieces, list(each.arrays(report))))
    if taken > LOG_WORDS:
        sys.stdout.write(LOST)
    if failed is not None:
        raise failed


@dataclass(slots=True)
class _Said:
    """One execution of a report by one block: records by value; `place` orders them."""

    report: int
    block: int
    place: int
    records: dict[int, list[Words]] = field(default_factory=dict)

    def arrays(self, report: Report) -> Iterator[Any]:
        """Yield the values as NumPy arrays and scalars."""
        for number, (shape, dtype) in enumerate(report.values):
            bits = np.zeros(int(np.prod(shape)), np.uint64)
            for record in self.records.get(number, ()):
                elements = record.reshape(-1, ELEMENT_WORDS)
                inside = elements[elements[:, 0] != NO_ELEMENT]
                high = inside[:, 2].astype(np.uint64) << np.uint64(32)
                bits[inside[:, 0]] = inside[:, 1] | high
            kept = bits.view(np.uint8).reshape(-1, 8)[:, : dtype.numpy.itemsize]
            yield np.ascontiguousarray(kept).view(dtype.numpy).reshape(shape)[()]


def _said(log: Words) -> list[_Said]:
    """Return what was said, of each block in the order of its program."""
    counts: dict[tuple[int, ...], int] = {}
    found: dict[tuple[int, ...], _Said] = {}
    for place, record in _records(log):
        report, value, block, crew, thread = map(int, record[1:RECORD_HEAD_WORDS])
        key = (report, block, crew, thread, value)
        turn = counts[key] = counts.get(key, -1) + 1
        said = found.setdefault((report, block, crew, turn), _Said(report, block, place))
        if thread == 0 and value == 0:
            # Other threads may be ahead or behind; this one says the order.
            said.place = place
        said.records.setdefault(value, []).append(record[RECORD_HEAD_WORDS:])
    return sorted(found.values(), key=lambda said: said.place)


def _records(log: Words) -> Iterator[tuple[int, Words]]:
    """Yield the records that are there, with their places."""
    place = LOG_HEAD_WORDS
    while place < len(log) and log[place]:
        length = int(log[place])
        yield place, log[place : place + length]
        place += length
