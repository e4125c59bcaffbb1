"""Decide on a data set with copies of a saved model on a cluster: the rows that one process would write.

The model's files are sent to every node once, through Ray's object store; each replica loads them, and the language
model if there are texts, and answers whole blocks. The blocks are those of one process, and they come back in order.
With a folder, every finished block is kept there, so a job that was killed goes on with the first that is missing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from filelock import FileLock, Timeout

from torchsdm import __version__
from torchsdm.application.answers import Row, answer_rows
from torchsdm.application.inputs import named_and_checked, nothing_to_decide_on, readable
from torchsdm.application.saved_model import SavedModel
from torchsdm.cluster import RayBackend, device_type, map_in_order, portable
from torchsdm.columns import Columns
from torchsdm.data import BadRow, BadRows, Document, LabelledStates, input_files
from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.files import file_digest, remove_unfinished, replace_file, strict_json
from torchsdm.hidden_states import BlockReader
from torchsdm.validation import Array
from torchsdm.wording import shortened

_JOB, _LOCK = "job.json", ".lock"
_Piece: TypeAlias = "tuple[list[int], LabelledStates | list[Document]]"


def score_blocks(
    saved: SavedModel,
    source: str,
    columns: Columns,
    backend: RayBackend,
    *,
    k: int = 0,
    texts: bool = False,
    bad: BadRows | None = None,
    folder: str | Path | None = None,
) -> Iterator[list[Row]]:
    """The rows of ``answer_rows`` for every block of an input, in order, decided on a cluster.

    Parameters
    ----------
    saved : SavedModel
        As it is on disk, which is what the replicas load.
    source, columns, bad
        As for ``SavedModel.blocks``.
    backend : RayBackend
    k, texts
        As for ``answer_rows``.
    folder : path, optional
        Where finished blocks are kept, to go on from: created if missing, and refused if it belongs to another job.
        ``remove_finished`` removes it once the rows are somewhere safe.
    """
    with readable(source) as path, ExitStack() as stack:
        kept = None
        if folder is not None:
            kept = stack.enter_context(_FinishedBlocks.opened(Path(folder), _job(saved, path, columns, k, texts, bad)))
        reader, pieces = saved.unread_blocks(path, columns, bad)
        n_rows = 0
        for answered in _answers(saved, path, columns, backend, k, texts, bad is None, reader, pieces, kept):
            if bad is not None:
                bad |= answered.bad
            rows = answered.rows()
            n_rows += len(rows)
            if rows:
                yield rows
        if not n_rows:
            raise nothing_to_decide_on(path, bad)


def remove_finished(folder: str | Path) -> None:
    """Remove the folder of a job that is done."""
    folder = Path(folder)
    if (folder / _JOB).is_file():
        remove_unfinished(folder)
        for path in [*folder.glob("block-*.jsonl"), folder / _JOB, folder / _LOCK]:
            path.unlink(missing_ok=True)
        folder.rmdir()


@dataclass(frozen=True)
class _Answered:
    """The answers to a block: rows as JSON lines, and the rows of the input that were found to be unusable."""

    lines: bytes
    bad: Mapping[int, BadRow]

    @classmethod
    def of(cls, rows: Sequence[Row], bad: Mapping[int, BadRow]) -> _Answered:
        lines = "".join(f"{json.dumps(row, allow_nan=False, ensure_ascii=False)}\n" for row in rows)
        return cls(lines.encode(), bad)

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.lines.decode().split("\n") if line]


def _answers(
    saved: SavedModel,
    path: Path,
    columns: Columns,
    backend: RayBackend,
    k: int,
    texts: bool,
    is_strict: bool,
    reader: BlockReader | None,
    pieces: Iterator[_Piece],
    kept: _FinishedBlocks | None,
) -> Iterator[_Answered]:
    """The answers to all blocks: those that are kept, then the others as they are decided, and kept."""
    n_kept = 0 if kept is None else kept.n_finished
    for number, _ in enumerate(islice(pieces, n_kept)):  # read again, since unusable rows are noted then
        if kept is not None:
            yield kept.read(number)
    sent = None if reader is None else portable(reader)
    replica = _Replica(_ModelFiles.of(saved), sent, path, columns, k, texts, is_strict)
    kind = torch.device(saved.classifier.device or "cpu").type if sent is None else device_type(sent)
    for number, answered in enumerate(map_in_order(backend, replica.load, pieces, device_type=kind), start=n_kept):
        if kept is not None:
            kept.write(number, answered)
        yield answered


@dataclass(frozen=True)
class _ModelFiles:
    """A model directory as it travels: files as arrays of bytes, which the replicas of a node share."""

    files: Mapping[str, Array]
    version: int
    device: str | None

    @classmethod
    def of(cls, saved: SavedModel) -> _ModelFiles:
        paths = [path for path in sorted(saved.path.rglob("[!.]*")) if path.is_file()]
        files = {path.relative_to(saved.path).as_posix(): np.fromfile(path, dtype=np.uint8) for path in paths}
        return cls(files, saved.classifier.version_, saved.classifier.device)

    def load(self, folder: Path) -> SavedModel:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content.tofile(folder / name)
        saved = SavedModel.load(folder, device=self.device)
        if saved.classifier.version_ != self.version:
            raise InvalidInputError(
                f"The model was changed while it was sent to the cluster: version {self.version}, then "
                f"{saved.classifier.version_}. Start again."
            )
        return saved


@dataclass(frozen=True)
class _Replica:
    """What a replica needs to answer blocks."""

    model: _ModelFiles
    reader: BlockReader | None
    path: Path
    columns: Columns
    k: int
    texts: bool
    is_strict: bool

    def load(self) -> Callable[[_Piece], _Answered]:
        folder = tempfile.TemporaryDirectory(prefix="torchsdm-model-")
        saved = self.model.load(Path(folder.name))
        read = None if self.reader is None else self.reader.load()
        return partial(self._answer, saved, read, folder)  # the folder is removed with the replica

    def _answer(self, saved: SavedModel, read: Any, _: object, piece: _Piece) -> _Answered:
        numbers, block = piece
        if not isinstance(block, LabelledStates):
            if self.reader is None or read is None:
                raise InvalidInputError("A replica without a language model got texts.")
            block = self.reader.labelled(block, read(block))
        bad: BadRows = {}
        found = None if self.is_strict else bad
        good = named_and_checked(block, self.path, self.columns, needs_labels=False, numbers=numbers, bad=found)
        rows = answer_rows(saved.classifier, good, k=self.k, texts=self.texts) if len(good) else []
        return _Answered.of(rows, bad)


# --- What is kept ----------------------------------------------------------------------------------------------------


def _job(saved: SavedModel, path: Path, columns: Columns, k: int, texts: bool, bad: BadRows | None) -> dict[str, Any]:
    """Everything that the rows of a job depend on, as plain values."""
    return {
        "torchsdm": __version__,
        "model": [file_digest(saved.path / "config.json"), saved.classifier.version_],
        "input": {name: file_digest(file) for name, file in input_files(path).items()},
        "columns": asdict(columns),
        "settings": {"k": k, "texts": texts, "strict": bad is None},
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
    """The finished blocks of a job in a folder, one file each, complete or absent; together a beginning of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.n_finished = 0
        while self._path(self.n_finished).is_file():
            self.n_finished += 1

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, job: Mapping[str, Any]) -> Iterator[_FinishedBlocks]:
        """The folder of a job, which nobody else may write to; another job's is refused."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = FileLock(folder / _LOCK).acquire(timeout=0)  # the system releases it if we are killed
        except Timeout as error:
            raise CheckpointError(f"{folder} is being written by another process.") from error
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written: {error}.") from error
        with held:
            text = strict_json(job)
            if not (folder / _JOB).exists():
                replace_file(folder / _JOB, text.encode())
            elif (before := (folder / _JOB).read_text(encoding="utf-8")) != text:
                raise CheckpointError(
                    f"{folder} has the decisions of another job: {_difference(before, job)}. Remove it to start over."
                )
            remove_unfinished(folder)
            yield cls(folder)

    def read(self, number: int) -> _Answered:
        """A finished block."""
        path = self._path(number)
        first, _, lines = path.read_bytes().partition(b"\n")
        try:
            bad = [BadRow(*one) for one in json.loads(first)]
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}. Remove {self.folder} to start over.") from error
        return _Answered(lines, {one.number: one for one in bad})

    def write(self, number: int, answered: _Answered) -> None:
        """Keep a block that has just been decided."""
        first = json.dumps([astuple(one) for one in answered.bad.values()]).encode()
        try:
            replace_file(self._path(number), first + b"\n" + answered.lines)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error}. Finished blocks are kept.") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"block-{number:08d}.jsonl"
