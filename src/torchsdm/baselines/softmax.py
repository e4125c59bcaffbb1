"""The softmax: admit everything, or inputs whose probability reaches alpha (section 4.4), also at a fitted temperature.

Temperature scaling (Guo et al., 2017): one number that maximises the softmax likelihood of the calibration set.

In the inverse temperature b = 1 / T, with the lead ``d_ic = z_ic - z_iy`` of each class over the true one,

    NLL(b)   = mean_i log sum_c exp(b d_ic)
    NLL'(b)  = mean_i E_i[d],   NLL''(b) = mean_i Var_i[d]     under p_i = softmax(b d_i)

so NLL is convex in b (but not in T), and the optimum is the b > 0 at which NLL' = 0. It exists unless

- no class ever leads the true one (all d <= 0): NLL falls forever, and b is infinite;
- NLL'(0) = mean d >= 0: the logits are no better than guessing, and b is 0 or negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchsdm.baselines.base import SelectiveClassifier
from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError, SDMWarning, warn_user
from torchsdm.validation import Array, check_choice


def softmax(logits: Array) -> Array:
    """Probabilities (N, C): ``p_c = exp(z_c - max z) / sum_j exp(z_j - max z)``, in float64.

    The largest exponent is 0, so nothing overflows, and underflow gives 0. A row's bits do not depend on the batch.
    """
    z = np.ascontiguousarray(logits, dtype=np.float64)  # otherwise the order of summation would depend on the batch
    exponentials = np.exp(z - z.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class NoReject(SelectiveClassifier):
    """Admits everything, at every alpha: the accuracy of the model itself.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Only sets the columns of ``admitted_at``.
    model : LogitModel or None
        The model that gives the logits; with None, X is logits already.
    """

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
        self.temperature_ = 1.0

    def _decide(self, logits: Array) -> Decisions:
        probabilities = softmax(logits / self.temperature_)
        confident = probabilities.max(axis=1)[:, None] >= self.alphas_  # (N, 1) >= (A,) -> (N, A)
        return Decisions.of_probabilities(self.classes_, self.alphas_.tolist(), logits, probabilities, confident)


_LARGEST, _SMALLEST = 1e3, 1e-6  # inverse temperature, times the mean lead, if there is no optimum above 0
_MAX_STEPS = 200  # bisection alone needs fewer than 100, Newton's method fewer than ten
_TOLERANCE = 1e-13


def fit_temperature(logits: Array, labels: Array) -> float:
    """The temperature T > 0 with the smallest NLL on logits (N, C) and class numbers (N,).

    Newton's method in b = 1 / T, kept inside a bracket of the root that is halved whenever a step leaves it. If there
    is no optimum (see the module), T is 1e-3 (infinite b) or 1e6 (b <= 0) times the mean |d|, with a warning. If the
    logits within each row are equal, any T works, and it is 1.
    """
    if len(logits) == 0:
        raise InvalidInputError(
            "'logits' of fit_temperature must have calibration points. Got none; set some of the data aside."
        )
    z = np.asarray(logits, dtype=np.float64)
    d = z - np.take_along_axis(z, np.asarray(labels)[:, None], axis=1)
    scale = float(np.abs(d).max())
    if scale == 0:
        return 1.0
    d = d / scale  # b below belongs to d / scale, which is of order 1
    mean_lead = float(np.abs(d).mean())
    if d.max() <= _TOLERANCE:
        warn_user(
            f"No class leads the true one in any of {len(d)} calibration points: the likelihood keeps rising as the "
            "temperature falls. It was set to a small value that makes almost every confidence 1; do not rely on it, "
            "and calibrate on more or harder points.",
            SDMWarning,
        )
        return scale * mean_lead / _LARGEST
    if d.mean() >= 0:
        warn_user(
            f"On {len(d)} calibration points the logits are no better than guessing: the likelihood keeps rising with "
            "the temperature. It was set to a large value that makes the classes about equally likely; check that "
            "the columns of the logits are in the order of the sorted labels.",
            SDMWarning,
        )
        return scale * mean_lead / _SMALLEST
    return scale / _root_of_slope(d)


def _slope_and_curvature(d: Array, b: float) -> tuple[float, float]:
    """``NLL'(b) = mean_i E_i[d]`` and ``NLL''(b) = mean_i Var_i[d]``."""
    p = softmax(b * d)
    expected = (p * d).sum(axis=1, keepdims=True)
    return float(expected.mean()), float((p * (d - expected) ** 2).sum(axis=1).mean())


def _root_of_slope(d: Array) -> float:
    """The b > 0 where the slope, which rises from below 0 to above, is 0."""
    low, high = 0.0, 1.0
    while _slope_and_curvature(d, high)[0] < 0:
        low, high = high, 2 * high
    b = (low + high) / 2
    for _ in range(_MAX_STEPS):
        slope, curvature = _slope_and_curvature(d, b)
        if abs(slope) <= _TOLERANCE * b * curvature or high - low <= _TOLERANCE * b:
            break
        low, high = (b, high) if slope < 0 else (low, b)
        newton = b - slope / curvature if curvature > 0 else np.inf
        b = newton if low < newton < high else (low + high) / 2
    return b


def fit_temperature_lbfgs(logits: Array, labels: Array) -> float:
    """The temperature as Guo et al.'s code finds it: T itself, from 1.5, by 50 steps of L-BFGS at a rate of 0.01.

    The steps are so short that T often stops far from the optimum, on the side of 1.5. If T is not positive in the end,
    ``fit_temperature`` is used instead, with a warning.
    """
    z, y = torch.from_numpy(np.array(logits, dtype=np.float64)), torch.from_numpy(np.array(labels, dtype=np.int64))
    temperature = torch.full((1,), 1.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(z / temperature, y)
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    found = float(temperature.detach())
    if np.isfinite(found) and found > 0:
        return found
    warn_user(
        f"L-BFGS gave the temperature {found:.3g}, which must be positive; method='newton' was used instead.",
        SDMWarning,
    )
    return fit_temperature(logits, labels)


@dataclass(eq=False, repr=False)
class TemperatureScaling(SoftmaxThreshold):
    """Admits if ``softmax(z / T)_yhat >= alpha``, with the temperature T that fits the calibration set best.

    Parameters
    ----------
    alpha, model
        As in ``SoftmaxThreshold``.
    method : {'newton', 'lbfgs'}, default='newton'
        'newton' finds the unique optimum to machine precision; 'lbfgs' does what Guo et al.'s code does.

    Attributes
    ----------
    temperature_ : float
        T.
    """

    method: str = "newton"

    def _calibrate(self, logits: Array, labels: Array) -> None:
        check_choice(self.method, ("newton", "lbfgs"), "method", type(self).__name__)
        fit = fit_temperature if self.method == "newton" else fit_temperature_lbfgs
        self.temperature_ = fit(logits, labels)
