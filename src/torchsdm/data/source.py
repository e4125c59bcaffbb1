"""Where inputs come from: files, addresses, standard input, tables, datasets and lists, all opened once.

A ``Source`` says by its first rows whether it has texts or states and which columns; those rows are kept and come first
when it is read, so that nothing is opened or parsed twice for it.
"""

from __future__ import annotations

import csv
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain, islice, takewhile
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal, NamedTuple

from torchsdm.data._rows import (
    Place,
    Row,
    Unreadable,
    delimited_rows,
    json_rows,
    named,
    open_parquet,
    parquet_class_names,
    parquet_rows,
    text_lines,
    usual_keys,
)
from torchsdm.errors import EmptyInputError, InvalidInputError, import_extra
from torchsdm.labels import stripped_label

STANDARD_INPUT = "-"
MANIFEST_NAME = "manifest.json"  #: marks a folder of hidden states (``torchsdm.data.store``)
SAMPLE = 1024  #: rows that tell the usual columns
TEXT_KINDS = (".jsonl", ".csv", ".tsv", ".parquet")  # of which several files can be one input
_ROWS = ", ".join(TEXT_KINDS)
_STATE_KINDS = (".npz", ".safetensors", ".jsonl", ".parquet")
_BINARY = (".npz", ".safetensors", ".parquet")  # have a header even without rows


class Source:
    """An input: rows in their order, each with its place; of files of arrays or folders of states, just the files.

    ``kind`` is the ending that all files have, without .gz; empty for objects in memory. ``path`` is where files are as
    given, ``files`` are they in the order of their names within the input. In CSV, values have no types (``is_typed``).
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Iterator[Row]] | None = None,
        *,
        kind: str = "",
        path: Path | None = None,
        files: tuple[Path, ...] = (),
        class_names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name, self.kind, self.path, self.files, self._class_names = name, kind, path, files, class_names
        self.is_typed = kind not in _DELIMITERS
        self._start = start or self.file_rows
        self._rest: Iterator[Row] | None = None  # what the next pass reads, if rows of it were looked at
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
        copy: Any
        if given == STANDARD_INPUT:
            name = "standard input"
            if not again:
                return cls(name, lambda: json_rows(text_lines(name, sys.stdin.buffer)), kind=".jsonl")
            copy = tempfile.NamedTemporaryFile(prefix="sdm-", suffix=".jsonl")  # noqa: SIM115  # removed with us
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            path = Path(copy.name)
        elif "://" in given:
            copy = tempfile.TemporaryDirectory(prefix="sdm-")
            name, path = _fetched(given, Path(copy.name))
        else:
            return cls.at(Path(source))
        opened = cls.at(path)
        opened.name, opened._copy = name, copy
        return opened

    @classmethod
    def at(cls, path: Path) -> Source:
        """The input at a path."""
        kind, files = _files_at(path)
        return cls(str(path), kind=kind, path=path, files=files)

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

    def rows(self) -> Iterator[Row]:
        """A pass over the rows; the first one begins with those that were looked at."""
        rest, self._rest = self._rest, None
        with self.errors():
            yield from self._start() if rest is None else rest

    def peek(self, n: int) -> list[Row]:
        """The first rows, which the next pass begins with."""
        with self.errors():
            rest = self._start() if self._rest is None else self._rest
            seen = list(islice(rest, n))
        self._rest = chain(seen, rest)
        return seen

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

    def file_rows(self, read: Callable[[Path], Iterator[Row]] | None = None) -> Iterator[Row]:
        """The rows of all files, one file after the other; places name the file if the input is not one file."""
        for file in self.files:
            rows = (read or _READERS[self.kind])(file)
            if file != self.path:
                name = self.file_name(file)
                rows = ((Place(f"{name} {place}", getattr(place, "line", 0)), row) for place, row in rows)
            yield from rows

    def column(self, name: str, what: str) -> Iterator[Any]:
        """The values of a column, in a pass of its own over all rows; None where a row has none or cannot be read."""
        if self.kind not in TEXT_KINDS:
            raise InvalidInputError(f"{self.name} has no columns, so none for the {what}. Give rows of {_ROWS}.")
        self.choose_columns({what: name}, usual=True)
        read = partial(parquet_rows, keys=(None, None, name)) if self.kind == ".parquet" else None
        return (None if isinstance(row, Unreadable) else row.get(name) for _, row in self.file_rows(read))

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
        if self.kind not in {*_STATE_KINDS, *TEXT_KINDS}:
            known = ", ".join((*_STATE_KINDS, ".csv", ".tsv"))
            raise InvalidInputError(f"The file must end in {known}. Got {self.files[0].name!r}.")
        if len(self.files) > 1:
            found: dict[bool, Path] = {}
            for file in self.files:
                with suppress(EmptyInputError), self.errors():
                    found.setdefault(Source.at(file).holds_states(column, text=text), file)
            if len(found) > 1:
                raise InvalidInputError(
                    f"The files of {self.name} must all contain states or all texts. {self.file_name(found[True])} "
                    f"contains states, {self.file_name(found[False])} texts."
                )
            if found:
                return next(iter(found))
            raise EmptyInputError(f"{self.name} is empty.")
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
        """Refuse several files that differ in the columns that are used; one without any columns is empty."""
        if self.kind == ".parquet":
            columns = {file: header.columns for file, header in self.headers.items()}
        elif self.kind in _DELIMITERS:
            lines = {file: (line for line, _ in text_lines(file)) for file in self.files}
            readers = {file: csv.reader(lines[file], delimiter=_DELIMITERS[self.kind]) for file in self.files}
            columns = {file: next(reader, []) for file, reader in readers.items()}
        else:
            return  # columns are those of a row
        found = {file: {name for name in used if name in names} for file, names in columns.items() if names}
        for file, names in found.items():
            first = next(iter(found))
            for name in sorted(names ^ found[first]):
                has, lacks = (file, first) if name in names else (first, file)
                raise InvalidInputError(
                    f"The files of {self.name} must have the same columns. {self.file_name(lacks)} has no column "
                    f"{name!r}, but {self.file_name(has)} does."
                )

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """The names of classes by column, where rows have only their numbers; all files must have the same."""
        if self.kind != ".parquet":
            return self._class_names or {}
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
        if len(self.files) > 1:
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

    def label_reader(self, column: str) -> Callable[[Any], Any]:
        """How labels are read: numbers with a name by it; from a file without surrounding white space.

        In an untyped format, a column of integers is read as integers, which takes a pass to know.
        """
        if (names := self.class_names().get(column)) is not None:
            return partial(named, names)
        if self.is_typed:
            return stripped_label if self.kind else lambda label: label
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


def _files_at(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The files at a path, and the ending that they have, without .gz; of a folder of states, the manifest.

    Otherwise a path is a file, a folder with what is below it, or a pattern such as data/*.parquet. Like Spark and
    Arrow, folders and patterns leave out names that begin with a dot or an underscore (_SUCCESS).
    """
    manifest = path / MANIFEST_NAME
    if manifest.is_file():
        return "states", (manifest,)
    files = (path,) if path.is_file() else _found(path)
    kinds = [next((end for end in reversed(file.suffixes) if end != ".gz"), "none") for file in files]
    other = next((file for file, kind in zip(files, kinds, strict=True) if kind != kinds[0]), None)
    if other is None and (len(files) == 1 or kinds[0] in TEXT_KINDS):
        return kinds[0], files
    first, second = (file.relative_to(_root(path)).as_posix() for file in (files[0], other or files[1]))
    if len(set(kinds)) > 1:
        raise InvalidInputError(
            f"{path} has files of several kinds: {first} and {second}. Choose one kind with a pattern such as "
            "'data/*.jsonl'."
        )
    raise InvalidInputError(
        f"Several files are read as one input if they end in {', '.join(TEXT_KINDS)}. {path} has {first} and {second}; "
        "give one of them."
    )


