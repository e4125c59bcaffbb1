"""Evaluate a saved model and compare it with other estimators."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsdm.application.saved_model import SavedModel
from torchsdm.columns import Columns
from torchsdm.documents import BadRows
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation import Entrant, Evaluation, classifier_entrants, paper_entrants
from torchsdm.states import LabelledStates, join_states

_TRAINED = ("language model", "cnn", "vbll", "today")  # groups that need the training data


def evaluate_model(
    saved: SavedModel,
    data: Sequence[str],
    columns: Columns,
    alpha: float | None,
    estimators: Sequence[str],
    training: str | None,
    groups: str,
    calibration: str | None = None,
    certification: str | None = None,
    *,
    bad: dict[str, BadRows] | None = None,
) -> Evaluation:
    """Compare a saved model with other estimators on data given as PATH or NAME=PATH.

    Estimators that need training get the data that the model was given: ``training``, and ``calibration`` and
    ``certification`` if it was given such sets of their own. If ``bad`` is given, rows of the data that cannot be read
    are noted there, by data set, and count as rejected; by default the first is an error, as it always is in training
    data.
    """
    sets = dict(_named(one) for one in data)
    if len(sets) < len(data):
        raise InvalidInputError("Two data sets have the same name. Name them: NAME=DATA.")
    own = {"calibration": calibration, "certification": certification}
    for name, file in own.items():
        if file is not None and training is None:
            raise InvalidInputError(f"A {name} set is used only with training data. Give those, too.")
    classifier = saved.classifier
    if alpha is not None or len(classifier.models_[0].calibration.regions) > 1:
        classifier = copy.copy(classifier)
        first = classifier.models_[0].calibration.regions[0].alpha
        classifier.recalibrate(alpha if alpha is not None else first)
    wanted = groups.split(",")
    if training is not None:
        _check_groups(classifier, wanted)
    found: dict[str, BadRows] = {name: {} for name in sets}
    states = {
        name: join_states(
            list(saved.blocks(path, columns, needs_labels=True, bad=None if bad is None else found[name]))
        )
        for name, path in sets.items()
    }
    if bad is not None:
        bad |= found
    _check_labels(states, classifier.classes_.tolist())
    chosen_alpha = classifier.models_[0].calibration.regions[0].alpha
    name = _language_model_name(saved)
    entrants = classifier_entrants(classifier, name=name)
    if training is not None:
        given: dict[str, Any] = {
            name: _training_part(saved, file, columns) for name, file in own.items() if file is not None
        }
        entrants += paper_entrants(
            _training_part(saved, training, columns),
            classifier,
            **given,
            groups=wanted,
            name=name,
        )
    entrants = _chosen(entrants, estimators)
    unread = {name: len(rows) for name, rows in found.items()}
    return Evaluation(entrants, states, chosen_alpha, {"model": str(saved.path)}, unread)


def _training_part(saved: SavedModel, source: str, columns: Columns) -> LabelledStates:
    """Labelled states of what a model was trained or calibrated on: stored ones, or those of texts."""
    return join_states(list(saved.blocks(source, columns, needs_labels=True, cached=True)))


def _named(text: str) -> tuple[str, str]:
    """Split NAME=PATH; a path without a name is named after its file."""
    name, separator, path = text.partition("=")
    if separator and name and not Path(text).exists():
        return name, path
    return ("standard input" if text == "-" else Path(text).name.partition(".")[0] or text), text


def _check_groups(classifier: SDMClassifier | SDMEnsemble, groups: Sequence[str]) -> None:
    if isinstance(classifier, SDMEnsemble):
        raise InvalidInputError("An ensemble is compared only by its own rule. Leave the training data out.")
    for group in groups:
        if group not in _TRAINED:
            raise InvalidInputError(f"There is no group {group!r} of estimators. Choose from {', '.join(_TRAINED)}.")


def _chosen(entrants: list[Entrant], names: Sequence[str]) -> list[Entrant]:
    if not names:
        return entrants
    for name in names:
        if not any(name.lower() in f"{entrant.model} {entrant.name}".lower() for entrant in entrants):
            known = ", ".join(dict.fromkeys(entrant.name for entrant in entrants))
            raise InvalidInputError(f"No estimator has {name!r} in its name. Choose from {known}.")
    return [
        entrant
        for entrant in entrants
        if any(name.lower() in f"{entrant.model} {entrant.name}".lower() for name in names)
    ]


def _check_labels(states: dict[str, LabelledStates], classes: list[Any]) -> None:
    """Refuse labels that the model can never predict, before anything is computed."""
    for name, data in states.items():
        for row, label in enumerate(data.labels if data.labels is not None else []):
            value = label.item() if hasattr(label, "item") else label
            if value not in classes:
                named = "" if data.ids is None else f" (id {data.ids[row]!r})"
                raise InvalidInputError(
                    f"{name}, {data.place(row)}{named}: the label {value!r} is not one of the model's: {classes!r}."
                )


def _language_model_name(saved: SavedModel) -> str:
    origin = saved.classifier.states_origin_
    reference = None if origin is None else origin.model.reference
    return "states" if reference is None else Path(reference.rpartition(":")[2]).name
