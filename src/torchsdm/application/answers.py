"""One shape for every answer: a block of states goes in, one row of plain values per input comes out, and is written.

The command and the service write only these rows; ``decision_schema`` describes them. A file has the format that its
name asks for: ``.jsonl`` and ``.json`` contain rows as they are. ``.csv``, ``.tsv`` and ``.parquet`` are flat: values
by label have one column per label, such as ``probabilities[label]``, and a list such as ``exemplars`` is JSON in one
column.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from torchsdm.data import BadRow, LabelledStates, is_states_folder
from torchsdm.errors import InvalidInputError, import_extra
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.files import whole_file
from torchsdm.settings import REJECTED
from torchsdm.trust import Watcher
from torchsdm.validation import as_list

Row: TypeAlias = "dict[str, Any]"
Blocks: TypeAlias = Iterable[Sequence[Row]]
Like: TypeAlias = Callable[[], Row]  # makes a row like those to be written


def decision_schema() -> dict[str, Any]:
    """The JSON schema of a row."""
    text = files("torchsdm.application").joinpath("decision.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def answer_rows(
    classifier: SDMClassifier | SDMEnsemble,
    block: LabelledStates,
    *,
    k: int = 0,
    calibration: bool = False,
    texts: bool = False,
    guard: Watcher | None = None,
) -> list[dict[str, Any]]:
    """Decide on a block of states: one row per input, with its id, its line, and the fields of ``Decisions.to_dicts``.

    Inputs without ids are numbered from 0. If k > 0, a row also has ``exemplars``, the k nearest training examples, and
    with ``calibration`` the calibration points like the input, as ``Explanation`` does. With ``texts`` it has the text
    of its input and of the examples behind it. The ``guard`` watches the stream of inputs that the block belongs to;
    not for an ensemble, which has none.
    """
    watched: dict[str, Any] = {} if guard is None else {"guard": guard}
    states = block.hidden_states
    rows = (
        [one.to_dict(calibration=calibration, texts=texts) for one in classifier.explain(states, k, **watched)]
        if k
        else classifier.decide(states, **watched).to_dicts()
    )
    return rows_beside(block, rows, texts=texts)


def rows_beside(block: LabelledStates, rows: Iterable[Row], *, texts: bool) -> list[Row]:
    """The rows of a block with what is not of the decision: id, line and, if asked for, text."""
    ids = range(len(block)) if block.ids is None else as_list(block.ids, "ids", "answer_rows")
    quoted = [None] * len(block) if block.texts is None else block.texts
    places = [None] * len(block) if block.places is None else block.places
    return [
        {"id": name, "line": getattr(place, "line", None), **({"text": text} if texts else {}), **row}
        for name, text, place, row in zip(ids, quoted, places, rows, strict=True)
    ]


def with_rejected(answers: Iterable[tuple[Sequence[int], list[Row]]], bad: Mapping[int, BadRow]) -> Iterator[list[Row]]:
    """Blocks of answers, with a row for every input that could not be decided on, each in its place.

    Answers come with the numbers of their inputs. Bad inputs may be noted while the answers are made, before the block
    that follows them. There must be an answer: it shows what a row has.
    """
    position = 0
    row: Row = {}
    for numbers, rows in answers:
        block: list[Row] = []
        for number, row in zip(numbers, rows, strict=True):
            block += [rejected_row(bad[before], row) for before in range(position, number)]
            block.append(row)
            position = number + 1
        yield block
    rest = [rejected_row(bad[number], row) for number in sorted(bad) if number >= position] if row else []
    if rest:
        yield rest


def rejected_row(bad: BadRow, like: Row) -> Row:
    """The row of an input that could not be decided on: nothing is admitted, nothing is known, and the reason why.

    It has the keys of a decision, so that every row of a file has the same columns.
    """
    blank: Row = {name: _blank(value) for name, value in like.items()}
    unknown = {"prediction": None, "out_of_distribution": None, "admitted": False, "lane": REJECTED}
    return {**blank, **unknown, "id": bad.id, "line": getattr(bad.place, "line", None), "reason": str(bad)}


def _blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _blank(one) for name, one in value.items()}
    return [] if isinstance(value, list) else False if isinstance(value, bool) else None


def example_row(classifier: SDMClassifier | SDMEnsemble, *, k: int = 0, texts: bool = False) -> dict[str, Any]:
    """A row as ``answer_rows`` makes them, of a state of zeros: what is in it, where there is no input to ask."""
    shape = (1,) * (classifier.input_ndim_ - 1)
    states = np.zeros((*shape, classifier.n_features_in_), dtype=np.float32)
    return answer_rows(classifier, LabelledStates(states, None), k=k, texts=texts)[0]


# --- Writing rows ----------------------------------------------------------------------------------------------------

_json = partial(json.dumps, allow_nan=False, ensure_ascii=False)


def check_output(path: Path, source: str | None = None) -> None:
    """Refuse a file whose format is unknown or cannot be written here, or one among the files of the input."""
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise InvalidInputError(f"The name of an output file must end in one of {known}. Got {path.name!r}.")
    if ending == ".parquet":
        _pyarrow()
    is_among = source is not None and Path(source).resolve() in path.resolve().parents
    if source is not None and is_among and not is_states_folder(Path(source)):
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
        are_words = {type(row["id"]) for row in rows} != {int}
        return pa.Table.from_pylist([flat({**row, "id": str(row["id"])} if are_words else row) for row in rows])

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


def _pyarrow() -> Any:
    import_extra("pyarrow.parquet", "report", "Writing Parquet")
    return import_extra("pyarrow", "report", "Writing Parquet")