def _found(path: Path) -> tuple[Path, ...]:
    """The files of a folder or a pattern, in the order of their names within it."""
    is_folder = path.is_dir()
    if not is_folder and not glob.has_magic(str(path)):
        raise InvalidInputError(f"There is no file {str(path)!r}.")
    pattern = os.path.join(glob.escape(str(path)), "**", "*") if is_folder else str(path)
    root = _root(path)
    found = {Path(name) for name in glob.iglob(pattern, recursive=True)}
    files = [file for file in found if is_data(file.relative_to(root)) and file.is_file()]
    if not files:
        what = f"{path} has no files" if is_folder else f"No file matches {str(path)!r}"
        raise InvalidInputError(f"{what}; names that begin with a dot or an underscore do not count.")
    return tuple(sorted(files, key=lambda file: file.relative_to(root).parts))


def _root(path: Path) -> Path:
    """The folder, or the part of a pattern before the first wildcard."""
    return path if path.is_dir() else Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))


def _is_integer(label: Any) -> bool:
    text = str(label)
    return len(text) < 19 and text.isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text


def _fetched(address: str, folder: Path) -> tuple[str, Path]:
    """Copy what an address names: the file, or the folder that the files come from, and where it is now."""
    # The pattern begins with the first part that has a wildcard; a question mark is none, it begins a query.
    parts = address.split("/")
    n_fixed = next((number for number, part in enumerate(parts) if "*" in part or "[" in part), len(parts))
    root, pattern = "/".join(parts[:n_fixed]), "/".join(parts[n_fixed:])
    try:
        filesystem, start = _filesystem(root.rstrip("/"))
        kind = filesystem.info(start)["type"]  # an error if it cannot be reached, which the calls below pass over
        if not pattern and not address.endswith("/") and kind == "file":
            path = folder / root.rpartition("/")[2]
            filesystem.get_file(start, str(path))
            return root, path
        found = filesystem.glob(f"{start}/{pattern}", detail=True) if pattern else filesystem.find(start, detail=True)
        for file, details in found.items():
            name = PurePosixPath(file).relative_to(start)
            if details["type"] == "file" and is_data(name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                filesystem.get_file(file, str(folder / name))
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, FileNotFoundError) and error.__cause__ is None:
            raise InvalidInputError(f"There is no file {address!r}.") from error
        raise InvalidInputError(f"{address} cannot be read: {error.__cause__ or error}.") from error
    if not any(folder.iterdir()):
        raise InvalidInputError(f"{address} names no files; names that begin with a dot or an underscore do not count.")
    return root.rstrip("/"), folder


def _filesystem(address: str) -> tuple[Any, str]:
    """The filesystem of an address such as s3://bucket/new, as Ray Data finds it: Arrow's, or else fsspec's."""
    pa, fs = (import_extra(name, "report", f"Reading {address}") for name in ("pyarrow", "pyarrow.fs"))
    import fsspec
    from fsspec.implementations.arrow import ArrowFSWrapper

    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except pa.ArrowInvalid:  # a scheme that Arrow does not know
        return fsspec.url_to_fs(address)
    return ArrowFSWrapper(filesystem), path
