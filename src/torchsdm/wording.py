"""Words as people read and write them: long texts shortened, things counted, slips of the keyboard recognised."""

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


def is_one_edit_away(a: str, b: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbouring letters makes b of a.

    Examples
    --------
    >>> is_one_edit_away("Wrold", "World"), is_one_edit_away("World", "Word"), is_one_edit_away("World", "World")
    (True, True, False)
    """
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x, y = a[first:], b[first:]  # they differ from their first letter on
    if len(x) != len(y):
        return x[1:] == y if len(x) > len(y) else x == y[1:]
    return x[1:] == y[1:] or (x[:2] == y[:2][::-1] and x[2:] == y[2:])


def counted(n: int, what: str) -> str:
    """A number of things.

    Examples
    --------
    >>> counted(1, "example"), counted(1200, "example")
    ('1 example', '1,200 examples')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"
