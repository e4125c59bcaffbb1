"""Ids and texts of a saved model, read from SQLite one row at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchsdm.errors import ModelFileError
from torchsdm.matching import HashIndex
from torchsdm.model._sqlite import open_to_read
from torchsdm.model.directory import EXAMPLES_INDEX, EXAMPLES_TABLE
from torchsdm.model.examples import Examples
from torchsdm.validation import Array

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
