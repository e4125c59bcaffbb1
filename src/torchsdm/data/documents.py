"""Texts to classify, with optional labels, ids and answers, from files, tables and lists.

``Documents`` can be iterated any number of times and is never in memory all at once. The first pass looks for missing,
empty and duplicate entries and says where they are: nothing is dropped silently. Whoever rejects what cannot be used,
and needs no labels, reads them once, in passing.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from torchsdm.data._rows import Row, Unreadable, class_names, readable_rows, refuse_twins
from torchsdm.data.source import TEXT_KINDS, Source
from torchsdm.errors import DataWarning, InvalidInputError, InvalidTypeError, Remedy, warn_user
from torchsdm.validation import (
    Array,
    as_list,
    check_choice,
    check_positive,
    check_same_length,
    is_storable_id,
    is_storable_label,
    is_storable_text,
)


@dataclass(frozen=True)
class Document:
    """One text and what is known about it."""

    text: str
    id: Any
    label: Any = None
    answer: str | None = None
    """Another model's answer to the text, if that is what is judged."""
    place: str = ""
    """Where it is in its source: "line 3" of a file, "row 3" of a table or list, counted from 1. That of a file is a
    ``Place``."""
    number: int = 0
    """Its position among the rows of its source, counted from 0."""


@dataclass(frozen=True)
class BadRow:
    """A row of an input that cannot be decided on: it is rejected, with the reason."""

    number: int
    """Its position among the rows of the input, counted from 0."""
    place: str
    """Where it is, such as "line 3"; empty for an input in memory."""
    problem: str
    """What is wrong with it, in words."""
    id: Any
    """Its id; its number if it has none that can be used."""

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem


BadRows: TypeAlias = dict[int, BadRow]  #: by their numbers, as they are found


_SHOWN = 5  # places listed per kind of problem
_LABEL_PROBLEMS = {"no label", "label that is neither text nor a number"}


