"""The plain softmax: admit everything, or inputs whose probability reaches alpha (section 4.4)."""

from __future__ import annotations

import numpy as np

from torchsdm.baselines.base import SelectiveClassifier
from torchsdm.core import Decisions
from torchsdm.validation import Array


def softmax(logits: Array) -> Array:
    """Probabilities (N, C): ``p_c = exp(z_c - max z) / sum_j exp(z_j - max z)``, in float64.

    The largest exponent is 0, so nothing overflows, and underflow gives 0. A row's bits do not depend on the batch.
    """
    z = np.ascontiguousarray(logits, dtype=np.float64)  # otherwise the order of summation would depend on the batch
    exponentials = np.exp(z - z.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


class NoReject(SelectiveClassifier):
    """Admits everything, at every alpha: the accuracy of the model itself.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Only sets the columns of ``admitted_at``.
    model : LogitModel or None
        The model that gives the logits; with None, X is logits already.
    """

    def _calibrate(self, logits: Array, labels: Array) -> None:
        """Nothing to learn."""

    def _decide(self, logits: Array) -> Decisions:
        everything = np.ones((len(logits), len(self.alphas_)), dtype=bool)
        return Decisions.of_probabilities(self.classes_, self.alphas_.tolist(), logits, softmax(logits), everything)


class SoftmaxThreshold(SelectiveClassifier):
    """Admits if ``softmax(z / T)_yhat >= alpha``, with the temperature T = 1: no calibration at all.

    At alpha = 1 it admits probabilities that round to 1 in float64, a lead of about 37 logits.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        The smallest probability that is admitted, in (0.5, 1].
    model : LogitModel or None
        The model that gives the logits; with None, X is logits already.

    Attributes
    ----------
    temperature_ : float
        T.

    Examples
    --------
    >>> logits = [[2.0, 0.0], [4.0, 0.0], [0.0, 1.0], [0.0, 5.0]]
    >>> SoftmaxThreshold(alpha=0.9).fit(logits, ["no", "no", "yes", "yes"]).decide(logits).admitted.tolist()
    [False, True, False, True]
    """

    def _calibrate(self, logits: Array, labels: Array) -> None:
        """Nothing to learn."""
        self.temperature_ = 1.0

    def _decide(self, logits: Array) -> Decisions:
        probabilities = softmax(logits / self.temperature_)
        y_hat = logits.argmax(axis=1)[:, None]
        confident = np.take_along_axis(probabilities, y_hat, axis=1) >= self.alphas_  # (N, 1) >= (A,) -> (N, A)
        return Decisions.of_probabilities(self.classes_, self.alphas_.tolist(), logits, probabilities, confident)
