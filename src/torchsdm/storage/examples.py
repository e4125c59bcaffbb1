"""Ids and texts of a saved model, read from SQLite one row at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchsdm.errors import ModelFileError
from torchsdm.model import Examples


class StoredExamples(Examples):
    """Ids and texts of a support in an SQLite file, read one row at a time.

    The file stays open, so it can be read even after another model was saved in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = _open_read_only(path)

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at the given positions."""
        query = "SELECT id, text FROM examples WHERE position = ?"
        return [self._ask(query, int(position))[0] for position in positions]

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        rows = self._ask("SELECT id, text FROM examples ORDER BY position")
        return [row[0] for row in rows], [row[1] for row in rows]

    def positions(self, ids: Iterable[Any]) -> list[int | None]:
        """The positions of the given ids; None if unknown."""
        found = [self._ask("SELECT position FROM examples WHERE id = ?", name) for name in ids]
        return [int(rows[0][0]) if rows else None for rows in found]

    def _ask(self, query: str, *values: Any) -> list[Any]:
        if not all(isinstance(value, (str, int)) for value in values):
            return []
        try:
            with self._lock:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise ModelFileError(f"{self.path} is damaged and cannot be read: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]


def _open_read_only(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        connection.execute("PRAGMA trusted_schema = OFF")  # a stranger's tables must not call anything
        connection.execute("SELECT 1 FROM examples LIMIT 1")  # opens the file now, not at the first query
    except sqlite3.Error as error:
        raise ModelFileError(f"{path} is damaged or missing: {error}.") from error
    return connection
