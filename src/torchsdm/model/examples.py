"""Ids and texts of points: the interface that a model uses, a version in memory, and one in parts.

A model knows only ``Examples``; ``stored_examples`` has another version, which stays in the file it was saved to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from torch import Tensor

from torchsdm.matching import IndexedRows, with_part
from torchsdm.validation import Array, as_list


class Examples(ABC):
    """Ids and texts of points, by position. Never changed, so that copies of a model may share them."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""

    @abstractmethod
    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""

    @abstractmethod
    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""

    @abstractmethod
    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The last positions of the texts, None for an unknown text."""

    @abstractmethod
    def largest_number(self) -> int:
        """The largest id that is a number; -1 if none is."""

    def ids(self) -> list[Any]:
        """All ids."""
        return self.all()[0]

    def take(self, positions: Sequence[int]) -> ListedExamples:
        """Some of the examples, in the order of the positions."""
        rows = self.rows(positions)
        return ListedExamples([name for name, _ in rows], [text for _, text in rows])

    def with_added(self, more: Examples) -> Examples:
        """These examples and more, without a copy of these unless they are few."""
        return PartedExamples(with_part(self.parts(), more, _joined)) if len(more) else self

    def without(self, positions: set[int]) -> Examples:
        """These examples without some."""
        return self.take([p for p in range(len(self)) if p not in positions])

    def parts(self) -> tuple[Examples, ...]:
        """The parts they are in, one after the other."""
        return (self,)


class ListedExamples(Examples):
    """Examples in memory; what finds them is built at the first question and kept."""

    def __init__(self, ids: Sequence[Any] | Array, texts: Sequence[str | None] | Array | None = None) -> None:
        self._ids: list[Any] = as_list(ids, "ids", "ListedExamples")
        self._texts: list[str | None] = (
            [None] * len(self._ids) if texts is None else as_list(texts, "texts", "ListedExamples")
        )

    def __len__(self) -> int:
        return len(self._ids)

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""
        return [(self._ids[p], self._texts[p]) for p in positions]

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        return self._ids, self._texts

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""
        return [self._place.get(name) for name in ids]

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The last positions of the texts, None for an unknown text."""
        return [self._place_of_text.get(text) for text in texts]

    def largest_number(self) -> int:
        """The largest id that is a number; -1 if none is."""
        return self._largest_number

    @cached_property
    def _place(self) -> dict[Any, int]:
        return {name: position for position, name in enumerate(self._ids)}

    @cached_property
    def _place_of_text(self) -> dict[str | None, int]:
        return {text: position for position, text in enumerate(self._texts) if text is not None}

    @cached_property
    def _largest_number(self) -> int:
        return max((name for name in self._ids if isinstance(name, int)), default=-1)


class PartedExamples(Examples):
    """Examples in parts, one after the other; parts are shared with whoever has fewer or more of them."""

    def __init__(self, parts: Sequence[Examples]) -> None:
        self._parts = tuple(parts)
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""
        found = []
        for position in positions:
            number = bisect_right(self._starts, position) - 1
            found += self._parts[number].rows([position - self._starts[number]])
        return found

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        return _joined(self._parts).all()

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""
        return self._last([part.positions(ids) for part in self._parts], len(ids))

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The last positions of the texts, None for an unknown text."""
        return self._last([part.positions_of_texts(texts) for part in self._parts], len(texts))

    def largest_number(self) -> int:
        """The largest id that is a number; -1 if none is."""
        return max(part.largest_number() for part in self._parts)

    def without(self, positions: set[int]) -> Examples:
        """These examples without some; parts that lose none are kept."""
        gone: list[set[int]] = [set() for _ in self._parts]
        for position in positions:
            number = bisect_right(self._starts, position) - 1
            gone[number].add(position - self._starts[number])
        left = [part.without(some) if some else part for part, some in zip(self._parts, gone, strict=True)]
        return PartedExamples([part for part in left if len(part)])

    def parts(self) -> tuple[Examples, ...]:
        """The parts they are in, one after the other."""
        return self._parts

    def _last(self, places: list[list[int | None]], n: int) -> list[int | None]:
        """The last place of each of n things, of its places in the parts."""
        last: list[int | None] = [None] * n
        for start, of_part in zip(self._starts, places, strict=False):
            last = [before if place is None else start + place for before, place in zip(last, of_part, strict=True)]
        return last


def _joined(parts: Sequence[Examples]) -> ListedExamples:
    """Parts in one list."""
    ids, texts = zip(*(part.all() for part in parts), strict=True)
    return ListedExamples([name for one in ids for name in one], [text for one in texts for text in one])


Set = tuple[Tensor | IndexedRows, Examples]
"""Rows (N, ...), states or exemplars, and the ids and texts of their points."""


def same_points(points: Set, known: Set, *, by_text: bool) -> dict[int, int]:
    """Positions of points that are among the known ones, each with a position there.

    A point is the same if its row is, as float32, or ``by_text`` its text. The text counts for states that were made
    from texts: their last bits depend on the batch.
    """
    same = IndexedRows.of(known[0]).find(IndexedRows.of(points[0]))
    if by_text:
        texts = {row: text for row, text in enumerate(points[1].all()[1]) if text is not None}
        places = known[1].positions_of_texts(list(texts.values()))
        same |= {row: place for row, place in zip(texts, places, strict=True) if place is not None}
    return same
