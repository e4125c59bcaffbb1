"""What a person is shown of long texts, and how a slip of the keyboard is recognised."""

from __future__ import annotations

import itertools

import pytest

from torchsdm.wording import is_one_edit_away, shortened


def test_long_texts_are_shortened_to_one_line():
    assert shortened("a\n b   c") == "a b c"
    assert shortened("x" * 100, 100) == "x" * 100
    assert shortened("x" * 101, 100) == "x" * 99 + "…"
    assert len(shortened("x" * 101)) == 80


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Wrold", "World"),
        ("World", "Worlds"),
        ("World", "orld"),
        ("World", "Wor1d"),
        ("ab", "ba"),
        ("a", ""),
        ("aab", "ab"),
        ("abcd", "abdc"),
    ],
)
def test_one_edit(a, b):
    assert is_one_edit_away(a, b) and is_one_edit_away(b, a)


@pytest.mark.parametrize(
    ("a", "b"), [("abc", "abc"), ("", ""), ("abcd", "badc"), ("abc", "cba"), ("a", "abc"), ("ab", "cd")]
)
def test_none_or_two_edits(a, b):
    assert not is_one_edit_away(a, b) and not is_one_edit_away(b, a)


def test_one_edit_is_what_making_every_edit_finds():
    letters = "ab"
    words = ["".join(word) for n in range(5) for word in itertools.product(letters, repeat=n)]
    for a in words:
        places, cuts = range(len(a)), range(len(a) + 1)
        made = {a[:i] + a[i + 1 :] for i in places} | {a[:i] + x + a[i:] for i in cuts for x in letters}
        made |= {a[:i] + x + a[i + 1 :] for i in places for x in letters}
        made |= {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1)}
        assert {b for b in words if is_one_edit_away(a, b)} == made & set(words) - {a}
