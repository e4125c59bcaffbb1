"""Familiarity: whether an input is near enough to the training data, for how sure its prediction is.

Among the calibration points that have its prediction, let d be the share that is no nearer to the training data, and o
the share that is no surer (by the log-odds of the softmax). Then

    f = d^2 o,    familiarity = (1 + #{calibration points with the same prediction and no larger f}) / (1 + n),

and 0 if d = 0, farther than all of them. Inputs like the calibration points are spread evenly over it, so a bound of
0.05 loses about 5 % of them, for every prediction. Strangers are far *and* seldom sure: the product finds more of them
than the distance alone. The distance counts twice, since an answer can be sure and far off. A prediction that fewer
than ``FEWEST`` calibration points have is ranked among all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsdm.validation import Array

FEWEST = 20  #: calibration points with a prediction, to be ranked among them alone


@dataclass(frozen=True)
class Familiarity:
    """The calibration points, sorted: for each class, and last for all of them together."""

    distances: tuple[Array, ...]
    odds: tuple[Array, ...]
    products: tuple[Array, ...]  # f of the calibration points

    @classmethod
    def fit(cls, nearest_distance: Array, logits: Array) -> Familiarity:
        """From the distances (N,) and logits (N, C) of the calibration points."""
        odds, predictions = log_odds(logits), logits.argmax(axis=1)
        chosen = [np.flatnonzero(predictions == c) for c in range(logits.shape[1])]
        chosen = [rows if len(rows) >= FEWEST else rows[:0] for rows in chosen] + [np.arange(len(predictions))]
        distances = tuple(np.sort(nearest_distance[rows]) for rows in chosen)
        sorted_odds = tuple(np.sort(odds[rows]) for rows in chosen)
        products = tuple(
            np.sort(_products(nearest_distance[rows], odds[rows], *known))
            for rows, *known in zip(chosen, distances, sorted_odds, strict=True)
        )
        return cls(distances, sorted_odds, products)

    def of(self, nearest_distance: Array, logits: Array) -> Array:
        """The familiarity of points (N,), in [0, 1]."""
        odds, predictions = log_odds(logits), logits.argmax(axis=1)
        familiarity = np.ones(len(predictions))
        for c in np.unique(predictions).tolist():
            rows, group = np.flatnonzero(predictions == c), c if len(self.products[c]) else -1
            f = _products(nearest_distance[rows], odds[rows], self.distances[group], self.odds[group])
            known = self.products[group]
            familiarity[rows] = (f > 0) * (1 + np.searchsorted(known, f, side="right")) / (1 + len(known))
        return familiarity


def log_odds(logits: Array) -> Array:
    """The log-odds of the prediction (N,) by the softmax of logits (N, C): z_yhat - log sum of the other exp z_c."""
    z = np.sort(np.asarray(logits, dtype=np.float64), axis=1)
    others = z[:, :-1] - z[:, -2:-1]  # at most 0
    odds: Array = z[:, -1] - z[:, -2] - np.log(np.exp(others).sum(axis=1))
    return odds


def _products(distance: Array, odds: Array, known_distances: Array, known_odds: Array) -> Array:
    """f = d^2 o of points, ranked among sorted distances and odds."""
    n = len(known_distances)
    d = (n - np.searchsorted(known_distances, distance)) / n
    o = (1 + np.searchsorted(known_odds, odds, side="right")) / (1 + n)
    product: Array = d**2 * o
    return product
