"""Inputs that are given in memory: texts, or states as lists of numbers.

Requests that wait together are answered together, each as if it were alone.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, TypeAlias

import numpy as np

from torchsdm.application.answers import Row, answer_rows, rows_beside, with_rejected
from torchsdm.application.check import ModelChecks
from torchsdm.application.saved_model import PieceReader, Reading, SavedModel
from torchsdm.data import BadRow, BadRows, Columns, LabelledStates, Unreadable, join_states, state_of, usual_shape
from torchsdm.errors import InvalidInputError, Remedy, TorchSDMError
from torchsdm.trust import DriftGuard, SourceGuards, Watcher
from torchsdm.validation import Array


def given_block(
    saved: SavedModel,
    *,
    texts: Sequence[Any] | None = None,
    answers: Sequence[Any] | None = None,
    hidden_states: Sequence[Any] | Array | None = None,
    bad: BadRows | None = None,
) -> LabelledStates:
    """Make a block of states from inputs in memory: texts, with answers if those are judged, or lists of numbers.

    Those that cannot be used are noted in ``bad``, by their numbers; that there are no others is an error. By default
    the first is an error.
    """
    found: BadRows | None = None if bad is None else {}
    if texts is not None:
        blocks = _read_texts(saved, texts, answers, found)
    else:
        blocks = _listed_states([] if hidden_states is None else hidden_states, saved.classifier.n_features_in_, found)
    block = join_states(blocks) if blocks else LabelledStates([], None)
    if bad is None or found is None:
        return block
    if blocks:
        block = PieceReader("request", Columns()).read(block, found)
    bad |= {number: replace(one, place="") for number, one in sorted(found.items())}
    if not len(block):
        raise InvalidInputError(f"None of the inputs can be decided on: {next(iter(bad.values()))}.")
    return block


def _read_texts(
    saved: SavedModel, texts: Sequence[Any], answers: Sequence[Any] | None, bad: BadRows | None
) -> list[LabelledStates]:
    """The states of texts, in blocks; each shows the text without the answer that is judged."""
    if saved.text_classifier is None:
        raise InvalidInputError(
            "This model was trained on states only and cannot read texts.", remedy=Remedy.GIVE_STATES
        )
    extractor = saved.text_classifier.checked_extractor()
    given = [text if isinstance(text, str) or text is None else [text] for text in texts]  # mappings are no rows
    documents = extractor.as_documents(given, answers, "raise" if bad is None else "reject")
    reader, pieces = extractor.unread_blocks(documents, bad)
    read = (reader.read(piece, bad) for piece in pieces)
    blocks = [block for block in read if block is not None]
    return [replace(block, texts=[texts[number] for number in block.numbers or ()]) for block in blocks]


def _listed_states(hidden_states: Sequence[Any] | Array, width: int, bad: BadRows | None) -> list[LabelledStates]:
    """States given as lists of numbers, as one block; none if no list can be used."""
    if not len(hidden_states):
        return []
    whole = state_of(hidden_states, None, "hidden_states")
    if not isinstance(whole, Unreadable) and whole.ndim in (2, 3):  # nearly always: every list is numeric and as long
        return [_numbered_states(whole, range(len(whole)))]
    if bad is None and isinstance(whole, Unreadable):
        raise InvalidInputError(f"hidden_states must be lists of numbers, all of the same length: {whole}.")
    if bad is None:
        raise InvalidInputError(f"hidden_states must be a list of states. Got shape {np.shape(whole)}.")
    shape = usual_shape(hidden_states, width)
    states = {number: state_of(value, shape, "hidden_states") for number, value in enumerate(hidden_states)}
    bad |= {
        number: BadRow(number, "", str(one), number) for number, one in states.items() if isinstance(one, Unreadable)
    }
    good = {number: one for number, one in states.items() if not isinstance(one, Unreadable)}
    return [_numbered_states(np.stack(list(good.values())), list(good))] if good else []


def _numbered_states(states: Array, numbers: Sequence[int]) -> LabelledStates:
    with np.errstate(over="ignore"):  # values beyond float32 count as infinite
        return LabelledStates(states.astype(np.float32), None, list(numbers), numbers=list(numbers))


def explain_inputs(
    saved: SavedModel,
    source: str | None,
    columns: Columns,
    *,
    k: int,
    texts: Sequence[str] = (),
    only: Collection[str] = (),
    first: int | None = None,
) -> Iterator[tuple[Row, str]]:
    """The row of each input with all of its evidence, its k nearest training examples among it, and the same in words.

    Without a source, ``texts`` are explained. Only the inputs with the ids of ``only``, and only the ``first`` so many.
    """
    given = [given_block(saved, texts=texts)] if source is None else Reading(saved, source, columns).blocks()
    for block in selected(given, only, first):
        explanations = saved.classifier.explain(block.hidden_states, k)
        decisions = ModelChecks(saved.path).demote([one.decision for one in explanations])
        explanations = [replace(one, decision=row) for one, row in zip(explanations, decisions, strict=True)]
        rows = rows_beside(block, [one.to_dict() for one in explanations], texts=True)
        yield from zip(rows, map(str, explanations), strict=True)


def selected(
    blocks: Iterable[LabelledStates], only: Collection[str] = (), first: int | None = None
) -> Iterator[LabelledStates]:
    """The inputs with these ids, or all inputs if no ids are given; only the first N, if ``first`` is N.

    Blocks are read only as far as needed. An unknown id is an error, unless ``first`` ended the search.
    """
    n_found, missing = 0, set(only)
    for block in blocks:
        names = list(map(str, () if block.ids is None else block.ids))
        rows = [row for row, name in enumerate(names) if not only or name in only]
        rows = rows if first is None else rows[: first - n_found]
        if rows:
            yield block.take(rows)
            n_found += len(rows)
            missing -= {names[row] for row in rows}
        if n_found == first or (only and not missing):
            return
    if missing:
        raise InvalidInputError(f"There is no input with the id {min(missing)!r}.")


@dataclass(frozen=True)
class AnswerRequest:
    """Inputs to decide on, or, if k > 0, to explain with their k nearest training examples."""

    texts: Sequence[Any] | None = None
    answers: Sequence[Any] | None = None
    hidden_states: Sequence[Any] | Array | None = None
    k: int = 0
    sources: Sequence[Any] | None = None
    """Where each input comes from, for guards by source; None if that is not known."""

    def __len__(self) -> int:
        inputs = self.hidden_states if self.texts is None else self.texts
        return 0 if inputs is None else len(inputs)


_Read: TypeAlias = tuple[LabelledStates, BadRows]  # what could be read of a request: states, and the inputs without


def answer_requests(
    saved: SavedModel,
    requests: Sequence[AnswerRequest],
    *,
    guard: DriftGuard | SourceGuards | None = None,
    texts: bool = False,
) -> list[list[Row] | TorchSDMError]:
    """The rows of each request, or why there are none. What one request asks does not change another's answer.

    The language model reads all texts together, and neighbouring requests are decided together; this is faster than one
    by one. The states of a text may differ in their last bits with what it is read with (``batch_tokens=1`` prevents
    that); everything after that is the same to the bit (docs/decisions/0003).

    The guard watches the inputs that are decided on, in their order. Those that are explained are answered as they
    would be decided on now, and are no part of the stream. With ``texts``, explanations quote inputs and examples.
    """
    answers: list[list[Row] | TorchSDMError] = [[] for _ in requests]
    found: dict[int, _Read] = {}
    for numbers in _alike(requests):
        for number, read in _read(saved, requests, numbers):
            if isinstance(read, TorchSDMError):
                answers[number] = read
            else:
                found[number] = read

    def alike(number: int) -> tuple[int, ...]:
        """Requests with the same are decided together; an explanation, which the guard only looks on, never is."""
        shape = np.shape(found[number][0].hidden_states)[1:]
        return (number + 1, *shape) if requests[number].k else (0, *shape)

    for _, run in groupby(sorted(found), alike):
        numbers = list(run)
        k = requests[numbers[0]].k
        blocks = [found[number][0] for number in numbers]
        block = join_states([LabelledStates(one.hidden_states, None, one.ids, one.texts) for one in blocks])
        watching: Watcher | None = copy.copy(guard) if k else guard
        if isinstance(watching, SourceGuards):
            watching = watching.by([one for number in numbers for one in _sources_of(requests[number], found[number])])
        try:
            rows = answer_rows(saved.classifier, block, k=k, calibration=k > 0, texts=texts and k > 0, guard=watching)
        except TorchSDMError as error:
            answers = [error if number in numbers else one for number, one in enumerate(answers)]
            continue
        rest = iter(rows)
        for number in numbers:
            own, bad = found[number]
            parts = with_rejected([(own.numbers or (), list(islice(rest, len(own))))], bad)
            answers[number] = [row for part in parts for row in part]
    return answers


def _sources_of(request: AnswerRequest, read: _Read) -> list[Any]:
    """The source of each input of a request that could be read."""
    rows = read[0].numbers or ()
    return [None if request.sources is None else request.sources[row] for row in rows]


def _alike(requests: Sequence[AnswerRequest]) -> Iterable[list[int]]:
    """The numbers of the requests that have inputs, those together that are read together.

    Texts without answers are, and so are texts with an answer for each; lists of numbers would not gain by it.
    """
    together: dict[Any, list[int]] = {}
    for number, request in enumerate(requests):
        given = request.texts if request.answers is None else request.answers
        is_alone = request.texts is None or given is None or len(given) != len(request)
        if len(request):
            together.setdefault(number if is_alone else f"judged: {given is not request.texts}", []).append(number)
    return together.values()


def _read(
    saved: SavedModel, requests: Sequence[AnswerRequest], numbers: Sequence[int]
) -> Iterator[tuple[int, _Read | TorchSDMError]]:
    """The states of some requests. If they are refused together, they are read one by one: only culprits are told."""
    given = requests[numbers[0]]
    if len(numbers) > 1:
        texts = [text for number in numbers for text in requests[number].texts or ()]
        answers = [answer for number in numbers for answer in requests[number].answers or ()]
        given = AnswerRequest(texts, answers or None)
    bad: BadRows = {}
    try:
        block = given_block(saved, texts=given.texts, answers=given.answers, hidden_states=given.hidden_states, bad=bad)
    except TorchSDMError as error:
        is_of_one = len(numbers) > 1 and isinstance(error, InvalidInputError)  # otherwise it is no request's fault
        for number in numbers:
            yield from _read(saved, requests, [number]) if is_of_one else [(number, error)]
        return
    if len(numbers) == 1:
        yield numbers[0], (block, bad)
        return
    positions, start = np.asarray(block.numbers), 0  # ascending
    for number in numbers:
        stop = start + len(requests[number])
        first, last = np.searchsorted(positions, [start, stop])
        if first == last:
            yield from _read(saved, requests, [number])
        else:
            own = (positions[first:last] - start).tolist()
            found = {
                n - start: replace(one, number=n - start, id=n - start) for n, one in bad.items() if start <= n < stop
            }
            yield number, (replace(block.take(range(first, last)), ids=own, numbers=own), found)
        start = stop
