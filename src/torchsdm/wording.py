"""Words for people: long texts are shortened, and slips of the pen recognised."""

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
    """Whether one character inserted, deleted or changed turns one text into the other.

    Examples
    --------
    >>> is_one_edit_away("sport", "sports"), is_one_edit_away("sport", "Sport"), is_one_edit_away("sport", "short news")
    (True, True, False)
    """
    shorter, longer = sorted((a, b), key=len)
    if a == b or len(longer) - len(shorter) > 1:
        return False
    same = next((i for i, (x, y) in enumerate(zip(shorter, longer, strict=False)) if x != y), len(shorter))
    rest = same + (len(shorter) == len(longer))  # a change skips a character of both, an insertion one of the longer
    return shorter[rest:] == longer[same + 1 :]
