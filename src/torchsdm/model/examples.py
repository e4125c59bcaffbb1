"""Ids and texts of points: the interface that a model uses, and versions in memory, in parts, and in a file.

A model knows only ``Examples``.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from torchsdm.errors import ModelFileError
from torchsdm.matching import HashIndex, IndexedRows, with_part
from torchsdm.model._sqlite import open_to_read
from torchsdm.model.directory import EXAMPLES_INDEX, EXAMPLES_TABLE
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


T = TypeVar("T")


class StoredExamples(Examples):
    """Ids and texts of points in an SQLite file, read one row at a time.

    The file stays open, so it can be read even after another model was saved in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = _open_read_only(path)

    def __len__(self) -> int:
        return self._length

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at the given positions."""
        query = "SELECT id, text FROM examples WHERE position = ?"
        wanted = [int(position) for position in positions]
        return self._checked([row for position in wanted for row in self._ask(query, position)], len(wanted))

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        rows = self._checked(self._ask("SELECT id, text FROM examples ORDER BY position"), len(self))
        return [row[0] for row in rows], [row[1] for row in rows]

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        """The positions of the given ids; None if unknown."""
        found = [self._ask("SELECT position FROM examples WHERE id = ?", name) for name in ids]
        return [int(rows[0][0]) if rows else None for rows in found]

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The last positions of the texts, None for an unknown text; the first question reads all texts once."""

        def is_equal(rows: Array, places: Array) -> list[bool]:
            there = self.rows(places.tolist())
            return [texts[row] == text for row, (_, text) in zip(rows.tolist(), there, strict=True)]

        found = self._texts.find(_hashes(texts, len(texts)), is_equal)
        return [found.get(row) for row in range(len(texts))]

    def largest_number(self) -> int:
        """The largest id that is a number; -1 if none is."""
        ((largest,),) = self._ask("SELECT max(id) FROM examples WHERE id < ''")  # SQLite has numbers before texts
        return -1 if largest is None else int(largest)

    @cached_property
    def _length(self) -> int:
        ((last,),) = self._ask("SELECT max(position) FROM examples")
        return 0 if last is None else int(last) + 1

    @cached_property
    def _texts(self) -> HashIndex:
        n, query = len(self), "SELECT text FROM examples ORDER BY position"
        return HashIndex(self._read(query, (), lambda rows: _hashes((text for (text,) in rows), n)))

    def _checked(self, rows: list[Any], n: int) -> list[tuple[Any, str | None]]:
        """The rows, which must be as many, with ids and texts that are such."""
        if len(rows) != n or not all(
            isinstance(name, str | int) and isinstance(text, str | None) for name, text in rows
        ):
            raise ModelFileError(
                f"{self.path} is damaged: some of its {len(self)} rows are missing or are no examples."
            )
        return rows

    def _ask(self, query: str, *values: Any) -> list[Any]:
        if not all(isinstance(value, (str, int)) for value in values):
            return []
        return self._read(query, values, list)

    def _read(self, query: str, values: tuple[Any, ...], take: Callable[[Iterable[Any]], T]) -> T:
        """What a function makes of the rows that a query gives, one at a time."""
        try:
            with self._lock:
                return take(self._connection.execute(query, values))
        except sqlite3.Error as error:
            raise ModelFileError(f"{self.path} is damaged and cannot be read: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]


def _hashes(texts: Iterable[str | None], n: int) -> Array:
    """Hashes of texts (n,); they hold in this process alone."""
    return np.fromiter(map(hash, texts), dtype=np.int64, count=n)


def _open_read_only(path: Path) -> sqlite3.Connection:
    try:
        connection = open_to_read(path, f"{EXAMPLES_TABLE}; {EXAMPLES_INDEX};")
        connection.execute("SELECT 1 FROM examples LIMIT 1")  # opens the file now, not at the first query
    except sqlite3.Error as error:
        raise ModelFileError(f"{path} is damaged or missing: {error}.") from error
    return connection
