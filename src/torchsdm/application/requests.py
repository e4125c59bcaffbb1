"""Answer several requests at once, each as if it were alone."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import numpy as np

from torchsdm.application.answers import Row, answer_rows, given_block, with_rejected
from torchsdm.application.saved_model import SavedModel
from torchsdm.data import BadRow, BadRows, LabelledStates, join_states
from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.trust import DriftGuard
from torchsdm.validation import Array


@dataclass(frozen=True)
class AnswerRequest:
    """Inputs to decide on, or, if k > 0, to explain with their k nearest training examples."""

    texts: Sequence[Any] | None = None
    answers: Sequence[Any] | None = None
    hidden_states: Sequence[Any] | Array | None = None
    k: int = 0

    def __len__(self) -> int:
        inputs = self.hidden_states if self.texts is None else self.texts
        return 0 if inputs is None else len(inputs)


@dataclass(frozen=True)
class _Reading:
    """What could be read of a request: states, and the inputs without."""

    block: LabelledStates
    bad: BadRows


_Read: TypeAlias = "_Reading | TorchSDMError | None"  # None: there was nothing to read


def answer_requests(
    saved: SavedModel, requests: Sequence[AnswerRequest], *, guard: DriftGuard | None = None, texts: bool = False
) -> list[list[Row] | TorchSDMError]:
    """The rows of each request, or why there are none. What one request asks does not change another's answer.

    The language model reads all texts together, and neighbouring requests are decided together; this is faster than one
    by one. The states of a text may differ in their last bits with what it is read with (``batch_tokens=1`` prevents
    that); everything after that is the same to the bit (docs/decisions/0003).

    Parameters
    ----------
    saved : SavedModel
    requests : sequence of AnswerRequest
    guard : DriftGuard, optional
        Watches the inputs that are decided on, in their order. Those that are explained are answered as they would be
        decided on now, and are no part of the stream.
    texts : bool
        Whether explanations have the texts of inputs and examples.
    """
    read = _read(saved, requests)
    answers: list[list[Row] | TorchSDMError] = [one if isinstance(one, TorchSDMError) else [] for one in read]
    readings = {number: one for number, one in enumerate(read) if isinstance(one, _Reading)}

    def alike(number: int) -> tuple[int, ...]:
        """Requests with the same are decided together; an explanation, which the guard only looks on, never is."""
        shape = np.shape(readings[number].block.hidden_states)[1:]
        return (number + 1, *shape) if requests[number].k else (0, *shape)

    for _, run in groupby(readings, alike):
        numbers = list(run)
        k = requests[numbers[0]].k
        blocks = [readings[number].block for number in numbers]
        block = join_states([LabelledStates(one.hidden_states, None, one.ids, one.texts) for one in blocks])
        watching = copy.copy(guard) if k else guard
        try:
            rows = answer_rows(saved.classifier, block, k=k, calibration=k > 0, texts=texts and k > 0, guard=watching)
        except TorchSDMError as error:
            answers = [error if number in numbers else one for number, one in enumerate(answers)]
            continue
        sizes = [len(one) for one in blocks]
        for number, start, size in zip(numbers, _starts(sizes), sizes, strict=True):
            reading = readings[number]
            parts = with_rejected([(reading.block.numbers or (), rows[start : start + size])], reading.bad)
            answers[number] = [row for part in parts for row in part]
    return answers


def _read(saved: SavedModel, requests: Sequence[AnswerRequest]) -> list[_Read]:
    """The states of each request. Texts are read together; lists of numbers would not gain by it."""
    read: list[_Read] = [None] * len(requests)
    alike: dict[Any, list[int]] = {}
    for number, request in enumerate(requests):
        if len(request):
            alike.setdefault(_kind(request, number), []).append(number)
    for numbers in alike.values():
        for number, one in zip(numbers, _read_together(saved, [requests[n] for n in numbers]), strict=True):
            read[number] = one
    return read


def _kind(request: AnswerRequest, number: int) -> Any:
    """Requests of the same kind are read together: texts without answers, or with an answer for each."""
    if request.texts is None:
        return number
    if request.answers is None:
        return "texts"
    return "texts and answers" if len(request.answers) == len(request) else number


def _read_alone(saved: SavedModel, request: AnswerRequest) -> _Reading | TorchSDMError:
    bad: BadRows = {}
    try:
        block = given_block(
            saved, texts=request.texts, answers=request.answers, hidden_states=request.hidden_states, bad=bad
        )
    except TorchSDMError as error:
        return error
    return _Reading(block, bad)


def _read_together(saved: SavedModel, requests: Sequence[AnswerRequest]) -> list[_Reading | TorchSDMError]:
    """Read the texts of requests as one list, or, if that is refused, one by one: then only the culprits are told."""
    if len(requests) > 1:
        texts = [text for request in requests for text in request.texts or ()]
        answers = [answer for request in requests for answer in request.answers or ()]
        whole = _read_alone(saved, AnswerRequest(texts, answers or None))
        if isinstance(whole, _Reading):
            parts = _divided(whole, [len(request) for request in requests])
            return [part or _read_alone(saved, request) for part, request in zip(parts, requests, strict=True)]
        if not isinstance(whole, InvalidInputError):  # no request's fault
            return [whole] * len(requests)
    return [_read_alone(saved, request) for request in requests]


def _divided(whole: _Reading, sizes: Sequence[int]) -> list[_Reading | None]:
    """The parts of a reading, numbered from 0 again; None for a part in which nothing could be read."""
    numbers = np.asarray(whole.block.numbers)  # ascending
    parts: list[_Reading | None] = []
    for start, size in zip(_starts(sizes), sizes, strict=True):
        first, last = np.searchsorted(numbers, [start, start + size])
        bad = {number - start: _renumbered(one, number - start) for number, one in whole.bad.items()
               if start <= number < start + size}  # fmt: skip
        if first == last:
            parts.append(None)
            continue
        own = [number - start for number in numbers[first:last].tolist()]
        parts.append(_Reading(replace(whole.block.take(range(first, last)), ids=own, numbers=own), bad))
    return parts


def _renumbered(bad: BadRow, number: int) -> BadRow:
    return replace(bad, number=number, id=number)


def _starts(sizes: Iterable[int]) -> list[int]:
    """Where each of consecutive parts begins."""
    return [0, *accumulate(sizes)][:-1]
