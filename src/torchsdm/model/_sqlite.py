"""SQLite files, opened so that a stranger's file runs nothing and what was committed stays; and floats in them.

Rows of float32 are kept as BLOBs, little-endian, one after the other.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import numpy as np

from torchsdm.validation import Array

BUSY_SECONDS = 10.0  #: to wait for another process that is writing
_COMMENT = re.compile(r"--[^\n]*")


def open_to_write(path: Path | None, schema: str, create: str) -> sqlite3.Connection:
    """A file in WAL mode, made if it is missing; ``create`` is what to run of its schema. None is a file in memory.

    What a transaction has committed is on disk, and stays there if the process is killed.
    """
    if path is not None:
        if path.is_symlink() or path.parent.is_symlink():
            raise OSError("it is a link, which is not followed")
        path.parent.mkdir(exist_ok=True)
        path.touch()  # so that its mode comes from the umask; SQLite gives it to the files beside it
    settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;"
    return open_checked(path, schema, "mode=rwc", f"{settings} BEGIN IMMEDIATE; {create}; COMMIT;")


def open_checked(
    path: Path | None, schema: str, how: str = "mode=ro&immutable=1", script: str = ""
) -> sqlite3.Connection:
    """A file, by default to read one that nobody changes, so that nothing is locked and no file left beside it.

    It is refused if it has a table, index, view or trigger not made by ``schema``. They are SQL of whoever wrote the
    file: a view may never end, a computed column may fill the memory, a trigger may delete what is added. What is
    missing is left to the first question.
    """
    address = ":memory:" if path is None else f"file:{quote(str(path.resolve()))}?{how}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")  # what is computed must not call anything
        connection.execute("PRAGMA cell_size_check = ON")
        for kind, name, sql in sorted(_made(connection) - _made_by(schema)):
            raise sqlite3.DatabaseError(f"its {kind} {name!r} is not as torchsdm makes it: {sql[:80]!r}")
        connection.executescript(script)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, and safe on disk afterwards."""
    with connection:  # commits or rolls back
        connection.execute("BEGIN IMMEDIATE")
        yield


def to_blob(rows: Array) -> Array:
    """The bytes of rows of floats, as a file keeps them."""
    return np.ascontiguousarray(rows, dtype="<f4").reshape(-1).view(np.uint8)


def from_blob(content: bytes) -> Array:
    """The floats again, one after the other."""
    return np.frombuffer(content, dtype="<f4")


@lru_cache
def _made_by(schema: str) -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        return frozenset(_made(connection))


def _made(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and SQL of everything in a database, but for what SQLite itself makes."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {(str(kind), str(name), " ".join(_COMMENT.sub("", str(sql)).split())) for kind, name, sql in found}
