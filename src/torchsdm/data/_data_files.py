"""Which files an input consists of: a file, all files of a folder, or those that match a pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePath

from torchsdm.data._lines import Row
from torchsdm.errors import InvalidInputError

_WILDCARDS = frozenset("*?[")
_KINDS_OF_ROWS = (".jsonl", ".csv", ".tsv", ".parquet")  # of which several files can be one input


@dataclass(frozen=True)
class DataFiles:
    """The files of an input in the order of their names: together one stream of rows."""

    path: Path
    """As it was given."""
    files: tuple[Path, ...]

    @classmethod
    def find(cls, path: Path) -> DataFiles:
        """The files at a path: a file, a folder with what is below it, or a pattern such as data/*.parquet.

        Like Spark and Arrow, folders and patterns leave out names that begin with a dot or an underscore (_SUCCESS).
        """
        if path.is_file():
            return cls(path, (path,))
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
        return cls(path, tuple(sorted(files, key=lambda file: file.relative_to(root).parts)))

    @property
    def kind(self) -> str:
        """The ending that all files have, without .gz."""
        first = self.files[0]
        for file in self.files[1:]:
            if file_kind(file) != file_kind(first):
                raise InvalidInputError(
                    f"{self.path} has files of several kinds: {self.name(first)} and {self.name(file)}. Choose one "
                    "kind with a pattern such as 'data/*.jsonl'."
                )
        kind = file_kind(first)
        if len(self.files) > 1 and kind not in _KINDS_OF_ROWS:
            raise InvalidInputError(
                f"Several files are read as one input if they end in {', '.join(_KINDS_OF_ROWS)}. {self.path} has "
                f"{self.name(first)} and {self.name(self.files[1])}; give one of them."
            )
        return kind

    def name(self, file: Path) -> str:
        """A file's name within the input; empty if the input is that file."""
        return "" if file == self.path else file.relative_to(_root(self.path)).as_posix()

    def rows(self, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
        """The rows of all files, one file after the other; places name the file if the input is not one file."""
        for file in self.files:
            name = self.name(file)
            for place, row in read(file):
                yield f"{name} {place}" if name else place, row

    def check_columns(self, columns_of: Callable[[Path], Collection[str]], used: Collection[str]) -> None:
        """Refuse files that differ in the columns that are used; one without any columns is empty."""
        with_columns = ((file, columns) for file in self.files if (columns := columns_of(file)))
        first, expected = None, set[str]()
        for file, columns in with_columns:
            found = {name for name in used if name in columns}
            if first is None:
                first, expected = file, found
            for name in sorted(found ^ expected):
                has, lacks = (file, first) if name in found else (first, file)
                raise InvalidInputError(
                    f"The files of {self.path} must have the same columns. {self.name(lacks)} has no column {name!r}, "
                    f"but {self.name(has)} does."
                )


def file_kind(path: PurePath) -> str:
    """The ending of a file's name, without .gz; empty if it has none."""
    endings = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return endings[-1] if endings else ""


def is_there(path: Path) -> bool:
    """Whether there is a file, a folder or anything that matches a pattern."""
    try:
        return path.exists() or any(glob.iglob(str(path), recursive=True))
    except OSError:  # too long for a file name
        return False


def is_data(name: PurePath) -> bool:
    """Whether a file belongs to the data of its folder: no part of its name within the folder is hidden."""
    return not any(part.startswith((".", "_")) for part in name.parts)


def _root(path: Path) -> Path:
    """The folder, or the part of a pattern before the first wildcard."""
    return path if path.is_dir() else Path(*takewhile(lambda part: _WILDCARDS.isdisjoint(part), path.parts))
