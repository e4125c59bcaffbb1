"""How long texts are shortened for display, and how things are counted."""

from __future__ import annotations


def shortened(text: str, length: int = 80) -> str:
    r"""A text on one line, cut to at most ``length`` characters.

    Examples
    --------
    >>> shortened("one  line,\nand another", 12)
    'one line, a…'
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def counted(n: int, what: str) -> str:
    """A number of things.

    Examples
    --------
    >>> counted(1, "example"), counted(1200, "example")
    ('1 example', '1,200 examples')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"
