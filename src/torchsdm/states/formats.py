"""Reading hidden states from files, whole or in blocks: NPZ, safetensors, JSONL, Parquet and folders of shards."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from safetensors import SafetensorError, safe_open

from torchsdm.documents import json_lines
from torchsdm.errors import InvalidInputError, MissingExtraError, Remedy, TorchSDMError
from torchsdm.states.labelled import LabelledStates
from torchsdm.states.store import MANIFEST_NAME, StoredShards, shortened
from torchsdm.validation import Array, ArrayLike, check_path, check_positive, check_same_length

_BUFFER_BYTES = 1 << 20
_PARQUET_ROWS = 1024  # of a batch, of which a block is made
_TEXT_ENDINGS = (".csv", ".tsv")  # of files that hold texts and never states
_SINGULAR = {"labels": "label", "ids": "id", "texts": "text"}  # as rows of documents have them


def read_states(
    path: str | Path,
    *,
    states: str = "hidden_states",
    labels: str = "labels",
    ids: str = "ids",
    texts: str = "texts",
) -> LabelledStates:
    """Read labelled hidden states from an NPZ, safetensors, JSONL (also ``.gz``) or Parquet file, or from shards.

    Parameters
    ----------
    path : path
        A file, or a directory that ``HiddenStateExtractor.extract_to`` or ``sdm embed`` wrote.
    states, labels, ids, texts : str
        Names of the arrays, columns or keys of a file. ids and texts may be absent. Where rows of JSONL or Parquet have
        no ``labels``, ``ids`` or ``texts``, their ``label``, ``id`` or ``text`` is taken.

    See Also
    --------
    state_blocks : the same in blocks, for more states than memory holds.
    """
    request = _Request(check_path(path, "path", "read_states"), None, (states, labels, ids, texts))
    if request.path.is_dir():
        shards = StoredShards.open(request.path, verify=True)
        shards.check_complete()
        return _shard_states(shards, shards.tensors(), list(shards.examples()))
    read = next(_file_blocks(request, _kind(request.path)))
    if read.labels is None:
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
) -> Iterator[LabelledStates]:
    """Read hidden states block by block, in order, so that they may be more than memory holds.

    Parameters
    ----------
    path : path
        As for ``read_states``: an NPZ, safetensors, JSONL or Parquet file, or a directory of shards.
    size : int
        Rows of a block at most; the last block, and the last of each shard, may have fewer.
    states, labels, ids, texts : str
        As for ``read_states``, but that labels may be absent too.

    Yields
    ------
    LabelledStates
        Of at least one row; their labels, ids and texts are None where the file has none.

    Raises
    ------
    InvalidInputError
        Before the first block, if the file cannot be opened, has no ``states``, or has arrays of different lengths.
        Damage further on is met only there, after the blocks before it; the checksum of an NPZ file is compared with
        its last block.
    ModelFileError
        If a shard is missing or damaged, or the extraction has not ended.
    """
    check_positive(size, "size", "state_blocks", integer=True)
    request = _Request(check_path(path, "path", "state_blocks"), size, (states, labels, ids, texts))
    if request.path.is_dir():
        return _shard_blocks(request.path, size)
    return _file_blocks(request, _kind(request.path))


def has_states(path: str | Path, states: str = "hidden_states") -> bool:
    """Whether a file or directory holds hidden states, as ``state_blocks`` reads them, rather than texts.

    Parameters
    ----------
    path : path
        NPZ and safetensors files and directories of shards hold states, CSV and TSV files hold texts; of JSONL and
        Parquet files the first row decides.
    states : str
        The key or column of the states in such a row.

    Raises
    ------
    InvalidInputError
        If there is nothing at ``path``, if it is empty, or if it is neither states nor texts by its ending.
    """
    path = check_path(path, "path", "has_states")
    if path.is_dir():
        if not (path / MANIFEST_NAME).is_file():
            raise InvalidInputError(f"{path} is a directory without {MANIFEST_NAME}: it holds no hidden states.")
        return True
    kind = _kind(path, _TEXT_ENDINGS)
    with _file_errors(path, kind):
        columns: Container[str] | None = None
        is_empty = path.stat().st_size == 0
        if kind == ".jsonl":
            columns = next((row for _, row in json_lines(path)), None)
            is_empty = columns is None
        elif kind == ".parquet" and not is_empty:
            with _open_parquet(path) as file:
                columns = file.schema_arrow.names
                is_empty = file.metadata.num_rows == 0
    if is_empty:
        raise InvalidInputError(f"{path} is empty.")
    return states in columns if columns is not None else kind not in _TEXT_ENDINGS


@dataclass(frozen=True)
class _Request:
    """What one of the functions above is to read."""

    path: Path
    size: int | None
    """Rows of a block; None for all rows in one."""
    names: tuple[str, ...]
    """Of states, labels, ids and texts."""

    def keys(self, present: Container[str]) -> tuple[str | None, ...]:
        """By which of the keys that are present each name is found; None where by none."""
        singular = {name: key for name, key in _SINGULAR.items() if key not in self.names}
        candidates = ((name, singular.get(name, name)) for name in self.names)
        return tuple(next((key for key in keys if key in present), None) for keys in candidates)

    def missing(self, name: str) -> InvalidInputError:
        """The error that something is not in the file."""
        return InvalidInputError(f"{self.path}: no {name!r} found.", remedy=Remedy.NAME_ARRAYS)


def _kind(path: Path, others: tuple[str, ...] = ()) -> str:
    """The ending of a file that is there, if it is one that is read here or one of the others."""
    if not path.is_file():
        raise InvalidInputError(f"There is no file {str(path)!r}.")
    endings = [suffix for suffix in path.suffixes if suffix != ".gz"]
    known = (*_READERS, *others)
    if not endings or endings[-1] not in known:
        raise InvalidInputError(f"The file must end in {', '.join(known)}. Got {path.name!r}.")
    return endings[-1]


@contextmanager
def _file_errors(path: Path, kind: str) -> Iterator[None]:
    """Say of whatever goes wrong in reading a file that it does so in this file."""
    try:
        yield
    except TorchSDMError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, SafetensorError) as error:
        raise InvalidInputError(f"{path} cannot be read as {kind} data: {error}.") from error


def _file_blocks(request: _Request, kind: str) -> Iterator[LabelledStates]:
    """The blocks of a file, in which nothing is kept of a block once the next is asked for."""
    with _file_errors(request.path, kind):
        yield from _READERS[kind](request)


# --- Shards ----------------------------------------------------------------------------------------------------------


def _shard_blocks(directory: Path, size: int) -> Iterator[LabelledStates]:
    shards = StoredShards.open(directory)
    shards.check_complete()
    for tensors, examples in zip(shards.shard_tensors(verify=True), shards.shard_examples(), strict=True):
        for start in range(0, len(examples), size):
            rows = slice(start, start + size)
            yield _shard_states(shards, {key: tensor[rows] for key, tensor in tensors.items()}, examples[rows])


def _shard_states(
    shards: StoredShards, tensors: Mapping[str, Array], examples: Sequence[Mapping[str, Any]]
) -> LabelledStates:
    if "hidden_states" not in tensors:
        raise InvalidInputError(f"{shards.directory}: no 'hidden_states' found.")

    def column(key: str) -> list[Any] | None:
        return [example[key] for example in examples] if all(key in example for example in examples) else None

    labels = column("label")
    return LabelledStates(
        tensors["hidden_states"],
        None if labels is None else np.array(labels),
        column("id"),
        column("text"),
        tensors.get("label_logits"),
        shards.manifest["origin"],
    )


# --- Files of arrays: NPZ and safetensors ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _ArrayInFile:
    name: str
    shape: tuple[int, ...]
    read: Callable[[int, int], ArrayLike]
    """Reads rows from the first to before the second. Called for all rows in order."""

    def __len__(self) -> int:
        return self.shape[0]


def _array_blocks(request: _Request, arrays: Sequence[_ArrayInFile | None]) -> Iterator[LabelledStates]:
    """Blocks of arrays that have one row per input each; the first of them holds the states."""
    if arrays[0] is None:
        raise request.missing(request.names[0])
    for array in arrays:
        if array is not None and not array.shape:
            raise InvalidInputError(f"{request.path}: {array.name!r} is a single number, not a row for each input.")
        if array is not None:
            check_same_length(len(arrays[0]), array, array.name, str(request.path))
    n_rows = len(arrays[0])
    for start in [0] if request.size is None else range(0, n_rows, request.size):
        stop = n_rows if request.size is None else min(start + request.size, n_rows)
        yield _made(None if array is None else array.read(start, stop) for array in arrays)


def _made(columns: Iterable[Any]) -> LabelledStates:
    """A block of columns in the order of a request's names, None where one is absent."""
    return LabelledStates(*columns)


