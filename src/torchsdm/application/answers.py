"""One shape for every answer: a block of states goes in, one row of plain values per input comes out.

The command and the service write only these rows; ``decision_schema`` describes them. Requests that wait together are
answered together, each as if it were alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import numpy as np

from torchsdm.application.inputs import checked
from torchsdm.application.saved_model import SavedModel
from torchsdm.data import (
    BadRow,
    BadRows,
    Columns,
    LabelledStates,
    Place,
    Unreadable,
    join_states,
    state_of,
    usual_shape,
)
from torchsdm.errors import InvalidInputError, Remedy, TorchSDMError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.settings import REJECTED
from torchsdm.trust import DriftGuard
from torchsdm.validation import Array

Row: TypeAlias = "dict[str, Any]"


def decision_schema() -> dict[str, Any]:
    """The JSON schema of a row."""
    schema: dict[str, Any] = json.loads(
        files("torchsdm.application").joinpath("decision.schema.json").read_text(encoding="utf-8")
    )
    return schema


def answer_rows(
    classifier: SDMClassifier | SDMEnsemble,
    block: LabelledStates,
    *,
    k: int = 0,
    calibration: bool = False,
    texts: bool = False,
    guard: DriftGuard | None = None,
) -> list[dict[str, Any]]:
    """Decide on a block of states: one row per input, with its id, its line, and the fields of ``Decisions.to_dicts``.

    Parameters
    ----------
    classifier : SDMClassifier or SDMEnsemble
    block : LabelledStates
        Inputs without ids are numbered from 0.
    k : int
        If k > 0, a row also has ``exemplars``, the k nearest training examples.
    calibration : bool
        If k > 0, whether a row also has the calibration points like the input, as ``Explanation`` does.
    texts : bool
        Whether a row also has the text of its input and of the examples behind it.
    guard : DriftGuard, optional
        Watches the stream of inputs that the block belongs to; not for an ensemble, which has none.
    """
    watched: dict[str, Any] = {} if guard is None else {"guard": guard}
    states = block.hidden_states
    rows = (
        [one.to_dict(calibration=calibration, texts=texts) for one in classifier.explain(states, k, **watched)]
        if k
        else classifier.decide(states, **watched).to_dicts()
    )
    return _beside(block, rows, texts=texts)


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
    given = [given_block(saved, texts=texts)] if source is None else saved.blocks(source, columns)
    for block in selected(given, only, first):
        explanations = saved.classifier.explain(block.hidden_states, k)
        rows = _beside(block, [one.to_dict() for one in explanations], texts=True)
        yield from zip(rows, map(str, explanations), strict=True)


def _beside(block: LabelledStates, rows: Iterable[Row], *, texts: bool) -> list[Row]:
    """The rows of a block with what is not of the decision: id, line and, if asked for, text."""
    places: Sequence[str | None] = [None] * len(block) if block.places is None else block.places
    return [
        {"id": name, "line": line_of(place), **({"text": text} if texts else {}), **row}
        for (name, text), place, row in zip(ids_and_texts(block), places, rows, strict=True)
    ]


def line_of(place: str | None) -> int | None:
    """The line of a file, or the row of a table or of arrays; None for an input in memory."""
    return place.line if isinstance(place, Place) else None


def with_rejected(answers: Iterable[tuple[Sequence[int], list[Row]]], bad: Mapping[int, BadRow]) -> Iterator[list[Row]]:
    """Blocks of answers, with a row for every input that could not be decided on, each in its place.

    Answers come with the numbers of their inputs. Bad inputs may be noted while the answers are made, before the block
    that follows them. There must be an answer: it shows what a row has.
    """
    position = 0
    row: Row = {}
    for numbers, rows in answers:
        block: list[Row] = []
        for number, row in zip(numbers, rows, strict=True):
            block += [rejected_row(bad[before], row) for before in range(position, number)]
            block.append(row)
            position = number + 1
        yield block
    rest = [rejected_row(bad[number], row) for number in sorted(bad) if number >= position] if row else []
    if rest:
        yield rest


def rejected_row(bad: BadRow, like: Row) -> Row:
    """The row of an input that could not be decided on: nothing is admitted, nothing is known, and the reason why.

    It has the keys of a decision, so that every row of a file has the same columns.
    """
    blank: Row = {name: _blank(value) for name, value in like.items()}
    unknown = {"prediction": None, "out_of_distribution": None, "admitted": False, "lane": REJECTED}
    return {**blank, **unknown, "id": bad.id, "line": line_of(bad.place), "reason": str(bad)}


def _blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _blank(one) for name, one in value.items()}
    return [] if isinstance(value, list) else False if isinstance(value, bool) else None


def example_row(classifier: SDMClassifier | SDMEnsemble, *, k: int = 0, texts: bool = False) -> dict[str, Any]:
    """A row as ``answer_rows`` makes them, of a state of zeros: what is in it, where there is no input to ask."""
    shape = (1,) * (classifier.input_ndim_ - 1)
    states = np.zeros((*shape, classifier.n_features_in_), dtype=np.float32)
    return answer_rows(classifier, LabelledStates(states, None), k=k, texts=texts)[0]


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
    elif hidden_states is not None and len(hidden_states) == 0:
        return LabelledStates([], None)
    else:
        blocks = _listed_states([] if hidden_states is None else hidden_states, saved.classifier.n_features_in_, found)
    block = join_states(blocks) if blocks else None
    if bad is None or found is None:
        return LabelledStates([], None) if block is None else block
    if block is not None:
        block = checked(block, "request", Columns(), needs_labels=False, bad=found)
    bad |= {number: replace(one, place="") for number, one in sorted(found.items())}
    if block is None or not len(block):
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
    extraction = reader.load()
    read = (reader.read(extraction, piece, bad) for piece in pieces)
    blocks = [block for block in read if block is not None]
    return [replace(block, texts=[texts[number] for number in block.numbers or ()]) for block in blocks]


def _listed_states(hidden_states: Sequence[Any] | Array, width: int, bad: BadRows | None) -> list[LabelledStates]:
    """States given as lists of numbers, as one block; none if no list can be used."""
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


def selected(
    blocks: Iterable[LabelledStates], only: Collection[str] = (), first: int | None = None
) -> Iterator[LabelledStates]:
    """The inputs with these ids, or all inputs if no ids are given; only the first N, if ``first`` is N.

    Blocks are read only as far as needed. An unknown id is an error, unless ``first`` ended the search.
    """
    n_found, missing = 0, set(only)
    for block in blocks:
        names = [str(name) for name, _ in ids_and_texts(block)]
        rows = [row for row, name in enumerate(names) if not only or name in only]
        rows = rows if first is None else rows[: first - n_found]
        if rows:
            yield _rows_of(block, rows)
            n_found += len(rows)
            missing -= {names[row] for row in rows}
        if n_found == first or (only and not missing):
            return
    if missing:
        raise InvalidInputError(f"There is no input with the id {min(missing)!r}.")


def ids_and_texts(block: LabelledStates) -> list[tuple[Any, str | None]]:
    """Id and text of each input of a block. Inputs without ids are numbered from 0; a missing text is None."""
    ids = np.arange(len(block)) if block.ids is None else block.ids
    texts = [None] * len(block) if block.texts is None else list(block.texts)
    return list(zip(ids.tolist() if isinstance(ids, np.ndarray) else ids, texts, strict=True))


def _rows_of(block: LabelledStates, rows: list[int]) -> LabelledStates:
    named = block if block.ids is not None else replace(block, ids=[name for name, _ in ids_and_texts(block)])
    return named.take(rows)


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

    The guard watches the inputs that are decided on, in their order. Those that are explained are answered as they
    would be decided on now, and are no part of the stream. With ``texts``, explanations quote inputs and examples.
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
    return [0, *accumulate(sizes)][:-1]
