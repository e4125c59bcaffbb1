"""Reliability: the probability that a prediction is right, estimated from the evidence for it.

The certified rule sets thresholds on this score: a logistic regression on the calibration points,

    P(right) = 1 / (1 + exp(-(b + w . x))),    x = (log(1 + q), log(1 + m), log(1 + s), o),    w >= 0,

where m is the margin of the predicted class over the next one in the logits, s = d ln(2 + q) m the same margin in the
logits of the SDM activation, and o the log-odds of the prediction by the softmax. No weight is negative: more vouching
neighbours, a larger margin, a smaller distance or a surer softmax never lower the score. The SDM confidence alone, s,
orders inputs worse: its factor d is about uniform in distribution, where it says little about being right. Whether an
input is near enough at all is asked first (``core.familiarity``).

It is an estimate; only the certificate makes a promise. Models from before o was part of it have three weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from torchsdm.core import log_odds
from torchsdm.validation import Array

_RIDGE = 1.0  # of the weights of evidence in units of its standard deviation


@dataclass(frozen=True)
class Reliability:
    """A fitted estimate of P(prediction is right)."""

    weights: Array
    """w (4,), not negative."""
    intercept: float

    @classmethod
    def fit(cls, evidence: Array, right: Array) -> Reliability:
        """Fit on the evidence (N, 4) of calibration points and whether each is right (N,).

        Targets are Platt's, (n + 1) / (n + 2) for n right points and 1 / (m + 2) for m wrong ones: without them, points
        that are all right would make the intercept infinite.
        """
        n_right, n_wrong = int(right.sum()), int((~right).sum())
        target = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
        scale = np.maximum(evidence.std(axis=0), 1e-9) if len(evidence) else np.ones(evidence.shape[1])
        x = evidence / scale

        def loss(parameters: Array) -> tuple[float, Array]:
            w, z = parameters[1:], parameters[0] + x @ parameters[1:]
            residual = expit(z) - target
            value = np.logaddexp(0, z).sum() - target @ z + _RIDGE / 2 * w @ w
            return float(value), np.concatenate([[residual.sum()], x.T @ residual + _RIDGE * w])

        start = np.zeros(1 + x.shape[1])
        bounds = [(None, None)] + [(0, None)] * x.shape[1]
        found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x
        return cls(found[1:] / scale, float(found[0]))

    def of(self, evidence: Array) -> Array:
        """P(right) of points (N,)."""
        z = np.full(len(evidence), self.intercept)
        for column, weight in zip(evidence.T, self.weights.tolist(), strict=False):  # in a fixed order, row by row
            z = z + weight * column
        score: Array = expit(z)
        return score

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``from_json`` restores them to the bit."""
        return {"weights": self.weights.tolist(), "intercept": self.intercept}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Reliability:
        """The reverse of ``to_json``."""
        return cls(np.array(stored["weights"], dtype=np.float64), float(stored["intercept"]))


def evidence_of(logits: Array, similarity: Array, distance_quantile: Array) -> Array:
    """The evidence (N, 4) for each prediction from logits (N, C), q (N,) and d (N,)."""
    top = np.partition(np.asarray(logits, dtype=np.float64), -2, axis=1)[:, -2:]
    q, margin = np.asarray(similarity, dtype=np.float64), top[:, 1] - top[:, 0]
    sharpened = np.asarray(distance_quantile, dtype=np.float64) * np.log(2 + q) * margin
    return np.column_stack([np.log1p(np.stack([q, margin, sharpened], axis=1)), log_odds(logits)])
