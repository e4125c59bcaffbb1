"""From documents to token ids under a prompt: chat template, safety against special tokens, cuts in the document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from torchsdm.data import BadRow, BadRows, Document, PromptOrigin, Unreadable
from torchsdm.errors import BackboneError, InvalidInputError
from torchsdm.hidden_states._bounds import bounded_text
from torchsdm.hidden_states.prompts import FIELDS, TaskPrompt
from torchsdm.validation import Array

Span = tuple[int, int]  # start and end, end not included

# A sentence ends at . ! ? or … (with closing quotes or brackets) before white space, at a full stop of scripts that
# use no space, or at the end of a line. Abbreviations end sentences too: an extra segment does no harm.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*|[。！？]+|\n+")
_PARAGRAPH_END = re.compile(r"\n\s*\n")


def split_spans(text: str, kind: str) -> list[Span]:
    """The sentences or paragraphs of a text as spans of characters, without the white space around them.

    Examples
    --------
    >>> text = "It rains. It pours!"
    >>> [text[start:end] for start, end in split_spans(text, "sentences")]
    ['It rains.', 'It pours!']
    """
    ends = _SENTENCE_END if kind == "sentences" else _PARAGRAPH_END
    spans: list[Span] = []
    start = 0
    matches = ((match[0][0], match.end()) for match in ends.finditer(text))
    found = [end for mark, end in matches if mark not in ".!?…" or text[end : end + 1].isspace()]
    for end in [*found, len(text)]:
        piece = text[start:end]
        if piece.strip():
            left = start + len(piece) - len(piece.lstrip())
            spans.append((left, start + len(piece.rstrip())))
        start = end
    return spans


def join_spans(spans: list[Span], n: int) -> list[Span]:
    """At most n spans: if there are more, neighbours are joined into groups of nearly equal size."""
    if len(spans) <= n:
        return spans
    edges = [len(spans) * part // n for part in range(n + 1)]
    return [(spans[first][0], spans[last - 1][1]) for first, last in pairwise(edges)]


_MARK = "\ue000{}\ue001"  # replaces a field while the chat template is applied; private-use Unicode
_MARKED = re.compile(_MARK.format(f"({'|'.join(FIELDS)})"))


_AT_BOUNDARY = 2  # last tokens of a text that change if another text follows: a closing token, a joined word
_GROUP = 64  # documents that are tokenized at once: offsets take far more memory than tokens


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of one document under the prompt."""

    document: Document
    ids: list[int]
    spans: list[Span]
    """Token positions of the whole sequence, then of its segments; the same number for every document."""
    n_cut: int
    """Tokens of the document (or answer) that were dropped because it was too long."""


