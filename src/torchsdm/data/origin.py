"""What hidden states were made from: a language model, a prompt, and what was taken from its states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchsdm.errors import InvalidInputError
from torchsdm.settings import check_fields

_PLACES = ("reference", "revision")  # where a model was found; its fingerprint identifies it


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
        theirs = other.identity()
        for part, values in self.identity().items():
            for name, value in values.items():
                if value != theirs[part][name]:
                    return Difference(f"{part} {name}", value, theirs[part][name])
        return None

    def identity(self) -> dict[str, dict[str, Any]]:
        """``to_json`` without what has no effect: where the model is."""
        plain = self.to_json()
        model = {name: value for name, value in plain["model"].items() if name not in _PLACES}
        return {**plain, "model": model}

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Plain values that ``from_json`` reads."""
        prompt = {**vars(self.prompt), "chat_options": dict(self.prompt.chat_options)}
        prompt["label_words"] = [[label, word] for label, word in self.prompt.label_words]
        states = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self.pooling).items()
        }
        return {"model": dict(vars(self.model)), "prompt": prompt, "states": states}

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
