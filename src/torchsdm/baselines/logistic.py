"""Logistic regressions on hidden states: what people have, and what every other classifier must not lose to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from torchsdm.arithmetic import invariant_linear
from torchsdm.labels import class_weights, count_classes
from torchsdm.training import tuned_regression
from torchsdm.validation import Array


@dataclass(eq=False, repr=False)
class TunedLogisticModel(BaseEstimator):
    """A multinomial logistic regression on standardised states, its penalty chosen by cross-validation.

    1. ``fit`` standardises each dimension and chooses the penalty by the log-loss over five folds;
    2. ``logits`` of a row are the same in any batch.

    Parameters
    ----------
    class_weight : None, 'balanced' or mapping
        As in scikit-learn.

    Attributes
    ----------
    penalty_ : float
        Of half the squared weights, beside the sum of the losses: 1 / C of scikit-learn, and with two classes, each of
        which has weights here, 2 / C.
    out_of_fold_ : (N, C)
        The logits of each point of ``fit`` by a regression that has not seen it, to calibrate with.
    """

    class_weight: str | Mapping[Any, float] | None = None

    def fit(self, X: Array, y: Array) -> TunedLogisticModel:
        """Choose the penalty, and fit with it to all points."""
        caller = "TunedLogisticModel.fit"
        self.classes_, numbers = count_classes(np.asarray(y), f"'y' of {caller}")
        weights = class_weights(self.class_weight, numbers, self.classes_, caller)
        states, labels = torch.as_tensor(np.asarray(X, dtype=np.float32)), torch.from_numpy(numbers.astype(np.int64))
        self._adaptor, solution = tuned_regression(states, labels, len(self.classes_), weights)
        self.penalty_, self.out_of_fold_, self._numbers = solution.penalty, solution.out_of_fold.numpy(), numbers
        return self

    def calibration_logits(self) -> tuple[Array, Array]:
        """Logits out of fold (N, C), and class numbers (N,), to calibrate other estimators with."""
        return self.out_of_fold_, self._numbers

    def logits(self, X: Array) -> Array:
        """Logits (N, C)."""
        return self._adaptor.encode_exactly(torch.as_tensor(np.asarray(X, dtype=np.float32)))[1].numpy()


@dataclass(eq=False, repr=False)
class LogisticModel(BaseEstimator):
    """A multinomial logistic regression on standardised states; a row's logits are the same in any batch.

    Parameters
    ----------
    penalty : float
        Of half the squared weights, beside the sum of the losses.
    """

    penalty: float

    def fit(self, X: Array, y: Array) -> LogisticModel:
        """Standardise each dimension, and fit."""
        self.scaler_ = StandardScaler().fit(X)
        self.regression_ = LogisticRegression(C=1 / self.penalty, max_iter=1000).fit(self.scaler_.transform(X), y)
        self.classes_: Array = self.regression_.classes_
        return self

    def logits(self, X: Array) -> Array:
        """Logits (N, C); with two classes the first has 0."""
        states = torch.from_numpy(self.scaler_.transform(X))
        weight, bias = (torch.from_numpy(values) for values in (self.regression_.coef_, self.regression_.intercept_))
        logits: Array = invariant_linear(states, weight, bias).numpy()
        return logits if len(self.classes_) > 2 else np.column_stack([np.zeros_like(logits), logits])