def _safetensors_blocks(request: _Request) -> Iterator[LabelledStates]:
    with safe_open(request.path, framework="pt") as archive:
        present = set(archive.keys())

        def tensor(name: str) -> _ArrayInFile:
            rows = archive.get_slice(name)
            return _ArrayInFile(name, tuple(rows.get_shape()), lambda start, stop: rows[start:stop])

        yield from _array_blocks(request, [tensor(name) if name in present else None for name in request.names])


def _npz_blocks(request: _Request) -> Iterator[LabelledStates]:
    with ExitStack() as opened:
        archive = opened.enter_context(zipfile.ZipFile(request.path))
        members = {info.filename: info for info in archive.infolist()}

        def array(name: str) -> _ArrayInFile | None:
            info = members.get(f"{name}.npy")
            return None if info is None else _npy_array(request, name, info, opened.enter_context(archive.open(info)))

        yield from _array_blocks(request, [array(name) for name in request.names])


_NPY_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def _npy_array(request: _Request, name: str, info: zipfile.ZipInfo, stream: IO[bytes]) -> _ArrayInFile:
    """An array in .npy format, of which the header is read and checked now and rows are read later."""
    version = npy_format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"{name!r} is in version {version} of the .npy format, which is not known")
    shape, is_fortran, dtype = _NPY_HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects, which are not read")
    n_bytes = info.file_size - stream.tell()
    if n_bytes != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"{name!r} has {n_bytes} bytes, which is not what an array of shape {shape} has")
    if is_fortran and request.size is not None and shape[0] > request.size:
        raise InvalidInputError(
            f"{request.path}: {name!r} is stored column by column (in Fortran order) and cannot be read in blocks of "
            "rows. Store numpy.ascontiguousarray of it instead."
        )

    def read(start: int, stop: int) -> Array:
        wanted = (stop - start, *shape[1:])
        buffer = np.empty(math.prod(wanted) * dtype.itemsize, dtype=np.uint8)
        n_read = 0
        while n_read < len(buffer):  # a little at a time, as the stream copies what it reads
            part = stream.read(min(len(buffer) - n_read, _BUFFER_BYTES))
            if not part:
                raise EOFError(f"{name!r} ends too early")
            buffer.data[n_read : n_read + len(part)] = part
            n_read += len(part)
        return buffer.view(dtype).reshape(wanted, order="F" if is_fortran else "C")

    return _ArrayInFile(name, shape, read)


