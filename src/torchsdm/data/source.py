"""Where inputs come from: files, addresses, standard input, tables, datasets and lists, all opened once.

A ``Source`` says by its first rows whether it has texts or states and which columns; those rows are kept and come first
when it is read, so that nothing is opened or parsed twice for it.
"""

from __future__ import annotations

import csv
import glob
import io
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from torchsdm.data._class_names import class_names, named, parquet_class_names
from torchsdm.data._rows import (
    Row,
    Unreadable,
    delimited_rows,
    json_rows,
    open_parquet,
    parquet_rows,
    refuse_twins,
    stream_lines,
    text_lines,
    usual_keys,
)
from torchsdm.data.document import Document, Place
from torchsdm.errors import EmptyInputError, InvalidInputError, InvalidTypeError
from torchsdm.labels import stripped_label
from torchsdm.validation import as_list, check_same_length

STANDARD_INPUT = "-"
MANIFEST_NAME = "manifest.json"  #: marks a folder of hidden states (``torchsdm.data.folder``)
SAMPLE = 1024  #: rows that tell the usual columns
_TEXT_KINDS = (".jsonl", ".csv", ".tsv", ".parquet")  # of which several files can be one input
_STATE_KINDS = (".npz", ".safetensors", ".jsonl", ".parquet")
_BINARY = (".npz", ".safetensors", ".parquet")  # have a header even without rows
_WILDCARDS = frozenset("*?[")


