"""Write rows to a file, in the format that its name asks for.

``.jsonl`` and ``.json`` contain rows as they are. ``.csv``, ``.tsv`` and ``.parquet`` are flat: values by label have
one column per label, such as ``probabilities[label]``, and a list such as ``exemplars`` is JSON in one column.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from torchsdm.data import is_states_folder
from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.files import whole_file

Row = dict[str, Any]
Blocks = Iterable[Sequence[Row]]
Like = Callable[[], Row]  # makes a row like those to be written


def check_output(path: Path, source: str | None = None) -> None:
    """Refuse a file whose format is unknown or cannot be written here, or one among the files of the input."""
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise InvalidInputError(f"The name of an output file must end in one of {known}. Got {path.name!r}.")
    if ending == ".parquet":
        _pyarrow()
    folder = None if source is None else Path(source)
    if folder is None or not folder.is_dir() or is_states_folder(folder):
        return
    if folder.resolve() in path.resolve().parents:
        raise InvalidInputError(f"{path} is in {source}, where it would be read as input. Write it elsewhere.")


def write_rows(path: Path | None, blocks: Blocks, like: Like | None = None) -> None:
    """Write rows, all with the same keys, as they arrive; the file is complete or absent.

    Without a path they go to standard output, as JSON lines. ``like`` makes a row of the same kind, and is asked only
    if there are none: a table without rows then has their columns.
    """
    if path is None:
        _write_json_lines(sys.stdout, blocks)
        return
    check_output(path)
    write = _WRITERS[path.suffix.lower()]
    opening: Row = {"mode": "wb"} if write is _write_parquet else {"mode": "w", "encoding": "utf-8", "newline": ""}
    with whole_file(path) as temporary, open(temporary, **opening) as file:
        write(file, blocks, like)


def flat(row: Row) -> Row:
    """A row for a table, without dictionaries and lists."""
    values: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            values |= {f"{name}[{key}]": one for key, one in value.items()}
        else:
            values[name] = _json(value) if isinstance(value, list) else value
    return values


def _write_json_lines(file: IO[Any], blocks: Blocks, _: Like | None = None) -> None:
    for rows in blocks:
        file.writelines(f"{_json(row)}\n" for row in rows)
        file.flush()  # for whoever reads the other end of a pipe


def _write_json(file: IO[Any], blocks: Blocks, _: Like | None = None) -> None:
    file.write("[")
    before = "\n"
    for rows in blocks:
        for row in rows:
            file.write(before + _json(row))
            before = ",\n"
    file.write("\n]\n")


def _write_csv(file: IO[Any], blocks: Blocks, like: Like | None = None, delimiter: str = ",") -> None:
    writer, has_header = csv.writer(file, delimiter=delimiter), False
    for rows in blocks:
        if not has_header:
            writer.writerow(flat(rows[0]))
            has_header = True
        writer.writerows(flat(row).values() for row in rows)
    if not has_header and like is not None:
        writer.writerow(flat(like()))


def _write_parquet(file: IO[Any], blocks: Blocks, like: Like | None = None) -> None:
    """Blocks stay in memory as columns: the type of each column is known only at the end."""
    pa = _pyarrow()

    def table(rows: Sequence[Row]) -> Any:
        flat_rows = [flat(row) for row in rows]
        columns = {name: [row[name] for row in flat_rows] for name in flat_rows[0]}
        if {type(name) for name in columns["id"]} != {int}:
            columns["id"] = [str(name) for name in columns["id"]]
        return pa.table(columns)

    tables = [table(rows) for rows in blocks]
    if not tables:
        tables = [pa.table({}) if like is None else table([like()])[:0]]
    if len({one.schema.field("id").type for one in tables if one.column_names}) > 1:
        tables = [_with_type(one, "id", pa.string()) for one in tables]
    whole = pa.concat_tables(tables, promote_options="default")
    for column in whole.schema:
        if pa.types.is_null(column.type):  # all missing: texts, lines, or numbers such as admitted_alpha
            kind = {"text": pa.string(), "line": pa.int64()}.get(column.name, pa.float64())
            whole = _with_type(whole, column.name, kind)
    pa.parquet.write_table(whole, file)


def _with_type(table: Any, name: str, kind: Any) -> Any:
    return table.set_column(table.column_names.index(name), name, table[name].cast(kind))


_WRITERS: dict[str, Callable[[IO[Any], Blocks, Like | None], None]] = {
    ".jsonl": _write_json_lines,
    ".json": _write_json,
    ".csv": _write_csv,
    ".tsv": partial(_write_csv, delimiter="\t"),
    ".parquet": _write_parquet,
}


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Writing Parquet") from error
    return pyarrow
