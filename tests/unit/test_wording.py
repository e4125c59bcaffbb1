"""What a person is shown of long texts."""

from __future__ import annotations

from torchsdm.wording import shortened


def test_long_texts_are_shortened_to_one_line():
    assert shortened("a\n b   c") == "a b c"
    assert shortened("x" * 100, 100) == "x" * 100
    assert shortened("x" * 101, 100) == "x" * 99 + "…"
    assert len(shortened("x" * 101)) == 80
