"""Windows of the score: what is tested for a promise at every level of evidence.

The average promise of ``certificate`` may rest on the surest answers alone. So, for each prediction c on its own, the
range of the score is cut into windows, the surest first, [e_1, inf), [e_2, e_1), ..., which hold about the same number
of the eligible calibration points of c: points with the same score fall into the same window, and a rest that does not
fill one is no window. A window holds if its points on certification pass the test of ``certificate``. The walk:

1. From calibration alone, j is the number of the first windows that are all sure to pass (z >= 3, z as in ``_path``);
   or 1.
2. These j are tested at once on the certification sample, each at level delta_c. If any fails, or has no point, c is
   not admitted at all.
3. Then the next, lower window is tested at delta_c, and so on, until one fails.

Why it is a promise. Let w be the first window of c whose true accuracy is below alpha. If w is among the first j, c is
admitted only if w passes; if it comes later, c is admitted down to it only if w passes. That has probability at most
delta_c in either case, because j and the windows were fixed before the certification sample was seen. The delta_c of
all predictions that are tried add up to delta, and are passed on as in ``certificate``. So with probability at least
1 - delta *every* window that is admitted is right at least alpha of the time, and so is every mixture of these windows,
whatever their weights: inputs may come from harder or easier places than the certification sample, as long as answers
within a window are right as often as before. Nothing follows for true classes: where the weight moves to the windows of
one prediction, every admitted error is of another class.

How large a window is. A small one promises more, a large one passes more easily. It has the fewest certification
points among which the test allows half as many errors as an accuracy of alpha would bring: 110 for alpha = 0.9 and
delta_c = 0.05. In simulations, windows for a third of them were passed less often and admitted a third less; those for
two thirds admitted as much where there was data for them, but hid dips of the accuracy within.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from torchsdm.core import GroupCounts, Target, target_of
from torchsdm.trust._path import allowed_errors, hopeful, of_prediction, points_needed, sureness
from torchsdm.trust._walk import GroupCheck, Walk, lower_bounds, share_delta
from torchsdm.validation import Array

if TYPE_CHECKING:
    from torchsdm.trust.certificate import ScoredSample

_SURE = 3.0  # z of the windows that are tested at once
_SHARE_OF_ERRORS = 0.5  # that a window has about an even chance with


@dataclass(frozen=True)
class WindowCheck(GroupCheck):
    """One window of the score of one prediction that passed: scores from ``lower`` to below ``upper``."""

    lower: float
    upper: float | None
    """None: there is no end."""

    def name(self, class_names: Sequence[Any] | None = None) -> str:
        """As in "prediction 'positive', score from 0.9712 to 0.9854"."""
        end = "" if self.upper is None else f" to {self.upper:.4f}"
        return f"{super().name(class_names)}, score from {self.lower:.4f}{end}"


@dataclass(frozen=True)
class Windows:
    """The windows of one prediction, the surest first, as calibration gives them."""

    edges: Array
    """The lower edge of each (K,), falling: the upper edge of the next."""
    z: Array
    """How surely each would pass (K,)."""

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def n_first(self) -> int:
        """How many are tested at once."""
        is_sure = np.minimum.accumulate(self.z >= _SURE)
        return max(1, int(is_sure.sum()))

    @property
    def power(self) -> float:
        """The estimated probability that any is admitted."""
        return float(ndtr(self.z[: self.n_first]).prod()) if len(self) else 0.0

    @property
    def steps(self) -> list[Array]:
        """The numbers of the windows that are tested at once: the first ones, then each alone."""
        return [np.arange(self.n_first), *np.arange(self.n_first, len(self))[:, None]] if len(self) else []

    @classmethod
    def of(cls, calibration: ScoredSample, n_certification: int, *, alpha: float, delta: float) -> Windows:
        """Cut the range of the score by the points of one prediction, for a certification sample of a given size."""
        ratio = n_certification / max(len(calibration), 1)
        size = np.ceil(window_size(alpha, delta) / max(ratio, 1e-9))
        edges = window_edges(calibration.score[calibration.eligible], int(size))
        z = sureness(window_counts(calibration, edges), np.array(alpha), delta, ratio)
        return cls(edges, z)


@lru_cache
def window_size(alpha: float, delta: float) -> int:
    """The certification points of a window.

    Examples
    --------
    >>> window_size(0.9, 0.05), window_size(0.95, 0.05)
    (110, 227)
    """
    n = points_needed(alpha, delta)
    while allowed_errors(np.array(n), np.array(alpha), delta) < _SHARE_OF_ERRORS * (1 - alpha) * n:
        n += 1
    return n


def window_edges(scores: Array, size: int) -> Array:
    """The lower edges (K,) of windows of at least so many scores, from the highest; equal scores are never split.

    Examples
    --------
    >>> window_edges(np.array([0.1, 0.5, 0.5, 0.7, 0.8, 0.9, 0.2]), 3).tolist()  # one is left
    [0.7, 0.2]
    """
    falling = -np.sort(-scores)
    edges: list[float] = []
    stop = size
    while stop <= len(falling):
        edges.append(float(falling[stop - 1]))
        stop = size + int(np.searchsorted(-falling, -edges[-1], side="right"))
    return np.array(edges)


def window_counts(sample: ScoredSample, edges: Array) -> GroupCounts:
    """Points and errors of a sample in each window (K,)."""
    eligible = sample[sample.eligible]
    window = len(edges) - np.searchsorted(edges[::-1], eligible.score, side="right")  # K: below the last
    wrong = eligible.labels != eligible.predictions
    n, k = (np.bincount(one, minlength=len(edges) + 1)[: len(edges)] for one in (window, window[wrong]))
    return GroupCounts(n, k)


def windows_to_try(
    calibration: ScoredSample, n_classes: int, n_certification: int, *, alpha: Target, delta: float
) -> dict[int, Windows]:
    """The windows of each prediction that is worth a walk, at its share of delta."""
    parts = [of_prediction(calibration, c) for c in range(n_classes)]
    ratio = n_certification / max(len(calibration), 1)

    def windows_of(c: int, level: float) -> Windows:
        return Windows.of(parts[c], round(len(parts[c]) * ratio), alpha=target_of(alpha, c), delta=level)

    tried = hopeful(lambda c, level: windows_of(c, level).power, n_classes, delta)
    return {c: windows_of(c, delta / len(tried)) for c in tried}


def certified_windows(
    calibration: ScoredSample,
    certification: ScoredSample,
    n_classes: int,
    *,
    alpha: Target,
    delta: float,
    n_errors: int,
    u: float,
) -> tuple[WindowCheck, ...]:
    """The windows of each prediction that hold, the surest first; the parameters are those of ``certify``."""
    windows = windows_to_try(calibration, n_classes, len(certification), alpha=alpha, delta=delta)
    walks = {}
    for c, of_one in windows.items():
        counts = window_counts(of_prediction(certification, c), of_one.edges)
        walks[c] = Walk(of_one.steps, counts.__getitem__, target_of(alpha, c), u, n_errors)
    share_delta(list(walks.values()), delta)
    checks = []
    for c, walk in walks.items():
        passed = np.concatenate([np.arange(0), *walk.passed])
        counts, edges = walk.counts(passed), windows[c].edges.tolist()
        tested = walk.p_values(passed).tolist(), lower_bounds(counts, walk.level).tolist()
        rows = zip(counts.n.tolist(), counts.k.tolist(), *tested, edges, [None, *edges], strict=False)
        checks += [WindowCheck("prediction", c, n, k, p, bound, lower, upper) for n, k, p, bound, lower, upper in rows]
    return tuple(checks)
