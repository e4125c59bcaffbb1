"""Rows of JSONL, CSV and Parquet files. A row that cannot be read does not hide the rows after it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TypeAlias

from torchsdm.errors import InvalidInputError, import_extra
from torchsdm.files import parse_json

LONGEST_LINE = 1 << 26  #: characters that are held in memory for one document
PARQUET_ROWS = 1024  #: per batch; a block is made of batches
_BUFFER_BYTES = 1 << 20


class Place(str):
    """Where a row is in a file, such as "line 3", or "part-2.jsonl line 3" of several files."""

    __slots__ = ("line",)
    line: int
    """The line of a file of texts, the row of a table or of arrays, counted from 1."""

    def __new__(cls, words: str, line: int = 0) -> Place:  # by default, since copies are given it later
        place = super().__new__(cls, words)
        place.line = line
        return place


class Unreadable(str):
    """What is wrong with a row that cannot be read; it stands in the place of the row."""

    __slots__ = ()


Row: TypeAlias = "tuple[str, Mapping[str, Any] | Unreadable]"
"""A place, "line 4" or "row 4" counted from 1, and the values by column."""


def text_lines(name: str | Path, stream: IO[bytes] | None = None) -> Iterator[tuple[str, Unreadable | None]]:
    """The lines of a text file, compressed or not, or of a stream that stays open.

    Each comes with what is wrong if it is not UTF-8; bytes that are not are surrogates in it.
    """
    number = 0
    try:
        binary = stream or (gzip.open if Path(name).suffix == ".gz" else open)(name, "rb")
        file = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), ""), start=1):
                if len(line) > LONGEST_LINE:  # a compressed file may be a thousand times as long as it looks
                    raise InvalidInputError(f"{name}, line {number}: longer than {LONGEST_LINE:,} characters.")
                fault = None
                try:
                    if not line.isascii():
                        line.encode("utf-8", "surrogateescape").decode()
                except UnicodeDecodeError as error:
                    fault = Unreadable(f"not UTF-8 ({error.reason})")
                yield line, fault
        finally:
            file.detach() if stream else file.close()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"{name} cannot be read beyond line {number}: {error}.") from error


def json_rows(lines: Iterable[tuple[str, Unreadable | None]]) -> Iterator[Row]:
    """The objects of JSON lines; blank lines are skipped."""
    for number, (line, fault) in enumerate(lines, start=1):
        if not line.strip():
            continue
        row: Any = fault
        if fault is None:
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                row = Unreadable(f"not valid JSON ({error.msg})")
            except (ValueError, RecursionError) as error:  # a number or nesting beyond Python's limits
                row = Unreadable(f"not usable as JSON ({error})")
        if not isinstance(row, (dict, Unreadable)):
            row = Unreadable(f"expected a JSON object. Got {type(row).__name__}")
        yield Place(f"line {number}", number), row


def readable_rows(rows: Iterable[Row], name: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The same rows; one that cannot be read is an error, which names it."""
    for place, row in rows:
        if isinstance(row, Unreadable):
            raise InvalidInputError(f"{name}, {place}: {row}.")
        yield place, row


def usual_keys(rows: Sequence[Mapping[str, Any]], share: float = 0.5) -> list[str]:
    """The keys that more than a share of the rows have."""
    counts = Counter(str(key) for row in rows for key in row)
    return [key for key, n in counts.items() if n > share * len(rows)]


# --- CSV -------------------------------------------------------------------------------------------------------------


def delimited_rows(path: Path, delimiter: str) -> Iterator[Row]:
    """The rows of a CSV file with a header, as strings by column, each with the line it starts on.

    Wrong quotes are an error even here: where the next row begins is not known.
    """
    number, faults = 1, list[Unreadable]()

    def lines() -> Iterator[str]:
        for line, fault in text_lines(path):
            faults.extend([] if fault is None else [fault])
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
                yield Place(f"line {number}", number), faults[0] if faults else dict(zip_longest(columns, values))
            if not columns:
                columns = values
                refuse_twins(columns, str(path))
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


def refuse_twins(columns: list[str], what: str) -> None:
    twin = next((name for position, name in enumerate(columns) if name and name in columns[:position]), None)
    if twin is not None:
        raise InvalidInputError(f"{what} has two columns {twin!r}. Rename one.")


# --- Parquet ---------------------------------------------------------------------------------------------------------


def parquet_rows(path: Path, keys: Sequence[str | None] = (), size: int = PARQUET_ROWS) -> Iterator[Row]:
    """The rows of a Parquet file; if ``keys`` are given, these columns alone: states as arrays, labels, and others."""
    # Either default keeps the columns of a whole row group in memory, possibly the whole file.
    with open_parquet(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
        names = [key for key in keys if key is not None]
        classes = parquet_class_names(file.schema_arrow) if names else {}
        number = 0
        for batch in file.iter_batches(batch_size=min(size, PARQUET_ROWS), columns=names or None):
            columns: list[Iterable[Any]] = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                columns.append(map(_arrow_value, column) if names and name == keys[0] else column.to_pylist())
                if names and name == keys[1] and name in classes:
                    columns[-1] = [named(classes[name], label) for label in columns[-1]]
            for values in zip(*columns, strict=True):
                number += 1
                yield Place(f"row {number}", number), dict(zip(batch.schema.names, values, strict=True))


def _arrow_value(scalar: Any) -> Any:
    """A list of numbers as an array, a list of lists as a list of arrays; anything else as a Python value."""
    import pyarrow as pa

    if not isinstance(scalar, pa.ListScalar) or scalar.values is None or scalar.values.null_count:
        return scalar.as_py()
    if pa.types.is_nested(scalar.values.type):
        return [_arrow_value(value) for value in scalar.values]
    return scalar.values.to_numpy(zero_copy_only=False)


@contextmanager
def open_parquet(path: Path, **settings: Any) -> Iterator[Any]:
    """A Parquet file; whatever is wrong with it is our error, which names it."""
    pa, pq = (import_extra(name, "report", "Reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with pq.ParquetFile(path, **settings) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a text that is none
        raise InvalidInputError(f"{path} cannot be read as Parquet: {error}.") from error


# --- Names of classes, of which the rows of a Hugging Face dataset have only the numbers ------------------------------

NO_LABEL = -1  # by which a dataset marks a row without a label


def class_names(features: Any) -> dict[str, Sequence[str]]:
    """The names of each ``ClassLabel`` by column, from the features of a dataset, or what it writes of them to a file.

    Names that are just the numbers are left out.
    """
    found: dict[str, Sequence[str]] = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        stored = feature if isinstance(feature, Mapping) else {}
        names: Any = stored.get("names") or getattr(feature, "names", None)
        is_class_label = stored.get("_type", type(feature).__name__) == "ClassLabel" and isinstance(names, Sequence)
        if is_class_label and list(names) != [str(number) for number in range(len(names))]:
            found[column] = names
    return found


def parquet_class_names(schema: Any) -> dict[str, Sequence[str]]:
    """The names by column that a dataset wrote into the schema of a Parquet file."""
    try:
        return class_names(parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):  # a file of another origin
        return {}


def named(names: Sequence[str], label: Any) -> Any:
    """The name of a class number; None if a row has no label."""
    if label == NO_LABEL:
        return None
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else label
