"""Reading hidden states from files, whole or in blocks: NPZ, safetensors, JSONL, Parquet and folders of states."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from torchsdm.data._array_files import npz_blocks, safetensors_blocks
from torchsdm.data._data_files import DataFiles
from torchsdm.data._lines import Unreadable, json_rows, readable_rows
from torchsdm.data._request import Request
from torchsdm.data._row_files import jsonl_blocks, parquet_blocks, parquet_header
from torchsdm.data.document import BadRows
from torchsdm.data.folder import MANIFEST_NAME, StatesFolder
from torchsdm.data.labelled import LabelledStates
from torchsdm.errors import EmptyInputError, InvalidInputError, TorchSDMError
from torchsdm.labels import stripped_labels
from torchsdm.validation import Array, check_path, check_positive

_TEXT_ENDINGS = (".csv", ".tsv")  # files of texts, never of states
_BINARY = (".npz", ".safetensors", ".parquet")  # have a header even without rows


def read_states(
    path: str | Path,
    *,
    states: str = "hidden_states",
    labels: str = "labels",
    ids: str = "ids",
    texts: str = "texts",
    needs_labels: bool = True,
) -> LabelledStates:
    """Read labelled hidden states from an NPZ, safetensors, JSONL (also ``.gz``) or Parquet file, or a folder.

    Parameters
    ----------
    path : path
        A file, or a directory that ``HiddenStateExtractor.extract_to`` or ``sdm embed`` wrote. Or a folder or a pattern
        of several JSONL or Parquet files, which are read in the order of their names as if they were one; names that
        begin with a dot or an underscore are left out.
    states, labels, ids, texts : str
        Names of the arrays, columns or keys of a file. ids and texts may be absent. If rows of JSONL or Parquet have no
        ``labels``, ``ids`` or ``texts``, their ``label``, ``id`` or ``text`` is used. Labels that are strings lose
        surrounding white space.
    needs_labels : bool
        Whether a file without labels is refused.

    See Also
    --------
    state_blocks : the same in blocks, for states that do not fit in memory.
    """
    path = check_path(path, "path", "read_states")
    if is_states_folder(path):
        folder = StatesFolder.open(path, verify=True)
        folder.check_complete()
        return _folder_states(folder, folder.arrays(), list(folder.examples()))
    request = Request(DataFiles.find(path), None, (states, labels, ids, texts))
    read = next(_file_blocks(request, _kind(request.files)))
    if read.labels is None and needs_labels:
        raise request.missing(labels)
    return read


def state_blocks(
    path: str | Path,
    size: int = 4096,
    *,
    states: str = "hidden_states",
    labels: str = "labels",
    ids: str = "ids",
    texts: str = "texts",
    bad: BadRows | None = None,
    width: int | None = None,
) -> Iterator[LabelledStates]:
    """Read hidden states block by block, in order; they need not fit in memory.

    Parameters
    ----------
    path : path
        As for ``read_states``: an NPZ, safetensors, JSONL or Parquet file, or a folder of states.
    size : int
        Maximum rows per block; the last block, and the last of each stored block, may have fewer.
    states, labels, ids, texts : str
        As for ``read_states``, but labels may be absent too.
    bad : dict, optional
        Of JSONL and Parquet files: where rows that cannot be used are noted, by number, before the block that follows
        them. By default they are errors. With it, a row may lack its label or text, and keys and shape are those that
        most of the first rows have.
    width : int, optional
        The width of states that is wanted, to tell the usual shape where few rows do.

    Yields
    ------
    LabelledStates
        Of at least one row; labels, ids and texts are None if the file has none.

    Raises
    ------
    InvalidInputError
        Before the first block, if the file cannot be opened, has no ``states``, or has arrays of different lengths.
        Later damage is found only when it is reached, after the blocks before it; the checksum of an NPZ file is
        checked with its last block.
    ModelFileError
        If a stored block is missing or damaged, or the extraction is not finished.
    """
    check_positive(size, "size", "state_blocks", integer=True)
    path = check_path(path, "path", "state_blocks")
    if is_states_folder(path):
        return _folder_blocks(path, size)
    request = Request(DataFiles.find(path), size, (states, labels, ids, texts), bad, width)
    return _file_blocks(request, _kind(request.files))


def has_states(path: str | Path, states: str = "hidden_states", *, text: str | None = None) -> bool:
    """Whether a path contains hidden states, as ``state_blocks`` reads them, rather than texts.

    Parameters
    ----------
    path : path
        NPZ and safetensors files and folders of states contain states, CSV and TSV files texts; for JSONL and Parquet
        files the first row decides. Several files must agree.
    states : str
        The key or column of the states in such a row.
    text : str, optional
        The key of texts in lines of JSON. With it, the first line that has either key decides, and lines that cannot be
        read are passed over.

    Raises
    ------
    InvalidInputError
        If there is nothing at ``path``, or its ending is neither that of states nor of texts.
    EmptyInputError
        If the file has no rows.
    """
    path = check_path(path, "path", "has_states")
    if is_states_folder(path):
        return True
    files = DataFiles.find(path)
    kind = _kind(files, _TEXT_ENDINGS)
    found: dict[bool, Path] = {}
    for file in files.files:
        with suppress(EmptyInputError):
            found.setdefault(_file_has_states(file, kind, states, text), file)
    if not found:
        raise EmptyInputError(f"{path} is empty.")
    if len(found) > 1:
        raise InvalidInputError(
            f"The files of {path} must all contain states or all texts. {files.name(found[True])} contains states, "
            f"{files.name(found[False])} texts."
        )
    return next(iter(found))


def input_files(path: Path) -> dict[str, Path]:
    """The files by which two inputs can be told apart, by their names within the input."""
    if is_states_folder(path):
        return {MANIFEST_NAME: path / MANIFEST_NAME}  # has digests of the others
    files = DataFiles.find(path)
    return {files.name(file): file for file in files.files}


def _file_has_states(path: Path, kind: str, states: str, text: str | None) -> bool:
    with _file_errors(path, kind):
        columns: Container[str] | None = None
        is_empty = path.stat().st_size == 0
        if is_empty and kind in _BINARY:
            raise InvalidInputError(f"{path} is empty: it is not even {kind} data without rows.")
        if kind == ".jsonl":
            columns = _deciding_line(path, states, text)
            is_empty = columns is None
        elif kind == ".parquet":
            columns, n_rows = parquet_header(path)
            is_empty = n_rows == 0
    if is_empty:
        raise EmptyInputError(f"{path} is empty.")
    return states in columns if columns is not None else kind not in _TEXT_ENDINGS


def _deciding_line(path: Path, states: str, text: str | None) -> Container[str] | None:
    """The line of JSON that tells states from texts; None if there is no line."""
    if text is None:
        return next((row for _, row in readable_rows(json_rows(path), path)), None)
    first: Container[str] | None = None
    unread = None
    for place, row in json_rows(path):
        if isinstance(row, Unreadable):
            unread = unread or f"{place}: {row}"
        elif states in row or text in row:
            return row
        elif first is None:
            first = row
    if first is None and unread is not None:
        raise InvalidInputError(f"{path} has no row that can be read. {unread}.")
    return first


def is_states_folder(path: Path) -> bool:
    """Whether ``FolderWriter`` wrote a folder."""
    return (path / MANIFEST_NAME).is_file()


def _kind(files: DataFiles, others: tuple[str, ...] = ()) -> str:
    """The ending of the files, if it is one that we read or one of the others."""
    known = (*_READERS, *others)
    if files.kind not in known:
        raise InvalidInputError(f"The file must end in {', '.join(known)}. Got {files.files[0].name!r}.")
    return files.kind


@contextmanager
def _file_errors(path: Path, kind: str) -> Iterator[None]:
    """Name the file in every error from reading it."""
    try:
        yield
    except TorchSDMError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, SafetensorError) as error:
        raise InvalidInputError(f"{path} cannot be read as {kind} data: {error}.") from error


def _file_blocks(request: Request, kind: str) -> Iterator[LabelledStates]:
    """The blocks of a file; nothing of a block is kept once the next is requested."""
    with _file_errors(request.path, kind):
        for block in _READERS[kind](request):
            yield replace(block, labels=stripped_labels(block.labels))


# --- Folders ---------------------------------------------------------------------------------------------------------


def _folder_blocks(directory: Path, size: int) -> Iterator[LabelledStates]:
    folder = StatesFolder.open(directory)
    folder.check_complete()
    n_read = 0
    for arrays, examples in zip(folder.block_arrays(verify=True), folder.block_examples(), strict=True):
        for start in range(0, len(examples), size):
            rows = slice(start, start + size)
            block = {key: array[rows] for key, array in arrays.items()}
            yield _folder_states(folder, block, examples[rows], n_read + start)
        n_read += len(examples)


def _folder_states(
    folder: StatesFolder, arrays: Mapping[str, Array], examples: Sequence[Mapping[str, Any]], first: int = 0
) -> LabelledStates:
    """The states of consecutive rows of a folder, starting at ``first``."""
    if "hidden_states" not in arrays:
        raise InvalidInputError(f"{folder.directory}: no 'hidden_states' found.")

    def column(key: str) -> list[Any] | None:
        return [example[key] for example in examples] if all(key in example for example in examples) else None

    labels, origin = column("label"), folder.origin
    return LabelledStates(
        arrays["hidden_states"],
        None if labels is None else np.array(stripped_labels(labels)),
        column("id"),
        column("text"),
        arrays.get("label_logits"),
        origin.prompt.labels,
        origin,
        [f"row {number + 1}" for number in range(first, first + len(examples))],
    )


_READERS: dict[str, Callable[[Request], Iterator[LabelledStates]]] = {
    ".npz": npz_blocks,
    ".safetensors": safetensors_blocks,
    ".jsonl": jsonl_blocks,
    ".parquet": parquet_blocks,
}
