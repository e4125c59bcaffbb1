"""Hidden states from files, whole or in blocks: NPZ, safetensors, JSONL, Parquet and folders of states."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy_format
from safetensors import SafetensorError, safe_open

from torchsdm.data._rows import PARQUET_ROWS, Place, Row, Unreadable, parquet_rows, readable_rows, usual_keys
from torchsdm.data.documents import BadRow, BadRows
from torchsdm.data.labelled import LabelledStates
from torchsdm.data.source import SAMPLE, Source
from torchsdm.data.store import StatesFolder
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy, TorchSDMError
from torchsdm.labels import stripped_labels
from torchsdm.validation import Array, ArrayLike, check_path, check_positive, check_same_length, is_storable_id
from torchsdm.wording import shortened

Names: TypeAlias = tuple[str, str, str, str]
"""The names of states, labels, ids and texts."""
USUAL_NAMES: Names = ("hidden_states", "labels", "ids", "texts")
_SINGULAR = {"labels": "label", "ids": "id", "texts": "text"}  # as in rows of documents
_BUFFER_BYTES = 1 << 20
_MOST_TIMES = 1032  # that DEFLATE makes of its input
_NPY_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


@dataclass(frozen=True)
class _Request:
    source: Source
    size: int | None
    """Rows per block; None for all rows in one."""
    names: Names
    bad: BadRows | None = None
    """Where rows that cannot be used are noted; None: they are errors."""
    width: int | None = None
    """The width of the states that are wanted, if it is known."""

    def keys(self, present: Container[str]) -> tuple[str | None, ...]:
        """The key under which each name is present; None if it is not."""
        singular = {name: key for name, key in _SINGULAR.items() if key not in self.names}
        candidates = ((name, singular.get(name, name)) for name in self.names)
        return tuple(next((key for key in keys if key in present), None) for keys in candidates)

    def missing(self, name: str) -> InvalidInputError:
        """The error for something that is not in the file."""
        return InvalidInputError(f"{self.source.name}: no {name!r} found.", remedy=Remedy.NAME_ARRAYS)


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
    source = Source.at(check_path(path, "path", "read_states"))
    (read,) = states_of(source, None, names=(states, labels, ids, texts), needs_labels=needs_labels)
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
    source = Source.at(check_path(path, "path", "state_blocks"))
    return states_of(source, size, names=(states, labels, ids, texts), bad=bad, width=width)


def states_of(
    source: Source,
    size: int | None,
    *,
    names: Names = USUAL_NAMES,
    needs_labels: bool = False,
    bad: BadRows | None = None,
    width: int | None = None,
) -> Iterator[LabelledStates]:
    """``state_blocks`` of an input that is open; without a size, all rows in one block."""
    if source.kind == "states":
        return _folder_blocks(source.files[0].parent, size)
    if source.kind not in _READERS:
        raise InvalidInputError(f"The file must end in {', '.join(_READERS)}. Got {source.files[0].name!r}.")
    return _file_blocks(_Request(source, size, names, bad, width), needs_labels)


def _file_blocks(request: _Request, needs_labels: bool) -> Iterator[LabelledStates]:
    """The blocks of a file, which every error names; nothing of a block is kept once the next is requested."""
    source = request.source
    try:
        with source.errors():
            for block in _READERS[source.kind](request):
                if block.labels is None and needs_labels:
                    raise request.missing(request.names[1])
                yield replace(block, labels=stripped_labels(block.labels))
    except TorchSDMError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, SafetensorError) as error:
        raise InvalidInputError(f"{source.name} cannot be read as {source.kind} data: {error}.") from error


# --- Rows: JSONL and Parquet -----------------------------------------------------------------------------------------


def _row_blocks(request: _Request) -> Iterator[LabelledStates]:
    """Blocks of rows, all of which must have the keys and the shape of the first.

    Where bad rows are only noted, the first may be one: keys and shape are then those that most of the first rows have,
    and any of them must have states.
    """
    source, n_first = request.source, 1 if request.bad is None else SAMPLE
    unit, dtype = ("line", np.float64) if source.kind == ".jsonl" else ("row", np.float32)
    if source.kind == ".jsonl":
        first, rows = source.peek(n_first), source.rows()
    else:
        if not any(header.n_rows for header in source.headers.values()):
            raise EmptyInputError(f"{source.name} is empty.")
        states, _, ids, _ = request.names  # without which rows cannot be used or told apart
        source.check_columns({states, ids, _SINGULAR.get(ids, ids)})

        def read(path: Path) -> Iterator[Row]:
            return parquet_rows(path, request.keys(source.headers[path].columns), request.size or PARQUET_ROWS)

        rows = source.file_rows(read)
        first = list(islice(rows, n_first))
        rows = chain(first, rows)
    if request.bad is None:
        first, rows = list(readable_rows(first, source.name)), readable_rows(rows, source.name)
    readable = [row for _, row in first if not isinstance(row, Unreadable)]
    keys = request.keys(usual_keys(readable, 0))[:2] + request.keys(usual_keys(readable))[2:]  # labels: if any has one
    if keys[0] is None:
        raise request.missing(request.names[0])
    shape = usual_shape((row.get(keys[0]) for row in readable), request.width)
    checked = _checked_rows(request, keys, shape, rows, unit, dtype)

    def next_block() -> LabelledStates | None:  # a function, so that nothing of a block is kept for the next
        block = list(islice(checked, request.size))
        if not block:
            return None
        numbers, places, values, *others = zip(*block, strict=True)
        columns: list[Any] = [
            None if key is None else list(column) for key, column in zip(keys[1:], others, strict=True)
        ]
        return replace(LabelledStates(np.stack(values), *columns), places=list(places), numbers=numbers)

    yield from iter(next_block, None)


def _checked_rows(
    request: _Request,
    keys: tuple[str | None, ...],
    shape: tuple[int, ...] | None,
    rows: Iterator[Row],
    unit: str,
    dtype: type[np.floating[Any]],
) -> Iterator[tuple[Any, ...]]:
    """Number, place and values by key of each row, the states as an array; bad rows are errors, or are noted."""
    seen_ids: set[Any] = set()
    is_needed = (True, request.bad is None, True, request.bad is None)  # label and text, but not to decide

    def values_of(row: Mapping[str, Any]) -> list[Any] | Unreadable:
        for key, found, needed in zip(keys, request.keys(row), is_needed, strict=True):
            if needed and key is not None and key not in row:
                return Unreadable(f"{key!r} is missing")
            if needed and found != key:
                return Unreadable(f"{found!r} is missing in other {unit}s")
        state, *others = (None if key is None else row.get(key) for key in keys)
        state = state_of(state, shape, repr(keys[0]))
        return state if isinstance(state, Unreadable) else [state.astype(dtype, copy=False), *others]

    for number, (place, row) in enumerate(rows):
        name = None if isinstance(row, Unreadable) or keys[2] is None else row.get(keys[2])
        has_name = is_storable_id(name)
        values = row if isinstance(row, Unreadable) else values_of(row)
        if has_name and name in seen_ids:
            values = Unreadable("duplicate id")
        if not isinstance(values, Unreadable):
            if has_name:
                seen_ids.add(name)
            yield number, place, *values
        elif request.bad is None:
            raise InvalidInputError(f"{request.source.name}, {place}: {values}.")
        else:
            request.bad[number] = BadRow(number, place, str(values), name if has_name else number)


def usual_shape(values: Iterable[Any], width: int | None = None) -> tuple[int, ...] | None:
    """The shape of most states, of those with the width if any have it; None if none is numeric."""
    states = (state_of(value, None, "") for value in values)
    counts = Counter(state.shape for state in states if not isinstance(state, Unreadable))
    fitting = {shape: n for shape, n in counts.items() if shape[-1:] == (width,)} or counts
    return max(fitting, key=lambda shape: fitting[shape], default=None)


def state_of(value: Any, shape: tuple[int, ...] | None, name: str) -> Array | Unreadable:
    """Numbers as an array of a shape, None for any; or what is wrong with them."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        return Unreadable(f"{name} must be a numeric array: {error}")
    if array.dtype.kind not in "fiub":
        return Unreadable(f"{name} must be a numeric array. Got {shortened(repr(value))}")
    if shape is not None and array.shape != shape:
        return Unreadable(f"{name} has shape {array.shape} instead of {shape}")
    return array


