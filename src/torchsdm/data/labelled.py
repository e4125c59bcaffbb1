"""Labelled hidden states: joining them, and taking rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.data.origin import StatesOrigin
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.labels import as_label_array
from torchsdm.validation import Array, ArrayLike, as_list

_LISTED = ("ids", "texts", "places", "numbers")


@dataclass(frozen=True)
class LabelledStates:
    """Hidden states with their labels and, if known, ids and texts.

    Attributes
    ----------
    hidden_states : (N, D) or (N, positions, D)
    labels : (N,)
        Of any type that scikit-learn accepts; None if there are none.
    ids, texts : (N,), optional
    label_logits : (N, C), optional
        The language model's own logits, one column per entry of ``logit_labels``. Read them with ``label_logits_of``,
        which puts the columns in the order of your classes.
    logit_labels : (C,), optional
        The labels of the columns of ``label_logits``; required with them.
    origin : StatesOrigin, optional
        The language model, prompt and settings that the states were made with.
    places : (N,), optional
        Where each row is in its source, such as "line 4"; for messages.
    numbers : (N,), optional
        The position of each row among the rows of its source, counted from 0.
    """

    hidden_states: ArrayLike
    labels: ArrayLike | None
    ids: Sequence[Any] | Array | None = None
    texts: Sequence[str] | Array | None = None
    label_logits: ArrayLike | None = None
    logit_labels: Sequence[Any] | None = None
    origin: StatesOrigin | None = None
    places: Sequence[str] | None = None
    numbers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.label_logits is None:
            return
        if self.logit_labels is None:
            raise InvalidInputError(
                "'label_logits' of LabelledStates must come with the labels of their columns. Pass logit_labels=[...]."
            )
        object.__setattr__(self, "logit_labels", tuple(as_list(self.logit_labels, "logit_labels", "LabelledStates")))
        shape = np.shape(self.label_logits)
        if len(shape) != 2 or shape[1] != len(self.logit_labels):
            raise InvalidInputError(
                f"'label_logits' of LabelledStates must have a column for each of the {len(self.logit_labels)} "
                f"'logit_labels'. Got shape {tuple(shape)}."
            )

    def __len__(self) -> int:
        return len(self.hidden_states)

    def label_logits_of(self, classes: Sequence[Any]) -> ArrayLike | None:
        """The label logits with their columns in the order of classes; None if there are none."""
        if self.label_logits is None or self.logit_labels is None:
            return None
        known = list(self.logit_labels)
        if sorted(map(repr, known)) != sorted(map(repr, classes)):
            raise InvalidInputError(
                f"The prompt has words for the labels {known!r}, but the classes are {list(classes)!r}: the language "
                "model's own logits cannot be compared. Give label words for the classes and extract the states again."
            )
        columns: ArrayLike = _rows(self.label_logits, (slice(None), [known.index(label) for label in classes]))
        return columns

    def place(self, row: int) -> str:
        """Where a row is in its source."""
        return f"row {row + 1}" if self.places is None else self.places[row]

    def number(self, row: int) -> int:
        """The position of a row among the rows of its source."""
        return row if self.numbers is None else self.numbers[row]

    def take(self, rows: Sequence[int] | Array) -> LabelledStates:
        """Some rows, in the order given, by number; a mask is refused."""
        if len(rows) and isinstance(rows[0], (bool, np.bool_)):
            raise InvalidTypeError("'rows' of LabelledStates.take must be row numbers. Got a mask; use its nonzero().")
        chosen = [int(row) for row in rows]

        def listed(values: Any) -> Any:
            return None if values is None else [values[row] for row in chosen]

        return LabelledStates(
            _rows(self.hidden_states, chosen),
            as_label_array(listed(self.labels)) if isinstance(self.labels, list) else _rows(self.labels, chosen),
            listed(self.ids),
            listed(self.texts),
            _rows(self.label_logits, chosen),
            self.logit_labels,
            self.origin,
            listed(self.places),
            listed(self.numbers),
        )


def join_states(blocks: Sequence[LabelledStates]) -> LabelledStates:
    """Blocks of the same kind, one after the other."""

    def joined(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        if any(part is None for part in parts):
            return None
        if name in _LISTED:
            return [value for part in parts for value in part]
        return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else np.concatenate(parts)

    if not blocks:
        raise InvalidInputError("'blocks' of join_states must contain at least one block. Got none.")
    if any(block.logit_labels != blocks[0].logit_labels or block.origin != blocks[0].origin for block in blocks):
        raise InvalidInputError("'blocks' of join_states must share one origin and the same label logits. Got several.")
    columns = {name: joined(name) for name in ("hidden_states", "labels", "label_logits", *_LISTED)}
    return LabelledStates(**columns, logit_labels=blocks[0].logit_labels, origin=blocks[0].origin)


def _rows(values: Any, index: Any) -> Any:
    if values is None:
        return None
    return values[index] if isinstance(values, Tensor) else np.asarray(values)[index]
