"""What to label for a certificate: points that no rule with a chance would admit need no label.

The floor. Calibration alone says how far a walk will probably come: with P(reach i) as in ``ThresholdPath.ends``, the
path is expected to end above its first element with P(reach i) < CHANCE. The floor (C,) is the lowest threshold of each
prediction on what is left of the path, or the lower edge of the last window that is reached with that chance:

    P(reach window i) = P(pass 1) ... P(pass i),    P(pass j) = Phi(z_j),

as windows have no points in common. A walk of one prediction may be passed more of delta than its share; it is taken
for as lenient as it could become, at the whole delta. Where nothing has a chance, no label is worth the trouble; where
anything has, the safest element of every path is labelled, too, as it is tested and, if it fails, shown.

The draw. N points are drawn from a pool at random, and of these only the ones that are familiar and reach the floor are
labelled. N is planned on calibration alone so that about n points are: N times the share of the calibration points that
reach the floor of N is n (``Floor.planned``).

Why this is a promise. The N points are a plain random sample of the pool, of a size that was fixed before it was seen.
Points without a label count as errors wherever they are admitted, so the certificate promises nothing that the same N
points, all labelled, would not (``certificate``). Where the walk with all labels ends above the floor, the two are the
same to the bit: no element that passes admits a point without a label, the next one fails with or without labels, and u
does not depend on them. So the floor may be wrong, by a bad estimate or another model: that costs admissions, never the
promise.

Why not on and on until exactly n points are found. N would depend on the sample. Say all is right above the floor and
all is wrong below, a share s = 1 - alpha of the points. Then the number J of errors before the n-th right answer has
P(J <= c) = P(Binomial(n + c, s) <= c), just the level of the plain test. The randomised test passes one c more with
some probability, as P(Binomial < c) is smaller; but P(J < c) is not, and so it would err more often than delta.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from torchsdm.core import Target, target_of
from torchsdm.settings import AUTO
from torchsdm.trust._path import ThresholdPath, of_prediction, pools_of, predictions_to_try
from torchsdm.trust._windows import windows_to_try
from torchsdm.trust.certificate import ScoredSample
from torchsdm.trust.control import choose_control
from torchsdm.validation import Array

CHANCE = 0.01  #: what a walk reaches with less than that needs no labels
_PRECISION = 0.01  # of the points to draw


@dataclass(frozen=True)
class Floor:
    """The lowest score of each prediction (C,) that may be admitted; infinite where none may be."""

    thresholds: Array
    n_drawn: int
    """Certification points that it is for."""

    @classmethod
    def planned(
        cls,
        calibration: ScoredSample,
        n_classes: int,
        n_asked: int,
        n_pool: int,
        *,
        alpha: Target,
        delta: float,
        control: str,
        families: Array | None = None,
    ) -> Floor:
        """The floor of as many points of a pool as make about ``n_asked`` reach it; the others are as in ``certify``.

        N is doubled while too few would reach the floor of N, and what is between halved to one in a hundred. There the
        floor may fall in a step, as a further window can be filled: the higher floor is kept, and N is what brings
        ``n_asked`` above it.
        """
        asked: dict[str, Any] = {"alpha": alpha, "delta": delta, "control": control, "families": families}

        def floor_of(n: int) -> Floor | None:
            floor = cls.of(calibration, n_classes, n, **asked)
            return floor if n * floor.reached_by(calibration).mean() <= n_asked else None

        n, step = min(n_asked, n_pool), min(n_asked, n_pool)
        found, is_doubling = cls.of(calibration, n_classes, n, **asked), True
        while step > _PRECISION * n:
            more = min(n + step, n_pool)
            floor = floor_of(more) if more > n else None
            is_doubling = is_doubling and floor is not None
            n, found = (n, found) if floor is None else (more, floor)
            step = n if is_doubling else step // 2
        share = float(found.reached_by(calibration).mean())  # the floor falls in steps, too
        return cls(found.thresholds, min(round(n_asked / share), n_pool) if share else n_pool)

    @classmethod
    def of(
        cls,
        calibration: ScoredSample,
        n_classes: int,
        n_certification: int,
        *,
        alpha: Target,
        delta: float,
        control: str,
        families: Array | None = None,
    ) -> Floor:
        """The floor of a certification sample of a given size, from calibration alone."""
        if control == AUTO:
            terms: dict[str, Any] = {"alpha": alpha, "delta": delta, "families": families}
            control = choose_control(calibration, n_classes, n_certification, **terms).control
        asked: dict[str, Any] = {"alpha": alpha, "delta": delta, "control": control}
        lowest, safest = np.full((2, n_classes), np.inf)
        if control == "predictions":
            for c, n in predictions_to_try(calibration, n_classes, n_certification, alpha=alpha, delta=delta).items():
                part, own = of_prediction(calibration, c), target_of(alpha, c)
                path = ThresholdPath.of(part, 2, n, alpha=own, delta=delta, control="all")
                lowest[c] = min([one[0] for one in _reached(path)], default=np.inf)
                safest[c] = min([one[0] for one in path.thresholds[:1]], default=np.inf)
        else:
            pools = pools_of(calibration, n_classes, n_certification, **asked, families=families)
            path = ThresholdPath.of(calibration, n_classes, n_certification, **asked, pools=pools)
            lowest = np.min([lowest, *_reached(path)], axis=0)
            safest = np.min([safest, *path.thresholds[:1]], axis=0)
        for c, windows in windows_to_try(calibration, n_classes, n_certification, alpha=alpha, delta=delta).items():
            reach = ndtr(windows.z).cumprod()
            lowest[c] = min([lowest[c], *windows.edges[reach >= CHANCE]])
        if np.isfinite(lowest).any():
            lowest = np.minimum(lowest, safest)
        return cls(lowest, n_certification)

    def reached_by(self, sample: ScoredSample) -> Array:
        """Which points need a label (N,)."""
        return sample.admitted_by(self.thresholds)


def _reached(path: ThresholdPath) -> Iterator[Array]:
    """The elements of a path that a walk has a chance to reach."""
    reach = path.ends()[::-1].cumsum()[::-1]
    return (thresholds for thresholds, chance in zip(path, reach, strict=True) if chance >= CHANCE)
