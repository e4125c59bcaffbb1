"""From documents to token ids under a prompt: chat template, safety against special tokens, cuts in the document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.documents import Document
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states.prompts import FIELDS, TaskPrompt
from torchsdm.hidden_states.segments import Span, join_spans, split_spans
from torchsdm.validation import Array

_MARK = "\ue000{}\ue001"  # stands for a field while the chat template is applied; of Unicode's private use
_MARKED = re.compile(_MARK.format(f"({'|'.join(FIELDS)})"))


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of one document under the prompt."""

    ids: list[int]
    spans: list[Span]
    """Token positions of the whole sequence, then of its segments; as many for every document."""
    n_cut: int
    """Tokens of the document (or answer) that were left out because it was too long."""


class PromptEncoder:
    """Turns documents into tokens under one prompt and tokenizer.

    The prompt, with the model's chat template around it where ``use_chat`` says so, is tokenized as one text with the
    document in its place, as the model saw such texts in training. Yet nothing in a document can act as more than text:
    the chat template is applied before the document is put in, and special tokens that a document spells out are
    spelled in ordinary tokens.

    Parameters
    ----------
    tokenizer : a fast tokenizer of transformers
    prompt : TaskPrompt
    use_chat : bool
        Whether the prompt is a user's message in the tokenizer's chat template.
    max_tokens : int
        Longer sequences lose tokens at the end of the document, then at the end of the answer, and nowhere else.
    segments : {'sentences', 'paragraphs', 'fields'} or None
        What the spans after the first are of: the document's sentences or paragraphs, or the fields of the template.
    n_segments : int
        How many such spans; neighbours are joined where a document has more. Where it has fewer, the whole sequence
        stands in their place (a repeated position changes nothing in a maximum over positions).
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: TaskPrompt,
        *,
        use_chat: bool,
        max_tokens: int,
        segments: str | None = None,
        n_segments: int = 0,
    ) -> None:
        self.tokenizer, self.prompt, self.use_chat, self.max_tokens = tokenizer, prompt, use_chat, max_tokens
        self.segments, self.n_segments = segments, n_segments
        self._contents = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
        self._added = np.array(sorted(self._contents), dtype=np.int64)
        self._spelled: dict[str, list[int]] = {}
        pieces = _MARKED.split(self._render())
        self._literals, self._fields = pieces[0::2], pieces[1::2]
        if sorted(self._fields) != sorted(prompt.fields):
            raise InvalidInputError(
                "The chat template of this model drops or repeats the message, so that the prompt cannot be used with "
                "it. Set use_chat=False, or give another prompt."
            )
        n_prompt = len(tokenizer("".join(self._literals), add_special_tokens=not use_chat)["input_ids"])
        if n_prompt + len(self._fields) > max_tokens:
            raise InvalidInputError(
                f"The prompt alone takes {n_prompt} tokens, and max_tokens is {max_tokens}: nothing is left for "
                "documents. Shorten the prompt or raise max_tokens."
            )

    def encode(self, documents: Sequence[Document]) -> list[TokenSequence]:
        """The tokens of each document."""
        texts, chars = [], []
        for document in documents:
            text, spans = self._fill(document)
            texts.append(text)
            chars.append(spans)
        encoded = self.tokenizer(
            texts,
            add_special_tokens=not self.use_chat,
            return_offsets_mapping=True,
            return_attention_mask=False,
            truncation=False,
            verbose=False,  # no notice that a sequence is too long: we cut it
            padding=False,
        )
        return [
            self._sequence(document, text, spans, np.array(ids, dtype=np.int64), np.array(offsets).reshape(-1, 2))
            for document, text, spans, ids, offsets in zip(
                documents, texts, chars, encoded["input_ids"], encoded["offset_mapping"], strict=True
            )
        ]

    def label_tokens(self) -> list[list[int]]:
        """The tokens of each label word, as the model would write it at the answer position.

        That is with a space before it or without, whichever takes fewer tokens; of equal ones, without after a chat
        template, and with one after plain text.
        """
        chosen = []
        for word in self.prompt.words.values():
            plain, spaced = (self._ids(form) for form in (word, f" {word}"))
            forms = [plain, spaced] if self.use_chat or word != word.lstrip() else [spaced, plain]
            chosen.append(min(forms, key=len))
        if len({tuple(tokens) for tokens in chosen}) != len(chosen):
            words = list(self.prompt.words.values())
            raise InvalidInputError(f"'label_words' of TaskPrompt must differ in their tokens. Got {words!r}.")
        return chosen

    def _render(self) -> str:
        """The prompt, in the chat template if that is wanted, with a mark in place of each field."""
        filled = self.prompt.fill(**{name: _MARK.format(name) for name in self.prompt.fields})
        if not self.use_chat:
            return filled
        messages = [{"role": "user", "content": filled}]
        if self.prompt.system is not None:
            messages.insert(0, {"role": "system", "content": self.prompt.system})
        from jinja2 import TemplateError  # transformers applies chat templates with it

        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidInputError(f"The chat template of this model refuses the prompt: {error}.") from error

    def _fill(self, document: Document) -> tuple[str, dict[str, Span]]:
        """The text that is tokenized, and where in it the fields are."""
        text, spans = self._literals[0], {}
        for name, literal in zip(self._fields, self._literals[1:], strict=True):
            value = document.text if name == "document" else document.answer
            if value is None:
                raise InvalidInputError(f"{document.place}: the prompt asks for an answer, and there is none.")
            spans[name] = (len(text), len(text) + len(value))
            text += value + literal
        return text, spans

    def _sequence(
        self, document: Document, text: str, chars: dict[str, Span], ids: Array, offsets: Array
    ) -> TokenSequence:
        ids, offsets = self._spell_out_specials(text, chars, ids, offsets)
        ids, offsets, n_cut = self._cut(document, chars, ids, offsets)
        spans: list[Span] = [(0, len(ids))]
        if self.segments is not None:
            found = [_token_span(span, offsets) for span in self._segment_chars(document, chars)]
            spans += join_spans([span for span in found if span is not None], self.n_segments)
            spans += [spans[0]] * (1 + self.n_segments - len(spans))
        return TokenSequence(ids.tolist(), spans, n_cut)

    def _segment_chars(self, document: Document, chars: dict[str, Span]) -> list[Span]:
        if self.segments == "fields":
            return list(chars.values())
        start = chars["document"][0]
        return [(start + left, start + right) for left, right in split_spans(document.text, str(self.segments))]

    def _spell_out_specials(self, text: str, chars: dict[str, Span], ids: Array, offsets: Array) -> tuple[Array, Array]:
        """Replace special tokens that a field spells out by the ordinary tokens of the same characters."""
        in_fields = np.zeros(len(ids), dtype=bool)
        for span in chars.values():
            in_fields |= _touches(span, offsets)
        suspects = np.flatnonzero(in_fields & np.isin(ids, self._added))
        new: dict[int, list[int]] = {}
        for position in suspects.tolist():
            content = self._contents[int(ids[position])]
            # An unknown character becomes a special token too, and rightly: then the characters are others.
            if text[slice(*offsets[position])].strip() == content.strip():
                new[position] = self._spell(content)
        if not new:
            return ids, offsets
        lengths = np.array([len(new.get(position, [0])) for position in range(len(ids))])
        spelled = [number for position, old in enumerate(ids.tolist()) for number in new.get(position, [old])]
        return np.array(spelled, dtype=np.int64), np.repeat(offsets, lengths, axis=0)

    def _spell(self, content: str) -> list[int]:
        """Ordinary tokens for the characters of a special token: those of two parts of it, or of each character."""
        if content not in self._spelled:
            divisions = [(content[:cut], content[cut:]) for cut in range(1, len(content))]
            spellings = ([number for part in parts for number in self._ids(part)] for parts in divisions)
            ordinary = (ids for ids in spellings if not np.isin(ids, self._added).any())
            characters = [number for character in content for number in self._ids(character)]
            self._spelled[content] = next(ordinary, characters)
        return self._spelled[content]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _cut(self, document: Document, chars: dict[str, Span], ids: Array, offsets: Array) -> tuple[Array, Array, int]:
        """Leave out tokens at the end of the document, then of the answer, until the sequence fits."""
        excess = len(ids) - self.max_tokens
        if excess <= 0:
            return ids, offsets, 0
        keep = np.ones(len(ids), dtype=bool)
        for name in FIELDS:
            if name in chars:
                inside = np.flatnonzero(_lies_in(chars[name], offsets))
                n_dropped = min(excess - int((~keep).sum()), max(0, len(inside) - 1))  # one token of it stays
                keep[inside[len(inside) - n_dropped :]] = False
        n_cut = int((~keep).sum())
        if n_cut < excess:
            n_left = len(ids) - n_cut
            raise InvalidInputError(
                f"{document.place}: the prompt alone takes {n_left} tokens, and max_tokens is {self.max_tokens}."
            )
        return ids[keep], offsets[keep], n_cut


def _touches(span: Span, offsets: Array) -> Array:
    """Which tokens have a character of the span; tokens without characters have none."""
    touches: Array = (offsets[:, 1] > span[0]) & (offsets[:, 0] < span[1])
    return touches


def _lies_in(span: Span, offsets: Array) -> Array:
    """Which tokens have characters of the span and no others."""
    inside: Array = (offsets[:, 0] >= span[0]) & (offsets[:, 1] <= span[1]) & (offsets[:, 1] > offsets[:, 0])
    return inside


def _token_span(span: Span, offsets: Array) -> Span | None:
    """The tokens of a span of characters; None if no token is left of it."""
    positions = np.flatnonzero(_touches(span, offsets))
    return (int(positions[0]), int(positions[-1]) + 1) if len(positions) else None
