"""Read texts or states from files or standard input, and check them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from torchsdm.columns import Columns
from torchsdm.documents import BadRow, BadRows, Documents
from torchsdm.errors import EmptyInputError, InvalidInputError, MissingExtraError, Remedy
from torchsdm.states import LabelledStates
from torchsdm.validation import is_storable_id
from torchsdm.wording import shortened

STANDARD_INPUT = "-"


def checked(
    block: LabelledStates,
    path: Path,
    columns: Columns,
    *,
    needs_labels: bool,
    numbers: Sequence[int] = (),
    bad: BadRows | None = None,
) -> LabelledStates:
    """Check a block: its states must be finite, with one plain label and one plain id per row.

    A row with other states or another id is an error; if ``bad`` is given, it is left out and noted there instead.
    """
    for what, column, values in (("labels", columns.label, block.labels), ("ids", columns.id, block.ids)):
        if values is None and column is not None:
            raise InvalidInputError(f"{path} has no {column!r} for the {what}.")
        if getattr(values, "ndim", 1) != 1:
            raise InvalidInputError(f"{path}: {what} must have one value per row. Got more.")
    if needs_labels and block.labels is None:
        raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
    states = block.hidden_states if isinstance(block.hidden_states, Tensor) else np.asarray(block.hidden_states)
    is_real = not states.is_complex() if isinstance(states, Tensor) else states.dtype.kind in "fiub"
    if not is_real or states.ndim not in (2, 3):
        raise InvalidInputError(
            f"{path}: states must be rows of numbers. Got {states.dtype} of shape {tuple(states.shape)}."
        )
    with np.errstate(over="ignore"):  # values beyond float32 count as infinite
        finite = np.isfinite(
            states.float().numpy() if isinstance(states, Tensor) else states.astype(np.float32, copy=False)
        )
    ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
    labels: Any = block.labels if needs_labels else None
    block, kept = replace(block, ids=ids), []
    for row, is_finite in enumerate(map(np.all, finite)):
        problem = None if is_finite else "the states contain NaN or infinity"
        has_id = ids is None or is_storable_id(ids[row])
        if problem is None and ids is not None and not has_id:
            problem = f"an id must be text or an integer. Got {shortened(repr(ids[row]))}"
        if problem is not None and bad is not None:
            name = ids[row] if ids is not None and has_id else numbers[row]
            bad[numbers[row]] = BadRow(numbers[row], block.place(row), problem, name)
            continue
        if problem is None and labels is not None and labels[row] is None:
            problem = "no label"
        if problem is not None:
            raise InvalidInputError(f"{path}, {block.place(row)}: {problem}.")
        kept.append(row)
    return block if len(kept) == len(block) else block.take(kept)


def named_and_checked(
    block: LabelledStates,
    path: Path,
    columns: Columns,
    *,
    needs_labels: bool,
    numbers: Sequence[int],
    bad: BadRows | None,
) -> LabelledStates:
    """A block that is ``checked``; rows without ids are numbered."""
    whole = block if block.ids is not None or columns.id is not None else replace(block, ids=list(numbers))
    return checked(whole, path, columns, needs_labels=needs_labels, numbers=numbers, bad=bad)


def nothing_to_decide_on(path: Path, bad: BadRows | None) -> InvalidInputError:
    """The error for an input without any row that can be decided on."""
    if not bad:
        return EmptyInputError(f"{path} is empty.")
    return InvalidInputError(f"{path} has no row that can be decided on. {next(iter(bad.values()))}.")


def open_documents(
    path: Path, columns: Columns, *, with_labels: bool, problems: str = "raise", with_answers: bool = False
) -> Documents:
    """The texts of a file, all checked before the first is used; with their answers if those are needed."""
    return Documents(
        path,
        text=columns.text,
        label=columns.label if columns.label is not None or with_labels else False,
        id=columns.id,
        answer="answer" if columns.answer is None and with_answers else columns.answer,
        problems=problems,
        repeated="keep",
    )


@contextmanager
def readable(source: str) -> Iterator[Path]:
    """The path of an input. Standard input, as JSON lines, and what an address names are copied to a file first."""
    if source != STANDARD_INPUT and "://" not in source:
        if not Path(source).exists():
            raise InvalidInputError(f"There is no file {source!r}.")
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
        if source == STANDARD_INPUT:
            name, path, opened = "standard input", Path(folder) / "standard-input.jsonl", sys.stdin.buffer
        else:
            name, path, opened = source, Path(folder) / source.rpartition("/")[2], _opened_address(source)
        with open(path, "wb") as file:
            shutil.copyfileobj(opened, file)
        try:
            yield path
        except InvalidInputError as error:
            error.args = (error.what.replace(str(path), name),)
            raise


def _opened_address(address: str) -> Any:
    """A file of another filesystem, such as s3://bucket/new.parquet, as Ray Data opens it: with Arrow, or fsspec."""
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", f"Reading {address}") from error
    try:
        try:
            filesystem, path = FileSystem.from_uri(address)
        except ArrowInvalid:  # a scheme that Arrow does not know
            import fsspec

            return fsspec.open(address, "rb").open()
        return filesystem.open_input_stream(path, compression=None)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidInputError(f"{address} cannot be read: {error}.") from error
