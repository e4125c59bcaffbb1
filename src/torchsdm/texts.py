"""Texts as they are shown to a person."""

from __future__ import annotations


def one_line(text: str, length: int) -> str:
    r"""A text on one line, at most so many characters long; one that was cut ends in an ellipsis.

    >>> one_line("A film\nto remember.", 10)
    'A film to…'
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