# --- Arrays: NPZ and safetensors -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ArrayInFile:
    name: str
    shape: tuple[int, ...]
    read: Callable[[int, int], ArrayLike]
    """Reads the rows from start to before stop. Called for all rows in order."""

    def __len__(self) -> int:
        return self.shape[0]


def _array_blocks(request: _Request, arrays: Sequence[_ArrayInFile | None]) -> Iterator[LabelledStates]:
    """Blocks of arrays that have one row per input each; the first has the states."""
    if arrays[0] is None:
        raise request.missing(request.names[0])
    for array in arrays:
        if array is not None and not array.shape:
            raise InvalidInputError(f"{request.source.name}: {array.name!r} is a single number, not one row per input.")
        if array is not None:
            check_same_length(len(arrays[0]), array, array.name, request.source.name)
    n_rows = len(arrays[0])
    for start in [0] if request.size is None else range(0, n_rows, request.size):
        stop = n_rows if request.size is None else min(start + request.size, n_rows)
        columns: list[Any] = [None if array is None else array.read(start, stop) for array in arrays]
        places = [Place(f"row {number + 1}", number + 1) for number in range(start, stop)]
        yield replace(LabelledStates(*columns), places=places, numbers=range(start, stop))


def _safetensors_blocks(request: _Request) -> Iterator[LabelledStates]:
    with safe_open(request.source.files[0], framework="pt") as archive:
        present = set(archive.keys())

        def tensor(name: str) -> _ArrayInFile:
            rows = archive.get_slice(name)
            return _ArrayInFile(name, tuple(rows.get_shape()), lambda start, stop: rows[start:stop])

        yield from _array_blocks(request, [tensor(name) if name in present else None for name in request.names])


