"""The log of changes to a saved model: what is in it, and how it is read.

``MODEL/changes/`` has ``log.sqlite`` (one row for each change with who, when and why; the ids, labels and texts of its
points), ``segment-000001.f32`` (the points themselves as float32 rows, appended and memory-mapped), and ``head`` (the
last change that was acknowledged). ``config.json`` names the log and the version that the model's own files stand for:
the model is those files and, in order, all later changes that were not undone.

Reading takes no lock. A change is read whole or not at all, since it is one transaction of SQLite, and its rows are in
the segment before that. Every change has a digest over its contents and the digest of the one before it, so that damage
gives an error and never other numbers.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from torchsdm.errors import ModelFileError
from torchsdm.files import parse_json
from torchsdm.matching import RowsInFile
from torchsdm.settings import check_fields
from torchsdm.storage._tables import check_schema
from torchsdm.storage.directory import CONFIG_NAME, VERIFIED_BYTES, read_config
from torchsdm.validation import Array

CHANGES = "changes"  #: the folder of the log, in a model's directory
LOG_NAME, HEAD_NAME = "log.sqlite", "head"
SAVE, UNDO = "save", "undo"
COSTLY = ("recalibrate", "certify")  #: changes whose outcome is kept, so that opening does not compute it again
BUSY_SECONDS = 10.0
T = TypeVar("T")
_NEVER = 1 << 62  # a version that no model has
_RESTORE = "Restore the directory from a copy; load(..., changes=False) reads the model without its changes."


@dataclass(frozen=True)
class Change:
    """One change of a model: who made it, when, why, and what it was."""

    version: int
    """The version of the model after it; 0 is the model as it was first saved."""
    at: str
    """UTC, ISO 8601."""
    who: str
    why: str
    what: str
    """'add', 'add_calibration', 'remove', 'relabel', 'recalibrate', 'certify', 'guard_reset', 'undo' or 'save'."""
    n: int
    """How many points it concerns."""
    key: str | None = None
    """The client's key, by which a retry is recognised."""
    undone_by: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    together_with: int = 0
    """The version of the first of the changes that were made in one step with this one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Entry:
    """What a change does, before it has a version: what the log keeps beside who and why."""

    what: str
    n: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    ids: Sequence[Any] = ()
    labels: Sequence[Any] = ()
    texts: Sequence[str | None] = ()
    rows: Array | None = None
    """(n, W) float32: the points as the model sees them."""
    outcome: bytes | None = None
    """Of a costly change, what came of it."""

    def points(self) -> list[tuple[Any, str | None, str | None]]:
        """(id, label as JSON, text) of each point."""
        labels: Sequence[str | None] = [json.dumps(one) for one in self.labels] or [None] * len(self.ids)
        texts = self.texts or [None] * len(self.ids)
        return list(zip(self.ids, labels, texts, strict=True))


@dataclass(frozen=True)
class Record:
    """A change as it was read, with its contents."""

    change: Change
    ids: list[Any]
    labels: list[Any]
    texts: list[str | None]
    rows: Array | None
    place: RowsInFile | None = None
    """Where the rows are."""


@dataclass(frozen=True)
class ReadLog:
    """What a log says: the whole history, and the contents of the changes after the model's own files."""

    base: int
    """The version that the model's own files stand for."""
    history: list[Change]
    records: list[Record]
    digests: list[str] = field(default_factory=list)
    """One for each change of the history."""
    outcomes: dict[str, bytes] = field(default_factory=dict)
    """What came of costly changes, by the name of the sequence that ends with each; see ``sequences``."""

    @property
    def version(self) -> int:
        """The version after the last change."""
        return max(self.base, len(self.history))

    def undone(self) -> dict[int, int]:
        """Which changes are undone, and by which."""
        return {change.version: change.undone_by for change in self.history if change.undone_by is not None}

    def sequences(self, undone: Container[int]) -> dict[int, str]:
        """The name of the sequence that ends with each costly change, if some changes are undone."""
        steps = zip(self.history[self.base :], self.digests[self.base :], strict=True)
        return sequences((one.version, one.what, digest) for one, digest in steps if one.version not in undone)


def undone_by(targets: Mapping[int, int]) -> dict[int, int]:
    """Which changes are undone, and by which: ``targets`` has the change that each undo is about.

    An undo counts unless a later one undoes it, so they are looked at from the last to the first.

    Examples
    --------
    >>> undone_by({3: 1, 4: 3, 6: 5})  # 3 undid 1, 4 undid that, 6 undid 5
    {5: 6, 3: 4}
    """
    undone: dict[int, int] = {}
    for version in sorted(targets, reverse=True):
        if version not in undone:
            undone.setdefault(targets[version], version)
    return undone


