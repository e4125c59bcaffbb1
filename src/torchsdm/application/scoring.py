"""Decide on a data set, in this process or with copies of the saved model on a cluster: the rows are the same.

On a cluster, the model's files are sent to every node once, through Ray's object store; each replica loads them, and
the language model if there are texts, and answers whole blocks. The blocks are those of one process, and they come back
in order. With a folder, every finished block is kept there, so a job that was killed goes on with the first that is
missing.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm import __version__
from torchsdm.application.answers import Row, answer_rows, example_row, with_rejected, write_rows
from torchsdm.application.check import ModelChecks, check_state, demoted_rows
from torchsdm.application.saved_model import Piece, PieceReader, Reading, SavedModel
from torchsdm.cluster import RayBackend, map_in_order, portable
from torchsdm.data import BadRow, BadRows, Columns, Place
from torchsdm.errors import CheckpointError, EmptyInputError, InvalidInputError
from torchsdm.files import (
    LOCK_NAME,
    file_digest,
    only_writer,
    remove_unfinished,
    replace_file,
    strict_json,
    writing_to,
)
from torchsdm.hidden_states import Progress
from torchsdm.trust import DriftGuard, SourceGuards, Watcher
from torchsdm.validation import Array
from torchsdm.wording import shortened

_JOB = "job.json"


@dataclass
class Scores:
    """What came of deciding on an input."""

    n_inputs: int = 0
    lanes: Counter[str] = field(default_factory=Counter)
    n_admitted: int = 0
    bad: BadRows = field(default_factory=dict)
    """Inputs that could not be read."""
    alarm: dict[str, Any] | None = None
    """The status of the model's spot checks, if they are raised."""


def parts_of(output: Path) -> Path:
    """Where finished blocks are kept until an output is complete."""
    return output.with_name(f"{output.name}.parts")


def score(
    saved: SavedModel,
    source: str,
    columns: Columns,
    output: Path | None = None,
    *,
    k: int = 0,
    texts: bool = False,
    strict: bool = False,
    guard: DriftGuard | SourceGuards | None = None,
    guard_by: str | None = None,
    backend: RayBackend | None = None,
) -> Scores:
    """Decide on every row of an input and write the decisions, by default to standard output as JSON lines.

    Input and columns are as for ``Reading``, k and texts as for ``answer_rows``. A row that cannot be read
    is rejected, or an error if ``strict``. The ``guard`` watches the inputs that are decided on, in their order; guards
    by source, by the column ``guard_by``. With a ``backend`` a cluster decides; blocks that are finished are kept in
    ``parts_of(output)`` until all are.
    """
    folder = None if backend is None or output is None else parts_of(output)
    scores = Scores()
    blocks = score_blocks(
        saved,
        source,
        columns,
        scores,
        k=k,
        texts=texts,
        strict=strict,
        guard=guard,
        guard_by=guard_by,
        backend=backend,
        folder=folder,
    )
    write_rows(output, blocks, lambda: example_row(saved.classifier, k=k, texts=texts))
    if folder is not None:
        remove_finished(folder)
    return scores


def score_blocks(
    saved: SavedModel,
    source: str,
    columns: Columns,
    scores: Scores,
    *,
    k: int = 0,
    texts: bool = False,
    strict: bool = False,
    guard: DriftGuard | SourceGuards | None = None,
    guard_by: str | None = None,
    backend: RayBackend | None = None,
    folder: Path | None = None,
) -> Iterator[list[Row]]:
    """The rows for every block of an input, in order, rejected ones among them; they are counted in ``scores``.

    The rest is as for ``score``; replicas on a cluster load the model as it is on disk. A cluster's finished blocks are
    kept in ``folder``, to go on from: created if missing, and refused if it belongs to another job. ``remove_finished``
    removes it once the rows are somewhere safe.
    """
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(unit="input", disable=None))
        stack.enter_context(suppress(EmptyInputError))  # no rows, no decisions
        is_again = folder is not None or guard_by is not None
        reading = Reading(saved, source, columns, bad=None if strict else scores.bad, again=is_again)
        watcher = _watcher_of(guard, reading, guard_by)
        if backend is None:
            asked: dict[str, Any] = {"k": k, "texts": texts}
            answers: Iterator[tuple[Sequence[int], list[Row]]] = (
                (numbers, answer_rows(saved.classifier, block, **asked, guard=watcher(numbers)))
                for block in reading.blocks()
                for numbers in [block.numbers or ()]
            )
        else:
            kept = None
            if folder is not None:
                stack.enter_context(only_writer(folder))
                kept = _FinishedBlocks(folder, _job(saved, reading, k, texts))
            answers = _on_cluster(saved, reading, backend, k, texts, kept, watcher)
        checks = ModelChecks(saved.path)
        for rows in with_rejected(answers, scores.bad):
            alarm = checks.alarm()
            if alarm is not None:
                rows, scores.alarm = demoted_rows(alarm, rows), check_state(alarm, 0)
            scores.n_inputs += len(rows)
            scores.n_admitted += sum(row["admitted"] for row in rows)
            scores.lanes.update(row["lane"] for row in rows)
            yield rows
            progress.update(len(rows))


