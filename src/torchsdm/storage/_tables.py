"""SQLite files from a stranger: they have what our own schema makes, and nothing else."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import lru_cache

_COMMENT = re.compile(r"--[^\n]*")


def check_schema(connection: sqlite3.Connection, schema: str) -> None:
    """Refuse a database with a table, index, view or trigger that is not made by ``schema``, a script.

    They are SQL of whoever wrote the file: a view may never end, a computed column may fill the memory, a trigger may
    delete what is added. What is missing is left to the first question.
    """
    connection.execute("PRAGMA trusted_schema = OFF")  # what is computed must not call anything
    for kind, name, sql in sorted(_made(connection) - _made_by(schema)):
        raise sqlite3.DatabaseError(f"its {kind} {name!r} is not as torchsdm makes it: {sql[:80]!r}")


@lru_cache
def _made_by(schema: str) -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        return frozenset(_made(connection))


def _made(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and SQL of everything in a database, but for what SQLite itself makes."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {(str(kind), str(name), " ".join(_COMMENT.sub("", str(sql)).split())) for kind, name, sql in found}