def read_changes(directory: Path, config: Mapping[str, Any], *, verify: bool | None = None, after: int = 0) -> ReadLog:
    """Read the log of a model directory.

    Contents are read of changes after the version ``after``. The rows of segments are checked by their digests if they
    are small or ``verify`` is true, everything else always.
    """
    named = config.get("changes")
    if named is None:
        return ReadLog(0, [], [])
    path = directory / CHANGES / LOG_NAME
    try:
        base = int(named["version"])
        head = read_head(path.parent)
        return _read(path, lambda connection: _read_log(connection, path, named["log"], base, head, after, verify))
    except ModelFileError:
        raise
    except (sqlite3.Error, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{path} is damaged or cannot be read: {error}. {_RESTORE}") from error


def _read_log(
    connection: sqlite3.Connection,
    path: Path,
    name: str,
    base: int,
    head: tuple[int, str] | None,
    after: int,
    verify: bool | None,
) -> ReadLog:
    if read_facts(connection).get("id") != name:
        raise ModelFileError(f"{path} is not the log that {CONFIG_NAME} names. {_RESTORE}")
    rows = change_rows(connection)
    check_chain(path, rows, head)
    history = history_of(rows)
    records = _records(connection, path, rows[base:], history[base:], after, verify)
    return ReadLog(base, history, records, [row["digest"] for row in rows], _outcomes(connection, path))


def read_history(directory: Path) -> list[Change]:
    """All changes of a model directory, without their points."""
    return read_changes(directory, read_config(directory), after=_NEVER).history


# --- Rows of the log -------------------------------------------------------------------------------------------------

COLUMNS = ("version", "first", "at", "who", "why", "what", "n", "key", "request", "details")
PLACE = ("segment", "start", "width")  # where the rows are, in bytes; None without any
DIGESTS = ("points_digest", "rows_digest")  # of ids, labels and texts, and of the rows
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)",
    f"CREATE TABLE changes (version INTEGER PRIMARY KEY, {', '.join(COLUMNS[1:] + PLACE + DIGESTS)}, digest)",
    "CREATE UNIQUE INDEX changes_by_key ON changes (key) WHERE key IS NOT NULL",
    "CREATE TABLE points (version INTEGER, row INTEGER, id, label TEXT, text TEXT, PRIMARY KEY (version, row))",
    "CREATE TABLE outcomes (sequence TEXT PRIMARY KEY, version INTEGER, sha256 TEXT, content BLOB)",
)


def set_up(connection: sqlite3.Connection) -> None:
    """Settings of every connection: a log may come from a stranger, whose schema must not run anything."""
    connection.execute("PRAGMA cell_size_check = ON")
    check_schema(connection, ";".join(SCHEMA))


def read_facts(connection: sqlite3.Connection) -> dict[str, str]:
    """What a log says of itself."""
    return dict(connection.execute("SELECT name, value FROM facts").fetchall())


def change_rows(connection: sqlite3.Connection, after: int = 0) -> list[dict[str, Any]]:
    """All changes after a version, without their points."""
    names = (*COLUMNS, *PLACE, *DIGESTS, "digest")
    query = f"SELECT {', '.join(names)} FROM changes WHERE version > ? ORDER BY version"
    return [dict(zip(names, row, strict=True)) for row in connection.execute(query, (after,)).fetchall()]


def points_digest(points: Sequence[tuple[Any, str | None, str | None]]) -> str:
    """Of the points of a change: ids, labels and texts."""
    return hashlib.sha256(json.dumps(list(points)).encode()).hexdigest()


def rows_digest(rows: bytes | memoryview) -> str:
    """Of the bytes of the rows of a change."""
    return hashlib.sha256(rows).hexdigest()


def row_digest(row: Mapping[str, Any], previous: str) -> str:
    """Of a change with its points and, through the digest of the one before it, of everything before."""
    named = [row[name] for name in (*COLUMNS, *PLACE, *DIGESTS)]
    return hashlib.sha256(json.dumps([previous, *named]).encode()).hexdigest()