def remove_finished(folder: Path) -> None:
    """Remove the folder of a job that is done."""
    if (folder / _JOB).is_file():
        remove_unfinished(folder)
        for path in [*folder.glob("block-*.jsonl"), folder / _JOB, folder / LOCK_NAME]:
            path.unlink(missing_ok=True)
        folder.rmdir()


@dataclass(frozen=True)
class _Answered:
    """The answers to a block, the numbers of their inputs, and the inputs that were found to be unusable."""

    numbers: Sequence[int]
    rows: list[Row]
    bad: BadRows = field(default_factory=dict)


def _on_cluster(
    saved: SavedModel,
    reading: Reading,
    backend: RayBackend,
    k: int,
    texts: bool,
    kept: _FinishedBlocks | None,
    watcher: Callable[[Sequence[int]], Watcher | None],
) -> Iterator[tuple[Sequence[int], list[Row]]]:
    """The answers to all blocks, with the numbers of their inputs: those that are kept, then the others as they come.

    Unusable rows are noted, and the guard sees the answers, here and in order.
    """
    reader, pieces = reading.pieces()
    device = saved.classifier.device
    if reader.texts is not None:
        sent = portable(reader.texts)
        reader, device = replace(reader, texts=sent), sent.extractor.device
    paths = [path for path in sorted(saved.path.rglob("[!.]*")) if path.is_file()]
    files = {path.relative_to(saved.path).as_posix(): np.fromfile(path, dtype=np.uint8) for path in paths}
    classifier = saved.classifier
    replica = _Replica(files, classifier.version_, classifier.device, reader, k, texts, reading.bad is None)
    n_kept = 0 if kept is None else kept.n_finished
    # Their pieces are read again, since unusable rows are noted then.
    known = (kept.read(number) for number, _ in enumerate(islice(pieces, n_kept)) if kept is not None)
    is_empty = True
    with reading.source.errors():
        for number, answered in enumerate(chain(known, map_in_order(backend, replica.load, pieces, device=device))):
            if kept is not None and number >= n_kept:
                kept.write(number, answered)
            if reading.bad is not None:
                reading.bad.update(answered.bad)
            if answered.rows:
                is_empty = False
                yield answered.numbers, _watched(watcher(answered.numbers), answered.rows)
        if is_empty:
            raise reading.nothing()


@dataclass(frozen=True)
class _Watchable:
    """Of decisions that were made elsewhere: what a guard looks at and may change."""

    nearest_distance: Array
    confidence: Array
    similarity: Array
    lane: Array
    reason: Array
    certified: Array
    admitted: Array

    def __len__(self) -> int:
        return len(self.lane)


def _watcher_of(
    guard: DriftGuard | SourceGuards | None, reading: Reading, guard_by: str | None
) -> Callable[[Sequence[int]], Watcher | None]:
    """What watches the inputs with these numbers, which ascend from call to call."""
    if not isinstance(guard, SourceGuards):
        return lambda numbers: guard
    guards, position = guard, 0
    values = repeat(None) if guard_by is None else reading.source.column(guard_by, "source")

    def watcher(numbers: Sequence[int]) -> Watcher:
        nonlocal position
        sources = []
        for number in numbers:
            sources.append(next(islice(values, number - position, None), None))
            position = number + 1
        return guards.by(sources)

    return watcher


def _watched(guard: Watcher | None, rows: list[Row]) -> list[Row]:
    if guard is None:
        return rows
    columns = {one.name: np.array([row[one.name] for row in rows]) for one in fields(_Watchable)}
    distances = [math.inf if row["nearest_distance"] is None else row["nearest_distance"] for row in rows]
    watched: Any = guard.watch(_Watchable(**{**columns, "nearest_distance": np.array(distances)}))  # type: ignore[arg-type]
    if not guard.raised:
        return rows
    changed = {name: getattr(watched, name).tolist() for name in ("lane", "reason", "certified", "admitted")}
    return [
        {**row, **dict(zip(changed, values, strict=True))}
        for row, values in zip(rows, zip(*changed.values(), strict=True), strict=True)
    ]