def _npz_blocks(request: _Request) -> Iterator[LabelledStates]:
    with ExitStack() as opened:
        archive = opened.enter_context(zipfile.ZipFile(request.source.files[0]))
        members = {info.filename: info for info in archive.infolist()}

        def array(name: str) -> _ArrayInFile | None:
            info = members.get(f"{name}.npy")
            return None if info is None else _npy_array(request, name, info, opened.enter_context(archive.open(info)))

        yield from _array_blocks(request, [array(name) for name in request.names])


def _npy_array(request: _Request, name: str, info: zipfile.ZipInfo, stream: IO[bytes]) -> _ArrayInFile:
    """An array in .npy format; its header is read and checked now, its rows later."""
    version = npy_format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"{name!r} uses version {version} of the .npy format, which is not supported")
    try:
        shape, is_fortran, dtype = _NPY_HEADERS[version](stream)
    except (TokenError, SyntaxError, TypeError, RecursionError) as error:  # what NumPy's parser comes to
        raise ValueError(f"the header of {name!r} cannot be read ({error})") from error
    if dtype.hasobject:
        raise ValueError(f"{name!r} contains Python objects, which are not read")
    if info.file_size > _MOST_TIMES * max(info.compress_size, 1):
        raise ValueError(f"{name!r} claims {info.file_size} bytes, more than its {info.compress_size} can unpack to")
    n_bytes = info.file_size - stream.tell()
    if n_bytes != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"{name!r} has {n_bytes} bytes, which does not match its shape {shape}")
    if is_fortran and request.size is not None and shape[0] > request.size:
        raise InvalidInputError(
            f"{request.source.name}: {name!r} is stored column by column (in Fortran order) and cannot be read in "
            "blocks of rows. Store numpy.ascontiguousarray of it instead."
        )

    def read(start: int, stop: int) -> Array:
        wanted = (stop - start, *shape[1:])
        buffer = np.empty(math.prod(wanted) * dtype.itemsize, dtype=np.uint8)
        n_read = 0
        while n_read < len(buffer):  # a little at a time, because the stream copies what it reads
            part = stream.read(min(len(buffer) - n_read, _BUFFER_BYTES))
            if not part:
                raise EOFError(f"{name!r} ends too early")
            buffer.data[n_read : n_read + len(part)] = part
            n_read += len(part)
        return buffer.view(dtype).reshape(wanted, order="F" if is_fortran else "C")

    return _ArrayInFile(name, shape, read)


# --- Folders ---------------------------------------------------------------------------------------------------------


def _folder_blocks(directory: Path, size: int | None) -> Iterator[LabelledStates]:
    folder = StatesFolder.open(directory, verify=size is None)
    folder.check_complete()
    if size is None:
        yield _folder_states(folder, folder.arrays(), list(chain.from_iterable(folder.block_examples())))
        return
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
        [Place(f"row {number + 1}", number + 1) for number in range(first, first + len(examples))],
        range(first, first + len(examples)),
    )


_READERS: dict[str, Callable[[_Request], Iterator[LabelledStates]]] = {
    ".npz": _npz_blocks,
    ".safetensors": _safetensors_blocks,
    ".jsonl": _row_blocks,
    ".parquet": _row_blocks,
}
