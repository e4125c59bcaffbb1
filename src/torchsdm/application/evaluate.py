"""Evaluate a saved model and compare it with other estimators, report on it, and give it away to decide with NumPy."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsdm.application.saved_model import Reading, SavedModel
from torchsdm.application.update import check_prices
from torchsdm.data import BadRows, Columns, LabelledStates, join_states
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble, load_classifier
from torchsdm.hidden_states import default_store
from torchsdm.labels import label_array
from torchsdm.validation import as_list

if TYPE_CHECKING:
    from torchsdm.evaluation import Entrant, Evaluation

logger = logging.getLogger(__name__)

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

    Data need no labels, or may have labels outside the classes of the model; ``Evaluation`` says what is shown then.
    Estimators that need training get the data that the model was given: ``training``, and ``calibration`` and
    ``certification`` if it was given such sets of their own. Whatever can be checked without embedding a text is
    checked before the first one is. If ``bad`` is given, rows of the data that cannot be read are noted there, by data
    set, and count as rejected; by default the first is an error, as it always is in training data.
    """
    from torchsdm.evaluation import Evaluation, classifier_entrants, explain_labels, paper_entrants

    sets = dict(_named(one) for one in data)
    if len(sets) < len(data):
        raise InvalidInputError("Two data sets have the same name. Name them: NAME=DATA.")
    own = {"calibration": calibration, "certification": certification}
    for name, file in own.items():
        if file is not None and training is None:
            raise InvalidInputError(f"A {name} set is used only with training data. Give those, too.")
    fitted_on = {name: file for name, file in {"training": training, **own}.items() if file is not None}
    classifier, regions = saved.classifier, saved.classifier.models_[0].calibration.regions
    if alpha is not None or len(regions) > 1:
        classifier = copy.copy(classifier)
        classifier.recalibrate(regions[0].alpha if alpha is None else alpha)
    wanted = groups.split(",")
    if training is not None and isinstance(classifier, SDMEnsemble):
        raise InvalidInputError("An ensemble is compared only by its own rule. Leave the training data out.")
    unknown = next((group for group in wanted if group not in _TRAINED), None)
    if training is not None and unknown is not None:
        raise InvalidInputError(f"There is no group {unknown!r} of estimators. Choose from {', '.join(_TRAINED)}.")
    if bad is not None:
        bad |= {name: {} for name in sets}
    fitted = {name: Reading(saved, file, columns, needs_labels=True) for name, file in fitted_on.items()}
    for reading in fitted.values():
        _labels_of_texts(reading)
    readings = {
        name: Reading(saved, file, columns, takes_labels=True, bad=None if bad is None else bad[name])
        for name, file in sets.items()
    }
    labels = {name: _labels_of_texts(reading) for name, reading in readings.items()}
    origin = classifier.states_origin_
    reference = None if origin is None else origin.model.reference
    called = "states" if reference is None else Path(reference.rpartition(":")[2]).name
    entrants = classifier_entrants(classifier, name=called)
    entrants = _chosen(entrants, estimators) if training is None else entrants
    for name, known in labels.items():
        note = None if known is None else explain_labels(name, known or None, classifier.classes_)
        if note is not None:
            logger.info(note)  # the table says it again, but embedding takes long
    states = {name: _states(reading) for name, reading in readings.items()}
    parts: dict[str, Any] = {
        name: join_states(list(reading.blocks(default_store()))) for name, reading in fitted.items()
    }
    if training is not None:
        entrants += paper_entrants(parts.pop("training"), classifier, **parts, groups=wanted, name=called)
        entrants = _chosen(entrants, estimators)
    asked = classifier.models_[0].calibration.regions[0].alpha
    unread = {name: 0 if bad is None else len(bad[name]) for name in sets}
    return Evaluation(entrants, states, asked, {"model": str(saved.path)}, classifier, unread)


def _labels_of_texts(reading: Reading) -> list[Any] | None:
    """The labels of texts, read without embedding any, or an empty list; None if the input contains states."""
    if reading.documents is None:
        return None
    with reading.source.errors():
        counts = reading.documents.report.label_counts  # looks at all of them
    return list(counts.elements()) if reading.documents.has_labels else []


def _states(reading: Reading) -> LabelledStates:
    blocks, name = list(reading.blocks()), reading.source.name
    has_labels = all(block.labels is not None for block in blocks)
    labels = [label for block in blocks for label in as_list(block.labels, "labels", name)] if has_labels else []
    return replace(join_states(blocks), labels=label_array(labels, name) if labels else None)


def _named(text: str) -> tuple[str, str]:
    """Split NAME=PATH; a path without a name is named after its file."""
    name, separator, path = text.partition("=")
    if separator and name and not Path(text).exists():
        return name, path
    return ("standard input" if text == "-" else Path(text).name.partition(".")[0] or text), text


def _chosen(entrants: list[Entrant], names: Sequence[str]) -> list[Entrant]:
    called = [f"{entrant.model} {entrant.name}".lower() for entrant in entrants]
    for name in names:
        if not any(name.lower() in one for one in called):
            known = ", ".join(dict.fromkeys(entrant.name for entrant in entrants))
            raise InvalidInputError(f"No estimator has {name!r} in its name. Choose from {known}.")
    chosen = [name.lower() for name in names] or [""]
    return [one for one, full in zip(entrants, called, strict=True) if any(name in full for name in chosen)]


def report_model(
    saved: SavedModel,
    data: Sequence[str],
    output: Path,
    *,
    title: str | None = None,
    texts: bool = True,
    cost_error: Any = None,
    cost_review: float | None = None,
    **compared: Any,
) -> Evaluation:
    """Write the HTML report on a model and data, which are evaluated as ``evaluate_model`` does."""
    from torchsdm.evaluation import write_report

    prices = None
    if cost_error is not None or cost_review is not None:
        if cost_error is None or cost_review is None:
            raise InvalidInputError("'cost_error' and 'cost_review' go together: give both, or neither.")
        if not isinstance(saved.classifier, SDMClassifier):
            raise InvalidInputError(f"{saved.path} is an ensemble, which has no alpha to choose. Leave out the prices.")
        check_prices(saved.classifier, cost_error, cost_review)  # before texts are read
        prices = {"cost_error": cost_error, "cost_review": cost_review}
    evaluation = evaluate_model(saved, data, alpha=None, estimators=(), **compared)
    title = title or f"Evaluation of {saved.path}"
    write_report(output.resolve(), evaluation, saved.classifier, title=title, texts=texts, prices=prices)
    return evaluation


def export_model(model: Path, output: Path) -> dict[str, int]:
    """Write a model as a folder that decides with NumPy alone; the sizes of its files."""
    classifier = load_classifier(model)
    if not isinstance(classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which cannot be exported. Train a single classifier.")
    classifier.export_numpy(output)
    return {path.name: path.stat().st_size for path in sorted(output.glob("sdm_*"))}
