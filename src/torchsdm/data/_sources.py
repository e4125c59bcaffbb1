"""Where documents come from: files, tables, datasets and lists, all read as rows of named values with a place."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from torchsdm.data._class_names import class_names, named, parquet_class_names
from torchsdm.data._data_files import DataFiles, is_there
from torchsdm.data._lines import (
    LONGEST_LINE,
    ReadRow,
    Row,
    Unreadable,
    json_rows,
    not_utf8,
    readable_rows,
    text_lines,
    usual_keys,
)
from torchsdm.data.document import Document
from torchsdm.errors import EmptyInputError, InvalidInputError, InvalidTypeError, MissingExtraError
from torchsdm.labels import stripped_label
from torchsdm.validation import as_list, check_same_length

_SAMPLE = 1024  # rows that tell the usual columns


@dataclass(frozen=True)
class Source:
    """Rows that can be iterated any number of times."""

    name: str
    rows: Callable[[], Iterator[Row]]
    """Starts a new pass."""
    is_typed: bool = True
    """Whether values have types; in CSV all are strings."""
    is_file: bool = False
    class_names: Callable[[], Mapping[str, Sequence[str]]] = dict
    """The names of the classes by column, where rows have only their numbers."""
    check_columns: Callable[[Collection[str]], None] = lambda _: None
    """Refuses files that differ in the columns that are used, where columns are those of a file and not of a row."""

    def strict(self) -> Source:
        """The same rows; one that cannot be read is an error."""
        return replace(self, rows=lambda: readable_rows(self.rows(), self.name))

    def first_rows(self, n: int) -> list[Mapping[str, Any]]:
        """The first rows that can be read, at least one."""
        rows = list(islice((row for _, row in self.rows() if not isinstance(row, Unreadable)), n))
        if rows:
            return rows
        for place, problem in self.rows():
            raise InvalidInputError(f"{self.name} has no row that can be read. {place}: {problem}.")
        raise EmptyInputError(f"{self.name} is empty: it contains no documents.")

    def label_reader(self, column: str | None) -> Callable[[Any], Any]:
        """How labels are read: numbers with a name by it; from a file without surrounding white space.

        In an untyped format, a column of integers is read as integers.
        """
        if column is not None and (names := self.class_names().get(column)) is not None:
            return partial(named, names)
        if self.is_typed or column is None:
            return stripped_label if self.is_file else lambda label: label
        labels = (row.get(column) for _, row in self.rows() if not isinstance(row, Unreadable))
        is_integer = all(_is_integer(label.strip()) for label in labels if label is not None and label.strip())
        return int if is_integer else str.strip


def open_source(source: Any, beside: dict[str, Any]) -> Source:
    """The rows of a path, a table, a dataset or a list; ``beside`` has the columns given separately with a list."""
    if isinstance(source, (str, Path)):
        _refuse_beside(beside, "a file")
        return _file_source(Path(source))
    if hasattr(source, "column_names") and isinstance(source, Mapping):  # datasets.DatasetDict
        splits = ", ".join(repr(name) for name in source)
        raise InvalidTypeError(f"'source' of Documents must be one split of a dataset. Got {splits}; choose one.")
    if hasattr(source, "column_names") and hasattr(source, "features"):  # datasets.Dataset
        _refuse_beside(beside, "a dataset")
        return Source("the dataset", lambda: _numbered(source), class_names=lambda: class_names(source.features))
    if hasattr(source, "columns") and hasattr(source, "to_dict"):  # pandas.DataFrame
        _refuse_beside(beside, "a table")
        names = [str(name) for name in source.columns]
        _refuse_twins(names, "the table")
        columns = [source[name] for name in source.columns]
        return Source(
            "the table",
            lambda: _numbered(dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)),
        )
    return _list_source(source, beside)


def _list_source(source: Any, beside: dict[str, Any]) -> Source:
    if isinstance(source, (bytes, Mapping)) or not isinstance(source, Iterable):
        raise InvalidTypeError(
            "'source' of Documents must be a path, a table, a dataset, or a sequence of strings, mappings or documents."
            f" Got {type(source).__name__}."
        )
    items = source.tolist() if isinstance(source, np.ndarray) else list(source)
    if items and all(isinstance(item, Document) for item in items):
        _refuse_beside(beside, "documents")
        return Source("the list", lambda: _document_rows(items))
    if any(isinstance(item, Mapping) for item in items):
        _refuse_beside(beside, "mappings")
        strange = [item for item in items if not isinstance(item, Mapping)]
        if strange:
            raise InvalidTypeError(f"'source' of Documents must be all mappings or all texts. Got {strange[0]!r}.")
        return Source("the list", lambda: _numbered(items))
    columns = {name: as_list(values, f"{name}s", "Documents") for name, values in beside.items()}
    for name, values in columns.items():
        check_same_length(len(items), values, f"{name}s", "Documents")

    def rows() -> Iterator[Mapping[str, Any]]:
        for number, item in enumerate(items):
            yield {"text": item, **{name: values[number] for name, values in columns.items()}}

    names = class_names(
        {name: getattr(values, "features", None) for name, values in beside.items()}
    )  # dataset["label"]
    return Source("the list", lambda: _numbered(rows()), class_names=lambda: names)


def _document_rows(documents: Sequence[Document]) -> Iterator[Row]:
    """Documents as rows that keep their places; labels and answers are columns if any document has one."""
    columns = ["text", "id"]
    columns += [name for name in ("label", "answer") if any(getattr(one, name) is not None for one in documents)]
    for number, document in enumerate(documents, start=1):
        yield document.place or f"row {number}", {name: getattr(document, name) for name in columns}


def _file_source(path: Path) -> Source:
    if not is_there(path):
        shown = str(path) if len(str(path)) < 200 else f"{str(path)[:60]}..."
        raise InvalidInputError(
            f"'source' of Documents must be a file, a table or a list. {shown!r} is not a file; write [text] for one "
            "text."
        )
    files = DataFiles.find(path)
    kind = files.kind
    if kind not in _READERS:
        raise InvalidInputError(
            f"'source' of Documents must end in {', '.join(_READERS)}. Got {files.files[0].name!r}."
        )
    return Source(
        str(path),
        lambda: files.rows(_READERS[kind]),
        is_typed=kind in (".jsonl", ".parquet"),
        is_file=True,
        class_names=lambda: _same_names(files) if kind == ".parquet" else {},
        check_columns=partial(files.check_columns, _HEADERS[kind]) if kind in _HEADERS else lambda _: None,
    )


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[ReadRow]:
    """The rows of a CSV file with a header, as strings by column, each with the line it starts on."""
    return readable_rows(_csv_rows(path, delimiter), path)


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    """The same, with rows that cannot be read. Wrong quotes stay an error: where the next row begins is not known."""
    number, faults = 1, list[Unreadable]()

    def lines() -> Iterator[str]:
        for line in text_lines(path):
            faults.extend(filter(None, [not_utf8(line)]))
            yield line

    try:
        columns: list[str] = []
        reader = csv.reader(lines(), delimiter=delimiter, strict=True)
        for values in _long_cells(reader):
            if len(values) > len(columns) and columns:
                faults.append(Unreadable(f"more than {len(columns)} values; quote the text"))
            if faults and not columns:
                raise InvalidInputError(f"{path}, line {number}: {faults[0]}.")
            if values and columns:  # no values: a blank line
                yield f"line {number}", faults[0] if faults else dict(zip_longest(columns, values))
            if not columns:
                columns = values
                _refuse_twins(columns, str(path))
            faults.clear()
            number = reader.line_num + 1  # a quoted text may span several lines
    except csv.Error as error:
        fault = faults[0] if faults else f"cannot be read as CSV ({error})"
        raise InvalidInputError(f"{path}, line {number}: {fault}.") from error


def _long_cells(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of a reader whose cells may be long; the csv module's limit is raised only while reading a row."""
    while True:
        limit = csv.field_size_limit(LONGEST_LINE)  # of the csv module: 128 kB
        try:
            values = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if values is None:
            return
        yield values


