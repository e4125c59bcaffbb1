"""Write rows to a file, in the format that its name asks for.

``.jsonl`` and ``.json`` contain rows as they are. ``.csv``, ``.tsv`` and ``.parquet`` are flat: values by label have
one column per label, such as ``probabilities[label]``, and a list such as ``exemplars`` is JSON in one column.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from torchsdm.errors import InvalidInputError, MissingExtraError
from torchsdm.files import whole_file

Row = dict[str, Any]
Blocks = Iterable[Sequence[Row]]


def check_output_format(path: Path) -> None:
    """Refuse a file whose format is unknown or cannot be written here."""
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise InvalidInputError(f"The name of an output file must end in one of {known}. Got {path.name!r}.")
    if ending == ".parquet":
        _pyarrow()


def write_rows(path: Path | None, blocks: Blocks) -> None:
    """Write rows, all with the same keys, as they arrive; the file is complete or absent.

    Without a path they go to standard output, as JSON lines.
    """
    if path is None:
        _write_json_lines(sys.stdout, blocks)
        return
    check_output_format(path)
    write = _WRITERS[path.suffix.lower()]
    with whole_file(path) as temporary:
        if write is _write_parquet:
            with open(temporary, "wb") as file:
                write(file, blocks)
        else:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                write(file, blocks)


def flat(row: Row) -> Row:
    """A row for a table, without dictionaries and lists."""
    values: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            values |= {f"{name}[{key}]": one for key, one in value.items()}
        else:
            values[name] = _json(value) if isinstance(value, list) else value
    return values


def _write_json_lines(file: IO[Any], blocks: Blocks) -> None:
    for rows in blocks:
        file.writelines(f"{_json(row)}\n" for row in rows)
        file.flush()  # for whoever reads the other end of a pipe


def _write_json(file: IO[Any], blocks: Blocks) -> None:
    before = "[\n"
    for rows in blocks:
        for row in rows:
            file.write(before + _json(row))
            before = ",\n"
    file.write("\n]\n")


def _write_csv(file: IO[Any], blocks: Blocks, delimiter: str = ",") -> None:
    writer = csv.writer(file, delimiter=delimiter)
    for number, rows in enumerate(blocks):
        if number == 0:
            writer.writerow(flat(rows[0]))
        writer.writerows(flat(row).values() for row in rows)


def _write_tsv(file: IO[Any], blocks: Blocks) -> None:
    _write_csv(file, blocks, "\t")


def _write_parquet(file: IO[Any], blocks: Blocks) -> None:
    """Blocks stay in memory as columns: the type of each column is known only at the end."""
    pa = _pyarrow()
    tables = []
    for rows in blocks:
        table = [flat(row) for row in rows]
        columns = {name: [row[name] for row in table] for name in table[0]}
        if {type(name) for name in columns["id"]} != {int}:
            columns["id"] = [str(name) for name in columns["id"]]
        tables.append(pa.table(columns))
    if len({table.schema.field("id").type for table in tables}) > 1:
        tables = [_with_type(table, "id", pa.string()) for table in tables]
    whole = pa.concat_tables(tables, promote_options="default")
    for column in whole.schema:
        if pa.types.is_null(column.type):  # all missing: texts, or numbers such as admitted_alpha
            whole = _with_type(whole, column.name, pa.string() if column.name == "text" else pa.float64())
    pa.parquet.write_table(whole, file)


def _with_type(table: Any, name: str, kind: Any) -> Any:
    return table.set_column(table.column_names.index(name), name, table[name].cast(kind))


_WRITERS = {
    ".jsonl": _write_json_lines,
    ".json": _write_json,
    ".csv": _write_csv,
    ".tsv": _write_tsv,
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
