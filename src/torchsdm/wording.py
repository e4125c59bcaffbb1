"""How long texts are shortened for display."""

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
