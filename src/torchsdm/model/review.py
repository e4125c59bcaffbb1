"""The review queue on disk: inputs to look at, what the model said of them, and what people said.

One SQLite file in WAL mode with ``synchronous=FULL``: what a method has returned from is on disk, and stays there if
the process is killed. An input is a row of ``inputs``. What people say of it is appended to ``marks``; the last mark
counts, and undoing removes it, so that the mark before it counts again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.files import parse_json
from torchsdm.model._sqlite import Store, from_blob, to_blob
from torchsdm.validation import Array

STATUSES = ("open", "labelled", "skipped", "added")  #: of an input, by what people did with it
ORDERS = {  #: how rows can be sorted, the most urgent first
    "arrival": "row",
    "contradiction": "contradiction IS NULL, contradiction DESC, row",
    "confidence": "json_extract(decision, '$.confidence') IS NULL, json_extract(decision, '$.confidence'), row",
    "distance": "json_extract(decision, '$.distance_quantile') IS NULL, "
    "json_extract(decision, '$.distance_quantile'), row",
}
_EARLIER = {"prediction": "predictions"}  # what fields of a decision were called in queues written before
_STATUS = """CASE WHEN added IS NOT NULL THEN 'added' WHEN label IS NOT NULL THEN 'labelled'
    WHEN skipped THEN 'skipped' ELSE 'open' END"""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS inputs (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,  -- of all that came in: what is sent twice is one input
    id TEXT,                      -- JSON; NULL if the input was merely numbered
    text TEXT NOT NULL,
    answer TEXT,
    given TEXT,                   -- JSON: the label it came with
    source TEXT NOT NULL,
    at TEXT NOT NULL,
    decision TEXT,                -- JSON; NULL until it is decided on
    version INTEGER,              -- of the model that decided
    contradiction REAL,           -- how strongly the model contradicts the given label
    state BLOB,                   -- float32
    adding TEXT,                  -- the key of the change that adds it to the model
    added INTEGER                 -- the version that it was added in
);
CREATE TABLE IF NOT EXISTS marks (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    row INTEGER NOT NULL REFERENCES inputs (row),
    label TEXT,                   -- JSON; NULL if it was skipped
    who TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS deciding (network TEXT NOT NULL);  -- one row: whose states and decisions these are
CREATE INDEX IF NOT EXISTS marks_by_row ON marks (row, n);
CREATE INDEX IF NOT EXISTS undecided ON inputs (row) WHERE decision IS NULL;
DROP VIEW IF EXISTS queue;
CREATE VIEW queue AS SELECT *, {_STATUS} AS status FROM (
    SELECT inputs.*, marks.label, marks.n IS NOT NULL AND marks.label IS NULL AS skipped, marks.who, marks.at AS marked
    FROM inputs LEFT JOIN marks ON marks.n = (SELECT max(n) FROM marks WHERE marks.row = inputs.row)
);
"""


@dataclass(frozen=True)
class NewInput:
    """An input to put into the queue."""

    text: str
    id: Any = None
    """None if it has none of its own."""
    answer: str | None = None
    label: Any = None
    """The label it came with, if any."""

    @property
    def digest(self) -> str:
        """By which the same input is recognised."""
        return hashlib.sha256(_json([self.id, self.text, self.answer, self.label]).encode()).hexdigest()


@dataclass(frozen=True)
class Judged:
    """What the model says of an input of the queue."""

    row: int
    decision: dict[str, Any]
    version: int
    contradiction: float | None = None
    state: Array | None = None
    """Its hidden state, if that is to be kept; None leaves the one that is there."""