def _parquet_rows(path: Path) -> Iterator[Row]:
    number = 0
    with open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row


def _parquet_columns(path: Path) -> list[str]:
    with open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        return names


def _csv_columns(path: Path, delimiter: str) -> list[str]:
    return next(csv.reader(text_lines(path), delimiter=delimiter), [])


def _same_names(files: DataFiles) -> Mapping[str, Sequence[str]]:
    """The names of the classes, which must be the same in all files."""
    names = {}
    for file in files.files:
        with open_parquet(file) as opened:
            names[file] = parquet_class_names(opened.schema_arrow)
    first = files.files[0]
    for file in files.files:
        if names[file] != names[first]:
            raise InvalidInputError(
                f"The files of {files.path} must have the same class names. Those of {files.name(file)} and "
                f"{files.name(first)} differ."
            )
    return names[first]


@contextmanager
def open_parquet(path: Path, **settings: Any) -> Iterator[Any]:
    """A Parquet file; whatever is wrong with it is our error, which names it."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Reading Parquet") from error
    try:
        with pq.ParquetFile(path, **settings) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a text that is none
        raise InvalidInputError(f"{path} cannot be read as Parquet: {error}.") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": json_rows,
    ".csv": partial(_csv_rows, delimiter=","),
    ".tsv": partial(_csv_rows, delimiter="\t"),
    ".parquet": _parquet_rows,
}
_HEADERS: dict[str, Callable[[Path], list[str]]] = {
    ".csv": partial(_csv_columns, delimiter=","),
    ".tsv": partial(_csv_columns, delimiter="\t"),
    ".parquet": _parquet_columns,
}


def _numbered(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def choose_columns(
    source: Source, names: Mapping[str, str | Literal[False] | None], *, usual: bool = False
) -> dict[str, str | None]:
    """The column of each part: the one named, or by default the one called like the part, if there is one.

    There is a column if the first row has it. With ``usual``, of the first rows any must have one that is named, and
    most must have one that is not.
    """
    source.check_columns({part if name is None else name for part, name in names.items() if name is not False})
    rows = source.first_rows(_SAMPLE if usual else 1)
    columns, most = usual_keys(rows, 0), usual_keys(rows)
    chosen: dict[str, str | None] = {}
    for part, name in names.items():
        if name is False:
            chosen[part] = None
            continue
        if name is not None and name not in columns:
            listed = ", ".join(repr(column) for column in columns[:10])
            raise InvalidInputError(
                f"{source.name} has no column {name!r} for the {part}. Got {listed}; name one of them."
            )
        chosen[part] = name if name is not None else (part if part in most else None)
    return chosen


def _refuse_twins(columns: list[str], what: str) -> None:
    twin = next((name for position, name in enumerate(columns) if name and name in columns[:position]), None)
    if twin is not None:
        raise InvalidInputError(f"{what} has two columns {twin!r}. Rename one.")


def _refuse_beside(beside: Mapping[str, Any], what: str) -> None:
    for name in beside:
        raise InvalidInputError(
            f"'{name}s' of Documents only goes with a sequence of strings. Got {what}; use {name}='a column'."
        )


def _is_integer(label: Any) -> bool:
    text = str(label)
    return len(text) < 19 and text.isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text
