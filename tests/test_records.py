"""Records behave as standard dataclasses."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from astdsl.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y


@dataclass(slots=True)
class Bag:
    things: list[int] = field(default_factory=list)
    size: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.size = len(self.things)


@dataclass(frozen=True)
class Base:
    name: str


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    rank: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Unique:
    x: int


def test_arguments_and_defaults_are_those_of_the_fields() -> None:
    assert (Point(1).x, Point(1).y, Point(1, y=5).total) == (1, 2, 6)
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_records_compare_hash_and_print_by_their_fields() -> None:
    assert Point(1) == Point(1, 2) != Point(2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert repr(Point(1)) == "Point(x=1, y=2)"


def test_a_frozen_record_refuses_changes() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]


def test_a_record_with_slots_has_no_other_attributes() -> None:
    bag = Bag([1, 2])
    assert bag.size == 2
    assert not hasattr(bag, "__dict__")
    assert Bag().things is not Bag().things


def test_a_changed_copy_is_made() -> None:
    assert replace(Point(1), y=7) == Point(1, 7)


def test_a_record_extends_another_before_either_has_an_instance() -> None:
    made = Derived("a", rank=3)
    assert (made.name, made.rank) == ("a", 3)
    assert [f.name for f in dataclasses.fields(made)] == ["name", "rank"]


def test_a_record_compared_by_identity_is_not_equal_to_its_twin() -> None:
    assert Unique(1) != Unique(1)


def test_a_match_takes_fields_by_position() -> None:
    subject: Any = Point(3, 4)
    match subject:
        case Point(x, y):
            assert (x, y) == (3, 4)


def test_a_frozen_record_with_slots_is_copied_and_pickled() -> None:
    point, kept = Point(1, 5), Unique(3)
    twin = copy.copy(point)
    assert twin == point
    assert twin is not point
    assert copy.deepcopy([kept])[0] is kept
    assert pickle.loads(pickle.dumps(point)) == point  # noqa: S301  (made just now)


@pytest.mark.parametrize("name", ["x", "other"])
def test_a_frozen_record_with_slots_says_that_it_does_not_change(name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"'{name}': a Point never changes"):
        setattr(Point(1), name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"'{name}'"):
        delattr(Point(1), name)
