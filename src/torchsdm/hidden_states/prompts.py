"""Task prompts: what a language model is asked about a document, and the words it may answer with."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.wording import shortened

FIELDS = ("document", "answer")  #: what a template may ask for


@dataclass(frozen=True)
class TaskPrompt:
    """A question about a document.

    Parameters
    ----------
    template : str
        Text with ``{document}`` where the document goes, and optionally ``{answer}`` where another model's answer goes.
        Double a literal brace, as in Python's ``str.format``. Documents are never parsed: braces and special tokens in
        them are plain text.
    label_words : mapping or sequence, optional
        The word for each label, or the words for labels 0, 1, ... in order. The language model's own logits of these
        words are stored with the hidden states.
    system : str, optional
        The system message, if the model's chat template takes one.

    Examples
    --------
    >>> prompt = TaskPrompt("Is this spam? {document}", label_words=["No", "Yes"])
    >>> prompt.fill(document="Win {money}!")
    'Is this spam? Win {money}!'
    """

    template: str
    label_words: Mapping[Any, str] | Sequence[str] = field(default_factory=dict)
    system: str | None = None
    pieces: list[tuple[str, str | None]] = field(init=False, repr=False, compare=False)
    """The template as pairs: literal text, and the field that follows it (None at the end)."""
    fields: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The fields of the template, in order."""

    def __post_init__(self) -> None:
        if not isinstance(self.template, str):
            raise InvalidTypeError(f"'template' of TaskPrompt must be a string. Got {self.template!r}.")
        if self.system is not None and not isinstance(self.system, str):
            raise InvalidTypeError(f"'system' of TaskPrompt must be a string or None. Got {self.system!r}.")
        object.__setattr__(self, "label_words", _check_words(self.label_words))
        try:
            parsed = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise InvalidInputError(
                f"'template' of TaskPrompt has a single brace: {error}. Double a literal brace."
            ) from error
        fields = tuple(name for _, name, _, _ in parsed if name is not None)
        object.__setattr__(self, "pieces", [(text, name) for text, name, _, _ in parsed])
        object.__setattr__(self, "fields", fields)
        for _, name, spec, how in parsed:
            if spec or how:
                raise InvalidInputError(f"'template' of TaskPrompt must not format fields. Got a format in {{{name}}}.")
        for name in fields:
            if name not in FIELDS:
                listed = " or ".join(f"{{{known}}}" for known in FIELDS)
                raise InvalidInputError(
                    f"'template' of TaskPrompt may contain {listed}. Got {{{name}}}; double a literal brace."
                )
        if len(set(fields)) != len(fields) or "document" not in fields:
            raise InvalidInputError(
                f"'template' of TaskPrompt must contain {{document}} once, and {{answer}} at most once. "
                f"Got {self.template[:80]!r}."
            )

    @property
    def words(self) -> dict[Any, str]:
        """The word of each label."""
        return dict(self.label_words)  # type: ignore[arg-type]  # a mapping since __post_init__

    def fill(self, **texts: str) -> str:
        """The template with texts in place of its fields."""
        return "".join(literal + ("" if name is None else texts[name]) for literal, name in self.pieces)

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``from_json`` reads."""
        words = [[label, word] for label, word in self.words.items()]
        return {"template": self.template, "label_words": words, "system": self.system}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TaskPrompt:
        """The reverse of ``to_json``."""
        return cls(stored["template"], dict(stored["label_words"]), stored["system"])


def _check_words(words: Any) -> dict[Any, str]:
    if isinstance(words, Mapping):
        chosen = dict(words)
    elif isinstance(words, Sequence) and not isinstance(words, str):
        chosen = dict(enumerate(words))
    else:
        raise InvalidTypeError(f"'label_words' of TaskPrompt must map labels to words, or list words. Got {words!r}.")
    for label, word in chosen.items():
        if not isinstance(word, str) or not word.strip():
            raise InvalidInputError(f"'label_words' of TaskPrompt must be words. Got {word!r} for label {label!r}.")
        if not isinstance(label, (str, int, float, bool)):
            raise InvalidTypeError(f"'label_words' of TaskPrompt must have plain values as labels. Got {label!r}.")
    if len(set(chosen.values())) != len(chosen):
        raise InvalidInputError(f"'label_words' of TaskPrompt must differ. Got {list(chosen.values())!r}.")
    if len(chosen) == 1:
        raise InvalidInputError("'label_words' of TaskPrompt must name at least two labels, or none. Got one.")
    return chosen


_PROMPTS = {
    "sentiment": TaskPrompt(
        "Here is a movie review. <review> {document} </review> Is the sentiment of the movie review positive? "
        "Answer Yes if the sentiment is positive. Answer No if the sentiment is negative. "
        "Start your response with Yes or No.",
        label_words=["No", "Yes"],
    ),
    "factcheck": TaskPrompt(
        "Here is a statement that may contain errors. <statement> {document} </statement> Is the statement true? "
        "Answer Yes if the statement is true. Answer No if the statement is false. "
        "Start your response with Yes or No.",
        label_words=["No", "Yes"],
    ),
    "verify-answer": TaskPrompt(
        "Here is a request and the response that another system gave. <request> {document} </request> "
        "<response> {answer} </response> Is the response correct? "
        "Answer Yes if it is correct. Answer No if it is not. Start your answer with Yes or No.",
        label_words=["No", "Yes"],
    ),
    "document": TaskPrompt("{document}"),
}
#: The prompts of this process: the paper's 'sentiment' and 'factcheck'; 'verify-answer' for answers of a model that
#: exposes no hidden states; 'document', which is just the document; and those that ``register_prompt`` added.
PROMPTS: Mapping[str, TaskPrompt] = MappingProxyType(_PROMPTS)


def register_prompt(name: str, prompt: TaskPrompt) -> None:
    """Register a prompt under a name for extractors and the command line; a name in use is refused."""
    if not isinstance(prompt, TaskPrompt):
        raise InvalidTypeError(f"'prompt' of register_prompt must be a TaskPrompt. Got {type(prompt).__name__}.")
    if _PROMPTS.setdefault(name, prompt) != prompt:
        raise InvalidInputError(f"'name' of register_prompt must be new. Got {name!r}, which is in use.")


def task_prompt(prompt: str | TaskPrompt | None, caller: str) -> TaskPrompt:
    """A prompt given as an object, by name or as a template; None is just the document."""
    if prompt is None:
        return PROMPTS["document"]
    if isinstance(prompt, TaskPrompt):
        return prompt
    if not isinstance(prompt, str):
        raise InvalidTypeError(f"'prompt' of {caller} must be a name, a template or a TaskPrompt. Got {prompt!r}.")
    if prompt in PROMPTS:
        return PROMPTS[prompt]
    if "{" not in prompt:
        raise InvalidInputError(
            f"'prompt' of {caller} must be one of {', '.join(map(repr, PROMPTS))}, or a template with {{document}}. "
            f"Got {shortened(repr(prompt))}."
        )
    return TaskPrompt(prompt)