class PromptEncoder:
    """Turns documents into tokens under one prompt and tokenizer.

    The prompt, in the model's chat template with ``use_chat``, is tokenized as one text with the document inserted, as
    the model saw such texts in training. Yet nothing in a document acts as more than text: the chat template is applied
    before the document is inserted, and special tokens that a document spells out become ordinary tokens.

    Sequences of more than ``max_tokens`` lose tokens at the end of the document, then at the end of the answer, and
    nowhere else. If the label words are scored (``scores_words``), all but the last token of a word follow the
    sequence, which is shortened for them if the model takes no more than ``position_limit``.

    The spans after the first cover ``n_segments`` segments: the document's sentences or paragraphs, or the fields of
    the template. If there are more, neighbours are joined; if there are fewer, the whole sequence takes their place (a
    repeated position does not change a maximum over positions). If the prompt is the ``earlier`` one, it keeps its
    rendering: a chat template may write the date.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: TaskPrompt,
        *,
        use_chat: bool,
        max_tokens: int,
        position_limit: int | None = None,
        scores_words: bool = False,
        segments: str | None = None,
        n_segments: int = 0,
        chat_options: Mapping[str, Any] | None = None,
        earlier: PromptOrigin | None = None,
    ) -> None:
        self.tokenizer, self.prompt, self.use_chat = tokenizer, prompt, use_chat
        self.segments, self.n_segments = segments, n_segments
        template = str(getattr(tokenizer, "chat_template", None) or "")
        self._tokens = {  # that mean more than their characters: special ones, and those that the chat template writes
            number: token
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.content.strip() and (token.special or token.content in template)
        }
        self._controls = np.array(sorted(self._tokens), dtype=np.int64)
        self._spelled: dict[str, list[int]] = {}
        self._empty: list[int] | None = None  # the tokens of the prompt without a document
        words, options = tuple(prompt.words.items()), dict(chat_options or {})
        asked = PromptOrigin(prompt.template, words, prompt.system, use_chat, options, "")
        if earlier is None or replace(earlier, rendered="") != asked:
            earlier = replace(asked, rendered=self._render(options))
        self.origin = earlier
        pieces = _MARKED.split(self.origin.rendered)
        self._literals, self._fields = pieces[0::2], pieces[1::2]
        if sorted(self._fields) != sorted(prompt.fields):
            raise InvalidInputError(
                "The chat template of this model drops or repeats the message, so the prompt cannot be used with it. "
                "Set use_chat=False, or use another prompt."
            )
        self.beginning = tokenizer.encode(self._literals[0], add_special_tokens=not use_chat)[:-_AT_BOUNDARY]
        """Tokens that nearly all sequences begin with: those before the document, but for the last ones."""
        self.words = self.label_tokens() if scores_words and prompt.label_words else []
        """The tokens of each label word, if they are scored."""
        n_appended = max((len(word) for word in self.words), default=1) - 1
        self.max_tokens = max_tokens if position_limit is None else min(max_tokens, position_limit - n_appended)
        """The longest sequence."""
        n_prompt = len(tokenizer.encode("".join(self._literals), add_special_tokens=not use_chat))
        if n_prompt + len(self._fields) > self.max_tokens:
            raise InvalidInputError(
                f"The prompt alone takes {n_prompt} tokens, but max_tokens is {self.max_tokens}: nothing is left for "
                "documents. Shorten the prompt or raise max_tokens."
            )

    def encode(self, documents: Sequence[Document], bad: BadRows | None = None) -> list[TokenSequence]:
        """The tokens of each document; one that cannot be put under the prompt is an error.

        With ``bad``, it is left out and noted there instead, and so is one of whose text the tokenizer makes no tokens.
        """
        sequences: list[TokenSequence] = []
        for start in range(0, len(documents), _GROUP):
            group = documents[start : start + _GROUP]
            filled = [self._fill(document) for document in group]
            try:
                encoded = self.tokenizer(
                    [text for text, _ in filled],
                    add_special_tokens=not self.use_chat,
                    return_offsets_mapping=True,
                    return_attention_mask=False,
                    truncation=False,
                    padding=False,
                    verbose=False,  # no warning that a sequence is too long: we cut it
                )
            except Exception as error:  # a damaged vocabulary makes the tokenizer raise a plain Exception
                raise BackboneError(f"The tokenizer of the language model cannot read texts: {error}.") from error
            for document, (text, fields), ids, offsets in zip(
                group, filled, encoded["input_ids"], encoded["offset_mapping"], strict=True
            ):
                found = self._sequence(
                    document, fields, np.array(ids, dtype=np.int64), np.array(offsets).reshape(-1, 2), text
                )
                if bad is not None and isinstance(found, TokenSequence) and found.ids == self._without(document.answer):
                    found = Unreadable("the tokenizer makes no tokens of the text")
                if isinstance(found, TokenSequence):
                    sequences.append(found)
                elif bad is None:
                    raise InvalidInputError(f"{document.place}: {found}.")
                else:
                    bad[document.number] = BadRow(document.number, document.place, str(found), document.id)
        return sequences

    def _without(self, answer: str | None) -> list[int]:
        """The tokens of the prompt without a text, but with an answer if it has a place for one."""
        if "answer" in self._fields or self._empty is None:
            text, _ = self._fill(Document("", None, answer=answer))
            self._empty = self.tokenizer.encode(text, add_special_tokens=not self.use_chat)
        return self._empty

    def label_tokens(self) -> list[list[int]]:
        """The tokens of each label word, as the model would write it at the answer position.

        All with a leading space or all without, whichever takes fewer tokens; on a tie, without after a chat template
        or white space, and with one after other text.
        """
        words = list(self.prompt.words.values())
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        plain, spaced = ([encode(f"{space}{word}") for word in words] for space in ("", " "))
        is_after_space = self.use_chat or self._literals[-1][-1:].isspace()
        forms = [plain, spaced] if is_after_space else [spaced, plain]
        chosen = min(forms, key=lambda form: sum(map(len, form)))
        for word, tokens in zip(words, chosen, strict=True):
            for other, longer in zip(words, chosen, strict=True):
                if word != other and longer[: len(tokens)] == tokens:
                    raise InvalidInputError(
                        "'label_words' of TaskPrompt must not begin with the tokens of one another. Got "
                        f"{word!r} and {other!r}."
                    )
        return chosen

    def _render(self, chat_options: Mapping[str, Any]) -> str:
        """The prompt, in the chat template if wanted, with a mark in place of each field."""
        filled = self.prompt.fill(**{name: _MARK.format(name) for name in self.prompt.fields})
        if not self.use_chat:
            return filled
        messages = [{"role": "user", "content": filled}]
        if self.prompt.system is not None:
            messages.insert(0, {"role": "system", "content": self.prompt.system})
        render = partial(self.tokenizer.apply_chat_template, messages, tokenize=False, add_generation_prompt=True)
        return bounded_text(lambda: str(render(**chat_options)), "The chat template of this model")

    def _fill(self, document: Document) -> tuple[str, dict[str, Span]]:
        """The text to tokenize, and where the fields are in it."""
        text, spans = self._literals[0], {}
        for name, literal in zip(self._fields, self._literals[1:], strict=True):
            value = document.text if name == "document" else document.answer
            if value is None:
                raise InvalidInputError(f"{document.place}: the prompt asks for an answer, but there is none.")
            spans[name] = (len(text), len(text) + len(value))
            text += value + literal
        return text, spans

    def _sequence(
        self, document: Document, chars: dict[str, Span], ids: Array, offsets: Array, text: str
    ) -> TokenSequence | Unreadable:
        ids, offsets = self._spell_out_controls(text, chars, ids, offsets)
        excess = len(ids) - self.max_tokens
        keep = np.ones(len(ids), dtype=bool)
        for name in FIELDS if excess > 0 else ():  # the end of the document is dropped, then that of the answer
            if name in chars:
                inside = _positions_in(chars[name], offsets)
                n_dropped = min(excess - int((~keep).sum()), max(0, len(inside) - 1))  # one token of it stays
                keep[inside[len(inside) - n_dropped :]] = False
        n_cut = int((~keep).sum())
        if n_cut < excess:
            return Unreadable(f"the prompt alone takes {len(ids) - n_cut} tokens, but max_tokens is {self.max_tokens}")
        ids, offsets = ids[keep], offsets[keep]
        spans: list[Span] = [(0, len(ids))]
        if self.segments is not None:
            segments = list(chars.values())
            if self.segments != "fields":
                start, inner = chars["document"][0], split_spans(document.text, self.segments)
                segments = [(start + left, start + right) for left, right in inner]
            found = [_touching(span, offsets).tolist() for span in segments]
            spans += join_spans([(tokens[0], tokens[-1] + 1) for tokens in found if tokens], self.n_segments)
            spans += [spans[0]] * (1 + self.n_segments - len(spans))
        return TokenSequence(document, ids.tolist(), spans, n_cut)

    def _spell_out_controls(self, text: str, chars: dict[str, Span], ids: Array, offsets: Array) -> tuple[Array, Array]:
        """Replace special tokens that a field spells out with ordinary tokens of the same characters."""
        new: dict[int, list[int]] = {}
        for position in np.flatnonzero(np.isin(ids, self._controls)).tolist():
            start, end = offsets[position].tolist()
            written, token = text[start:end], self._tokens[int(ids[position])]
            # A special token of the template may absorb white space of the document, and is still the template's.
            left, right = start + len(written) - len(written.lstrip()), start + len(written.rstrip())
            is_in_field = any(right > field[0] and left < field[1] for field in chars.values())
            # An unknown character becomes a special token too, and rightly: its characters are not the token's.
            is_unknown = int(ids[position]) == self.tokenizer.unk_token_id and written.strip() != token.content.strip()
            if is_in_field and not is_unknown:
                before = text[offsets[position - 1, 1] if position else 0 : start]
                swallowed = before if token.lstrip and not before.strip() else ""
                new[position] = self._spell(swallowed + written)
        if not new:
            return ids, offsets
        lengths = np.array([len(new.get(position, [0])) for position in range(len(ids))])
        spelled = [number for position, old in enumerate(ids.tolist()) for number in new.get(position, [old])]
        return np.array(spelled, dtype=np.int64), np.repeat(offsets, lengths, axis=0)

    def _spell(self, content: str) -> list[int]:
        """Ordinary tokens for the characters of a special token: those of two parts of it, or of each character."""
        if content not in self._spelled:
            divisions = [(content[:cut], content[cut:]) for cut in range(1, len(content))]
            encode = partial(self.tokenizer.encode, add_special_tokens=False)
            spellings = ([number for part in parts for number in encode(part)] for parts in divisions)
            ordinary = (ids for ids in spellings if not np.isin(ids, self._controls).any())
            characters = [number for character in content for number in encode(character)]
            self._spelled[content] = next(ordinary, characters)
        return self._spelled[content]


def _touching(span: Span, offsets: Array) -> Array:
    """The tokens that have a character of the span; tokens without characters have none."""
    return np.flatnonzero((offsets[:, 1] > span[0]) & (offsets[:, 0] < span[1]))


def _positions_in(span: Span, offsets: Array) -> Array:
    """The tokens from a span's first to its last without characters outside it; some may have no characters."""
    touching = _touching(span, offsets)
    if len(touching) == 0:
        return touching
    between = np.arange(touching[0], touching[-1] + 1)
    is_inside: Array = (offsets[between, 0] >= span[0]) & (offsets[between, 1] <= span[1])
    return between[is_inside]
