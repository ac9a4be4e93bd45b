"""Numbers of things in messages."""

from __future__ import annotations

import pytest

from astdsl.errors import in_words


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (1, "axis", "1 axis"),
        (2, "axis", "2 axes"),
        (0, "element", "0 elements"),
        (1, "element", "1 element"),
        (3, "index", "3 indices"),
    ],
)
def test_a_number_of_things_is_said_as_people_do(number: int, noun: str, words: str) -> None:
    assert in_words(number, noun) == words
