"""Tests of commit and wait groups."""

from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.groups import GroupLedger


def owners(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def operation() -> SimpleNamespace:
    return SimpleNamespace(done=False)


def test_an_uncommitted_operation_is_never_due() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(2)
    ledger.issue(operation(), owners(0))
    assert ledger.due(owners(0), 0) == []


def test_waiting_for_all_but_one_group_leaves_the_youngest() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    first, second, third = operation(), operation(), operation()
    ledger.issue(first, owners(0))
    ledger.issue(second, owners(0))
    ledger.commit(owners(0))
    ledger.issue(third, owners(0))
    ledger.commit(owners(0))
    assert ledger.due(owners(0), 1) == [first, second]
    assert ledger.due(owners(0), 0) == [first, second, third]


def test_an_empty_group_counts() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    only = operation()
    ledger.issue(only, owners(0))
    ledger.commit(owners(0))
    ledger.commit(owners(0))
    assert ledger.due(owners(0), 1) == [only]


def test_owners_have_groups_of_their_own() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(3)
    shared = operation()
    ledger.issue(shared, owners(0, 2))
    ledger.commit(owners(0, 1))
    assert ledger.due(owners(1, 2), 0) == []
    assert ledger.due(owners(0), 0) == [shared]
    assert ledger.open_operations() == [shared]


def test_a_finished_operation_is_not_due_again() -> None:
    ledger: GroupLedger[SimpleNamespace] = GroupLedger(1)
    done = operation()
    ledger.issue(done, owners(0))
    ledger.commit(owners(0))
    done.done = True
    assert ledger.due(owners(0), 0) == []
