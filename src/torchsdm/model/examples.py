"""Ids and texts of points, in memory and in files, and whether points are known already."""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from torchsdm.errors import ModelFileError
from torchsdm.matching import HashIndex, IndexedRows, with_part
from torchsdm.model._sqlite import open_checked
from torchsdm.model.directory import EXAMPLES_INDEX, EXAMPLES_TABLE
from torchsdm.validation import Array, as_list


class Examples:
    """Ids and texts of points, by position, in parts one after the other.

    Never changed: copies of a model, and whoever has fewer or more of the examples, share the parts.
    """

    def __init__(self, parts: Sequence[_Listed | _Stored]) -> None:
        self.parts = tuple(parts)
        self._starts = list(accumulate(map(len, parts), initial=0))

    @classmethod
    def of(cls, ids: Sequence[Any] | Array, texts: Sequence[str | None] | Array | None = None) -> Examples:
        """Examples in memory."""
        names = as_list(ids, "ids", "Examples")
        return cls([_Listed(names, [None] * len(names) if texts is None else as_list(texts, "texts", "Examples"))])

    @classmethod
    def stored(cls, path: Path) -> Examples:
        """Examples in an SQLite file, which stays open: it can be read even after another was put in its place."""
        return cls([_Stored(path)])

    def __len__(self) -> int:
        return self._starts[-1]

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""
        found = []
        for position in positions:
            number = bisect_right(self._starts, position) - 1
            found.append(self.parts[number].row(position - self._starts[number]))
        return found

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        every = [part.all() for part in self.parts]
        return [name for ids, _ in every for name in ids], [text for _, texts in every for text in texts]

    def ids(self) -> list[Any]:
        """All ids."""
        return self.all()[0]

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        """The positions of the ids, None for an unknown id."""
        return self._last([part.positions(ids) for part in self.parts], len(ids))

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The last positions of the texts, None for an unknown text."""
        return self._last([part.positions_of_texts(texts) for part in self.parts], len(texts))

    def _last(self, places: list[list[int | None]], n: int) -> list[int | None]:
        """The last place of each of n things, of its places in the parts."""
        last: list[int | None] = [None] * n
        for start, of_part in zip(self._starts, places, strict=False):
            last = [before if place is None else start + place for before, place in zip(last, of_part, strict=True)]
        return last

    def largest_number(self) -> int:
        """The largest id that is a number; -1 if none is."""
        return max(part.largest_number for part in self.parts)

    def take(self, positions: Sequence[int]) -> Examples:
        """Some of the examples, in the order of the positions."""
        rows = self.rows(positions)
        return Examples.of([name for name, _ in rows], [text for _, text in rows])

    def with_added(self, more: Examples) -> Examples:
        """These examples and more, without a copy of these unless they are few."""
        return Examples(with_part(self.parts, _joined(more.parts), _joined)) if len(more) else self

    def without(self, positions: set[int]) -> Examples:
        """These examples without some; parts that lose none are kept."""
        left: list[_Listed | _Stored] = []
        for start, part in zip(self._starts, self.parts, strict=False):
            gone = {position - start for position in positions if 0 <= position - start < len(part)}
            if gone:
                ids, texts = ([one for p, one in enumerate(column) if p not in gone] for column in part.all())
                part = _Listed(ids, texts)
            left += [part] if len(part) else []
        return Examples(left)


class _Listed:
    """A part in memory; what finds its examples is built at the first question and kept."""

    def __init__(self, ids: list[Any], texts: list[str | None]) -> None:
        self._ids, self._texts = ids, texts

    def __len__(self) -> int:
        return len(self._ids)

    def row(self, position: int) -> tuple[Any, str | None]:
        return self._ids[position], self._texts[position]

    def all(self) -> tuple[list[Any], list[str | None]]:
        return self._ids, self._texts

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        return [self._place.get(name) for name in ids]

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        return [self._place_of_text.get(text) for text in texts]

    @cached_property
    def _place(self) -> dict[Any, int]:
        return {name: position for position, name in enumerate(self._ids)}

    @cached_property
    def _place_of_text(self) -> dict[str | None, int]:
        return {text: position for position, text in enumerate(self._texts) if text is not None}

    @cached_property
    def largest_number(self) -> int:
        return max((name for name in self._ids if isinstance(name, int)), default=-1)


class _Stored:
    """A part in an SQLite file, read one row at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        try:
            self._connection = open_checked(path, f"{EXAMPLES_TABLE}; {EXAMPLES_INDEX};")
            ((last,),) = self._connection.execute("SELECT max(position) FROM examples")
        except sqlite3.Error as error:
            raise ModelFileError(f"{path} is damaged or missing: {error}.") from error
        self._length = 0 if last is None else int(last) + 1

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def __len__(self) -> int:
        return self._length

    def row(self, position: int) -> tuple[Any, str | None]:
        rows = self._read("SELECT id, text FROM examples WHERE position = ?", int(position))
        return self._checked(rows, 1)[0]

    def all(self) -> tuple[list[Any], list[str | None]]:
        rows = self._checked(self._read("SELECT id, text FROM examples ORDER BY position"), len(self))
        return [row[0] for row in rows], [row[1] for row in rows]

    def positions(self, ids: Sequence[Any]) -> list[int | None]:
        query = "SELECT position FROM examples WHERE id = ?"
        found = [self._read(query, name) if isinstance(name, str | int) else [] for name in ids]
        return [int(rows[0][0]) if rows else None for rows in found]

    def positions_of_texts(self, texts: Sequence[str]) -> list[int | None]:
        """The first question reads all texts once."""

        def is_equal(rows: Array, places: Array) -> list[bool]:
            pairs = zip(rows.tolist(), places.tolist(), strict=True)
            return [texts[row] == self.row(place)[1] for row, place in pairs]

        found = self._texts.find(_hashes(texts, len(texts)), is_equal)
        return [found.get(row) for row in range(len(texts))]

    @property
    def largest_number(self) -> int:
        ((largest,),) = self._read("SELECT max(id) FROM examples WHERE id < ''")  # SQLite has numbers before texts
        return -1 if largest is None else int(largest)

    @cached_property
    def _texts(self) -> HashIndex:
        query = "SELECT text FROM examples ORDER BY position"
        return HashIndex(self._read(query, take=lambda rows: _hashes((text for (text,) in rows), len(self))))

    def _checked(self, rows: list[Any], n: int) -> list[tuple[Any, str | None]]:
        """The rows, which must be as many, with ids and texts that are such."""
        if len(rows) != n or not all(
            isinstance(name, str | int) and isinstance(text, str | None) for name, text in rows
        ):
            raise ModelFileError(
                f"{self.path} is damaged: some of its {len(self)} rows are missing or are no examples."
            )
        return rows

    def _read(self, query: str, *values: Any, take: Callable[[Iterable[Any]], Any] = list) -> Any:
        """What a function makes of the rows that a query gives, one at a time."""
        try:
            with self._lock:
                return take(self._connection.execute(query, values))
        except sqlite3.Error as error:
            raise ModelFileError(f"{self.path} is damaged and cannot be read: {error}.") from error


def _joined(parts: Sequence[_Listed | _Stored]) -> _Listed | _Stored:
    """Parts in one."""
    return parts[0] if len(parts) == 1 else _Listed(*Examples(parts).all())


def _hashes(texts: Iterable[str | None], n: int) -> Array:
    """Hashes of texts (n,); they hold in this process alone."""
    return np.fromiter(map(hash, texts), dtype=np.int64, count=n)


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
