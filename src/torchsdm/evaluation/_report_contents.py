"""What a report shows: the plots of each data set, and examples worth reading. ``report`` renders it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.displays._drawing import some_rows
from torchsdm.evaluation.displays.alpha import AlphaDisplay
from torchsdm.evaluation.displays.distance import DistanceDisplay
from torchsdm.evaluation.displays.partition import PartitionDisplay
from torchsdm.evaluation.displays.reliability import ReliabilityDisplay
from torchsdm.evaluation.displays.risk_coverage import RiskCoverageDisplay
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.strangers import CLASSES, NONE, kind_of_labels
from torchsdm.model import Explanation
from torchsdm.settings import LANES
from torchsdm.validation import Array, ArrayLike, check_label_array

MAX_EXAMPLES = 3  #: per kind and data set
_EXEMPLARS = 3  # per example
_PARTITIONS = 12  # classes, each with a panel; with more there is no plot of the partition
_CURVES = 6  # per plot; more cannot be told apart
_ALPHAS = np.round(np.arange(0.70, 1.0, 0.02), 2)
_PICTURE_ROWS = 20_000  # inputs in plots that need their own decisions


# --- Plots -----------------------------------------------------------------------------------------------------------


def pictures(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, name: str, decided: SDMDecisions
) -> Iterator[tuple[str, Any]]:
    """The displays of a data set with captions, by what the classifier decides on it; without classes, of distances."""
    alpha, data = evaluation.alpha, evaluation.data_sets[name]
    rows = some_rows(len(data), _PICTURE_ROWS)
    of_all = "" if len(rows) == len(data) else f" {len(rows):,} of {len(data):,} inputs, drawn at random."
    own = decided[rows] if of_all else decided
    distances = _distances(classifier, own, name, of_all)
    if evaluation.kinds[name] != CLASSES:
        yield from distances
        return
    labels = check_label_array(data.labels, "render_report")
    curves = _curves(evaluation, name)
    names = list(curves)
    for start in range(0, len(names), _CURVES):
        caption = "Risk against coverage, each estimator by its own score; the marker shows what it admits."
        some = {key: curves[key] for key in names[start : start + _CURVES]}
        yield caption, RiskCoverageDisplay.from_predictions(some, labels, alpha=alpha)
    truth = labels[rows]
    yield f"Accuracy against confidence sdm(z′).{of_all}", ReliabilityDisplay.from_predictions(own, truth, alpha=alpha)
    if isinstance(classifier, SDMClassifier) and len(own.classes) <= _PARTITIONS:
        region = next(region for region in classifier.regions_ if abs(region.alpha - alpha) < 1e-9)
        caption = f"Partition: rescaled similarity q′ against confidence, by true class; the region is shaded.{of_all}"
        yield caption, PartitionDisplay.from_predictions(own, truth, region=region)
    yield from distances
    caption = f"Accuracy and admitted share of the paper's region across α.{of_all}"
    yield caption, _of_alphas(classifier, own, _take(data.hidden_states, rows), truth)


def _of_alphas(classifier: SDMClassifier | SDMEnsemble, own: SDMDecisions, states: Any, truth: Array) -> AlphaDisplay:
    """What the regions of other alphas admit; asks the classifier again only if they rest on other signals."""
    if isinstance(classifier, SDMEnsemble) or classifier.model_.outdated:
        return AlphaDisplay.from_estimator(classifier, states, truth, alphas=_ALPHAS)
    calibration = classifier.model_.calibration
    regions = calibration.with_regions(_ALPHAS.tolist(), calibration.min_class_count).regions
    return AlphaDisplay.from_regions(own, truth, regions=regions)


def _distances(
    classifier: SDMClassifier | SDMEnsemble, own: SDMDecisions, name: str, of_all: str
) -> Iterator[tuple[str, Any]]:
    """The display of distances, which needs no labels; nothing for an ensemble."""
    if isinstance(classifier, SDMClassifier):
        caption = f"Distance to the nearest training example, compared with calibration points.{of_all}"
        yield caption, DistanceDisplay.from_predictions(own, ecdfs=classifier.model_.calibration.ecdfs, name=name)


def _curves(evaluation: Evaluation, data_set: str) -> dict[str, Decisions]:
    """Labelled decisions of each entrant that rejects anything; entrants with the same name are numbered."""
    names = [f"{entrant.model}, {entrant.name}" for entrant in evaluation.entrants]
    n_named, curves = Counter(names), {}
    for position, name in enumerate(names):
        decisions = evaluation.decisions[position, data_set]
        if not decisions.admitted.all():
            curves[name if n_named[name] == 1 else f"{name} ({position + 1})"] = decisions
    return curves


def _take(states: ArrayLike, rows: Array) -> Any:
    return states[torch.from_numpy(rows)] if isinstance(states, torch.Tensor) else np.asarray(states)[rows]


# --- Lanes -----------------------------------------------------------------------------------------------------------


class Reasoned(NamedTuple):
    """An input with its lane's reason."""

    id: Any
    text: str | None
    label: Any
    """None if it has none."""
    prediction: Any
    reason: str


