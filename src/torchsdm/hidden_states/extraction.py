"""The extraction itself: tokens through the language model in batches, pooled, with the logits of label words.

The state h of a sequence (section 4.3 of the paper) is made of parts of spans of its token positions: the whole
sequence first, then optionally segments of it. ``first`` and ``final`` are the states at a span's first and last
position, ``mean`` is the mean of the states at all its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchsdm.data import ExtractedStates, LabelledStates, ModelOrigin, PoolingOrigin, StatesOrigin
from torchsdm.errors import BackboneError, InvalidInputError
from torchsdm.hidden_states._tokens import PromptEncoder, Span, TokenSequence
from torchsdm.hidden_states.backbone import Backbone, Beginning, Layer
from torchsdm.validation import Array

MAX_PADDING = 0.1  #: the largest share of a batch that may be padding
PARTS = ("first", "final", "mean")  #: what can be taken from a span
DECODER_PARTS = ("final", "mean")  #: the paper's h
ENCODER_PARTS = ("first", "mean")
WRONG, RIGHT = 0, 1  #: the labels of an own answer
_SHORTEST_BEGINNING = 4  # tokens that are worth running once


def batches_by_length(lengths: Sequence[int], budget: int, max_padding: float = MAX_PADDING) -> list[list[int]]:
    """Divide sequences of given lengths into batches of positions, longest first.

    A batch, padded to its longest sequence, has at most ``budget`` tokens (one sequence always fits) and at most a
    share ``max_padding`` of padding. The same lengths give the same batches.

    Examples
    --------
    >>> batches_by_length([3, 10, 9, 3], budget=20)
    [[1, 2], [0, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    batches: list[list[int]] = []
    n_real = longest = 0
    for position in order:
        length = lengths[position]
        padded = (len(batches[-1]) + 1) * longest if batches else 0
        if not batches or padded > budget or padded - n_real - length > max_padding * padded:
            batches.append([])
            n_real, longest = 0, length
        batches[-1].append(position)
        n_real += length
    return batches


def pool(states: Tensor, spans: Sequence[Sequence[Span]], parts: Sequence[str]) -> Tensor:
    """h = [parts of each span] (B, P, parts * H) for states (B, L, H) of padded sequences, in float32.

    Each sequence has the same number P of spans, none of which reaches into its padding. Each span is reduced
    separately, so the result does not depend on what else is in the batch.
    """
    rows: list[Tensor] = []
    for sequence, of_sequence in zip(states, spans, strict=True):
        for start, end in of_sequence:
            span = sequence[start:end].float()  # (n, H)
            rows += [span.mean(dim=0) if part == "mean" else span[0 if part == "first" else -1] for part in parts]
    return torch.cat(rows).reshape(len(states), len(spans[0]), -1)  # (B, P, parts * H)


class Progress(tqdm):
    """A bar of tqdm; with ``disable=None`` it is shown on a terminal, and not in a pipe."""

    def skip(self, n: int) -> None:
        """Move on by n without work: what an earlier run did, or what need not be done."""
        if not self.disable:
            self.n += n
            self.last_print_n += n
            self.initial += n  # the rate is (n - initial) / elapsed
            self.refresh()


@dataclass(frozen=True)
class Extraction:
    """A language model, a prompt and the parts of the states to take, all resolved."""

    backbone: Backbone
    encoder: PromptEncoder
    parts: tuple[str, ...]
    layer: Layer
    batch_tokens: int

    @cached_property
    def origin(self) -> StatesOrigin:
        """Everything that affects the states."""
        source, encoder = self.backbone.source, self.encoder
        return StatesOrigin(
            ModelOrigin(
                None if source is None else source.reference,
                None if source is None else source.revision,
                self.backbone.fingerprint(),
                str(self.backbone.dtype).removeprefix("torch."),
            ),
            encoder.origin,
            PoolingOrigin(self.parts, self.layer, encoder.segments, encoder.n_segments, encoder.max_tokens),
        )

    def run(
        self,
        sequences: Sequence[TokenSequence],
        on_batch: Callable[[int], object] = lambda _: None,
        source: str | None = None,
    ) -> ExtractedStates:
        """The states of tokens; those that are not finite are an error if the source is named.

        ``on_batch`` gets the size of each batch.
        """
        words = self.encoder.words
        states: Array | None = None  # (N, P, D), once the first batch gives D
        logits = np.empty((len(sequences), len(words)), dtype=np.float32)
        for rows, beginning in self._batches(sequences):
            batch = [sequences[row] for row in rows]
            pooled, label_logits = (value.cpu().numpy() for value in self._batch(batch, beginning))
            if source is not None and not np.isfinite(pooled).all():
                row = rows[int(np.flatnonzero(~np.isfinite(pooled).all(axis=(1, 2)))[0])]
                raise BackboneError(
                    f"{source}, {sequences[row].document.place}: the language model gave states that are not finite. "
                    "Try dtype='float32'."
                )
            if states is None:
                states = np.empty((len(sequences), *pooled.shape[1:]), dtype=np.float32)
            states[rows], logits[rows] = pooled, label_logits
            on_batch(len(rows))
        if states is None:
            raise InvalidInputError("There are no documents to extract states from.")
        return ExtractedStates(
            states[:, 0] if self.encoder.segments is None else states,
            logits if words else None,
            np.array([len(sequence.ids) for sequence in sequences], dtype=np.int64),
            np.array([sequence.n_cut for sequence in sequences], dtype=np.int64),
        )

    @cached_property
    def _beginning(self) -> Beginning | None:
        """The tokens before the document, run once; None if there are few, or the model cannot."""
        ids = self.encoder.beginning
        is_worthwhile = self.backbone.shares_beginnings and len(ids) >= _SHORTEST_BEGINNING
        return self.backbone.begin(ids, layer=self.layer) if is_worthwhile else None

    def _batches(self, sequences: Sequence[TokenSequence]) -> Iterator[tuple[list[int], Beginning | None]]:
        """Batches of rows, either all with the common beginning or all without.

        A sequence may be without: the tokenizer may join the beginning's end with the document.
        """
        n_appended = max((len(word) for word in self.encoder.words), default=1) - 1
        max_padding = MAX_PADDING if self.backbone.is_padding_neutral else 0.0
        shared, n = self._beginning, 0 if self._beginning is None else len(self._beginning.ids)
        has_it = [
            shared is not None and len(sequence.ids) > n and sequence.ids[:n] == shared.ids for sequence in sequences
        ]
        for beginning, n_before in ((shared, n), (None, 0)):
            rows = [row for row, shares in enumerate(has_it) if shares == (beginning is not None)]
            lengths = [len(sequences[row].ids) + n_appended - n_before for row in rows]
            for batch in batches_by_length(lengths, self.batch_tokens, max_padding):
                yield [rows[position] for position in batch], beginning
            if beginning is None:
                return

    def _batch(self, batch: Sequence[TokenSequence], beginning: Beginning | None) -> tuple[Tensor, Tensor]:
        """h (B, P, D) and label logits (B, C) of a batch."""
        ids, words = [sequence.ids for sequence in batch], self.encoder.words
        ends = [[len(sequence) - 1] for sequence in ids] if words else None
        output = self.backbone.run(ids, layer=self.layer, logits_at=ends, beginning=beginning)
        states = pool(output.states, [sequence.spans for sequence in batch], self.parts)
        if not words:
            return states, torch.empty(len(batch), 0)
        next_token = output.logits[:, 0].float()  # (B, V)
        logits = [next_token[:, word[0]] + self._rest(ids, word, beginning) for word in words]
        return states, torch.stack(logits, dim=1)

    def _rest(self, ids: Sequence[Sequence[int]], word: Sequence[int], beginning: Beginning | None) -> Tensor | float:
        """log p of a word's second and later tokens, each given those before it; 0 for a word of one token.

        Added to the logit of its first token, this makes the softmax over words their probabilities given that one of
        them is the answer, for any number of tokens.
        """
        if len(word) == 1:
            return 0.0
        longer = [[*sequence, *word[:-1]] for sequence in ids]
        ends = [list(range(len(sequence), len(sequence) + len(word) - 1)) for sequence in ids]
        logits = self.backbone.run(longer, layer=self.layer, logits_at=ends, beginning=beginning).logits
        following = torch.tensor(word[1:], device=logits.device).expand(len(ids), -1).unsqueeze(-1)  # (B, K - 1, 1)
        return logits.float().log_softmax(dim=-1).gather(2, following).squeeze(-1).sum(dim=1)


def judge_own_answers(states: LabelledStates) -> LabelledStates:
    """States of questions, labelled by whether the language model answers them right.

    Its answer is the word with the largest logit, p its probability among the words. The label is 1 if the answer is
    the given label and 0 if it is not, and the label logits become log(1 - p) and log p: what the language model itself
    thinks of its answer. The states come with the right answers as labels, and with the language model's logits of the
    answers it may give.
    """
    if states.labels is None or states.label_logits is None or states.logit_labels is None:
        raise InvalidInputError(
            "Own answers need a decoder that is asked for one of several words: give 'label_words' in the prompt, and "
            "a language model with an output layer."
        )
    z = np.asarray(states.label_logits, dtype=np.float64)  # (N, C)
    answered = z.argmax(axis=1)
    is_right = np.array([states.logit_labels[column] for column in answered]) == np.asarray(states.labels)
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    is_answer = np.arange(z.shape[1]) == answered[:, None]
    log_answer = log_p[is_answer]
    log_others = np.logaddexp.reduce(np.where(is_answer, -np.inf, log_p), axis=1)
    return replace(
        states,
        labels=np.where(is_right, RIGHT, WRONG),
        label_logits=np.stack([log_others, log_answer], axis=1).astype(np.float32),
        logit_labels=(WRONG, RIGHT),
    )
