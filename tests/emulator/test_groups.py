"""Tests of commit and wait groups."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.groups import GroupLedger


def owners(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def operation() -> SimpleNamespace:
    return SimpleNamespace(is_over=False)


def due(ledger: GroupLedger[SimpleNamespace], *values: int, keep: int = 0) -> list[Any]:
    """Return the operations that are due, each with those of its owners for which it is."""
    return [(each, mine.tolist()) for each, mine in ledger.due(owners(*values), keep)]


def test_an_uncommitted_operation_is_never_due() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(2)
    ledger.issue(operation(), owners(0))
    assert not due(ledger, 0)


def test_waiting_for_all_but_one_group_leaves_the_youngest() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    first, second, third = operation(), operation(), operation()
    ledger.issue(first, owners(0))
    ledger.issue(second, owners(0))
    ledger.commit(owners(0))
    ledger.issue(third, owners(0))
    ledger.commit(owners(0))
    assert due(ledger, 0, keep=1) == [(first, [True]), (second, [True])]
    assert due(ledger, 0) == [(each, [True]) for each in (first, second, third)]


def test_an_empty_group_counts() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    only = operation()
    ledger.issue(only, owners(0))
    ledger.commit(owners(0))
    ledger.commit(owners(0))
    assert due(ledger, 0, keep=1) == [(only, [True])]


def test_owners_have_groups_of_their_own() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(3)
    shared = operation()
    ledger.issue(shared, owners(0, 2))
    ledger.commit(owners(0, 1))
    assert not due(ledger, 1)
    assert not due(ledger, 2)
    assert due(ledger, 0, 2) == [(shared, [True, False])]
    ledger.commit(owners(2))
    assert due(ledger, 0, 2) == [(shared, [True, True])]


def test_what_all_have_waited_for_is_not_due_again() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    over = operation()
    ledger.issue(over, owners(0))
    ledger.commit(owners(0))
    assert due(ledger, 0) == due(ledger, 0) == [(over, [True])]
    over.is_over = True
    assert not due(ledger, 0)


def test_the_operations_of_an_owner_are_known_before_it_commits_them() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(3)
    first, second = operation(), operation()
    ledger.issue(first, owners(0, 1))
    ledger.commit(owners(0))
    ledger.issue(second, owners(1, 2))
    found = ledger.of(owners(0, 1))
    assert [(each, mine.tolist()) for each, mine in found] == [
        (first, [True, True]),
        (second, [True, False]),
    ]
    assert not ledger.of(owners())
