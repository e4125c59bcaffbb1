"""Hidden states with what is known about them: joining them, taking rows, and what they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.labels import as_label_array
from torchsdm.settings import check_fields
from torchsdm.validation import Array, ArrayLike, as_list

_PLACES = ("reference", "revision")  # where a model was found; its fingerprint identifies it
_LISTED = ("ids", "texts", "places", "numbers")


@dataclass(frozen=True)
class ModelOrigin:
    """Which language model, with its tokenizer."""

    reference: str | None
    """How it was found: a path, a package, a name on the hub; None for a model passed as an object."""
    revision: str | None
    fingerprint: str
    """SHA-256 of weights, configuration and tokenizer."""
    dtype: str
    """The number type it was run in."""


@dataclass(frozen=True)
class PromptOrigin:
    """What the language model was asked about each document."""

    template: str
    label_words: tuple[tuple[Any, str], ...]
    """Each label and its word; the label logits have one column per label, in this order."""
    system: str | None
    use_chat: bool
    chat_options: Mapping[str, Any]
    rendered: str
    """The prompt as the model got it, chat template applied, with a mark in place of each field."""

    @property
    def labels(self) -> tuple[Any, ...]:
        """The labels that have a word."""
        return tuple(label for label, _ in self.label_words)


@dataclass(frozen=True)
class PoolingOrigin:
    """What was taken from the language model's states."""

    parts: tuple[str, ...]
    layer: int | tuple[int, ...]
    segments: str | None
    n_segments: int
    max_tokens: int
    """The longest sequence that was run."""


class Difference(NamedTuple):
    """One difference between two origins."""

    what: str
    ours: Any
    theirs: Any


@dataclass(frozen=True)
class StatesOrigin:
    """Everything that affects hidden states. States of different origins must not be mixed."""

    model: ModelOrigin
    prompt: PromptOrigin
    pooling: PoolingOrigin

    def difference(self, other: StatesOrigin) -> Difference | None:
        """The first difference; None if states of both can be used together, wherever the model is."""
        parts = {"model": "model", "prompt": "prompt", "states": "pooling"}
        for part, attribute in parts.items():
            theirs = vars(getattr(other, attribute))
            for name, value in vars(getattr(self, attribute)).items():
                if name not in _PLACES and value != theirs[name]:
                    return Difference(f"{part} {name}", value, theirs[name])
        return None

    def identity(self) -> dict[str, dict[str, Any]]:
        """``to_json`` without what has no effect: where the model is."""
        plain = self.to_json()
        model = {name: value for name, value in plain["model"].items() if name not in _PLACES}
        return {**plain, "model": model}

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Plain values that ``from_json`` reads."""
        prompt = {**vars(self.prompt), "chat_options": dict(self.prompt.chat_options)}
        prompt["label_words"] = [list(pair) for pair in self.prompt.label_words]
        states = vars(self.pooling).items()
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in states}
        return {"model": dict(vars(self.model)), "prompt": prompt, "states": plain}

    @classmethod
    def from_json(cls, stored: Any) -> StatesOrigin:
        """The reverse of ``to_json``; keys other than the three parts are ignored."""
        try:
            model, prompt, states = (dict(stored[part]) for part in ("model", "prompt", "states"))
            prompt["label_words"] = tuple((label, word) for label, word in prompt["label_words"])
            prompt["chat_options"] = dict(prompt["chat_options"])
            states = {name: tuple(value) if isinstance(value, list) else value for name, value in states.items()}
            parts = ModelOrigin(**model), PromptOrigin(**prompt), PoolingOrigin(**states)
            return cls(*map(check_fields, parts))  # type: ignore[arg-type]  # one of each
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"These values do not describe the origin of hidden states: {error!r}.") from error


@dataclass(frozen=True)
class ExtractedStates:
    """What a language model makes of N documents."""

    hidden_states: Array
    """h, (N, D) float32; (N, 1 + segments, D) with segments."""
    label_logits: Array | None
    """The language model's own logits of the label words (N, C), in the order of the prompt's ``label_words``."""
    n_tokens: Array
    """Tokens of each document under the prompt, as run (N,)."""
    n_cut: Array
    """Tokens that each document lost because it was too long (N,)."""

    def __len__(self) -> int:
        return len(self.hidden_states)

    @classmethod
    def concatenate(cls, blocks: Sequence[ExtractedStates]) -> ExtractedStates:
        """The states of several blocks, one after the other."""
        columns = [[getattr(block, column.name) for block in blocks] for column in fields(cls)]
        joined: list[Any] = [None if parts[0] is None else np.concatenate(parts) for parts in columns]
        return cls(*joined)


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
        return _rows(self.label_logits, (slice(None), [known.index(label) for label in classes]))

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
        columns = {name: _rows(getattr(self, name), chosen) for name in ("hidden_states", "labels", "label_logits")}
        if isinstance(self.labels, list):
            columns["labels"] = as_label_array([self.labels[row] for row in chosen])
        for name in _LISTED:
            values = getattr(self, name)
            columns[name] = None if values is None else [values[row] for row in chosen]
        return replace(self, **columns)


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
