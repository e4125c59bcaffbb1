"""Files of what to label for a certificate: written to be filled in, and read again with the request beside them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsdm.application.answers import check_output, write_rows
from torchsdm.data import Columns, LabelledStates, Source
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import LabelRequest
from torchsdm.labels import check_known_labels, stripped_label
from torchsdm.model import CERTIFICATION
from torchsdm.validation import Array, as_list
from torchsdm.wording import counted, listed

_REQUEST = "request"  # the column that names the file beside
UNSURE = "?"  #: the label of what nobody can tell


def check_label_file(output: Path) -> None:
    """Refuse to write over a file that somebody may be filling in."""
    check_output(output)
    if output.exists():
        raise InvalidInputError(f"{output} exists already, and may have labels. Name another file.")


def write_request(request: LabelRequest, output: Path, answers: Sequence[str | None] = ()) -> None:
    """Write a file with a row for each point to label, without a prediction, and the request beside it."""
    if not request.ids:
        raise InvalidInputError(
            f"None of the {counted(len(request.rows), 'input')} drawn could be admitted: labels would certify nothing. "
            "Give more inputs, or certify for a lower alpha."
        )
    beside = output.with_name(f"{output.name}.request")
    texts = None if request.drawn.texts is None else as_list(request.drawn.texts, "texts", str(output))
    names, rows = iter(request.ids), []
    for row in request.needs_label.nonzero()[0].tolist():
        columns: dict[str, Any] = {"id": next(names)}
        if texts is not None and texts[row] is not None:
            columns["text"] = texts[row]
        if answers and answers[row] is not None:
            columns["answer"] = answers[row]
        rows.append({**columns, "label": "", _REQUEST: beside.name})
    request.save(beside)
    write_rows(output, [rows])


def request_beside(file: str) -> LabelRequest | None:
    """The request that a file of labels answers; None for any other file."""
    source = Source.open(file, again=True)
    if source.kind not in (".jsonl", ".csv", ".tsv", ".parquet") or source.path is None:
        return None
    first = source.first_rows(1)
    name = first[0].get(_REQUEST) if first else None
    if not isinstance(name, str) or Path(name).name != name:
        return None
    beside = source.path.parent / name
    if not beside.is_file():
        raise InvalidInputError(
            f"{file} answers a request for labels, but {beside} is missing. Put it there: it has the points that need "
            "no label."
        )
    return LabelRequest.load(beside)


def filled_in(request: LabelRequest, file: str, classes: Array, columns: Columns) -> LabelledStates:
    """The points of a request with the labels that a file has for them."""
    by_text = {str(name): name for name in classes.tolist()}
    ids = {str(name): name for name in request.ids}
    labels: dict[Any, Any] = {}
    empty = []
    with (source := Source.open(file)).errors():
        for row in source.first_rows(sys.maxsize, is_strict=True):
            name, label = row.get(columns.id or "id"), stripped_label(row.get(columns.label or "label"))
            name = ids.get(str(name), name)
            if name in labels:
                raise InvalidInputError(f"{file} has {name!r} twice. Leave one of them out.")
            if label is None or label == "":
                empty.append(name)
            is_unsure = label == UNSURE and UNSURE not in by_text
            labels[name] = None if is_unsure else by_text.get(str(label), label)
    if empty:
        raise InvalidInputError(
            f"{file}: {counted(len(empty), 'row')} without a label: {listed(empty)}. Fill in every one, with "
            f"{UNSURE} where nobody can tell."
        )
    check_known_labels([one for one in labels.values() if one is not None], classes, file, to=CERTIFICATION)
    return request.answered(labels)
