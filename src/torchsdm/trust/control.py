"""Choosing the control: the strongest promise that will probably be certified, by calibration points alone.

From the strongest to the weakest: every class and every prediction ('groups'), the same with small classes pooled
('pooled'), every prediction ('predictions'), all answers together ('all'). The first whose estimated chance of a
certificate is at least 0.8 is taken; if there is none, the one with the highest chance.

The chance. A walk certifies something if all groups of the first element of its path pass. That element is chosen for
having few errors, so it is not judged by the points that chose it: each half of calibration is counted by the first
element of a path that the other half gives. A group that has n points then, k of them wrong, will have m points on
certification, j of them wrong. With r certification points for each calibration point,

    m ~ Normal(r n, r n (1 + r)),    j | m ~ BetaBinomial(m, k + 1, n - k + 1/2).

The second is what Jeffreys' prior expects after k errors, with half an error more as a margin, without which chances
were a bit too high in simulations. The group passes if the randomised test allows j errors among m points, on average
over u. Groups are taken to be independent. Predictions will be certified if each one that is tried passes; they are not
chosen if those are fewer than half of the eligible points.

How honest it is. Over 900 simulated worlds, many of them just above alpha, chances of about 0.82, 0.88, 0.93 and 0.97
came true in 0.80, 0.88, 0.92 and 0.93 of the cases. By the normal approximation of the path, on the points that chose
it, 0.85 came true in about half of them.

Of the certification sample only the size is used, not even its u. So the promise holds as if the control had been known
from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import betabinom

from torchsdm.core import GroupCounts, Target, target_of
from torchsdm.settings import CONTROLS
from torchsdm.trust._path import (
    POWER,
    ThresholdPath,
    allowed_errors,
    by_group,
    group_counts,
    of_prediction,
    points_needed,
    pools_of,
    predictions_to_try,
)
from torchsdm.validation import Array

if TYPE_CHECKING:
    from torchsdm.trust.certificate import ScoredSample

_SIZES = 9  # of a group on certification that its chance is averaged over
_ENOUGH_TRIED = 0.5  # share of the eligible points whose predictions are tried


@dataclass(frozen=True)
class ControlChoice:
    """The control that was chosen, and the estimated chance of a certificate with each that could have been."""

    control: str
    chances: dict[str, float]
    """By control, the strongest first."""


def choose_control(
    calibration: ScoredSample,
    n_classes: int,
    n_certification: int,
    *,
    alpha: Target,
    delta: float = 0.1,
    families: Array | None = None,
) -> ControlChoice:
    """The strongest control that will probably be certified.

    Parameters
    ----------
    calibration : ScoredSample
        Never the points that will be certified on.
    n_classes : int
    n_certification : int
        How many points will be certified on.
    alpha, delta, families
        Of the certificate; see ``certify``. With an alpha for each class, the choice is between 'groups' and
        'predictions'.
    """
    chances = {}
    for control in CONTROLS:
        if isinstance(alpha, tuple) and control in ("pooled", "all"):
            continue
        asked: dict[str, Any] = {"alpha": alpha, "delta": delta, "control": control}
        pools = pools_of(calibration, n_classes, n_certification, **asked, families=families)
        if pools is not None and int(pools.max()) + 1 == n_classes:
            continue  # no class needs another: the same as 'groups'
        if control == "predictions":
            chances[control] = _chance_of_predictions(calibration, n_classes, n_certification, alpha, delta)
        else:
            chances[control] = chance_of_first(calibration, n_classes, n_certification, **asked, pools=pools)
    likely = [control for control, chance in chances.items() if chance >= POWER]
    return ControlChoice(likely[0] if likely else max(chances, key=lambda control: chances[control]), chances)


def weakest_control(alpha: Target) -> str:
    """The control that takes the fewest points to pass, of those that a target allows."""
    return "predictions" if isinstance(alpha, tuple) else "all"


def _chance_of_predictions(
    calibration: ScoredSample, n_classes: int, n_certification: int, alpha: Target, delta: float
) -> float:
    """The chance that each prediction that is tried passes; 0 if these are too few."""
    tried = predictions_to_try(calibration, n_classes, n_certification, alpha=alpha, delta=delta)
    predicted = calibration.predictions[calibration.eligible]
    if np.isin(predicted, list(tried)).sum() < _ENOUGH_TRIED * len(predicted):
        return 0.0
    shared: dict[str, Any] = {"delta": delta / len(tried), "control": "all"}
    chances = [
        chance_of_first(of_prediction(calibration, c), 2, n, alpha=target_of(alpha, c), **shared)
        for c, n in tried.items()
    ]
    return float(np.prod(chances))


def chance_of_first(
    calibration: ScoredSample, n_classes: int, n_certification: int, *, alpha: Target, delta: float, **groups: Any
) -> float:
    """The chance that all groups of the first element of a path pass, from halves that are alike in their scores.

    ``groups`` are control and, if there are any, pools.
    """
    by_score = np.argsort(calibration.score, kind="stable")
    halves = calibration[by_score[::2]], calibration[by_score[1::2]]
    targets = by_group(alpha, n_classes, **groups)
    counts = GroupCounts(*np.zeros((2, len(targets)), dtype=np.int64))
    for half, other in (halves, halves[::-1]):
        path = ThresholdPath.of(half, n_classes, n_certification, alpha=alpha, delta=delta, **groups)
        if path.thresholds:
            admitted = other.admitted_by(path.thresholds[0])
            counts = counts + group_counts(other, admitted, n_classes, **groups)
    return float(chances_to_pass(counts, targets, delta, n_certification / len(calibration)).prod())


def chances_to_pass(counts: GroupCounts, alpha: Array, delta: float, ratio: float) -> Array:
    """The chance of each group (G,) to pass on a certification sample ``ratio`` times as large as calibration."""
    n, k, r = counts.n, counts.k, ratio
    normal = ndtri((np.arange(_SIZES) + 0.5) / _SIZES)[:, None]
    m = np.rint(r * n + normal * np.sqrt(r * n * (1 + r)))  # (sizes, G)
    needed = np.array([points_needed(float(one), delta) for one in alpha])
    tested = np.maximum(m, needed).astype(np.int64)
    allowed = allowed_errors(tested, alpha, delta)
    share, whole = np.modf(allowed)
    j = betabinom(tested, k + 1.0, n - k + 0.5)
    passes = (1 - share) * j.cdf(whole) + share * j.cdf(whole + 1)
    return np.where(m >= needed, passes, 0.0).mean(axis=0)
