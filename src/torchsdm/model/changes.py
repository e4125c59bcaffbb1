"""The log of changes to a saved model: what is in it, and how it is read.

``MODEL/changes/`` has ``log.sqlite`` (one row for each change with who, when and why; the ids, labels, texts and rows
of its points) and ``head`` (the last change that was acknowledged). ``config.json`` names the log and the version that
the model's own files stand for: the model is those files and, in order, all later changes that were not undone.

Reading takes no lock. A change is read whole or not at all, since it is one transaction of SQLite. Every change has a
digest over its contents and the digest of the one before it, so that damage gives an error and never other numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.files import parse_json
from torchsdm.model._sqlite import from_blob, read_file, to_blob
from torchsdm.model.directory import CONFIG_NAME, VERIFIED_BYTES, read_config
from torchsdm.settings import check_fields
from torchsdm.validation import Array

CHANGES = "changes"  #: the folder of the log, in a model's directory
LOG_NAME, HEAD_NAME = "log.sqlite", "head"
SAVE, UNDO, GUARD_RESET = "save", "undo", "guard_reset"
COSTLY = ("recalibrate", "certify")  #: changes whose outcome is kept, so that opening does not compute it again
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
    """What came of costly changes, by the name of the sequence that ends with each; see ``sequence_names``."""

    @property
    def version(self) -> int:
        """The version after the last change."""
        return max(self.base, len(self.history))

    def sequence_names(self) -> dict[int, str]:
        """The name of the sequence that ends with each costly change after the model's own files."""
        return sequence_names(self.history[self.base :], self.digests[self.base :])

    def whole_steps(self, versions: Iterable[int]) -> list[int]:
        """Versions, the last first, with what was made in one step with each."""
        steps = {one.together_with for one in self.history if one.version in versions}
        same = [one for one in self.history if one.together_with in steps and one.what != GUARD_RESET]
        return sorted({*versions, *(one.version for one in same if one.undone_by is None)}, reverse=True)

    def undoing(self, versions: Sequence[int]) -> ReadLog:
        """The log as it reads once these changes are undone; refused unless the model is then as it was before them."""
        targets = {change.version: change.details["version"] for change in self.history if change.what == UNDO}
        first = min(versions)
        undone_before = undone_by({version: target for version, target in targets.items() if version < first})
        for number, version in enumerate(versions, start=1):
            self._check_undo(version, undone_by(targets))
            targets[self.version + number] = version
        undone = undone_by(targets)
        real = [one.version for one in self.history[self.base :] if one.what not in (UNDO, GUARD_RESET)]
        made = {version for version in real if version not in undone}
        made_before = {version for version in real if version < first and version not in undone_before}
        if made != made_before:
            in_the_way = {*(made - made_before), *(undone[version] for version in made_before - made)}
            raise InvalidInputError(
                f"Only the last changes can be undone, and {_listed(sorted(in_the_way))} came after {first}. Undo "
                f"{_listed(sorted({*versions, *in_the_way}, reverse=True))} together."
            )
        history = [replace(one, undone_by=undone.get(one.version)) for one in self.history]
        records = [replace(one, change=history[one.change.version - 1]) for one in self.records]
        return replace(self, history=history, records=records)

    def _check_undo(self, version: int, undone: Mapping[int, int]) -> None:
        if not 1 <= version <= self.version:
            raise InvalidInputError(f"There is no change {version}; the last one is {self.version}.")
        if version <= self.base:
            raise InvalidInputError(
                f"Change {version} can no longer be undone: the model was saved with it, as version {self.base}."
            )
        if version in undone:
            raise InvalidInputError(
                f"Change {version} is undone already, by change {undone[version]}. To make it again, undo that one."
            )
        if self.history[version - 1].what == GUARD_RESET:
            raise InvalidInputError(f"Change {version} cannot be undone: the guard's stream before the reset is gone.")


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


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

    Contents are read of changes after the version ``after``. Digests of rows are checked if these are small or
    ``verify`` is true, everything else always.
    """
    named = config.get("changes")
    if named is None:
        return ReadLog(0, [], [])
    path = directory / CHANGES / LOG_NAME
    head = read_head(path.parent)

    def read(connection: sqlite3.Connection) -> ReadLog:
        base, rows = int(named["version"]), change_rows(connection)
        if read_facts(connection).get("id") != named["log"]:
            raise ModelFileError(f"{path} is not the log that {CONFIG_NAME} names. {_RESTORE}")
        check_chain(path, rows, head)
        history = history_of(rows)
        records = _records(connection, path, rows[base:], history[base:], after, verify)
        return ReadLog(base, history, records, [row["digest"] for row in rows], _outcomes(connection, path))

    try:
        return read_file(path, SCHEMA, read, remedy=_RESTORE)
    except ModelFileError:
        raise
    except (sqlite3.Error, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{path} is damaged or cannot be read: {error}. {_RESTORE}") from error


def read_history(directory: Path) -> list[Change]:
    """All changes of a model directory, without their points."""
    return read_changes(directory, read_config(directory), after=_NEVER).history


# --- Rows of the log -------------------------------------------------------------------------------------------------

COLUMNS = (
    *("version", "first", "at", "who", "why", "what", "n", "key", "request", "details"),
    *("segment", "start"),  # of the rows: earlier versions kept them in a file, from a byte on
    *("width", "points_digest", "rows_digest"),  # numbers in a row; of ids, labels and texts, and of the rows
)
ROWS_TABLE = """CREATE TABLE IF NOT EXISTS rows (
    version INTEGER, part INTEGER, content BLOB, PRIMARY KEY (version, part)
);"""
SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE changes (version INTEGER PRIMARY KEY, {", ".join(COLUMNS[1:])}, digest);
CREATE UNIQUE INDEX changes_by_key ON changes (key) WHERE key IS NOT NULL;
CREATE TABLE points (version INTEGER, row INTEGER, id, label TEXT, text TEXT, PRIMARY KEY (version, row));
CREATE TABLE outcomes (sequence TEXT PRIMARY KEY, version INTEGER, sha256 TEXT, content BLOB);
{ROWS_TABLE}
"""
_PART_BYTES = 1 << 24  # of a BLOB with rows