@dataclass
class DocumentReport:
    """What a pass over documents found."""

    n_documents: int = 0
    """Documents that are used."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """Places of unusable documents, by kind: missing, empty, unreadable, duplicate ids."""
    bad_rows: BadRows = field(default_factory=dict)
    """The same documents, by number."""
    repeated: list[str] = field(default_factory=list)
    """Places of texts that duplicate an earlier one."""
    contradicted: list[str] = field(default_factory=list)
    """Places of duplicates with a different label."""
    unanswered: list[str] = field(default_factory=list)
    """Places of used documents without an answer."""
    label_counts: Counter[Any] = field(default_factory=Counter)
    fingerprint: str = ""
    """SHA-256 of all documents that are used."""

    @property
    def n_problems(self) -> int:
        """How many documents cannot be used."""
        return sum(len(places) for places in self.problems.values())

    def explain(self) -> str | None:
        """The problems, one sentence per kind; None if there are none."""
        return _explained(self.problems) or None

    def explain_repeated(self) -> str | None:
        """The duplicate texts in one sentence; None if there are none."""
        if not self.repeated:
            return None
        labels = f"; with a different label: {_places(self.contradicted)}" if self.contradicted else ""
        return f"duplicate text: {_places(self.repeated)}{labels}"


class Documents:
    """Checked texts from a file, a table or a list, to iterate as often as you like.

    Parameters
    ----------
    source : path, pandas.DataFrame, datasets.Dataset, or a sequence of strings, of mappings or of ``Document``
        A path ends in ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``; the first three may be followed by ``.gz``. It
        may be a folder, or a pattern such as ``data/*.jsonl``: files of one such kind, read in the order of their
        names as if they were one file. Names that begin with a dot or an underscore are left out.
        A ``Document`` keeps its place. Labels in a file lose surrounding white space. Labels of a dataset that are a
        ``ClassLabel`` become their names, also those of a Parquet file that a dataset wrote.
    text : str
        Name of the text column or key.
    label, id, answer : str or False, optional
        Names of the others. By default 'label', 'id' and 'answer' are used if the source has them; False ignores such a
        column. Without ids, documents are numbered from 0.
    labels, ids, answers : sequences, optional
        The labels, ids and answers themselves, for a sequence of strings.
    problems : {'raise', 'skip', 'reject'}
        Whether an unusable document is an error, or is skipped and counted in ``report``. 'reject' is for documents to
        decide on: it also leaves out lines that cannot be read, takes the columns that most of the first rows have,
        and keeps what it leaves out in ``report.bad_rows``; a missing label stays an error.
    repeated : {'warn', 'keep', 'drop'}
        What to do with a duplicate text: keep it and warn, keep it, or drop it. Duplicates on both sides of a split
        make a model look better than it is.

    Examples
    --------
    >>> documents = Documents(["A fine film.", "A dull film."], labels=[1, 0])
    >>> [document.label for document in documents]
    [1, 0]
    >>> documents.report.n_documents
    2
    """

    def __init__(
        self,
        source: Any,
        *,
        text: str = "text",
        label: str | Literal[False] | None = None,
        id: str | Literal[False] | None = None,
        answer: str | Literal[False] | None = None,
        labels: Any = None,
        ids: Any = None,
        answers: Any = None,
        problems: str = "raise",
        repeated: str = "warn",
    ) -> None:
        if not isinstance(text, str):
            raise InvalidTypeError(f"'text' of Documents must be the name of a column. Got {text!r}.")
        check_choice(problems, ("raise", "skip", "reject"), "problems", "Documents")
        check_choice(repeated, ("warn", "keep", "drop"), "repeated", "Documents")
        self._problems, self._drop, self._warn = problems, repeated == "drop", repeated == "warn"
        self._needs_answers = bool(answer) or answers is not None
        beside = {"label": labels, "id": ids, "answer": answers}
        self._source = _source_of(source, {name: values for name, values in beside.items() if values is not None})
        self.name = self._source.name
        """The file, or the kind of object that the documents come from."""
        parts = {"text": text, "label": label, "id": id, "answer": answer}
        self._columns = self._source.choose_columns(parts, usual=problems == "reject")
        self.has_labels = self._columns["label"] is not None
        """Whether the source has labels."""
        self.has_ids = self._columns["id"] is not None
        """Whether the source has ids; if not, documents are numbered."""
        self.has_answers = self._columns["answer"] is not None
        """Whether the source has answers."""
        names = {"label": label, "id": id}
        self._unseen = [part for part, name in names.items() if name is None and self._columns[part] is None]
        self._report: DocumentReport | None = None

    @property
    def report(self) -> DocumentReport:
        """What the first pass found; raises if it found problems, unless they are skipped."""
        if self._report is None:
            report = DocumentReport()
            for _ in self._pass(report):
                pass
            self._check(report)
            if report.repeated and self._warn:
                warn_user(f"{self.name}: {report.explain_repeated()}.", DataWarning, Remedy.DROP_REPEATED)
            self._report = report
        return self._report

    def label_array(self) -> Array:
        """The labels, equal ones together: enough to know the classes before anything is made of the texts."""
        return np.array(list(self.report.label_counts.elements()))

    def __len__(self) -> int:
        return self.report.n_documents

    def __iter__(self) -> Iterator[Document]:
        expected, again = self.report.fingerprint, DocumentReport()
        yield from self._pass(again)
        if again.fingerprint != expected:
            raise InvalidInputError(f"{self.name} changed while it was being read. Start again.")

    def blocks(self, size: int, bad: BadRows | None = None) -> Iterator[list[Document]]:
        """The documents in lists of ``size``; the last one may be shorter.

        With ``bad``, this is the first pass, and is not repeated: what cannot be used is noted there before the block
        that follows it. That there is nothing else, or a label missing, is an error after the last block.
        """
        check_positive(size, "size", "Documents.blocks", integer=True)
        report = DocumentReport(bad_rows={} if bad is None else bad)
        documents = iter(self) if bad is None else self._pass(report, in_passing=True)
        yield from iter(lambda: list(islice(documents, size)), [])
        if bad is not None:
            self._check(report)

    def _pass(self, report: DocumentReport, *, in_passing: bool = False) -> Iterator[Document]:
        """The documents that are used; in passing, nothing is kept that only another pass could need."""
        digest = hashlib.sha256()
        seen_ids: set[Any] = set()
        seen_texts: dict[bytes, Any] = {}
        column, rows = self._columns["label"], self._source.rows()
        to_label = None if column is None else self._source.label_reader(column)
        if self._problems != "reject":
            rows = readable_rows(rows, self.name)
        for number, (place, row) in enumerate(rows):
            document = self._document(number, place, row, to_label, seen_ids)
            if isinstance(document, BadRow):
                report.problems.setdefault(document.problem, []).append(place)
                report.bad_rows[number] = document
                continue
            if self.has_ids:
                seen_ids.add(document.id)
            if not in_passing:
                content = json.dumps([document.text, document.answer]).encode()
                key = hashlib.blake2b(content, digest_size=16).digest()
                if key in seen_texts:
                    report.repeated.append(place)
                    if seen_texts[key] != document.label:
                        report.contradicted.append(place)
                    if self._drop:
                        continue
                seen_texts.setdefault(key, document.label)
                if document.answer is None:
                    report.unanswered.append(place)
                report.label_counts[document.label] += 1
                parts = [document.id, document.text, document.label, document.answer]
                digest.update(hashlib.sha256(json.dumps(parts, default=repr).encode()).digest())
            report.n_documents += 1
            yield document
        report.fingerprint = digest.hexdigest()

    def _document(
        self,
        number: int,
        place: str,
        row: Mapping[str, Any] | Unreadable,
        to_label: Callable[[Any], Any] | None,
        seen_ids: Collection[Any],
    ) -> Document | BadRow:
        """The document of a row, or why there is none."""
        if isinstance(row, Unreadable):
            return BadRow(number, place, str(row), number)
        values = {
            name: _plain(row.get(column), is_typed=self._source.is_typed or name == "text")
            for name, column in self._columns.items()
            if column is not None
        }
        if not self._needs_answers and not is_storable_text(values.get("answer")):
            values.pop("answer", None)  # a column that happens to have this name
        if to_label is not None and values["label"] is not None:
            values["label"] = to_label(values["label"])
        name = values.get("id", number)
        late = next((part for part in self._unseen if part in row), None)
        if late is not None and self._problems != "reject":  # even when skipping: otherwise it would be ignored
            raise InvalidInputError(
                f"{self.name}, {place}: a {late}, but the first document has none. Give it one too."
            )
        problem = self._problem_of(values, name, seen_ids)
        if late is not None and problem is None:
            problem = f"{late} where other documents have none"
        if problem is not None:
            return BadRow(number, place, problem, name if is_storable_id(name) else number)
        return Document(values["text"], name, values.get("label"), values.get("answer"), place, number)

    def _problem_of(self, values: Mapping[str, Any], name: Any, seen_ids: Collection[Any]) -> str | None:
        for key in ("text", "answer") if self._needs_answers else ("text",):
            value = values[key]
            if value is None:
                return f"no {key}"
            if not isinstance(value, str):
                return f"{key} that is not a string"
            if not is_storable_text(value):
                return f"{key} that UTF-8 cannot encode"
            if not value.strip():
                return f"empty {key}"
        if self.has_labels and not is_storable_label(values["label"]):
            return "no label" if values["label"] is None else "label that is neither text nor a number"
        if not is_storable_id(name):
            return "no id" if name is None else "id that is neither text nor an integer"
        return "duplicate id" if name in seen_ids else None

    def _check(self, report: DocumentReport) -> None:
        kinds: dict[str, Collection[str]] = {"raise": report.problems, "skip": (), "reject": _LABEL_PROBLEMS}
        refused = {kind: places for kind, places in report.problems.items() if kind in kinds[self._problems]}
        if refused:
            n_refused = sum(map(len, refused.values()))
            counted = f"{n_refused} document{'s' * (n_refused != 1)}"
            raise InvalidInputError(
                f"{self.name} has {counted} that cannot be used. {_explained(refused)}.",
                remedy=Remedy.SKIP_PROBLEMS,
            )
        if report.n_documents == 0:
            explained = report.explain()
            raise InvalidInputError(
                f"{self.name} has no document that can be used{f': {explained}' * bool(explained)}."
            )


def _plain(value: Any, *, is_typed: bool) -> Any:
    """A plain Python value; a missing value in a table becomes None, and so does a blank without types."""
    if not is_typed and isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _explained(problems: Mapping[str, Sequence[str]]) -> str:
    """Problems, one sentence per kind."""
    return "; ".join(f"{kind}: {_places(places)}" for kind, places in problems.items())


def _places(places: Sequence[str]) -> str:
    """'lines 2, 3 and 40 more' for places of one unit; those of several files are listed with their files."""
    shown = places[:_SHOWN]
    unit = shown[0].rpartition(" ")[0]
    has_one_unit = all(place.rpartition(" ")[0] == unit for place in places)
    rest = len(places) - len(shown)
    listed = ", ".join(place.rpartition(" ")[2] if has_one_unit else place for place in shown)
    listed += f" and {rest} more" if rest else ""
    return f"{unit}{'s' * (len(places) > 1)} {listed}" if has_one_unit else listed


# --- Sources ---------------------------------------------------------------------------------------------------------


def _source_of(given: Any, beside: Mapping[str, Any]) -> Source:
    """What ``Documents`` takes; ``beside`` has the columns given separately with a list."""
    if not isinstance(given, (str, Path, Source)):
        return _in_memory(given, beside)
    if beside:
        _refuse_beside(beside, "a file")
    source = given if isinstance(given, Source) else _file_of(Path(given))
    if source.kind not in ("", *TEXT_KINDS):
        known = ", ".join(TEXT_KINDS)
        raise InvalidInputError(f"'source' of Documents must end in {known}. Got {source.files[0].name!r}.")
    return source


def _file_of(path: Path) -> Source:
    try:
        is_there = path.exists() or any(glob.iglob(str(path), recursive=True))
    except OSError:  # too long for a file name
        is_there = False
    if not is_there:
        shown = str(path) if len(str(path)) < 200 else f"{str(path)[:60]}..."
        raise InvalidInputError(
            f"'source' of Documents must be a file, a table or a list. {shown!r} is not a file; write [text] for one "
            "text."
        )
    return Source.at(path)


def _in_memory(given: Any, beside: Mapping[str, Any]) -> Source:
    """A table, a dataset or a list."""
    if hasattr(given, "column_names") and isinstance(given, Mapping):  # datasets.DatasetDict
        splits = ", ".join(repr(name) for name in given)
        raise InvalidTypeError(f"'source' of Documents must be one split of a dataset. Got {splits}; choose one.")
    if hasattr(given, "column_names") and hasattr(given, "features"):  # datasets.Dataset
        _refuse_beside(beside, "a dataset")
        return Source("the dataset", lambda: _numbered(given), class_names=class_names(given.features))
    if hasattr(given, "columns") and hasattr(given, "to_dict"):  # pandas.DataFrame
        _refuse_beside(beside, "a table")
        names = [str(name) for name in given.columns]
        refuse_twins(names, "the table")
        columns = [given[name] for name in given.columns]
        return Source(
            "the table",
            lambda: _numbered(dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)),
        )
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise InvalidTypeError(
            "'source' of Documents must be a path, a table, a dataset, or a sequence of strings, mappings or documents."
            f" Got {type(given).__name__}."
        )
    items = given.tolist() if isinstance(given, np.ndarray) else list(given)
    if items and all(isinstance(item, Document) for item in items):
        _refuse_beside(beside, "documents")
        return Source("the list", lambda: _document_rows(items))
    if any(isinstance(item, Mapping) for item in items):
        _refuse_beside(beside, "mappings")
        for strange in (item for item in items if not isinstance(item, Mapping)):
            raise InvalidTypeError(f"'source' of Documents must be all mappings or all texts. Got {strange!r}.")
        return Source("the list", lambda: _numbered(items))
    lists = {name: as_list(values, f"{name}s", "Documents") for name, values in beside.items()}
    for name, values in lists.items():
        check_same_length(len(items), values, f"{name}s", "Documents")
    rows = [dict(zip(("text", *lists), row, strict=True)) for row in zip(items, *lists.values(), strict=True)]
    features = {name: getattr(values, "features", None) for name, values in beside.items()}  # dataset["label"]
    return Source("the list", lambda: _numbered(rows), class_names=class_names(features))


def _document_rows(documents: Sequence[Document]) -> Iterator[Row]:
    """Documents as rows that keep their places; labels and answers are columns if any document has one."""
    columns = ["text", "id"]
    columns += [name for name in ("label", "answer") if any(getattr(one, name) is not None for one in documents)]
    for number, document in enumerate(documents, start=1):
        yield document.place or f"row {number}", {name: getattr(document, name) for name in columns}


def _numbered(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _refuse_beside(beside: Mapping[str, Any], what: str) -> None:
    for name in beside:
        raise InvalidInputError(
            f"'{name}s' of Documents only goes with a sequence of strings. Got {what}; use {name}='a column'."
        )