def check_chain(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    head: tuple[int, str] | None,
    known: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Refuse a log in which a change is missing or not as it was written; those that are known were checked before."""
    previous = known[-1]["digest"] if known else ""
    for number, row in enumerate(rows, start=len(known) + 1):
        if row["version"] != number or row["digest"] != row_digest(row, previous):
            raise _damaged(path, number)
        previous = row["digest"]
    if head is None:
        return
    n, place = len(known) + len(rows), head[0] - 1
    found = None if place >= n else known[place] if place < len(known) else rows[place - len(known)]
    if found is None or found["digest"] != head[1]:
        raise ModelFileError(
            f"{path} or its -wal file is damaged or missing: it has {n} changes, but {head[0]} were acknowledged. "
            f"{_RESTORE}"
        )


def _damaged(path: Path, version: int) -> ModelFileError:
    return ModelFileError(f"{path} is damaged: change {version} is not as it was written. {_RESTORE}")


def head_line(version: int, digest: str) -> bytes:
    """The last change that was acknowledged, with a check; always as long."""
    text = f"{version:020d} {digest}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()[:8]}\n".encode()


def read_head(folder: Path) -> tuple[int, str] | None:
    """The same back; None if there is none, or a power failure left half of it."""
    try:
        content = (folder / HEAD_NAME).read_bytes()
        version, digest = content.split()[:2]
        found = int(version), digest.decode()
        return found if content == head_line(*found) else None
    except (OSError, ValueError):
        return None


def acknowledged_version(directory: Path) -> int | None:
    """The version of a model's last change, without opening its log; None if that is not known."""
    head = read_head(directory / CHANGES)
    return None if head is None else head[0]


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"segment-{int(number):06d}.f32"


def history_of(rows: Sequence[Mapping[str, Any]]) -> list[Change]:
    """The changes that rows of the log stand for."""
    undone = undone_in(rows)
    return [
        check_fields(
            Change(
                **{name: row[name] for name in ("version", "at", "who", "why", "what", "n", "key")},
                undone_by=undone.get(row["version"]),
                details=_details(row),
                together_with=row["first"],
            )
        )
        for row in rows
    ]


def _details(row: Mapping[str, Any]) -> dict[str, Any]:
    """What else a change says of itself, with what replaying it needs."""
    details = parse_json(row["details"])
    if not isinstance(details, dict) or (row["what"] == UNDO and type(details.get("version")) is not int):
        raise ValueError(f"change {row['version']} is no {row['what']!r}")
    asked = details.get("questions", {})
    if not isinstance(asked, dict) or not all(isinstance(one, dict) for one in asked.values()):
        raise ValueError(f"change {row['version']} has questions that are none")
    if any(type(delta) not in (int, float) for one in asked.values() for delta in one.values()):
        raise ValueError(f"change {row['version']} has questions without a delta")
    return details


def undone_in(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Which changes are undone by other rows of the log, and by which."""
    return undone_by({row["version"]: _details(row)["version"] for row in rows if row["what"] == UNDO})


def _records(
    connection: sqlite3.Connection,
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    history: Sequence[Change],
    after: int,
    verify: bool | None,
) -> list[Record]:
    """The contents of the changes after a version."""
    wanted = [(row, change) for row, change in zip(rows, history, strict=True) if change.version > after]
    segments = _Segments(path.parent, [row for row, _ in wanted], verify)
    points: dict[int, list[tuple[Any, Any, Any]]] = {}
    query = "SELECT version, id, label, text FROM points WHERE version > ? ORDER BY version, row"
    for version, *point in connection.execute(query, (after,)):
        points.setdefault(version, []).append(tuple(point))
    found, label_of = [], cache(parse_json)  # there are few different ones
    for row, change in wanted:
        mine = points.get(change.version, [])
        if points_digest(mine) != row["points_digest"]:
            raise _damaged(path, change.version)
        labels = [label_of(label) for _, label, _ in mine if label is not None]
        names, texts = [point[0] for point in mine], [point[2] for point in mine]
        found.append(Record(change, names, labels, texts, segments.rows_of(row), segments.place_of(row)))
    return found


def _outcomes(connection: sqlite3.Connection, path: Path) -> dict[str, bytes]:
    kept = connection.execute("SELECT sequence, version, sha256, content FROM outcomes").fetchall()
    for _, version, sha256, content in kept:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise _damaged(path, version)
    return {name: content for name, _, _, content in kept}


def sequences(steps: Iterable[tuple[int, str, str]]) -> dict[int, str]:
    """The name of the sequence that ends with each costly change, from (version, what, digest) of every change.

    The same changes in the same order have the same outcome, and the same name. An undo is none of them: what it undoes
    must be left out.
    """
    found, digest = {}, hashlib.sha256()
    for version, what, own in steps:
        if what != UNDO:
            digest.update(own.encode())
            if what in COSTLY:
                found[version] = digest.hexdigest()
    return found


class _Segments:
    """The segments that some changes have rows in, memory-mapped."""

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]], verify: bool | None) -> None:
        self._folder = folder
        ends: dict[int, int] = {}
        for row in rows:
            if row["segment"] is not None:
                ends[row["segment"]] = max(ends.get(row["segment"], 0), row["start"] + _n_bytes(row))
        self._maps = {number: self._mapped(number, end) for number, end in ends.items()}
        self._is_checked = sum(ends.values()) <= VERIFIED_BYTES if verify is None else verify

    def rows_of(self, row: Mapping[str, Any]) -> Array | None:
        """The rows (n, W) of a change; None if it has none."""
        if row["segment"] is None:
            return None
        start = row["start"]
        part = self._maps[row["segment"]][start : start + _n_bytes(row)]
        if self._is_checked and rows_digest(part.data) != row["rows_digest"]:
            raise _damaged(segment_path(self._folder, row["segment"]), row["version"])
        values: Array = part.view("<f4").reshape(row["n"], row["width"])
        return values

    def place_of(self, row: Mapping[str, Any]) -> RowsInFile | None:
        """Where the rows of a change are; None if it has none."""
        if row["segment"] is None:
            return None
        path = segment_path(self._folder, row["segment"])
        return RowsInFile(str(path), row["start"], row["n"], row["width"], 0, row["width"])

    def _mapped(self, number: int, n_bytes: int) -> Array:
        path = segment_path(self._folder, number)
        try:
            size = path.stat().st_size
            if size < n_bytes:
                raise ModelFileError(f"{path} is truncated: {size} bytes where {n_bytes} were written. {_RESTORE}")
            return np.memmap(path, dtype=np.uint8, mode="r", shape=(n_bytes,))
        except FileNotFoundError as error:
            raise ModelFileError(f"{path} is missing. {_RESTORE}") from error
        except OSError as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"{path} cannot be read: {error}.") from error


def _n_bytes(row: Mapping[str, Any]) -> int:
    return int(row["n"]) * int(row["width"]) * 4


def _read(path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Read a log in one transaction, which sees one version from start to end, also where nothing can be written.

    In WAL mode SQLite needs a file beside the log even to read it. So as long as nothing waits in a -wal file, the log
    is read as a file that nobody changes, and read again if somebody did. Where something waits and SQLite can neither
    find nor create its file, copies are read.
    """
    if not path.is_file():
        raise ModelFileError(f"{path} is missing. {_RESTORE}")
    before = _stamps(path)
    if before[1] is None:
        try:
            with closing(_connected(path, "mode=ro&immutable=1")) as connection:
                found = read(connection)
                _check_length(connection, path)
            if _stamps(path) == before:
                return found
        except (sqlite3.Error, ModelFileError):
            if _stamps(path) == before:
                raise
    try:
        connection = _connected(path, "mode=ro")
    except sqlite3.OperationalError:
        with tempfile.TemporaryDirectory(prefix="torchsdm-log-") as folder:
            for one in (path, _wal(path)):
                shutil.copyfile(one, Path(folder) / one.name)
            with closing(_connected(Path(folder) / path.name, "mode=rw")) as connection:
                return read(connection)
    with closing(connection):
        return read(connection)


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite itself misses only pages that it comes to read."""
    (n_pages,), (n_bytes,) = (connection.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    if path.stat().st_size < n_pages * n_bytes:
        raise ModelFileError(f"{path} is truncated: {path.stat().st_size} bytes of {n_pages * n_bytes}. {_RESTORE}")


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _stamps(path: Path) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """By which a change of the log's file, and of what waits beside it, is noticed; None if nothing waits."""
    log = path.stat()
    try:
        wal = _wal(path).stat()
        waiting = (wal.st_ino, wal.st_size, wal.st_mtime_ns) if wal.st_size else None
    except FileNotFoundError:
        waiting = None
    return (log.st_ino, log.st_size, log.st_mtime_ns), waiting


def _connected(path: Path, how: str) -> sqlite3.Connection:
    address = f"file:{quote(str(path.resolve()))}?{how}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        set_up(connection)
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM facts LIMIT 1").fetchall()  # the transaction begins here
    except sqlite3.Error:
        connection.close()
        raise
    return connection
