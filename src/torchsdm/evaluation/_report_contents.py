"""What a report shows: the plots of each data set, and examples worth reading. ``report`` renders it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

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
from torchsdm.evaluation.strangers import CLASSES, kind_of_labels
from torchsdm.settings import LANES
from torchsdm.validation import Array, check_label_array

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
    labels = check_label_array(data.labels, "render_report") if evaluation.kinds[name] == CLASSES else None
    if labels is not None:
        curves = iter(_curves(evaluation, name).items())
        while some := dict(islice(curves, _CURVES)):
            caption = "Risk against coverage, each estimator by its own score; the marker shows what it admits."
            yield caption, RiskCoverageDisplay.from_predictions(some, labels, alpha=alpha)
        caption = f"Accuracy against confidence sdm(z′).{of_all}"
        yield caption, ReliabilityDisplay.from_predictions(own, labels[rows], alpha=alpha)
    if isinstance(classifier, SDMClassifier):  # an ensemble has no region, and no distances, of its own
        if labels is not None and len(own.classes) <= _PARTITIONS:
            region = next(region for region in classifier.regions_ if abs(region.alpha - alpha) < 1e-9)
            caption = (
                f"Partition: rescaled similarity q′ against confidence, by true class; the region is shaded.{of_all}"
            )
            yield caption, PartitionDisplay.from_predictions(own, labels[rows], region=region)
        caption = f"Distance to the nearest training example, compared with calibration points.{of_all}"
        yield caption, DistanceDisplay.from_predictions(own, ecdfs=classifier.model_.calibration.ecdfs, name=name)
    if labels is not None:
        caption = f"Accuracy and admitted share of the paper's region across α.{of_all}"
        yield caption, _of_alphas(classifier, own, data.take(rows).hidden_states, labels[rows])


def _of_alphas(classifier: SDMClassifier | SDMEnsemble, own: SDMDecisions, states: Any, truth: Array) -> AlphaDisplay:
    """What the regions of other alphas admit; asks the classifier again only if they rest on other signals."""
    if isinstance(classifier, SDMEnsemble) or classifier.model_.outdated:
        return AlphaDisplay.from_estimator(classifier, states, truth, alphas=_ALPHAS)
    calibration = classifier.model_.calibration
    regions = calibration.with_regions(_ALPHAS.tolist(), calibration.min_class_count).regions
    return AlphaDisplay.from_regions(own, truth, regions=regions)


def _curves(evaluation: Evaluation, data_set: str) -> dict[str, Decisions]:
    """Labelled decisions of each entrant that rejects anything; entrants with the same name are numbered."""
    names = [f"{entrant.model}, {entrant.name}" for entrant in evaluation.entrants]
    n_named, curves = Counter(names), {}
    for position, name in enumerate(names):
        decisions = evaluation.decisions[position, data_set]
        if not decisions.admitted.all():
            curves[name if n_named[name] == 1 else f"{name} ({position + 1})"] = decisions
    return curves


# --- Lanes and examples ----------------------------------------------------------------------------------------------


def lanes(data: LabelledStates, decisions: SDMDecisions) -> list[dict[str, Any]]:
    """Every lane, the most reliable first, with the first inputs in it and their reasons."""
    truth = _truth(data, decisions)
    found = []
    for name in LANES:
        rows = np.flatnonzero(decisions.lane == name)
        n_correct = None if truth is None else int((decisions.predictions[rows] == truth[rows]).sum())
        reasons = np.full(len(decisions), "") if decisions.reason is None else decisions.reason
        examples = [
            {**_named(data, row), "prediction": decisions.predictions[row], "reason": str(reasons[row])}
            for row in rows[:MAX_EXAMPLES].tolist()
        ]
        found.append({"name": name, "n": len(rows), "n_correct": n_correct, "examples": examples})
    return found


def examples(
    classifier: SDMClassifier | SDMEnsemble, data: LabelledStates, decisions: SDMDecisions, admitted: Array
) -> tuple[int | None, list[dict[str, Any]]]:
    """How many inputs are admitted against their given label, if they have any, and examples of every kind."""
    truth = _truth(data, decisions)
    right = None if truth is None else decisions.predictions == truth
    kinds = {name: rows for name, rows in _kinds(decisions, admitted, right).items() if len(rows)}
    shown = [row for rows in kinds.values() for row in rows[:MAX_EXAMPLES].tolist()]
    explained = iter(classifier.explain(data.take(shown).hidden_states, k=_EXEMPLARS) if shown else ())
    groups = [
        {
            "caption": caption,
            "n_total": len(rows),
            "examples": [{**_named(data, row), "explanation": next(explained)} for row in rows[:MAX_EXAMPLES].tolist()],
        }
        for caption, rows in kinds.items()
    ]
    n_against = int((admitted if right is None else admitted & ~right).sum())
    return None if data.labels is None else n_against, groups


def _kinds(d: SDMDecisions, admitted: Array, right: Array | None) -> dict[str, Array]:
    """Rows of each kind of example, by caption; fewer where nobody knows whether they are right."""
    is_far, disagrees = d.distance_quantile == 0, d.similarity == 0
    kinds = {  # by what the rows are ordered, highest first, and which they are
        "Rejected: farther than all calibration points of some class (d = 0)": (d.nearest_distance, ~admitted & is_far),
        "Rejected: the nearest training example disagrees (q = 0)": (d.magnitude, ~admitted & disagrees & ~is_far),
    }
    if right is None:
        kinds = {"Admitted, highest q′ first": (d.rescaled_similarity, admitted), **kinds}
    else:
        left = ~admitted & right & ~d.out_of_distribution
        kinds = {
            "Admitted and right, highest q′ first": (d.rescaled_similarity, admitted & right),
            "Admitted and wrong, or mislabelled: look at these first": (d.confidence, admitted & ~right),
            **kinds,
            "Rejected although right, highest confidence first": (d.confidence, left),
        }
    return {name: np.flatnonzero(rows)[np.argsort(-by[rows], kind="stable")] for name, (by, rows) in kinds.items()}


def _truth(data: LabelledStates, decisions: SDMDecisions) -> Array | None:
    """The true classes; None if they are not known."""
    is_known = kind_of_labels(data.labels, decisions.classes) == CLASSES
    return check_label_array(data.labels, "render_report") if is_known else None


def _named(data: LabelledStates, row: int) -> dict[str, Any]:
    text = None if data.texts is None else str(data.texts[row])
    label = None if data.labels is None else data.labels[row]
    return {"id": row if data.ids is None else data.ids[row], "text": text, "label": label}
