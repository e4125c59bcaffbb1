"""Strength: how right a classifier is without rejection, beside what costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchsdm.data import LabelledStates
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.training import tuned_regression

_WORSE = 0.01  # than a logistic regression: worth saying


@dataclass(frozen=True)
class Strength:
    """How right a classifier is on its calibration points, every answer counted."""

    right: float
    n: int
    largest_class: Any
    largest_share: float
    """How right it is always to answer with the largest class."""
    lowest_class: Any
    lowest_right: float
    """Of the class that is recognised least often, how often it is."""
    regression: float | None
    """How right a tuned logistic regression is on the same points; None if the classifier begins with one."""

    @classmethod
    def of(cls, classifier: SDMClassifier, training: LabelledStates) -> Strength | None:
        """From the data that a classifier was fitted on; None if its calibration set is not part of them."""
        known = classifier.model_.calibration
        labels, right = known.labels.cpu().numpy(), (known.predictions == known.labels).cpu().numpy()
        regression = None
        if not classifier.is_cross_fitted_:
            states, names = np.asarray(training.hidden_states), np.asarray(training.labels)
            rows, learned = classifier.calibration_rows_, classifier.training_rows_
            if states.ndim != 2 or np.isin(rows, learned).any() or len(rows) != len(labels):
                return None
            numbers = torch.from_numpy(np.searchsorted(classifier.classes_, names))
            model, _ = tuned_regression(
                torch.from_numpy(states[learned]).float(), numbers[learned], len(classifier.classes_)
            )
            logits = model.encode_exactly(torch.from_numpy(states[rows]))[1]
            regression = float((logits.argmax(dim=1) == numbers[rows]).double().mean())
        counts = np.bincount(labels, minlength=len(classifier.classes_))
        by_class = np.bincount(labels, weights=right, minlength=len(counts)) / np.maximum(counts, 1)
        lowest = int(np.where(counts > 0, by_class, np.inf).argmin())
        names_of_classes = classifier.classes_.tolist()
        return cls(
            right=float(right.mean()),
            n=len(labels),
            largest_class=names_of_classes[counts.argmax()],
            largest_share=float(counts.max() / len(labels)),
            lowest_class=names_of_classes[lowest],
            lowest_right=float(by_class[lowest]),
            regression=regression,
        )

    @property
    def is_idle(self) -> bool:
        """Whether it is no better than always answering with the largest class."""
        return self.right <= self.largest_share

    @property
    def is_below_regression(self) -> bool:
        """Whether a logistic regression is clearly better."""
        return self.regression is not None and self.right < self.regression - _WORSE