class Lane(NamedTuple):
    """The inputs of a data set that are in one lane; the first few are examples."""

    name: str
    n: int
    n_correct: int | None
    """None where the classes are not known."""
    examples: list[Reasoned]


def lanes(data: LabelledStates, decisions: SDMDecisions) -> list[Lane]:
    """Every lane, the most reliable first, with the first inputs in it and their reasons."""
    is_known = kind_of_labels(data.labels, decisions.classes) == CLASSES
    truth = check_label_array(data.labels, "render_report") if is_known else None
    found = []
    for name in LANES:
        rows = np.flatnonzero(decisions.lane == name)
        n_correct = None if truth is None else int((decisions.predictions[rows] == truth[rows]).sum())
        reasons = np.full(len(decisions), "") if decisions.reason is None else decisions.reason
        reasoned = [
            Reasoned(*_named(data, row), decisions.predictions[row], str(reasons[row]))
            for row in rows[:MAX_EXAMPLES].tolist()
        ]
        found.append(Lane(name, len(rows), n_correct, reasoned))
    return found


# --- Examples --------------------------------------------------------------------------------------------------------


class Example(NamedTuple):
    """An input of a data set, with the explanation of its decision."""

    id: Any
    text: str | None
    label: Any
    explanation: Explanation


class ExampleGroup(NamedTuple):
    """The first examples of one kind."""

    caption: str
    n_total: int
    """Inputs of this kind; only the first few are examples."""
    examples: list[Example]


def _highest(score: Array, chosen: Array) -> Array:
    rows = np.flatnonzero(chosen)
    ordered: Array = rows[np.argsort(-score[rows], kind="stable")]
    return ordered


def _kinds(d: SDMDecisions, right: Array | None) -> dict[str, Array]:
    """Rows of each kind of example, by caption; fewer where nobody knows whether they are right."""
    rejected = {
        "Rejected: farther than all calibration points of some class (d = 0)": _highest(
            d.nearest_distance, ~d.admitted & (d.distance_quantile == 0)
        ),
        "Rejected: the nearest training example disagrees (q = 0)": _highest(
            d.magnitude, ~d.admitted & (d.similarity == 0) & (d.distance_quantile > 0)
        ),
    }
    if right is None:
        return {"Admitted, highest q′ first": _highest(d.rescaled_similarity, d.admitted), **rejected}
    return {
        "Admitted and right, highest q′ first": _highest(d.rescaled_similarity, d.admitted & right),
        "Admitted and wrong, or mislabelled: look at these first": _highest(d.confidence, d.admitted & ~right),
        **rejected,
        "Rejected although right, highest confidence first": _highest(
            d.confidence, ~d.admitted & right & ~d.out_of_distribution
        ),
    }


def examples(
    classifier: SDMClassifier | SDMEnsemble, data: LabelledStates, decisions: SDMDecisions
) -> tuple[int | None, list[ExampleGroup]]:
    """How many inputs are admitted against their given label, if they have any, and examples of every kind."""
    labels = kind_of_labels(data.labels, decisions.classes)
    truth = check_label_array(data.labels, "render_report") if labels == CLASSES else np.array([None] * len(data))
    right = decisions.predictions == truth
    kinds = {name: rows for name, rows in _kinds(decisions, right if labels == CLASSES else None).items() if len(rows)}
    shown = [row for rows in kinds.values() for row in rows[:MAX_EXAMPLES].tolist()]
    explained = iter(classifier.explain(_take(data.hidden_states, np.array(shown)), k=_EXEMPLARS) if shown else ())
    groups = [
        ExampleGroup(
            caption, len(rows), [Example(*_named(data, row), next(explained)) for row in rows[:MAX_EXAMPLES].tolist()]
        )
        for caption, rows in kinds.items()
    ]
    n_against = int((decisions.admitted & (decisions.predictions != truth)).sum())
    return None if labels == NONE else n_against, groups


def _named(data: LabelledStates, row: int) -> tuple[Any, str | None, Any]:
    text = None if data.texts is None else str(data.texts[row])
    return row if data.ids is None else data.ids[row], text, None if data.labels is None else data.labels[row]