@dataclass(frozen=True)
class _Replica:
    """What answers blocks elsewhere, with the files of the model as bytes, which the replicas of a node share."""

    files: Mapping[str, Array]
    version: int
    device: str | None
    reader: PieceReader
    k: int
    texts: bool
    is_strict: bool

    def load(self) -> Callable[[Piece], _Answered]:
        folder = tempfile.TemporaryDirectory(prefix="torchsdm-model-")
        for name, content in self.files.items():
            path = Path(folder.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content.tofile(path)
        saved = SavedModel.load(folder.name, device=self.device)
        if saved.classifier.version_ != self.version:
            raise InvalidInputError(
                f"The model was changed while it was sent to the cluster: version {self.version}, then "
                f"{saved.classifier.version_}. Start again."
            )
        _ = self.reader.texts and self.reader.texts.extraction  # the language model is loaded with the replica
        return partial(self._answer, saved, folder)  # the folder is removed with the replica

    def _answer(self, saved: SavedModel, _: object, piece: Piece) -> _Answered:
        bad: BadRows | None = None if self.is_strict else {}
        block = self.reader.read(piece, bad)
        rows = answer_rows(saved.classifier, block, k=self.k, texts=self.texts) if len(block) else []
        return _Answered(list(block.numbers or ()), rows, bad or {})


# --- What is kept ----------------------------------------------------------------------------------------------------


def _job(saved: SavedModel, reading: Reading, k: int, texts: bool) -> dict[str, Any]:
    source = reading.source
    return {
        "torchsdm": __version__,
        "model": [file_digest(saved.path / "config.json"), saved.classifier.version_],
        "input": {source.file_name(file): file_digest(file) for file in source.files},
        "columns": asdict(reading.columns),
        "settings": {"k": k, "texts": texts, "strict": reading.bad is None},
    }


def _difference(before: str, job: Mapping[str, Any]) -> str:
    """How a job differs from the one that was begun before: if in the input, in which of its files."""
    try:
        then, now = json.loads(before)["input"], job["input"]
    except (ValueError, KeyError, TypeError):
        then = now = None
    if then == now or not isinstance(then, dict):  # a digest: begun by an earlier version
        return "the model, the input or the settings were different"
    files = {
        "new": now.keys() - then.keys(),
        "missing": then.keys() - now.keys(),
        "changed": {name for name in then.keys() & now.keys() if name and then[name] != now[name]},
    }
    listed = [f"{what}: {shortened(', '.join(sorted(names)))}" for what, names in files.items() if names]
    return f"the input has changed since ({'; '.join(listed)})" if listed else "the input has changed since"


class _FinishedBlocks:
    """The finished blocks of a job in a folder, one file each, complete or absent; together a beginning of all.

    Nobody else may write to the folder; another job's is refused.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        text = strict_json(job)
        if not (folder / _JOB).exists():
            replace_file(folder / _JOB, text.encode())
        elif (before := (folder / _JOB).read_text(encoding="utf-8")) != text:
            raise CheckpointError(
                f"{folder} has the decisions of another job: {_difference(before, job)}. Remove it to start over."
            )
        remove_unfinished(folder)
        self.folder, self.n_finished = folder, 0
        while self._path(self.n_finished).is_file():
            self.n_finished += 1

    def read(self, number: int) -> _Answered:
        """A finished block."""
        path = self._path(number)
        try:
            first, *lines = path.read_text(encoding="utf-8").split("\n")
            head = json.loads(first)
            bad = {
                number: BadRow(number, words if line is None else Place(words, line), problem, name)
                for number, words, line, problem, name in head["bad"]
            }
            return _Answered(head["numbers"], [json.loads(line) for line in lines if line], bad)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} is damaged: {error}. Remove {self.folder} to start over.") from error

    def write(self, number: int, answered: _Answered) -> None:
        """Keep a block that has just been decided."""
        bad = [
            [one.number, one.place, getattr(one.place, "line", None), one.problem, one.id]
            for one in answered.bad.values()
        ]
        lines = [{"numbers": answered.numbers, "bad": bad}, *answered.rows]
        text = "".join(f"{json.dumps(line, allow_nan=False, ensure_ascii=False)}\n" for line in lines)
        with writing_to(self.folder, " Finished blocks are kept."):
            replace_file(self._path(number), text.encode())

    def _path(self, number: int) -> Path:
        return self.folder / f"block-{number:08d}.jsonl"
