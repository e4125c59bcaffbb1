"""One shape for every answer: a block of states goes in, one row of plain values per input comes out.

The command and the service write only these rows; ``decision_schema`` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from torchsdm.application.saved_model import SavedModel
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.states import LabelledStates
from torchsdm.trust import DriftGuard


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
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"hidden_states must be lists of numbers, all of the same length: {error}.") from error
    if states.ndim not in (2, 3):
        raise InvalidInputError(f"hidden_states must be a list of states. Got shape {states.shape}.")
    return LabelledStates(states, None)


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
