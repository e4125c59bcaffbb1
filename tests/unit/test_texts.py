"""Texts as they are shown."""

from __future__ import annotations

from torchsdm.texts import one_line


def test_a_text_is_shown_on_one_line_and_cut_where_it_is_too_long():
    assert one_line("a\n b   c", 100) == "a b c"
    assert one_line("x" * 100, 100) == "x" * 100
    assert one_line("x" * 101, 100) == "x" * 99 + "…"
