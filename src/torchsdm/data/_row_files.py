"""Files of rows: JSONL and Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchsdm.data._class_names import named, parquet_class_names
from torchsdm.data._lines import Row, Unreadable, json_rows, readable_rows, usual_keys
from torchsdm.data._request import Request
from torchsdm.data._sources import open_parquet
from torchsdm.data.document import BadRow
from torchsdm.data.labelled import LabelledStates
from torchsdm.errors import EmptyInputError, InvalidInputError
from torchsdm.validation import Array, is_storable_id
from torchsdm.wording import shortened

_BUFFER_BYTES = 1 << 20
_PARQUET_ROWS = 1024  # per batch; a block is made of batches
_SAMPLE = 1024  # rows that tell the usual keys and shape


def jsonl_blocks(request: Request) -> Iterator[LabelledStates]:
    return _row_blocks(request, request.files.rows(json_rows), "line", np.float64)


def parquet_blocks(request: Request) -> Iterator[LabelledStates]:
    headers = {file: parquet_header(file) for file in request.files.files}
    if not any(header.n_rows for header in headers.values()):
        raise EmptyInputError(f"{request.path} is empty.")
    request.files.check_columns(lambda file: headers[file].columns, request.needed)
    yield from _row_blocks(request, request.files.rows(partial(_parquet_rows, request)), "row", np.float32)


def _row_blocks(
    request: Request, rows: Iterable[Row], unit: str, dtype: type[np.floating[Any]]
) -> Iterator[LabelledStates]:
    """Blocks of rows, all of which must have the keys and the shape of the first.

    Where bad rows are only noted, the first may be one: keys and shape are then those that most of the first rows have,
    and any of them must have states.
    """
    rows = iter(readable_rows(rows, request.path) if request.bad is None else rows)
    first = list(islice(rows, 1 if request.bad is None else _SAMPLE))
    readable = [row for _, row in first if not isinstance(row, Unreadable)]
    keys = request.keys(usual_keys(readable, 0))[:2] + request.keys(usual_keys(readable))[2:]  # labels: if any has one
    if keys[0] is None:
        raise request.missing(request.names[0])
    shape = usual_shape((row.get(keys[0]) for row in readable), request.width)
    checked = _checked_rows(request, keys, shape, chain(first, rows), unit, dtype)

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
    shape: tuple[int, ...] | None,
    rows: Iterator[Row],
    unit: str,
    dtype: type[np.floating[Any]],
) -> Iterator[tuple[Any, ...]]:
    """The place of each row and its values by key, the states as an array; bad rows are errors, or are noted."""
    seen_ids: set[Any] = set()
    for number, (place, row) in enumerate(rows):
        name = None if isinstance(row, Unreadable) or keys[2] is None else row.get(keys[2])
        has_name = is_storable_id(name)
        values = row if isinstance(row, Unreadable) else _values(request, keys, shape, row, unit, dtype)
        if has_name and name in seen_ids:
            values = Unreadable("duplicate id")
        if not isinstance(values, Unreadable):
            if has_name:
                seen_ids.add(name)
            yield place, *values
        elif request.bad is None:
            raise InvalidInputError(f"{request.path}, {place}: {values}.")
        else:
            request.bad[number] = BadRow(number, place, str(values), name if has_name else number)


def _values(
    request: Request,
    keys: tuple[str | None, ...],
    shape: tuple[int, ...] | None,
    row: Mapping[str, Any],
    unit: str,
    dtype: type[np.floating[Any]],
) -> list[Any] | Unreadable:
    """The values of a row by key, the states as an array; or what is wrong with the row."""
    is_needed = (True, request.bad is None, True, request.bad is None)  # label and text, but not to decide
    for key, found, needed in zip(keys, request.keys(row), is_needed, strict=True):
        if needed and key is not None and key not in row:
            return Unreadable(f"{key!r} is missing")
        if needed and found != key:
            return Unreadable(f"{found!r} is missing in other {unit}s")
    state, *others = (None if key is None else row.get(key) for key in keys)
    state = state_of(state, shape, repr(keys[0]))
    return state if isinstance(state, Unreadable) else [state.astype(dtype, copy=False), *others]


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


class ParquetHeader(NamedTuple):
    """What a Parquet file says of its rows before they are read."""

    columns: list[str]
    n_rows: int


def parquet_header(path: Path) -> ParquetHeader:
    with open_parquet(path) as file:
        return ParquetHeader(file.schema_arrow.names, file.metadata.num_rows)


def _parquet_rows(request: Request, path: Path) -> Iterator[Row]:
    # Either default keeps the columns of a whole row group in memory, possibly the whole file.
    with open_parquet(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
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
                yield f"row {number}", dict(zip(batch.schema.names, values, strict=True))


def _arrow_value(scalar: Any) -> Any:
    """A list of numbers as an array, a list of lists as a list of arrays; anything else as a Python value."""
    import pyarrow as pa

    if not isinstance(scalar, pa.ListScalar) or scalar.values is None or scalar.values.null_count:
        return scalar.as_py()
    if pa.types.is_nested(scalar.values.type):
        return [_arrow_value(value) for value in scalar.values]
    return scalar.values.to_numpy(zero_copy_only=False)
