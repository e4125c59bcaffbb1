"""What a model does with inputs, whatever their labels: lanes, reasons, predictions, drift; and which it has seen."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchsdm.core import SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.strangers import OUTSIDE
from torchsdm.settings import LANES
from torchsdm.trust import DriftGuard
from torchsdm.validation import Array, check_hidden_states

_REVIEW, _UNFAMILIAR = LANES[2:]
_WORTH_A_WARNING = 0.01  # share of inputs that the model has seen; below it they may be natural duplicates
_SETS = {"support": "training", "calibration": "calibration", "certification": "certification"}
_SHOWN = 8  # predictions in a line


class FreshGuards:
    """New drift guards of a classifier. Only the first needs decisions on its points; the others are copies."""

    def __init__(self, classifier: SDMClassifier | SDMEnsemble) -> None:
        self.classifier = classifier

    @cached_property
    def _first(self) -> DriftGuard:
        return DriftGuard.from_classifier(self.classifier)

    def after(self, decisions: SDMDecisions) -> DriftGuard | None:
        """A guard that has seen decisions, and nothing else; None for an ensemble, which has none."""
        if isinstance(self.classifier, SDMEnsemble):
            return None
        guard = copy.deepcopy(self._first)
        guard.update(decisions)
        return guard


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
        guard = (guards or FreshGuards(classifier)).after(decisions)
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
            None if guard is None else guard.raised_at,
            None if guard is None else guard.raised_by,
            guard is not None,
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
        listed = ", ".join(f"{label} {self._part(count)}" for label, count in ordered[:_SHOWN])
        rest = sum(count for _, count in ordered[_SHOWN:])
        return listed + (f", others {self._part(rest)}" if len(ordered) > _SHOWN else "")


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
