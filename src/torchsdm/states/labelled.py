"""Labelled hidden states: holding and joining them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import InvalidInputError
from torchsdm.validation import Array, ArrayLike


@dataclass(frozen=True)
class LabelledStates:
    """Hidden states with their labels and, where known, ids and texts.

    Attributes
    ----------
    hidden_states : (N, D) or (N, positions, D)
    labels : (N,)
        Of any type that scikit-learn accepts; None where the states have none.
    ids, texts : (N,), optional
    label_logits : (N, C), optional
        What the language model itself says of each label: in the order of the prompt's label words where ``origin``
        knows them, else in the order of the sorted labels.
    origin : mapping, optional
        The language model, prompt and documents that the states were made from.
    """

    hidden_states: ArrayLike
    labels: ArrayLike | None
    ids: Sequence[Any] | Array | None = None
    texts: Sequence[str] | Array | None = None
    label_logits: ArrayLike | None = None
    origin: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.hidden_states)

    def label_logits_of(self, classes: Sequence[Any]) -> ArrayLike | None:
        """The label logits with their columns in the order of classes; None where there are none."""
        if self.label_logits is None or self.origin is None:
            return self.label_logits
        known = [label for label, _ in self.origin["prompt"]["label_words"]]
        if sorted(map(repr, known)) != sorted(map(repr, classes)):
            raise InvalidInputError(
                f"The prompt has words for the labels {known!r}, and the classes are {list(classes)!r}: the language "
                "model's own logits cannot be compared. Give label words for the classes and extract anew."
            )
        order = [known.index(label) for label in classes]
        logits: ArrayLike = (
            self.label_logits[:, order]
            if isinstance(self.label_logits, Tensor)
            else np.asarray(self.label_logits)[:, order]
        )
        return logits

    @property
    def states_origin(self) -> dict[str, Any] | None:
        """The origin but for the documents: what any states must share to be used together."""
        return None if self.origin is None else {key: value for key, value in self.origin.items() if key != "documents"}


def join_states(blocks: Sequence[LabelledStates]) -> LabelledStates:
    """Blocks of the same kind, one after the other."""

    def joined(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        if any(part is None for part in parts):
            return None
        if name in ("ids", "texts"):
            return [value for part in parts for value in part]
        return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else np.concatenate(parts)

    if not blocks:
        raise InvalidInputError("'blocks' of join_states must hold at least one block. Got none.")
    columns = {name: joined(name) for name in ("hidden_states", "labels", "ids", "texts", "label_logits")}
    return LabelledStates(**columns, origin=blocks[0].origin)
