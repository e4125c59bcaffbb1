"""One shape for every answer: a block of states goes in, one row of plain values per input comes out.

The command and the service write only these rows; ``decision_schema`` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from torchsdm.application.inputs import checked
from torchsdm.application.saved_model import SavedModel
from torchsdm.columns import Columns
from torchsdm.data import BadRow, BadRows, LabelledStates, Unreadable, join_states, state_of, usual_shape
from torchsdm.errors import InvalidInputError, Remedy
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
    """Decide on a block of states: one row per input, with its id and the fields of ``Decisions.to_dicts``.

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
    return [
        {"id": name, **({"text": text} if texts else {}), **row}
        for (name, text), row in zip(ids_and_texts(block), rows, strict=True)
    ]


def with_rejected(answers: Iterable[list[Row]], bad: Mapping[int, BadRow]) -> Iterator[list[Row]]:
    """Blocks of answers, with a row for every input that could not be decided on, each in its place.

    Bad inputs may be noted while the answers are made, before the block that follows them. There must be an answer: it
    shows what a row has.
    """
    position = 0

    def rejected(like: Row) -> Iterator[Row]:
        nonlocal position
        while position in bad:
            yield rejected_row(bad[position], like)
            position += 1

    rows: list[Row] = []
    for rows in answers:
        block: list[Row] = []
        for row in rows:
            block += [*rejected(row), row]
            position += 1
        yield block
    rest = [one for row in rows[-1:] for one in rejected(row)]
    if rest:
        yield rest


def rejected_row(bad: BadRow, like: Row) -> Row:
    """The row of an input that could not be decided on: nothing is admitted, nothing is known, and the reason why.

    It has the keys of a decision, so that every row of a file has the same columns.
    """
    blank: Row = {name: _blank(value) for name, value in like.items()}
    unknown = {"predictions": None, "out_of_distribution": None}
    return {**blank, **unknown, "id": bad.id, "admitted": False, "lane": REJECTED, "reason": str(bad)}


def _blank(value: Any) -> Any:
    """What stands for a value of a decision where there is none."""
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
    texts: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    hidden_states: Sequence[Any] | None = None,
) -> LabelledStates:
    """Make a block of states from inputs in memory: texts, with answers if those are judged, or lists of numbers."""
    if texts is not None:
        if saved.text_classifier is None:
            raise InvalidInputError(
                "This model was trained on states only and cannot read texts.", remedy=Remedy.GIVE_STATES
            )
        return LabelledStates(saved.text_classifier.states(texts, answers=answers), None, texts=list(texts))
    if hidden_states is not None and len(hidden_states) == 0:
        return LabelledStates([], None)
    try:
        states = np.array(hidden_states, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"hidden_states must be lists of numbers, all of the same length: {error}.") from error
    if states.ndim not in (2, 3):
        raise InvalidInputError(f"hidden_states must be a list of states. Got shape {states.shape}.")
    return LabelledStates(states, None)


def readable_block(
    saved: SavedModel,
    bad: BadRows,
    *,
    texts: Sequence[Any] | None = None,
    answers: Sequence[Any] | None = None,
    hidden_states: Sequence[Any] | Array | None = None,
) -> LabelledStates:
    """``given_block`` of the inputs that can be decided on; the others are noted in ``bad``, by their numbers.

    If there is none to decide on, that is an error.
    """
    found: BadRows = {}
    if texts is not None and saved.text_classifier is not None:
        extractor = saved.text_classifier.checked_extractor()
        given = [text if isinstance(text, str) or text is None else [text] for text in texts]  # mappings are no rows
        blocks = list(extractor.labelled_blocks(given, answers=answers, bad=found))
    elif hidden_states is not None:
        blocks = _listed_states(hidden_states, saved.classifier.n_features_in_, found)
    else:
        return given_block(saved, texts=texts)  # which refuses texts
    block = join_states(blocks) if blocks else None
    if block is not None:
        numbers: Any = block.ids
        block = checked(block, Path("request"), Columns(), needs_labels=False, numbers=numbers, bad=found)
    bad |= {number: replace(one, place="") for number, one in sorted(found.items())}
    if block is None or not len(block):
        raise InvalidInputError(f"None of the inputs can be decided on: {next(iter(bad.values()))}.")
    return replace(block, texts=None if texts is None else [texts[number] for number, _ in ids_and_texts(block)])


def _listed_states(hidden_states: Sequence[Any] | Array, width: int, bad: BadRows) -> list[LabelledStates]:
    """States given as lists of numbers, as one block; none if no list can be used."""
    whole = state_of(hidden_states, None, "hidden_states")
    if not isinstance(whole, Unreadable) and whole.ndim in (2, 3):  # nearly always: every list is numeric and as long
        with np.errstate(over="ignore"):
            return [LabelledStates(whole.astype(np.float32), None, list(range(len(whole))))]
    shape = usual_shape(hidden_states, width)
    states = {number: state_of(value, shape, "hidden_states") for number, value in enumerate(hidden_states)}
    bad |= {
        number: BadRow(number, "", str(one), number) for number, one in states.items() if isinstance(one, Unreadable)
    }
    good = {number: one for number, one in states.items() if not isinstance(one, Unreadable)}
    with np.errstate(over="ignore"):  # values beyond float32 count as infinite
        return [LabelledStates(np.stack(list(good.values())).astype(np.float32), None, list(good))] if good else []


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
    ids, texts = zip(*(ids_and_texts(block)[row] for row in rows), strict=True)
    return LabelledStates(np.asarray(block.hidden_states)[rows], None, ids, None if block.texts is None else texts)