# --- Files of rows: JSONL and Parquet --------------------------------------------------------------------------------


def _jsonl_blocks(request: _Request) -> Iterator[LabelledStates]:
    return _row_blocks(request, json_lines(request.path), "line", np.float64)


def _parquet_blocks(request: _Request) -> Iterator[LabelledStates]:
    with _open_parquet(request.path) as file:
        if not file.metadata.num_rows:
            raise InvalidInputError(f"{request.path} is empty.")
        yield from _row_blocks(request, _parquet_rows(request, file), "row", np.float32)


def _row_blocks(
    request: _Request, rows: Iterator[tuple[int, dict[str, Any]]], unit: str, dtype: type[np.floating[Any]]
) -> Iterator[LabelledStates]:
    """Blocks of numbered rows, all of which must have the keys of the first and states of one shape."""
    first = next(rows, None)
    keys = request.keys(() if first is None else first[1])
    if first is None or keys[0] is None:
        raise request.missing(request.names[0])
    checked = _checked_rows(request, keys, chain([first], rows), unit, dtype)

    def next_block() -> LabelledStates | None:
        block = list(islice(checked, request.size))
        if not block:
            return None
        states, *others = zip(*block, strict=True)
        columns = [None if key is None else list(values) for key, values in zip(keys[1:], others, strict=True)]
        return _made([np.stack(states), *columns])

    return iter(next_block, None)


def _checked_rows(
    request: _Request,
    keys: tuple[str | None, ...],
    rows: Iterator[tuple[int, dict[str, Any]]],
    unit: str,
    dtype: type[np.floating[Any]],
) -> Iterator[tuple[Any, ...]]:
    """The values of each row by key, the states as an array."""
    shape: tuple[int, ...] | None = None
    for number, row in rows:
        place = f"{request.path}, {unit} {number}"
        for key, found in zip(keys, request.keys(row), strict=True):
            if key is not None and key not in row:
                raise InvalidInputError(f"{place}: {key!r} is missing.")
            if found != key:
                raise InvalidInputError(f"{place}: {found!r} is missing in an earlier {unit}.")
        values = [None if key is None else row[key] for key in keys]
        state = _numbers(values[0], f"'{keys[0]}' of {request.path}", f"{unit} {number}").astype(dtype, copy=False)
        if state.shape != (shape := state.shape if shape is None else shape):
            raise InvalidInputError(f"{place}: {keys[0]!r} has shape {state.shape} where the first {unit} has {shape}.")
        yield state, *values[1:]


def _numbers(value: Any, what: str, place: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise InvalidInputError(f"{what} must be a numeric array. In {place}: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{what} must be a numeric array. Got {shortened(value)} in {place}.")
    return array


def _open_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Reading Parquet") from error
    # Either default holds the columns of a whole group of rows, which may be the whole file.
    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)


def _parquet_rows(request: _Request, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    keys = request.keys(file.schema_arrow.names)
    names = [key for key in keys if key is not None]
    size = _PARQUET_ROWS if request.size is None else min(request.size, _PARQUET_ROWS)
    number = 0
    for batch in file.iter_batches(batch_size=size, columns=names):
        columns = (
            map(_arrow_value, column) if name == keys[0] else column.to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        )
        for values in zip(*columns, strict=True):
            number += 1
            yield number, dict(zip(batch.schema.names, values, strict=True))


def _arrow_value(scalar: Any) -> Any:
    """A list of numbers as an array, and of lists as a list of arrays; anything else as Python has it."""
    import pyarrow as pa

    if not isinstance(scalar, pa.ListScalar) or scalar.values is None or scalar.values.null_count:
        return scalar.as_py()
    if pa.types.is_nested(scalar.values.type):
        return [_arrow_value(value) for value in scalar.values]
    return scalar.values.to_numpy(zero_copy_only=False)


_READERS: dict[str, Callable[[_Request], Iterator[LabelledStates]]] = {
    ".npz": _npz_blocks,
    ".safetensors": _safetensors_blocks,
    ".jsonl": _jsonl_blocks,
    ".parquet": _parquet_blocks,
}
