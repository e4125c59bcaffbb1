"""The spot checks of a model on disk: the state of the test, the answers that were drawn, and the verdicts on them.

``MODEL/changes/checks.sqlite`` is kept as the review queue is: one transaction for each block of draws and for each
verdict, on disk before anybody is told. Whoever draws or judges reads the state in that transaction, so any number of
processes may take part.

A stream of verdicts is about one certificate. The first to draw or judge after a later version has another one ends the
stream (``SpotCheck.succeed``): answers that were drawn for it no longer wait. A process that still has an earlier
version draws nothing then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.files import parse_json, strict_json
from torchsdm.model._sqlite import Store, read_file
from torchsdm.trust import CheckedGroup, SpotCheck

_SCHEMA = """
CREATE TABLE IF NOT EXISTS stream (promise TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL);  -- one row
CREATE TABLE IF NOT EXISTS offered (decision BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS drawn (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT,                      -- JSON; NULL if the answer has none of its own
    text TEXT,
    prediction TEXT NOT NULL,     -- JSON
    probability REAL,
    source TEXT NOT NULL,
    at TEXT NOT NULL,
    is_over INTEGER NOT NULL DEFAULT 0,  -- its stream ended before there was a verdict
    is_right INTEGER,
    who TEXT,
    judged TEXT
);
CREATE TABLE IF NOT EXISTS resets (n INTEGER PRIMARY KEY AUTOINCREMENT, reason TEXT NOT NULL, who TEXT, at TEXT);
CREATE INDEX IF NOT EXISTS waiting ON drawn (number) WHERE is_right IS NULL AND is_over = 0;
"""
_WAITING = "FROM drawn WHERE is_right IS NULL AND is_over = 0"
_SHOWN = ("text", "probability", "source", "at")


@dataclass(frozen=True)
class Stream:
    """What a version of a model promises, and the checks of it that begin if there are none yet."""

    promise: str
    version: int
    fresh: SpotCheck

    def continued(self, kept: Kept | None) -> SpotCheck:
        """The checks of this version, from those that are kept."""
        if kept is None:
            return self.fresh
        if not self.ends(kept):
            return kept.checks
        return self.fresh.succeed(kept.checks, f"version {self.version} has another certificate")

    def ends(self, kept: Kept) -> bool:
        """Whether the stream that is kept ended with this version."""
        return self.promise != kept.promise and self.version >= kept.version


@dataclass(frozen=True)
class Kept:
    """The state that a file has."""

    promise: str
    version: int
    checks: SpotCheck


@dataclass(frozen=True)
class Offered:
    """An admitted answer that may be drawn."""

    prediction: Any
    probability: float | None = None
    id: Any = None
    text: str | None = None
    digest: bytes | None = None
    """By which a decision that is offered again is recognised, under any certificate: with a verdict, it is right with
    probability 0 or 1, whatever is promised. None if it never is."""


@dataclass(frozen=True)
class Judgement:
    """What became of verdicts."""

    n_taken: int
    n_known: int
    """Had the same verdict already."""
    n_late: int
    """Their stream has ended."""
    raised: tuple[CheckedGroup, ...]
    """About which they raised an alarm."""


class CheckStore(Store):
    """The spot checks in a file, made if it is missing; any number of threads may use it."""

    schema, what = _SCHEMA, "file of the spot checks"

    def draw(
        self, stream: Stream, offered: Sequence[Offered], source: str, at: float, said: str, **rate: Any
    ) -> tuple[int, int]:
        """Offer answers that were admitted ``at`` a time, which is ``said`` in words; how many are new, and drawn."""
        with self._stream(stream) as (connection, checks, is_current):
            new = [one for one in offered if _is_new(connection, one)] if is_current else []
            checks.draw_at(**rate)
            drawn = checks.draw(SimpleNamespace(admitted=np.ones(len(new), dtype=bool)), at)
            chosen = [one for one, is_drawn in zip(new, drawn.tolist(), strict=True) if is_drawn]
            connection.executemany(
                "INSERT INTO drawn (id, text, prediction, probability, source, at) VALUES (?, ?, ?, ?, ?, ?)",
                [(_or_null(one.id), one.text, _json(one.prediction), one.probability, source, said) for one in chosen],
            )
            return len(new), len(chosen)

    def judge(self, stream: Stream, verdicts: Sequence[tuple[int, bool]], who: str, at: str) -> Judgement:
        """Take in verdicts by the number of the draw, in the order of the draws: all of them or none."""
        new: list[tuple[Any, bool]] = []
        n_known = n_late = 0
        with self._stream(stream) as (connection, checks, _):
            for number, is_right in sorted(verdicts):
                row = _drawn(connection, number)
                if row["is_right"] is not None:
                    n_known += 1
                    if bool(row["is_right"]) != is_right:
                        said = "right" if row["is_right"] else "wrong"
                        raise InvalidInputError(f"{row['who']} said at {row['judged']} that answer {number} is {said}.")
                elif row["is_over"]:
                    n_late += 1
                else:
                    new.append((parse_json(row["prediction"]), is_right))
                    values = (is_right, who, at, number)
                    connection.execute("UPDATE drawn SET is_right = ?, who = ?, judged = ? WHERE number = ?", values)
            raised = checks.update([label for label, _ in new], [is_right for _, is_right in new])
        return Judgement(len(new), n_known, n_late, raised)

    def prediction(self, number: int) -> Any:
        """The answer that was drawn under a number."""
        with self._changing() as connection:
            return parse_json(_drawn(connection, number)["prediction"])

    def reset(self, stream: Stream, reason: str, who: str, at: str) -> None:
        """Start again without verdicts; answers that wait go on waiting."""
        with self._stream(stream) as (connection, checks, _):
            checks.reset(reason)
            connection.execute("INSERT INTO resets (reason, who, at) VALUES (?, ?, ?)", (reason, who, at))

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[tuple[sqlite3.Connection, SpotCheck, bool]]:
        """One transaction on the checks, whose state is kept at its end; and whether they are of this certificate."""
        with self._changing() as connection:
            kept = _kept(connection, str(self.path))
            if kept is not None and stream.ends(kept):
                connection.execute("UPDATE drawn SET is_over = 1 WHERE is_right IS NULL")
            checks, of = stream.continued(kept), (stream.promise, stream.version)
            if kept is not None and kept.version > stream.version:
                of = kept.promise, kept.version
            yield connection, checks, of[0] == stream.promise
            connection.execute("DELETE FROM stream")
            connection.execute("INSERT INTO stream VALUES (?, ?, ?)", (*of, strict_json(checks.to_dict())))


def read_checks(path: Path, most: int = 0) -> tuple[Kept | None, int, list[dict[str, Any]]]:
    """The checks that a file has, how many answers wait for a verdict, and so many of them (-1 is all), oldest first.

    Also where nothing can be written; where there is no file, there are no checks.
    """
    if not path.exists():
        return None, 0, []

    def read(connection: sqlite3.Connection) -> tuple[Kept | None, int, list[dict[str, Any]]]:
        connection.row_factory = sqlite3.Row
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:  # killed when it had just been made
            return None, 0, []
        (n,) = connection.execute(f"SELECT count(*) {_WAITING}").fetchone()
        rows = connection.execute(f"SELECT * {_WAITING} ORDER BY number LIMIT ?", (most,)).fetchall() if most else []
        return _kept(connection, str(path)), n, [_plain(row) for row in rows]

    try:
        return read_file(path, _SCHEMA, read)
    except (sqlite3.Error, OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} is damaged or cannot be read: {error}.") from error


def _kept(connection: sqlite3.Connection, where: str) -> Kept | None:
    row = connection.execute("SELECT promise, version, state FROM stream").fetchone()
    if row is None:
        return None
    try:
        state = parse_json(row["state"])
    except ValueError as error:
        raise ModelFileError(f"{where} is damaged: {error}.") from error
    return Kept(row["promise"], row["version"], SpotCheck.from_dict(state))


def _drawn(connection: sqlite3.Connection, number: int) -> Any:
    row = connection.execute("SELECT * FROM drawn WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise InvalidInputError(f"No answer was drawn under the number {number}.")
    return row


def _is_new(connection: sqlite3.Connection, one: Offered) -> bool:
    if one.digest is None:
        return True
    return connection.execute("INSERT OR IGNORE INTO offered VALUES (?)", (one.digest,)).rowcount > 0


def _plain(row: sqlite3.Row) -> dict[str, Any]:
    name = None if row["id"] is None else parse_json(row["id"])
    shown = {"check": row["number"], "id": name, "prediction": parse_json(row["prediction"])}
    return {**shown, **{one: row[one] for one in _SHOWN}}


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _or_null(value: Any) -> str | None:
    return None if value is None else _json(value)
