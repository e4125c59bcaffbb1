"""The one writer of a model's log of changes: its lock, appending, and compaction.

An append is one transaction of SQLite, which is synced and then acknowledged. Whenever the writer dies, every
acknowledged change is there; an unacknowledged one is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchsdm.errors import InvalidInputError, ModelFileError, ModelInUseError
from torchsdm.files import file_identity, link_in, login_name, strict_json, sync_directory
from torchsdm.model._sqlite import open_to_write, transaction
from torchsdm.model.changes import (
    CHANGES,
    COLUMNS,
    HEAD_NAME,
    LOG_NAME,
    ROWS_TABLE,
    SAVE,
    SCHEMA,
    Change,
    Entry,
    change_rows,
    check_chain,
    head_line,
    history_of,
    points_digest,
    read_facts,
    read_head,
    row_digest,
    row_parts,
    rows_digest,
    sequence_names,
)
from torchsdm.model.directory import holds_model, name_log, read_config

_LOCK_NAME, _HOLDER_NAME = "writer.lock", "writer.json"
_OUTCOMES_KEPT = 4  # more are needed only if more changes than that are undone, and are computed again then


class LogWriter:
    """Appends changes to the log of a model directory; only one writer at a time holds its lock.

    1. ``lock`` takes the writer's lock, or raises ``ModelInUseError`` with who holds it;
    2. ``append`` writes changes, and returns once they are safe; the first one creates the log;
    3. ``unlock`` lets others write, ``close`` also closes the files. If the process dies, the system unlocks.
    """

    def __init__(self, directory: Path, who: str) -> None:
        self.directory, self.who = directory, who
        self._folder = directory / CHANGES
        self._lock: FileLock | None = None
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # that is open
        self._id = ""
        self._rows: list[dict[str, Any]] = []
        self._base = 0
        self.is_behind = False
        """Whether an append was interrupted, so that only the log knows if it was made; ``lock`` finds out."""

    # --- The lock ----------------------------------------------------------------------------------------------------

    def lock(self, *, wait: float = 0.0) -> None:
        """Take the writer's lock, at most so many seconds later, and take note of what others wrote."""
        try:
            self._folder.mkdir(exist_ok=True)
            if (link := link_in(self._folder)) is not None:
                raise ModelFileError(f"{link} is a link, which is not followed. Remove it.")
            path = self._folder / _LOCK_NAME
            path.touch()
            # Whoever has the object has the lock, whichever thread it is in.
            lock = FileLock(path, mode=stat.S_IMODE(path.stat().st_mode), thread_local=False)
            lock.acquire(timeout=wait, poll_interval=0.01)
            self._lock = lock
            holder = {"pid": os.getpid(), "who": self.who, "since": now()}
            path = self._folder / _HOLDER_NAME
            path.unlink(missing_ok=True)  # a dead process of another user may have left one
            path.write_text(strict_json(holder), encoding="utf-8")
            self.synchronise()
        except Timeout as error:
            raise ModelInUseError(f"{self.directory} is being changed by {self._holder()}. Try again later.") from error
        except BaseException as error:
            self.unlock()
            if not isinstance(error, OSError) or isinstance(error, ModelFileError):
                raise
            raise _unwritten(self.directory, error) from error

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            with suppress(OSError):  # only a note, for messages
                (self._folder / _HOLDER_NAME).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def close(self) -> None:
        """Let others write, and close the files."""
        self._forget()
        self.unlock()

    def _holder(self) -> str:
        try:
            holder = json.loads((self._folder / _HOLDER_NAME).read_text(encoding="utf-8"))
            return f"{holder['who']} (process {holder['pid']}, since {holder['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    # --- Reading -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version after the last change."""
        return max(self._base, len(self._rows))

    def history(self) -> list[Change]:
        """All changes."""
        return history_of(self._rows)

    def made_with(self, key: str, request: str) -> list[Change]:
        """The changes that a client made with a key, if it did; the same key for something else is refused."""
        first = next((row for row in self._rows if row["key"] == key), None)
        if first is None:
            return []
        if first["request"] != request:
            raise InvalidInputError(
                f"The key {key!r} was used for change {first['version']} of {self.directory}, which was a different "
                "one. Use a new key for a new change."
            )
        return [change for change in history_of(self._rows) if change.together_with == first["version"]]

    # --- Appending ---------------------------------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[Entry],
        *,
        who: str,
        why: str,
        key: str | None = None,
        request: str = "",
        outcomes: Mapping[str, bytes] | None = None,
    ) -> list[Change]:
        """Append changes in one step: all of them are safe when this returns, or none was made.

        ``request`` is a digest of what the client asked for, by which a retry with the same key is told from something
        else. ``outcomes`` are those of earlier changes that had to be computed again, by the name of their sequence.
        """
        try:
            connection = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise error if isinstance(error, ModelFileError) else _unwritten(self.directory, error) from error
        rows = self._numbered(entries, {"who": who, "why": why, "at": now()}, key, request)
        kept = {**(outcomes or {}), **self._own_outcomes(rows, entries)}
        self.is_behind = True
        try:
            with transaction(connection):
                _insert(connection, rows, entries)
                _keep_outcomes(connection, kept, rows[-1]["version"])
        except sqlite3.Error as error:
            raise ModelFileError(
                f"{self._folder / LOG_NAME} cannot be written: {error}. Nothing was changed."
            ) from error
        self._rows += rows
        self.is_behind = False
        self._note_head()
        return history_of(rows)

    def _numbered(
        self, entries: Sequence[Entry], made: Mapping[str, str], key: str | None = None, request: str = ""
    ) -> list[dict[str, Any]]:
        """The rows of the log for some changes."""
        first, previous, rows = len(self._rows) + 1, self._rows[-1]["digest"] if self._rows else "", []
        for version, entry in enumerate(entries, start=first):
            row: dict[str, Any] = {
                **{"version": version, "first": first, **made, "what": entry.what, "n": entry.n},
                **{"key": key if version == first else None, "request": request},
                "details": json.dumps(dict(entry.details), allow_nan=False, sort_keys=True),
                **{"segment": None, "start": None, "width": None if entry.rows is None else entry.rows.shape[1]},
                **{"points_digest": points_digest(entry.points()), "rows_digest": rows_digest(entry.rows)},
            }
            previous = row["digest"] = row_digest(row, previous)
            rows.append(row)
        return rows

    def _own_outcomes(self, rows: list[dict[str, Any]], entries: Sequence[Entry]) -> dict[str, bytes]:
        """The outcomes of costly changes, by the name of the sequence that ends with each."""
        own = {row["version"]: one.outcome for row, one in zip(rows, entries, strict=True) if one.outcome is not None}
        if not own:
            return {}
        every = [*self._rows[self._base :], *rows]
        names = sequence_names(history_of(every), [row["digest"] for row in every])
        return {names[version]: content for version, content in own.items()}

    def _note_head(self) -> None:
        """Remember the last change, not synced: it shows a lost -wal file, and nothing depends on it."""
        if not self._rows:
            return
        with suppress(OSError):
            path = self._folder / HEAD_NAME
            with open(path, "rb+" if path.exists() else "wb") as file:
                file.write(head_line(self._rows[-1]["version"], self._rows[-1]["digest"]))

    # --- The files ---------------------------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Take note of what others wrote since this writer last held the lock."""
        named = read_config(self.directory).get("changes")
        path = self._folder / LOG_NAME
        if named is None:
            self._forget()
            return
        try:
            if self._connection is None or self._id != named["log"] or self._file != file_identity(path):
                self._forget()  # another directory may have been put here
                if not path.is_file():
                    raise ModelFileError(f"{path} is missing. Restore it from a copy.")
                self._connect(path, ROWS_TABLE)
            if self._id != named["log"]:
                raise ModelFileError(f"{path} is not the log that the model's config names. Restore it from a copy.")
            self._base = int(named["version"])
            head = read_head(self._folder)
            new = change_rows(self._opened(), len(self._rows))
            check_chain(path, [*self._rows, *new], head, len(self._rows))
            self._rows += new
            self.is_behind = False
            self._finish_save(named)
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is damaged or missing: {error}. Restore it from a copy.") from error

    def _forget(self) -> None:
        """As if nothing had been read yet."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._file, self._id, self._rows, self._base = None, None, "", [], 0

    def _opened(self) -> sqlite3.Connection:
        """The connection to the log, which is created, and named in the model's config, by the first change."""
        if self._connection is None:
            for pattern in (f"{LOG_NAME}*", HEAD_NAME, "segment-*.f32"):
                for stale in self._folder.glob(pattern):
                    stale.unlink()
            script = f"{SCHEMA} INSERT INTO facts VALUES ('id', '{uuid.uuid4().hex}');"
            connection = self._connect(self._folder / LOG_NAME, script)
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                sync_directory(self._folder)
                sync_directory(self.directory)
                name_log(self.directory, {"log": self._id, "version": 0})
            except BaseException:
                self._forget()
                raise
            return connection
        return self._connection

    def _connect(self, path: Path, create: str) -> sqlite3.Connection:
        """Open the log; ``create`` is what to run of its schema."""
        try:
            self._connection, self._file = open_to_write(path, SCHEMA, create), file_identity(path)
            self._id = read_facts(self._connection)["id"]
        except (sqlite3.Error, KeyError) as error:
            self._forget()
            raise ModelFileError(f"{path} is damaged: {error}. Restore it from a copy.") from error
        return self._connection

    # --- Compaction --------------------------------------------------------------------------------------------------

    def next_save(self, who: str, why: str) -> dict[str, Any] | None:
        """What a config that is about to be written says of the log; None if there is none.

        With that config the model's own files stand for a new version, and the changes so far are history. Afterwards
        ``synchronise`` notes in the log that it was written, and drops the points that are no longer needed.
        """
        if self._connection is None:
            return None
        return {"log": self._id, "version": self.version + 1, "at": now(), "who": who, "why": why}

    def _finish_save(self, named: Mapping[str, Any]) -> None:
        """Write the change that a config stands for, and drop contents of changes that it has; again after a crash."""
        connection, dropped = self._opened(), 0
        with transaction(connection):
            if self._base > len(self._rows):
                rows = self._numbered([Entry(SAVE)], {name: named[name] for name in ("at", "who", "why")})
                _insert(connection, rows, [Entry(SAVE)])
                self._rows += rows
            for table in ("points", "rows", "outcomes"):
                dropped += connection.execute(f"DELETE FROM {table} WHERE version <= ?", (self._base,)).rowcount
        self._note_head()
        if dropped:
            with suppress(sqlite3.OperationalError):  # a full disk: the space is free for what comes
                connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for segment in {row["segment"] for row in self._rows[: self._base]} - {None}:  # of earlier versions
            (self._folder / f"segment-{int(segment):06d}.f32").unlink(missing_ok=True)