class ReviewStore(Store):
    """The queue in a file, made if it is missing, or in memory; any number of threads may use it."""

    schema, what = _SCHEMA, "review queue"

    # --- What comes in and what the model says -----------------------------------------------------------------------

    def put(self, inputs: Iterable[NewInput], source: str, at: str) -> int:
        """Add inputs, all or none; returns how many are new."""
        rows = [(one.digest, _or_null(one.id), one.text, one.answer, _or_null(one.label), source, at) for one in inputs]
        query = (
            "INSERT OR IGNORE INTO inputs (digest, id, text, answer, given, source, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        with self._changing() as connection:
            before = connection.total_changes
            connection.executemany(query, rows)
            return connection.total_changes - before

    def decide_with(self, network: str) -> None:
        """Forget the states and decisions of another network than this."""
        with self._changing() as connection:
            before = connection.execute("SELECT network FROM deciding").fetchone()
            if before is not None and before["network"] == network:
                return
            if before is not None:
                connection.execute(
                    "UPDATE inputs SET decision = NULL, version = NULL, contradiction = NULL, state = NULL"
                )
            connection.execute("DELETE FROM deciding")
            connection.execute("INSERT INTO deciding VALUES (?)", (network,))

    def undecided(self, limit: int) -> list[dict[str, Any]]:
        """The first inputs that the model has not seen yet."""
        return self._ask("SELECT * FROM inputs WHERE decision IS NULL ORDER BY row LIMIT ?", limit)

    def outdated(self, version: int, limit: int) -> list[dict[str, Any]]:
        """Inputs that another version decided on, whose state is kept."""
        query = "SELECT * FROM inputs WHERE version <> ? AND state IS NOT NULL ORDER BY row LIMIT ?"
        return self._ask(query, version, limit)

    def judge(self, judged: Iterable[Judged]) -> None:
        """Keep what the model says."""
        query = (
            "UPDATE inputs SET decision = ?, version = ?, contradiction = ?, state = coalesce(?, state) WHERE row = ?"
        )
        with self._changing() as connection:
            for one in judged:
                state = None if one.state is None else to_blob(one.state)
                connection.execute(query, (_json(one.decision), one.version, one.contradiction, state, one.row))

    # --- What people say ---------------------------------------------------------------------------------------------

    def mark(self, row: int, label: Any, who: str, at: str) -> None:
        """Label an input; None skips it. What was added to the model already stays as it is."""
        with self._changing() as connection:
            status = connection.execute("SELECT status FROM queue WHERE row = ?", (row,)).fetchone()
            if status is None:
                raise InvalidInputError(f"There is no row {row} in the review queue.")
            if status["status"] == "added":
                raise InvalidInputError(f"Row {row} was added to the model. Undo that first.")
            connection.execute(
                "INSERT INTO marks (row, label, who, at) VALUES (?, ?, ?, ?)", (row, _or_null(label), who, at)
            )

    def unmark(self, who: str) -> int | None:
        """Undo this person's last mark on an input that was not added; returns its row, None if there is none."""
        with self._changing() as connection:
            last = connection.execute(
                "SELECT n, row FROM marks JOIN inputs USING (row) WHERE marks.who = ? AND added IS NULL "
                "ORDER BY n DESC LIMIT 1",
                (who,),
            ).fetchone()
            if last is None:
                return None
            connection.execute("DELETE FROM marks WHERE n = ?", (last["n"],))
            return int(last["row"])

    def start_adding(self, rows: Sequence[int], key: str) -> None:
        """Note that a change with this key adds these rows to the model, before it does."""
        with self._changing() as connection:
            connection.executemany("UPDATE inputs SET adding = ? WHERE row = ?", [(key, row) for row in rows])

    def settle(self, made: dict[str, int], undone: Collection[int]) -> None:
        """Take in which changes were made, by key, and which were undone: what none adds is labelled as before."""
        with self._changing() as connection:
            for key, version in made.items():
                connection.execute("UPDATE inputs SET added = ?, adding = NULL WHERE adding = ?", (version, key))
            connection.execute("UPDATE inputs SET adding = NULL WHERE adding IS NOT NULL")
            connection.executemany("UPDATE inputs SET added = NULL WHERE added = ?", [(one,) for one in undone])

    def clear(self) -> int:
        """Remove every input that was not added, with its marks; returns how many."""
        with self._changing() as connection:
            connection.execute("DELETE FROM marks WHERE row IN (SELECT row FROM inputs WHERE added IS NULL)")
            return connection.execute("DELETE FROM inputs WHERE added IS NULL").rowcount

    # --- Looking -----------------------------------------------------------------------------------------------------

    def rows(
        self,
        *,
        status: str | None = None,
        lane: str | None = None,
        search: str = "",
        order: str = "arrival",
        limit: int = -1,
        offset: int = 0,
        chosen: Sequence[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of the queue, without states, filtered and sorted."""
        where, values = _filter(status, lane, search)
        if chosen is not None:
            where += f" AND row IN ({', '.join(str(int(row)) for row in chosen)})"
        query = f"SELECT * FROM queue WHERE {where} ORDER BY {ORDERS[order]} LIMIT ? OFFSET ?"
        return [_plain(row) for row in self._ask(query, *values, limit, offset)]

    def count(self, *, status: str | None = None, lane: str | None = None, search: str = "") -> int:
        """How many rows a filter leaves."""
        where, values = _filter(status, lane, search)
        return int(self._ask(f"SELECT count(*) AS n FROM queue WHERE {where}", *values)[0]["n"])

    def counts(self) -> dict[str, Any]:
        """How many rows there are by status and by lane, and how many are undecided."""
        lane = "json_extract(decision, '$.lane')"
        by_lane = self._ask(f"SELECT {lane} AS lane, count(*) AS n FROM queue WHERE decision IS NOT NULL GROUP BY 1")
        by_status = {row["status"]: row["n"] for row in self._ask("SELECT status, count(*) AS n FROM queue GROUP BY 1")}
        (undecided,) = self._ask("SELECT count(*) AS n FROM inputs WHERE decision IS NULL")
        return {
            "status": {status: by_status.get(status, 0) for status in STATUSES},
            "lane": {row["lane"]: row["n"] for row in by_lane},
            "undecided": undecided["n"],
        }

    def columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Fields of all decisions, column by column, with the row, the given label and the person's."""
        fields = ", ".join(f"{_extracted(name)} AS {name}" for name in names)
        query = f"SELECT row, given, label, {fields} FROM queue WHERE decision IS NOT NULL ORDER BY row"
        rows = self._ask(query)
        columns = {name: [row[name] for row in rows] for name in ("row", *names)}
        return {**columns, **{name: [_value(row[name]) for row in rows] for name in ("given", "label")}}

    def states(self, rows: Sequence[int] | None = None) -> tuple[list[int], Array]:
        """Rows and hidden states (N, D) of those inputs that have one."""
        chosen = "" if rows is None else f" AND row IN ({', '.join(str(int(row)) for row in rows)})"
        found = self._ask(f"SELECT row, state FROM inputs WHERE state IS NOT NULL{chosen} ORDER BY row")
        states = [from_blob(row["state"]) for row in found]
        return [row["row"] for row in found], np.stack(states) if states else np.empty((0, 0), dtype=np.float32)


def _extracted(name: str) -> str:
    """A field of the decision, in SQL."""
    both = [f"json_extract(decision, '$.{one}')" for one in (name, _EARLIER.get(name, name))]
    return f"coalesce({', '.join(both)})"


def _filter(status: str | None, lane: str | None, search: str) -> tuple[str, list[Any]]:
    """A condition of SQL and its values."""
    conditions = {
        "status = ?": status,
        "json_extract(decision, '$.lane') = ?": lane,
        "instr(lower(text || ' ' || coalesce(id, '') || ' ' || coalesce(answer, '')), ?)": search.lower() or None,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return " AND ".join(["TRUE", *given]), list(given.values())


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its values in place of their JSON."""
    shown = {
        name: row[name] for name in ("row", "text", "answer", "source", "at", "version", "contradiction", "status")
    }
    values = {name: _value(row[name]) for name in ("id", "given", "decision", "label")}
    if isinstance(values["decision"], dict):
        for now, earlier in _EARLIER.items():
            if earlier in values["decision"]:
                values["decision"][now] = values["decision"].pop(earlier)
    name = f"review-{row['row']}" if values["id"] is None else values["id"]
    return {**shown, **values, "name": name, "who": row["who"], "marked": row["marked"], "added": row["added"]}


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _or_null(value: Any) -> str | None:
    return None if value is None else _json(value)


def _value(text: str | None) -> Any:
    try:
        return None if text is None else parse_json(text)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"The review queue is damaged: a cell is not JSON ({error}).") from error
