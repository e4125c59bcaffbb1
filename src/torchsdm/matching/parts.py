"""What grows is kept in parts, so that adding costs what is added and does not copy what is there.

Parts are never written to: whoever holds an older state keeps seeing it, also from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TypeVar

PartType = TypeVar("PartType", bound=Sized)


def with_part(
    parts: Sequence[PartType], new: PartType, join: Callable[[Sequence[PartType]], PartType]
) -> tuple[PartType, ...]:
    """The parts and a new one, with which the last of them are joined while they are at most twice as large.

    So each part is more than twice as large as the next, and n elements have at most log2(n) + 1 parts. Joining makes
    an element's part half as large again or more, so an element is copied log(n) / log(1.5) times at most.

    Examples
    --------
    >>> with_part(["ninety-nine ", "red "], "balloons ", "".join)
    ('ninety-nine red balloons ',)
    >>> with_part(["ninety-nine red balloons ", "go "], "by", "".join)
    ('ninety-nine red balloons ', 'go by')
    """
    first, n = len(parts), len(new)
    while first > 0 and len(parts[first - 1]) <= 2 * n:
        first -= 1
        n += len(parts[first])
    return (*parts[:first], new if first == len(parts) else join([*parts[first:], new]))