@contextmanager
def saving(directory: Path, who: str | None = None, why: str = "") -> Iterator[dict[str, Any] | None]:
    """Hold the writer's lock of a model directory while its files are replaced, if there is a model.

    Yields what the new config must say of the log; None where there is nothing to say.
    """
    config: dict[str, Any] = {}
    if holds_model(directory):
        with suppress(ModelFileError):  # it is damaged, and can be saved over
            config = read_config(directory)
    if not config:
        yield None
        return
    name = login_name() if who is None else who
    with closing(LogWriter(directory, name)) as writer:
        writer.lock()
        yield writer.next_save(name, why)
        writer.synchronise()


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _insert(connection: sqlite3.Connection, rows: Sequence[Mapping[str, Any]], entries: Sequence[Entry]) -> None:
    names = (*COLUMNS, "digest")
    marks = ", ".join("?" * len(names))
    for row, entry in zip(rows, entries, strict=True):
        connection.execute(f"INSERT INTO changes ({', '.join(names)}) VALUES ({marks})", [row[name] for name in names])
        numbered = ((row["version"], number, *point) for number, point in enumerate(entry.points()))
        connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", numbered)
        if entry.rows is not None:
            parts = ((row["version"], number, part) for number, part in enumerate(row_parts(entry.rows)))
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", parts)


def _keep_outcomes(connection: sqlite3.Connection, outcomes: Mapping[str, bytes], version: int) -> None:
    if not outcomes:
        return
    rows = [(name, version, hashlib.sha256(content).hexdigest(), content) for name, content in outcomes.items()]
    connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?)", rows)
    last = "SELECT sequence FROM outcomes ORDER BY version DESC LIMIT ?"
    connection.execute(f"DELETE FROM outcomes WHERE sequence NOT IN ({last})", (_OUTCOMES_KEPT,))


def _unwritten(directory: Path, error: Exception) -> ModelFileError:
    return ModelFileError(f"{directory} cannot be changed: {error}. Nothing was changed.")
