"""SQLite files, opened so that a stranger's file runs nothing and what was committed stays; and floats in them.

Rows of float32 are kept as BLOBs, little-endian, one after the other.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import numpy as np

from torchsdm.errors import ModelFileError
from torchsdm.files import file_identity
from torchsdm.validation import Array

T = TypeVar("T")
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


class Store:
    """A file that is kept open to write, made if it is missing, or in memory; any number of threads may use it."""

    schema: ClassVar[str]
    what: ClassVar[str]
    """For messages."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._lock = path, threading.RLock()
        self._open()

    def _open(self) -> None:
        try:
            self._connection = open_to_write(self.path, self.schema, self.schema)
            self._connection.row_factory = sqlite3.Row
        except (OSError, sqlite3.Error) as error:
            raise ModelFileError(f"The {self.what} {self.path} cannot be opened: {error}.") from error
        self._file = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        return None if self.path is None else file_identity(self.path)

    def _opened(self) -> sqlite3.Connection:
        """The connection to the file that is at the path now: another directory may have been put there."""
        if self._file != self._identity():
            self._connection.close()
            self._open()
        return self._connection

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _ask(self, query: str, *values: Any) -> list[dict[str, Any]]:
        try:
            with self._lock:
                return [dict(row) for row in self._opened().execute(query, values).fetchall()]
        except sqlite3.Error as error:
            raise ModelFileError(f"The {self.what} {self.path} cannot be read: {error}.") from error

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; it is on disk afterwards, or nothing of it is."""
        try:
            with self._lock:
                connection = self._opened()
                with transaction(connection):
                    yield connection
        except sqlite3.Error as error:
            raise ModelFileError(f"The {self.what} {self.path} cannot be written: {error}.") from error


def read_file(path: Path, schema: str, read: Callable[[sqlite3.Connection], T], remedy: str = "") -> T:
    """Read a file in one transaction, which sees one version from start to end, also where nothing can be written.

    In WAL mode SQLite needs another file beside it even to read. So as long as nothing waits in a -wal file, it is read
    as one that nobody changes, and read again if somebody did. Where something waits and SQLite can neither find nor
    create its file, copies are read.
    """
    if not path.is_file():
        raise ModelFileError(f"{path} is missing. {remedy}".rstrip())
    before = _stamps(path)
    if before[1] is None:
        try:
            with _reading(path, schema, "mode=ro&immutable=1") as connection:
                found = read(connection)
                _check_length(connection, path, remedy)
            if _stamps(path) == before:
                return found
        except (sqlite3.Error, ModelFileError):
            if _stamps(path) == before:
                raise
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(_reading(path, schema, "mode=ro"))
        except sqlite3.OperationalError:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchsdm-file-")))
            for one in (path, _wal(path)):
                shutil.copyfile(one, folder / one.name)
            connection = stack.enter_context(_reading(folder / path.name, schema, "mode=rw"))
        return read(connection)


def _check_length(connection: sqlite3.Connection, path: Path, remedy: str) -> None:
    """SQLite itself misses only pages that it comes to read."""
    (n_pages,), (n_bytes,) = (connection.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    if path.stat().st_size < n_pages * n_bytes:
        said = f"{path} is truncated: {path.stat().st_size} bytes of {n_pages * n_bytes}. {remedy}"
        raise ModelFileError(said.rstrip())


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _stamps(path: Path) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """By which a change of a file, and of what waits beside it, is noticed; None if nothing waits."""
    here = path.stat()
    try:
        wal = _wal(path).stat()
        waiting = (wal.st_ino, wal.st_size, wal.st_mtime_ns) if wal.st_size else None
    except FileNotFoundError:
        waiting = None
    return (here.st_ino, here.st_size, here.st_mtime_ns), waiting


@contextmanager
def _reading(path: Path, schema: str, how: str) -> Iterator[sqlite3.Connection]:
    with closing(open_checked(path, schema, how)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # the transaction begins here
        yield connection


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
