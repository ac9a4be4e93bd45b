"""Work that was issued and has not happened yet: copies, products, commits.

Invariant: operations with the same `order` happen in issue order; every operation happens exactly
once, at issue ("early"), when nothing else can go on or someone waits for it ("late"), or at a
moment drawn from a seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.scalars import Array

_GIVE_UP = 0.25

Completion = Literal["late", "early"] | int


@dataclass(eq=False, slots=True)
class Operation:
    """One asynchronous operation of one executed instruction, for all lanes that issued it.

    `perform` applies its effects (data, completion of barriers). `order` names the queue that it
    must stay in order with, None = free. `issue` says what was issued by whom, for reports.
    `signals` = it completes a barrier, at one of `offsets` of shared memory; none = it is
    not known which. `blocks` are the blocks that must not end before the operation has happened,
    and somebody has waited for it if it is held; None = any may.
    """

    perform: Callable[[], None]
    issue: Issue
    order: Hashable = None
    blocks: Array | None = None
    signals: bool = False
    offsets: frozenset[int] = frozenset()
    done: bool = False

    @property
    def what(self) -> str:
        """Return what it is, for reports."""
        return self.issue.what


class Asynchronous:
    """The queue of pending operations of a machine, and the policy that completes them."""

    def __init__(self, completion: Completion) -> None:
        self.completion = completion
        self.pending: list[Operation] = []
        # Those that belong to groups, until they have been waited for.
        self.held: list[Operation] = []
        seed = completion if isinstance(completion, int) else 0
        self._random = random.Random(seed)  # noqa: S311 - schedules, not secrets

    def issue(self, operation: Operation) -> Operation:
        """Queue an operation; it happens now if the policy is "early"."""
        self.pending.append(operation)
        if self.completion == "early":
            self.complete(operation)
        return operation

    def hold(self, operation: Operation) -> Operation:
        """Queue an operation that somebody must wait for: `held` until nobody must any more."""
        self.held.append(operation)
        return self.issue(operation)

    def keep(self, operation: Operation, blocks: Array) -> None:
        """Hold an operation for these of its blocks; the others may end. With none it is free."""
        operation.blocks = blocks
        if not len(blocks):
            self.held.remove(operation)

    def complete(self, operation: Operation) -> None:
        """Make an operation happen, after those that it must follow; done ones are left alone."""
        if operation.done:
            return
        if operation.order is not None:
            for earlier in list(self.pending):
                if earlier is operation:
                    break
                if earlier.order == operation.order:
                    self._perform(earlier)
        self._perform(operation)

    def complete_one(self, awaited: Set[int] = frozenset()) -> bool:
        """Make one more operation happen, as nothing else can; false when there is none.

        `awaited` are the places of the barriers that somebody waits for.
        """
        if not self.pending:
            return False
        if isinstance(self.completion, int):
            self.complete(self._random.choice(self.pending))
        else:
            # Only what completes a barrier that is waited for can let someone go on; the rest stays
            # as late as it can.
            signalling = [o for o in self.pending if o.signals]
            wanted = [o for o in signalling if not o.offsets or o.offsets & awaited]
            self.complete((wanted or signalling or self.pending)[0])
        return True

    def tick(self) -> bool:
        """Maybe let an operation happen, at a scheduling point, under a seeded policy."""
        if not self.pending or not isinstance(self.completion, int):
            return False
        if self._random.random() < 0.5:
            return self.complete_one()
        return False

    def may_give_up(self) -> bool:
        """Say whether a wait that can end before what it waits for does so, under a seeded policy.

        PTX ISA 9.7.13.15.16: `try_wait` may return false after a time that the system chooses.
        """
        return isinstance(self.completion, int) and self._random.random() < _GIVE_UP

    def _perform(self, operation: Operation) -> None:
        if operation.done:
            return
        operation.done = True
        self.pending.remove(operation)
        operation.perform()
