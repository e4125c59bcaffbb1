"""Data sets whose labels are not classes of the model, or not there: strangers, and what a model does with its inputs.

The accuracy of the model on either is not known. Every stranger that is admitted is a mistake, whatever was predicted;
an input without a label may be right.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from torchsdm.core import SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.labels import LabelCodes, label_array, near_miss
from torchsdm.settings import LANES
from torchsdm.trust import DriftGuard
from torchsdm.validation import Array, ArrayLike, as_list, check_hidden_states, check_same_length

CLASSES, OUTSIDE, NONE = ("classes", "outside", "none")  #: what the labels of a data set are
_SHOWN = 3  # labels in a sentence


def strangers_of(name: str) -> str:
    """What the strangers among a data set are called."""
    return f"{name}, strangers"


def split_strangers(name: str, data: LabelledStates, classes: Array) -> dict[str, LabelledStates]:
    """A data set by name; rows whose label is not a class, if some are and some are not, become 'NAME, strangers'.

    Each part has labels that all are classes, or all are not; or no labels.
    """
    if data.labels is None:
        return {name: data}
    listed = as_list(data.labels, "labels", name)
    check_same_length(len(data), listed, "labels", name)
    data, is_class = replace(data, labels=label_array(listed, name)), _are_classes(listed, classes)
    if not is_class.any():
        return {name: data}
    known = data if is_class.all() else data.take(np.flatnonzero(is_class))
    numbers = LabelCodes(classes).encode(as_list(known.labels, "labels", name), name)
    parts = {name: replace(known, labels=classes[numbers.numpy()])}  # of the type of the classes
    return parts if is_class.all() else {**parts, strangers_of(name): data.take(np.flatnonzero(~is_class))}


def kind_of_labels(labels: ArrayLike | None, classes: Array) -> str:
    """'classes' if any label is one, 'outside' if there are only others, 'none' if there are no labels."""
    if labels is None:
        return NONE
    listed = as_list(labels, "labels", "kind_of_labels")
    return CLASSES if not listed or _are_classes(listed, classes).any() else OUTSIDE


def explain_labels(name: str, labels: ArrayLike | Sequence[Any] | None, classes: Array) -> str | None:
    """What is done with the strangers of a data set, and whether a label looks misspelt; None without strangers."""
    if labels is None:
        return (
            f"{name} has no labels: what is admitted is shown, not whether it is right. If the labels are in another "
            "column, name that column."
        )
    listed = as_list(labels, "labels", name)
    outside = Counter(label for label, one in zip(listed, _are_classes(listed, classes), strict=True) if not one)
    if not outside:
        return None
    common = [label for label, _ in outside.most_common(_SHOWN)]
    shown = ", ".join(map(repr, common)) + (", ..." if len(outside) > len(common) else "")
    slips = list(_slips(outside, classes.tolist()))
    asked = f" Look at the labels: {'; '.join(slips[:_SHOWN])}." if slips else ""
    return (
        f"{outside.total():,} of {len(listed):,} labels of {name} are not classes of the model ({shown}): these rows "
        f"are strangers, shown without accuracy; each one that is admitted is a mistake.{asked}"
    )


def _slips(outside: Counter[Any], classes: Sequence[Any]) -> Iterator[str]:
    """Labels that look like a class written in another way."""
    for label, count in outside.items():
        known = near_miss(label, classes)
        if known is not None and str(label) == str(known):
            is_text, is_number = "is text, the class {} a number", "is a number, the class {} text"
            yield f"{label!r} {(is_text if isinstance(label, str) else is_number).format(repr(known))}"
        elif known is not None:
            yield f"{label!r} ({count:,}) may be a typo for {known!r}"


def _are_classes(labels: Sequence[Any], classes: Array) -> Array:
    known = set(classes.tolist())
    return np.array([label in known for label in labels], dtype=bool)


_REVIEW, _UNFAMILIAR = LANES[2:]
_WORTH_A_WARNING = 0.01  # share of inputs that the model has seen; below it they may be natural duplicates
_SETS = {"support": "training", "calibration": "calibration", "certification": "certification"}
_PREDICTIONS = 8  # predictions in a line


class FreshGuards:
    """New drift guards of a classifier. Only the first needs decisions on its points; the others are copies."""

    def __init__(self, classifier: SDMClassifier | SDMEnsemble) -> None:
        self.classifier = classifier

    @cached_property
    def _first(self) -> DriftGuard:
        return DriftGuard.from_classifier(self.classifier, seed=0)  # the same data set is told the same

    def alarm(self, decisions: SDMDecisions) -> tuple[int | None, str | None]:
        """The input, counted from 1, and the signal that raise a guard that sees decisions and nothing else.

        None if it stays calm; an ensemble has no guard.
        """
        if isinstance(self.classifier, SDMEnsemble):
            return None, None
        guard = copy.deepcopy(self._first)
        guard.update(decisions)
        return guard.raised_at, guard.raised_by


@dataclass(frozen=True)
class Overview:
    """What a model does with the inputs of a data set by its own policy, without any labels."""

    n: int
    n_admitted: int
    lanes: dict[str, int]
    reasons: dict[str, int]
    """Why inputs are not admitted."""
    predictions: dict[Any, int]
    raised_at: int | None
    """The input, counted from 1, at which the drift guard would be raised by these inputs in their order."""
    raised_by: str | None
    has_guard: bool
    """An ensemble has none."""

    @classmethod
    def of(
        cls, classifier: SDMClassifier | SDMEnsemble, decisions: SDMDecisions, guards: FreshGuards | None = None
    ) -> Overview:
        """The overview of decisions that a classifier made; several need its ``guards`` made only once."""
        raised_at, raised_by = (guards or FreshGuards(classifier)).alarm(decisions)
        lane = np.asarray(decisions.lane)
        background = np.zeros(len(lane), dtype=bool) if decisions.background is None else decisions.background
        is_contradicted = (decisions.similarity == 0) & ~background
        too_far = (lane == _UNFAMILIAR) & ~background
        if decisions.familiarity is None:
            too_far &= ~is_contradicted
        left = np.isin(lane, (_REVIEW, _UNFAMILIAR)) & ~background & ~too_far
        reasons = {
            **({} if decisions.background is None else {"nearest to the background": background}),
            "too far from the training data": too_far,
            "the nearest training example contradicts": left & is_contradicted,
            "neighbours disagree, or below the threshold": left & ~is_contradicted,
        }
        return cls(
            len(decisions),
            int(decisions.admitted.sum()),
            {name: int((lane == name).sum()) for name in LANES},
            {reason: int(rows.sum()) for reason, rows in reasons.items()},
            {label: int((decisions.predictions == label).sum()) for label in decisions.classes.tolist()},
            raised_at,
            raised_by,
            has_guard=not isinstance(classifier, SDMEnsemble),
        )

    @property
    def drift(self) -> str:
        """What the drift guard would say, in words."""
        if not self.has_guard:
            return "an ensemble has no guard"
        if self.raised_at is None or self.raised_by is None:
            return f"the guard stays calm over {self.n:,} inputs"
        return (
            f"the guard is raised at input {self.raised_at:,} of {self.n:,} by the {self.raised_by.replace('_', ' ')}"
        )

    def lines(self, labels: str) -> dict[str, str]:
        """The overview in words, by topic, for inputs whose ``labels`` are 'classes', 'outside' or 'none'."""
        mistakes = ", each a mistake" if labels == OUTSIDE and self.n_admitted else ""
        return {
            "admitted": f"{self._part(self.n_admitted)}{mistakes}",
            "lanes": ", ".join(f"{name} {self._part(count)}" for name, count in self.lanes.items()),
            "not admitted": ", ".join(f"{name} {self._part(count)}" for name, count in self.reasons.items()),
            "predictions": self._predictions(),
            "drift": self.drift,
        }

    def to_json(self) -> dict[str, Any]:
        """The overview as plain values."""
        return {
            "n_total": self.n,
            "n_admitted": self.n_admitted,
            "share": self.n_admitted / self.n,
            "lanes": self.lanes,
            "reasons": self.reasons,
            "predictions": {str(label): count for label, count in self.predictions.items()},
            "guard": {"raised_at": self.raised_at, "raised_by": self.raised_by} if self.has_guard else None,
        }

    def _part(self, count: int) -> str:
        return f"{count:,} ({count / self.n:.1%})" if count else "0"

    def _predictions(self) -> str:
        ordered = sorted(self.predictions.items(), key=lambda one: -one[1])
        listed = ", ".join(f"{label} {self._part(count)}" for label, count in ordered[:_PREDICTIONS])
        rest = sum(count for _, count in ordered[_PREDICTIONS:])
        return listed + (f", others {self._part(rest)}" if len(ordered) > _PREDICTIONS else "")


def explain_seen(name: str, data: LabelledStates, classifier: SDMClassifier | SDMEnsemble) -> str | None:
    """A warning that inputs of a data set are points of the model; None if hardly any are."""
    states = check_hidden_states(classifier, data.hidden_states, f"Evaluation ({name})", reset=False)
    found: dict[str, Array] = {}
    for model in classifier.models_:
        for part, rows in model.has_points(states, data.texts).items():
            found[part] = found.get(part, np.zeros(len(data), dtype=bool)) | rows
    counts, is_seen = [], np.zeros(len(data), dtype=bool)
    for part, rows in found.items():  # a duplicate may be in several; it counts once
        counts.append(f"{int((rows & ~is_seen).sum()):,} of its {_SETS[part]}")
        is_seen |= rows
    n_seen = int(is_seen.sum())
    if n_seen < max(1, _WORTH_A_WARNING * len(data)):
        return None
    return (
        f"Warning: {n_seen:,} of {len(data):,} inputs of {name} equal points that the model was made with "
        f"({', '.join(counts)} set). Figures for them are flattering: evaluate on data that the model has not seen."
    )
