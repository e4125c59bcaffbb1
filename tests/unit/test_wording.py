"""What a person is shown of long texts, and what looks like a slip of the pen."""

from __future__ import annotations

import pytest

from torchsdm.wording import is_one_edit_away, shortened


def test_long_texts_are_shortened_to_one_line():
    assert shortened("a\n b   c") == "a b c"
    assert shortened("x" * 100, 100) == "x" * 100
    assert shortened("x" * 101, 100) == "x" * 99 + "…"
    assert len(shortened("x" * 101)) == 80


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("sport", "sports", True),
        ("sport", "xsport", True),
        ("sport", "spoort", True),
        ("sport", "spirt", True),
        ("sport", "sport", False),
        ("sport", "sprot", False),
        ("sport", "sporting", False),
        ("aab", "abb", True),
        ("abc", "cab", False),
        ("", "a", True),
        ("", "", False),
    ],
)
def test_one_edit_is_one_character_more_less_or_other(a, b, expected):
    assert is_one_edit_away(a, b) is is_one_edit_away(b, a) is expected