class Source:
    """An input: rows in their order, each with its place; of files of arrays or folders of states, just the files.

    Parameters
    ----------
    name : str
        For messages.
    start : callable
        Begins a pass over the rows.
    kind : str
        The ending that all files have, without .gz; empty for objects in memory.
    path, files : Path and tuple of Path
        Where files are, as given and in the order of their names within the input.
    is_typed : bool
        Whether values have types; in CSV all are strings.
    class_names : callable
        The names of the classes by column, where rows have only their numbers.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Iterator[Row]] = lambda: iter(()),
        *,
        kind: str = "",
        path: Path | None = None,
        files: tuple[Path, ...] = (),
        is_typed: bool = True,
        class_names: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> None:
        self.name, self.kind, self.path, self.files = name, kind, path, files
        self.is_typed, self.class_names = is_typed, class_names
        self._start = start
        self._seen: deque[Row] = deque()  # rows that were looked at and not yet read
        self._rest: Iterator[Row] | None = None  # the rows after them
        self._label_readers: dict[str, Callable[[Any], Any]] = {}
        self._copy: Any = None  # the temporary file or folder that is read in place of something else

    # ---------------------------------------------------------------- opening

    @classmethod
    def open(cls, source: str | Path, *, again: bool = False) -> Source:
        """The input at a path or an address, or JSON lines on standard input (``-``).

        A path is a file, a folder with what is below it, a pattern such as data/*.parquet, or a folder of states. With
        ``again`` it will be read more than once: standard input is then copied to a temporary file.
        """
        given = str(source)
        if given == STANDARD_INPUT and not again:
            return cls("standard input", _standard_input_rows, kind=".jsonl")
        if given == STANDARD_INPUT:
            copied = tempfile.NamedTemporaryFile(prefix="sdm-", suffix=".jsonl")  # noqa: SIM115  # removed with us
            shutil.copyfileobj(sys.stdin.buffer, copied)
            copied.flush()
            return cls.at(Path(copied.name))._standing_for("standard input", copied)
        if "://" in given:
            from torchsdm.data._addresses import fetched

            folder = tempfile.TemporaryDirectory(prefix="sdm-")
            name, path = fetched(given, Path(folder.name))
            return cls.at(path)._standing_for(name, folder)
        return cls.at(Path(source))

    @classmethod
    def at(cls, path: Path) -> Source:
        """The input at a path."""
        if is_states_folder(path):
            return cls(str(path), kind="states", path=path, files=(path / MANIFEST_NAME,))
        files = _files_at(path)
        kind = _kind_of(path, files)
        source = cls(str(path), kind=kind, path=path, files=files, is_typed=kind not in (".csv", ".tsv"))
        source._start = source._file_rows
        if kind == ".parquet":
            source.class_names = source._parquet_class_names
        return source

    @classmethod
    def of(cls, given: Any, beside: Mapping[str, Any]) -> Source:
        """What ``Documents`` takes; ``beside`` has the columns given separately with a list."""
        if not isinstance(given, (str, Path, Source)):
            return _in_memory(given, beside)
        _refuse_beside(beside, "a file")
        source = given if isinstance(given, Source) else _file_of(Path(given))
        if source.kind not in ("", *_TEXT_KINDS):
            known = ", ".join(_TEXT_KINDS)
            raise InvalidInputError(f"'source' of Documents must end in {known}. Got {source.files[0].name!r}.")
        return source

    def _standing_for(self, name: str, copy: Any) -> Source:
        self.name, self._copy = name, copy
        return self

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Name what was given in errors, and not its temporary copy."""
        try:
            yield
        except InvalidInputError as error:
            if self.path is not None:
                error.args = (error.what.replace(str(self.path), self.name),)
            raise

    # ---------------------------------------------------------------- reading

    @property
    def is_file(self) -> bool:
        """Whether the rows come from a file, and not from objects in memory."""
        return bool(self.kind)

    def rows(self) -> Iterator[Row]:
        """A pass over the rows; the first one begins with those that were looked at."""
        seen, rest = self._seen, self._rest
        self._seen, self._rest = deque(), None
        with self.errors():
            while seen:
                yield seen.popleft()
            yield from self._start() if rest is None else rest

    def peek(self, n: int) -> list[Row]:
        """The first rows, which the next pass begins with."""
        with self.errors():
            if self._rest is None:
                self._rest = self._start()
            self._seen.extend(islice(self._rest, max(0, n - len(self._seen))))
        return list(islice(self._seen, n))

    def first_rows(self, n: int, *, is_strict: bool = False) -> list[Mapping[str, Any]]:
        """Those of the first rows that can be read, at least one; if strict, all of them must be readable."""
        while True:
            seen = self.peek(n)
            bad = next(((place, row) for place, row in seen if isinstance(row, Unreadable)), None)
            if bad is not None and is_strict:
                raise InvalidInputError(f"{self.name}, {bad[0]}: {bad[1]}.")
            rows = [row for _, row in seen if not isinstance(row, Unreadable)]
            if rows:
                return rows
            if bad is None:
                raise EmptyInputError(f"{self.name} is empty: it contains no documents.")
            if len(seen) < n:
                raise InvalidInputError(f"{self.name} has no row that can be read. {bad[0]}: {bad[1]}.")
            n *= 2

    def _file_rows(self) -> Iterator[Row]:
        """The rows of all files, one file after the other; places name the file if the input is not one file."""
        yield from self.file_rows(_READERS[self.kind])

    def file_rows(self, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
        """The same, with another reader."""
        for file in self.files:
            name = self.file_name(file)
            for place, row in read(file):
                yield place.within(name) if name and isinstance(place, Place) else place, row

    def file_name(self, file: Path) -> str:
        """A file's name within the input; empty if the input is that file."""
        return "" if file == self.path or self.path is None else file.relative_to(_root(self.path)).as_posix()

    # ---------------------------------------------------------------- what it contains

    def holds_states(self, column: str = "hidden_states", *, text: str | None = None) -> bool:
        """Whether it contains hidden states, as ``state_blocks`` reads them, rather than texts.

        NPZ and safetensors files and folders of states contain states, CSV and TSV files texts; of JSONL and Parquet
        files the first row decides. Several files must agree. If the column of ``text`` is given, the first line of
        JSON that has either decides, and lines that cannot be read are passed over.
        """
        if self.kind == "states":
            return True
        if self.kind not in {*_STATE_KINDS, *_TEXT_KINDS}:
            known = ", ".join((*_STATE_KINDS, ".csv", ".tsv"))
            raise InvalidInputError(f"The file must end in {known}. Got {self.files[0].name!r}.")
        if len(self.files) < 2:
            return self._rows_hold_states(column, text)
        found: dict[bool, Path] = {}
        for file in self.files:
            with suppress(EmptyInputError), self.errors():
                found.setdefault(Source.at(file)._rows_hold_states(column, text), file)
        if not found:
            raise EmptyInputError(f"{self.name} is empty.")
        if len(found) > 1:
            raise InvalidInputError(
                f"The files of {self.name} must all contain states or all texts. {self.file_name(found[True])} "
                f"contains states, {self.file_name(found[False])} texts."
            )
        return next(iter(found))

    def _rows_hold_states(self, column: str, text: str | None) -> bool:
        """The same for one file."""
        is_empty = bool(self.files) and self.files[0].stat().st_size == 0
        if is_empty and self.kind in _BINARY:
            raise InvalidInputError(f"{self.name} is empty: it is not even {self.kind} data without rows.")
        header = self.headers[self.files[0]] if self.kind == ".parquet" else None
        is_empty = is_empty or (header is not None and header.n_rows == 0)
        if is_empty or (self.kind == ".jsonl" and not self.peek(1)):
            raise EmptyInputError(f"{self.name} is empty.")
        if header is not None:
            return column in header.columns
        if self.kind != ".jsonl":
            return self.kind in _STATE_KINDS
        rows = self.first_rows(1, is_strict=True) if text is None else self.first_rows(SAMPLE)
        return column in next((row for row in rows if column in row or text in row), rows[0])

    @cached_property
    def headers(self) -> dict[Path, ParquetHeader]:
        """What each Parquet file says of its rows before they are read."""
        headers = {}
        for file in self.files:
            with open_parquet(file) as opened:
                names = parquet_class_names(opened.schema_arrow)
                headers[file] = ParquetHeader(opened.schema_arrow.names, opened.metadata.num_rows, names)
        return headers

    def check_columns(self, used: Collection[str]) -> None:
        """Refuse files that differ in the columns that are used; one without any columns is empty."""
        if self.kind == ".parquet":
            columns = {file: header.columns for file, header in self.headers.items()}
        elif self.kind in (".csv", ".tsv") and len(self.files) > 1:
            delimiter = _DELIMITERS[self.kind]
            columns = {file: next(csv.reader(text_lines(file), delimiter=delimiter), []) for file in self.files}
        else:
            return  # columns are those of a row
        first, expected = None, set[str]()
        for file in filter(columns.get, self.files):
            found = {name for name in used if name in columns[file]}
            if first is None:
                first, expected = file, found
            for name in sorted(found ^ expected):
                has, lacks = (file, first) if name in found else (first, file)
                raise InvalidInputError(
                    f"The files of {self.name} must have the same columns. {self.file_name(lacks)} has no column "
                    f"{name!r}, but {self.file_name(has)} does."
                )

    def _parquet_class_names(self) -> Mapping[str, Sequence[str]]:
        """The names of the classes, which must be the same in all files."""
        first, *others = self.files
        for file in others:
            if self.headers[file].class_names != self.headers[first].class_names:
                raise InvalidInputError(
                    f"The files of {self.name} must have the same class names. Those of {self.file_name(file)} and "
                    f"{self.file_name(first)} differ."
                )
        return self.headers[first].class_names

    def choose_columns(
        self, names: Mapping[str, str | Literal[False] | None], *, usual: bool = False
    ) -> dict[str, str | None]:
        """The column of each part: the one named, or by default the one called like the part, if there is one.

        There is a column if the first row has it. With ``usual``, of the first rows any must have one that is named,
        and most must have one that is not.
        """
        self.check_columns({part if name is None else name for part, name in names.items() if name is not False})
        rows = self.first_rows(SAMPLE if usual else 1, is_strict=not usual)
        columns, most = usual_keys(rows, 0), usual_keys(rows)
        chosen: dict[str, str | None] = {}
        for part, name in names.items():
            if name and name not in columns:
                listed = ", ".join(repr(column) for column in columns[:10])
                raise InvalidInputError(
                    f"{self.name} has no column {name!r} for the {part}. Got {listed}; name one of them."
                )
            chosen[part] = name or (part if name is None and part in most else None)
        return chosen

    def label_reader(self, column: str | None) -> Callable[[Any], Any]:
        """How labels are read: numbers with a name by it; from a file without surrounding white space.

        In an untyped format, a column of integers is read as integers, which takes a pass to know.
        """
        if column is not None and (names := self.class_names().get(column)) is not None:
            return partial(named, names)
        if self.is_typed or column is None:
            return stripped_label if self.is_file else lambda label: label
        if column not in self._label_readers:
            labels = (row.get(column) for _, row in self.rows() if not isinstance(row, Unreadable))
            is_integer = all(_is_integer(label.strip()) for label in labels if label is not None and label.strip())
            self._label_readers[column] = int if is_integer else str.strip
        return self._label_readers[column]


class ParquetHeader(NamedTuple):
    """What a Parquet file says of its rows."""

    columns: list[str]
    n_rows: int
    class_names: Mapping[str, Sequence[str]]


_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": lambda path: json_rows(text_lines(path)),
    **{kind: partial(delimited_rows, delimiter=delimiter) for kind, delimiter in _DELIMITERS.items()},
    ".parquet": parquet_rows,
}


# --- Files -----------------------------------------------------------------------------------------------------------


def is_states_folder(path: Path) -> bool:
    """Whether ``FolderWriter`` wrote a folder."""
    return (path / MANIFEST_NAME).is_file()


def is_data(name: PurePath) -> bool:
    """Whether a file belongs to the data of its folder: no part of its name within the folder is hidden."""
    return not any(part.startswith((".", "_")) for part in name.parts)


def _files_at(path: Path) -> tuple[Path, ...]:
    """The files at a path: a file, a folder with what is below it, or a pattern such as data/*.parquet.

    Like Spark and Arrow, folders and patterns leave out names that begin with a dot or an underscore (_SUCCESS).
    """
    if path.is_file():
        return (path,)
    is_folder = path.is_dir()
    if not is_folder and _WILDCARDS.isdisjoint(str(path)):
        raise InvalidInputError(f"There is no file {str(path)!r}.")
    pattern = os.path.join(glob.escape(str(path)), "**", "*") if is_folder else str(path)
    root = _root(path)
    found = {Path(name) for name in glob.iglob(pattern, recursive=True)}
    files = [file for file in found if is_data(file.relative_to(root)) and file.is_file()]
    if not files:
        what = f"{path} has no files" if is_folder else f"No file matches {str(path)!r}"
        raise InvalidInputError(f"{what}; names that begin with a dot or an underscore do not count.")
    return tuple(sorted(files, key=lambda file: file.relative_to(root).parts))


def _kind_of(path: Path, files: Sequence[Path]) -> str:
    """The ending that all files have, without .gz."""

    def name(file: Path) -> str:
        return file.relative_to(_root(path)).as_posix()

    kind = _ending(files[0])
    for file in files[1:]:
        if _ending(file) != kind:
            raise InvalidInputError(
                f"{path} has files of several kinds: {name(files[0])} and {name(file)}. Choose one kind with a "
                "pattern such as 'data/*.jsonl'."
            )
    if len(files) > 1 and kind not in _TEXT_KINDS:
        raise InvalidInputError(
            f"Several files are read as one input if they end in {', '.join(_TEXT_KINDS)}. {path} has "
            f"{name(files[0])} and {name(files[1])}; give one of them."
        )
    return kind


def _ending(path: PurePath) -> str:
    """The ending of a file's name, without .gz; empty if it has none."""
    endings = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return endings[-1] if endings else "none"


def _root(path: Path) -> Path:
    """The folder, or the part of a pattern before the first wildcard."""
    return path if path.is_dir() else Path(*takewhile(lambda part: _WILDCARDS.isdisjoint(part), path.parts))


def _standard_input_rows() -> Iterator[Row]:
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from json_rows(stream_lines(lines, "standard input"))
    finally:
        lines.detach()  # or it would be closed


def _file_of(path: Path) -> Source:
    if not _is_there(path):
        shown = str(path) if len(str(path)) < 200 else f"{str(path)[:60]}..."
        raise InvalidInputError(
            f"'source' of Documents must be a file, a table or a list. {shown!r} is not a file; write [text] for one "
            "text."
        )
    return Source.at(path)


def _is_there(path: Path) -> bool:
    """Whether there is a file, a folder or anything that matches a pattern."""
    try:
        return path.exists() or any(glob.iglob(str(path), recursive=True))
    except OSError:  # too long for a file name
        return False


# --- In memory -------------------------------------------------------------------------------------------------------


def _in_memory(given: Any, beside: Mapping[str, Any]) -> Source:
    """A table, a dataset or a list."""
    if hasattr(given, "column_names") and isinstance(given, Mapping):  # datasets.DatasetDict
        splits = ", ".join(repr(name) for name in given)
        raise InvalidTypeError(f"'source' of Documents must be one split of a dataset. Got {splits}; choose one.")
    if hasattr(given, "column_names") and hasattr(given, "features"):  # datasets.Dataset
        _refuse_beside(beside, "a dataset")
        return Source("the dataset", lambda: _numbered(given), class_names=lambda: class_names(given.features))
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
        strange = [item for item in items if not isinstance(item, Mapping)]
        if strange:
            raise InvalidTypeError(f"'source' of Documents must be all mappings or all texts. Got {strange[0]!r}.")
        return Source("the list", lambda: _numbered(items))
    lists = {name: as_list(values, f"{name}s", "Documents") for name, values in beside.items()}
    for name, values in lists.items():
        check_same_length(len(items), values, f"{name}s", "Documents")
    rows = [
        {"text": item, **{name: values[number] for name, values in lists.items()}} for number, item in enumerate(items)
    ]
    features = {name: getattr(values, "features", None) for name, values in beside.items()}  # dataset["label"]
    return Source("the list", lambda: _numbered(rows), class_names=lambda: class_names(features))


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


def _is_integer(label: Any) -> bool:
    text = str(label)
    return len(text) < 19 and text.isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text
