"""Files of rows: JSONL and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.documents import json_lines, named, parquet_class_names
from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.states._request import Request
from torchsdm.states.labelled import LabelledStates
from torchsdm.validation import Array
from torchsdm.wording import shortened

_BUFFER_BYTES = 1 << 20
_PARQUET_ROWS = 1024  # per batch; a block is made of batches


def jsonl_blocks(request: Request) -> Iterator[LabelledStates]:
    return _row_blocks(request, json_lines(request.path), "line", np.float64)


def parquet_blocks(request: Request) -> Iterator[LabelledStates]:
    with open_parquet(request.path) as file:
        if not file.metadata.num_rows:
            raise InvalidInputError(f"{request.path} is empty.")
        yield from _row_blocks(request, _parquet_rows(request, file), "row", np.float32)


def _row_blocks(
    request: Request, rows: Iterator[tuple[int, dict[str, Any]]], unit: str, dtype: type[np.floating[Any]]
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
        places, states, *others = zip(*block, strict=True)
        columns: list[Any] = [
            None if key is None else list(values) for key, values in zip(keys[1:], others, strict=True)
        ]
        return replace(LabelledStates(np.stack(states), *columns), places=list(places))

    return iter(next_block, None)


def _checked_rows(
    request: Request,
    keys: tuple[str | None, ...],
    rows: Iterator[tuple[int, dict[str, Any]]],
    unit: str,
    dtype: type[np.floating[Any]],
) -> Iterator[tuple[Any, ...]]:
    """The place of each row and its values by key, the states as an array."""
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
            raise InvalidInputError(f"{place}: {keys[0]!r} has shape {state.shape}, but the first {unit} has {shape}.")
        yield f"{unit} {number}", state, *values[1:]


def _numbers(value: Any, what: str, place: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise InvalidInputError(f"{what} must be a numeric array. In {place}: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{what} must be a numeric array. Got {shortened(repr(value))} in {place}.")
    return array


def open_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Reading Parquet") from error
    # Either default keeps the columns of a whole row group in memory, possibly the whole file.
    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)


def _parquet_rows(request: Request, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    keys = request.keys(file.schema_arrow.names)
    names = [key for key in keys if key is not None]
    classes = parquet_class_names(file.schema_arrow)
    size = _PARQUET_ROWS if request.size is None else min(request.size, _PARQUET_ROWS)
    number = 0
    for batch in file.iter_batches(batch_size=size, columns=names):
        columns: list[Iterable[Any]] = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns.append(map(_arrow_value, column) if name == keys[0] else column.to_pylist())
            if name == keys[1] and name in classes:
                columns[-1] = [named(classes[name], label) for label in columns[-1]]
        for values in zip(*columns, strict=True):
            number += 1
            yield number, dict(zip(batch.schema.names, values, strict=True))


def _arrow_value(scalar: Any) -> Any:
    """A list of numbers as an array, a list of lists as a list of arrays; anything else as a Python value."""
    import pyarrow as pa

    if not isinstance(scalar, pa.ListScalar) or scalar.values is None or scalar.values.null_count:
        return scalar.as_py()
    if pa.types.is_nested(scalar.values.type):
        return [_arrow_value(value) for value in scalar.values]
    return scalar.values.to_numpy(zero_copy_only=False)
