"""What the baselines share: a model that gives logits, and a rule that admits some of its predictions.

Estimators are dataclasses, whose fields are their parameters: the constructor stores them, and ``fit`` checks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from torch import Tensor

from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import given_part
from torchsdm.labels import LabelCodes, count_classes
from torchsdm.training import Part, TrainingData
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_tensor,
    check_alphas,
    check_finite,
    check_hidden_states,
    check_label_array,
    check_same_length,
    check_shape,
    require_fitted,
)

Self = TypeVar("Self", bound="SelectiveClassifier")


@runtime_checkable
class LogitModel(Protocol):
    """A model that a rule can use: it gives logits, also for a calibration set that is not among its training points.

    Networks choose their epoch on that set, so what a rule finds on it is a little too good.
    """

    classes_: Array

    def fit(self, X: Any, y: Any) -> Any:
        """Train, and set some of the data aside for calibration."""

    def logits(self, X: Any) -> Array:
        """Logits (N, C), in the order of ``classes_``."""

    def calibration_logits(self) -> tuple[Array, Array]:
        """Logits (M, C) and class numbers (M,) of the calibration set."""


def training_data(estimator: Any, states: Tensor, y: Any, calibration: Any, caller: str) -> tuple[TrainingData, Array]:
    """Checked states with class numbers, and the classes; with the calibration set if one is given."""
    labels = check_label_array(y, caller, len(states))
    classes, class_numbers = count_classes(labels, f"'y' of {caller}")
    numbers = torch.from_numpy(class_numbers.astype(np.int64))
    if calibration is None:
        return TrainingData(states, numbers), classes
    calibration = given_part(calibration, "calibration", caller)
    caller = f"{caller} (calibration)"
    given = check_hidden_states(estimator, calibration.hidden_states, caller, reset=False)
    given_labels = check_label_array(calibration.labels, caller, len(given))
    return TrainingData(states, numbers, Part.whole(given, LabelCodes(classes).encode(given_labels, caller))), classes


class DecidingClassifier(ClassifierMixin, BaseEstimator, ABC):
    """A classifier that decides; its predictions and probabilities are those of its decisions."""

    @abstractmethod
    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, and whether it is admitted."""

    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not."""
        return self.decide(X).predictions

    def predict_proba(self, X: ArrayLike) -> Array:
        """The estimator's class probabilities (N, C)."""
        return self.decide(X).probabilities


@dataclass(eq=False, repr=False)
class SelectiveClassifier(DecidingClassifier):
    """A rule over a model's logits: it predicts the class with the largest, and admits some of its predictions.

    1. ``fit`` fits the model, unless it is already fitted, then calibrates the rule on the model's calibration set;
    2. ``decide`` returns the same ``Decisions`` as ``SDMClassifier``.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Target accuracy of admitted points, in (0.5, 1].
    model : LogitModel or None
        The model that gives the logits. A fitted one is used as is, an unfitted one is cloned and fitted. With None, X
        is logits (N, C) already, such as a language model's logits of its label words, with columns in the order of the
        sorted labels; ``fit`` then only calibrates.

    Attributes
    ----------
    fitted_model_ : LogitModel
        The model that gives the logits, fitted; absent if ``model`` is None.
    """

    alpha: float | Sequence[float] = 0.95
    model: LogitModel | None = None

    def fit(self: Self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Fit the model if needed, and calibrate the rule. With a fitted model, X and y are not needed."""
        caller = f"{type(self).__name__}.fit"
        self.alphas_ = np.sort(np.array(check_alphas(self.alpha, caller)))
        if self.model is None:
            labels = check_label_array(y, caller)
            self.classes_, numbers = count_classes(labels, f"'y' of {caller}")
            logits = self._check_logits(X, caller)
            check_same_length(len(logits), labels, "y", caller)
        else:
            is_fitted = hasattr(self.model, "classes_")
            self.fitted_model_ = self.model if is_fitted else clone(self.model, safe=False).fit(X, y)
            self.classes_ = self.fitted_model_.classes_
            logits, numbers = self.fitted_model_.calibration_logits()
        self._calibrate(np.asarray(logits, dtype=np.float64), np.asarray(numbers))
        self.is_fitted_ = True
        return self

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, and whether it is admitted."""
        require_fitted(self, "is_fitted_")
        if self.model is None:
            return self.decide_logits(self._check_logits(X, f"{type(self).__name__}.decide"))
        return self.decide_logits(self.fitted_model_.logits(X))

    def decide_logits(self, logits: Array) -> Decisions:
        """The same for logits (N, C) of the model, such as those of a sample whose states are not kept."""
        return self._decide(np.asarray(logits, dtype=np.float64))

    def _calibrate(self, logits: Array, labels: Array) -> None:
        """Learn the rule, if there is anything to learn, from float64 logits (M, C) and class numbers (M,)."""

    @abstractmethod
    def _decide(self, logits: Array) -> Decisions:
        """Decide on float64 logits (N, C); ``Decisions.of_probabilities`` builds the answer."""

    def _check_logits(self, X: Any, caller: str) -> Array:
        logits = as_tensor(X, "X", caller, kind="real")
        check_shape(logits, (None, len(self.classes_)), "X", caller)
        check_finite(logits, "X", caller)
        if len(logits) == 0:
            raise InvalidInputError(f"'X' of {caller} must have at least one row of logits. Got none.")
        return logits.detach().cpu().numpy()