def read_facts(connection: sqlite3.Connection) -> dict[str, str]:
    """What a log says of itself."""
    return dict(connection.execute("SELECT name, value FROM facts").fetchall())


def change_rows(connection: sqlite3.Connection, after: int = 0) -> list[dict[str, Any]]:
    """All changes after a version, without their points."""
    names = (*COLUMNS, "digest")
    query = f"SELECT {', '.join(names)} FROM changes WHERE version > ? ORDER BY version"
    return [dict(zip(names, row, strict=True)) for row in connection.execute(query, (after,)).fetchall()]


def points_digest(points: Sequence[tuple[Any, str | None, str | None]]) -> str:
    """Of the points of a change: ids, labels and texts."""
    return hashlib.sha256(json.dumps(list(points)).encode()).hexdigest()


def rows_digest(rows: Array | None) -> str:
    """Of the rows of a change."""
    return hashlib.sha256(b"" if rows is None else to_blob(rows).data).hexdigest()


def row_digest(row: Mapping[str, Any], previous: str) -> str:
    """Of a change with its points and, through the digest of the one before it, of everything before."""
    return hashlib.sha256(json.dumps([previous, *(row[name] for name in COLUMNS)]).encode()).hexdigest()


def check_chain(path: Path, rows: Sequence[Mapping[str, Any]], head: tuple[int, str] | None, n_known: int = 0) -> None:
    """Refuse a log in which a change is missing or not as it was written; the first ones were checked before."""
    for number, row in enumerate(rows[n_known:], start=n_known + 1):
        previous = rows[number - 2]["digest"] if number > 1 else ""
        if row["version"] != number or row["digest"] != row_digest(row, previous):
            raise _damaged(path, number)
    if head is not None and (head[0] > len(rows) or rows[head[0] - 1]["digest"] != head[1]):
        raise ModelFileError(
            f"{path} or its -wal file is damaged or missing: it has {len(rows)} changes, but {head[0]} were "
            f"acknowledged. {_RESTORE}"
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


def history_of(rows: Sequence[Mapping[str, Any]]) -> list[Change]:
    """The changes that rows of the log stand for."""
    details = {row["version"]: _details(row) for row in rows}
    undone = undone_by({row["version"]: details[row["version"]]["version"] for row in rows if row["what"] == UNDO})
    found = [
        Change(
            **{name: row[name] for name in ("version", "at", "who", "why", "what", "n", "key")},
            undone_by=undone.get(row["version"]),
            details=details[row["version"]],
            together_with=row["first"],
        )
        for row in rows
    ]
    return [check_fields(change) for change in found]


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
    n_bytes = sum(4 * math.prod(_shape(row)) for row, _ in wanted if row["width"] is not None)
    is_checked = n_bytes <= VERIFIED_BYTES if verify is None else verify
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
        rows_of_it = _rows(connection, path.parent, row)
        if is_checked and rows_digest(rows_of_it) != row["rows_digest"]:
            raise _damaged(path, change.version)
        found.append(Record(change, names, labels, texts, rows_of_it))
    return found


def row_parts(rows: Array) -> Iterable[Array]:
    """The rows of a change as BLOBs of bounded size."""
    content = to_blob(rows)
    return (content[start : start + _PART_BYTES] for start in range(0, len(content), _PART_BYTES))


def _rows(connection: sqlite3.Connection, folder: Path, row: Mapping[str, Any]) -> Array | None:
    """The rows (n, W) of a change; None if it has none."""
    if row["width"] is None:
        return None
    if row["segment"] is not None:
        return _segment_rows(folder / f"segment-{int(row['segment']):06d}.f32", row)
    whose = "FROM rows WHERE version = ?", (row["version"],)
    (n_bytes,) = connection.execute(f"SELECT total(length(content)) {whose[0]}", whose[1]).fetchone()
    values, end = np.empty(int(n_bytes) // 4, dtype=np.float32), 0
    for (content,) in connection.execute(f"SELECT content {whose[0]} ORDER BY part", whose[1]):
        part = from_blob(content)
        values[end : end + len(part)] = part
        end += len(part)
    return values.reshape(_shape(row))


def _segment_rows(path: Path, row: Mapping[str, Any]) -> Array:
    """Rows as earlier versions kept them, in a file beside the log."""
    if not path.is_file():
        raise ModelFileError(f"{path} is missing. {_RESTORE}")
    n_numbers, size = math.prod(_shape(row)), path.stat().st_size
    if size < row["start"] + 4 * n_numbers:
        raise ModelFileError(f"{path} is truncated at {size} bytes. {_RESTORE}")
    values: Array = np.fromfile(path, "<f4", n_numbers, offset=row["start"])
    return values.reshape(_shape(row))


def _shape(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["n"]), int(row["width"])


def _outcomes(connection: sqlite3.Connection, path: Path) -> dict[str, bytes]:
    kept = connection.execute("SELECT sequence, version, sha256, content FROM outcomes").fetchall()
    for _, version, sha256, content in kept:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise _damaged(path, version)
    return {name: content for name, _, _, content in kept}


def sequence_names(history: Sequence[Change], digests: Sequence[str]) -> dict[int, str]:
    """The name of the sequence that ends with each costly change.

    The same changes in the same order have the same outcome, and the same name; undos and what they undo do not count.
    """
    found, digest = {}, hashlib.sha256()
    for change, own in zip(history, digests, strict=True):
        if change.what != UNDO and change.undone_by is None:
            digest.update(own.encode())
            if change.what in COSTLY:
                found[change.version] = digest.hexdigest()
    return found
