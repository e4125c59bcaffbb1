"""Read texts or states from files or standard input, and check them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.columns import Columns
from torchsdm.documents import Documents
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.states import LabelledStates
from torchsdm.validation import is_storable_id
from torchsdm.wording import shortened

STANDARD_INPUT = "-"


def checked(block: LabelledStates, path: Path, columns: Columns, *, needs_labels: bool) -> LabelledStates:
    """Check a block: its states must be finite, with one plain label and one plain id per row."""
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
    finite = torch.isfinite(states).numpy() if isinstance(states, Tensor) else np.isfinite(states)
    ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
    labels: Any = block.labels if needs_labels else None
    for number, is_finite in enumerate(map(np.all, finite)):
        place = f"{path}, {block.place(number)}"
        if not is_finite:
            raise InvalidInputError(f"{place}: the states contain NaN or infinity.")
        if ids is not None and not is_storable_id(ids[number]):
            raise InvalidInputError(f"{place}: an id must be text or an integer. Got {shortened(repr(ids[number]))}.")
        if labels is not None and labels[number] is None:
            raise InvalidInputError(f"{place}: no label.")
    return replace(block, ids=ids)


def open_documents(path: Path, columns: Columns, *, with_labels: bool) -> Documents:
    """The texts of a file, all checked before the first is used."""
    return Documents(
        path,
        text=columns.text,
        label=columns.label if columns.label is not None or with_labels else False,
        id=columns.id,
        answer=columns.answer,
        repeated="keep",
    )


@contextmanager
def readable(source: str) -> Iterator[Path]:
    """The path of an input. Standard input, as JSON lines, is copied to a temporary file first."""
    if source != STANDARD_INPUT:
        if not Path(source).exists():
            raise InvalidInputError(f"There is no file {source!r}.")
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
        path = Path(folder) / "standard-input.jsonl"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield path
        except InvalidInputError as error:
            error.args = (error.what.replace(str(path), "standard input"),)
            raise
