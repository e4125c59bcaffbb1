"""Ids and texts of points: the interface that a model uses, and a version in memory.

A model knows only ``Examples``; ``storage`` has another version, which stays in the file it was saved to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torchsdm.validation import Array, as_list


class Examples(ABC):
    """Ids and texts of points, by position."""

    @abstractmethod
    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""

    @abstractmethod
    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""

    @abstractmethod
    def positions(self, ids: Iterable[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""

    def ids(self) -> list[Any]:
        """All ids."""
        return self.all()[0]

    def take(self, positions: Sequence[int]) -> ListedExamples:
        """Some of the examples, in the order of the positions."""
        rows = self.rows(positions)
        return ListedExamples([name for name, _ in rows], [text for _, text in rows])

    def with_added(self, more: Examples) -> ListedExamples:
        """These examples and more."""
        (ids, texts), (new_ids, new_texts) = self.all(), more.all()
        return ListedExamples([*ids, *new_ids], [*texts, *new_texts])

    def without(self, positions: set[int]) -> ListedExamples:
        """These examples without some."""
        return self.take([p for p in range(len(self.ids())) if p not in positions])


class ListedExamples(Examples):
    """Examples in memory."""

    def __init__(self, ids: Sequence[Any] | Array, texts: Sequence[str | None] | Array | None = None) -> None:
        self._ids: list[Any] = as_list(ids, "ids", "ListedExamples")
        self._texts: list[str | None] = (
            [None] * len(self._ids) if texts is None else as_list(texts, "texts", "ListedExamples")
        )

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""
        return [(self._ids[p], self._texts[p]) for p in positions]

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        return self._ids, self._texts

    def positions(self, ids: Iterable[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""
        place = {name: position for position, name in enumerate(self._ids)}
        return [place.get(name) for name in ids]
