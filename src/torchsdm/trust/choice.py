"""Choosing alpha by what it costs: a wrong answer has a price, and so has a review by a person.

A rule that admits a share s of the inputs, of which a share e is wrong, costs per input

    cost = s e cost_error + (1 - s) cost_review.

At one end everything is reviewed (s = 0), at the other every answer is acted on (s = 1). Between them are the rules
that could be certified, one for each alpha: a higher alpha means fewer errors and more to review.

s and s e are estimated on calibration. The path is found as for a certificate, for a certification sample of a given
size. An element that admits n of N points, k of them wrong, has s = n / N and e = (k + 1/2) / (n + 1), as on the path;
its s and s e count as much as the walk is likely to end there (``ThresholdPath.ends``). The walk may also end before it
has begun: then nothing is admitted. An alpha can be chosen if the chance of that is at most 0.2.

The chance. ``ThresholdPath.ends`` judges a path by the points that chose it, which flatters it, and most of all where
the alpha is chosen, too: the largest alpha that looks likely is one whose chance was overestimated. So the chance is
that of control='auto' (``control``): the first element of the path that one half of calibration gives is judged by the
other half. In 405 simulated worlds (two to eight classes, 200 to 1,500 calibration points, every control), with errors
at 20 and at 100 times the price of a review, an alpha whose chance was said to be at least 0.8 was certified in 0.77
and 0.73 of them by the chance of ``ends``, and in 0.94 of them by this one. An alpha was chosen in 0.90 of them instead
of 0.94, and 0.61 and 0.60 of all inputs were admitted instead of 0.46 and 0.42, since what is not certified admits
nothing. The estimate is cautious where there are many groups, because it takes them to be independent.

All this is an estimate, on points that epoch, score and path were chosen on, and the cheapest of several costs flatters
itself. It says which alpha to ask for, never what is promised. Of the certification sample only the size is used, so an
alpha that was chosen here can be certified on it as if it had been known from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError
from torchsdm.settings import CONTROLS
from torchsdm.trust._path import POWER, ThresholdPath, of_prediction, pools_of, predictions_to_try
from torchsdm.trust.certificate import ScoredSample
from torchsdm.trust.control import chance_of_first
from torchsdm.validation import Array, check_alphas, check_choice, check_positive, check_share

#: 0.55, 0.6, ..., 0.8, then in steps of 0.01 to 0.99, then 0.995
ALPHAS = (*(0.55, 0.6, 0.65, 0.7, 0.75), *(round(0.8 + 0.01 * step, 2) for step in range(20)), 0.995)

_ABOUT = 1.001  # times the least cost: for so little, a larger alpha is the better promise


@dataclass(frozen=True)
class Prices:
    """What a wrong answer costs, for each true class, and what a review costs."""

    error: tuple[float, ...]
    review: float

    @classmethod
    def of(cls, cost_error: Any, cost_review: Any, n_classes: int, caller: str) -> Prices:
        """Checked prices of a wrong answer that is acted on, one or (C,), and of the review of one that is not."""
        is_one = np.ndim(cost_error) == 0
        error = (cost_error,) * n_classes if is_one else tuple(cost_error)
        if len(error) != n_classes:
            raise InvalidInputError(
                f"'cost_error' of {caller} must be one price or one per class, {n_classes}. Got {len(error)}."
            )
        for price in error:
            check_positive(price, "cost_error", caller)
        check_positive(cost_review, "cost_review", caller)
        if max(error) <= cost_review:
            raise InvalidInputError(
                f"'cost_error' of {caller} must be above 'cost_review'. Got {max(error):g} and {cost_review:g}: if a "
                "wrong answer costs no more than a review, reviewing never pays; act on every answer."
            )
        return cls(tuple(map(float, error)), float(cost_review))


@dataclass(frozen=True)
class RuleEstimate:
    """What a rule would do with new inputs, estimated on calibration."""

    admitted_share: float
    """Of all inputs: s."""
    class_errors: tuple[float, ...]
    """Share of all inputs that are admitted, wrong, and truly of each class (C,)."""

    @property
    def error_rate(self) -> float | None:
        """Share of the admitted that is wrong: e; None where nothing is admitted."""
        return sum(self.class_errors) / self.admitted_share if self.admitted_share else None

    def cost(self, prices: Prices) -> float:
        """Expected cost per input: s e cost_error + (1 - s) cost_review."""
        wrong = sum(share * price for share, price in zip(self.class_errors, prices.error, strict=True))
        return wrong + (1 - self.admitted_share) * prices.review


@dataclass(frozen=True)
class AlphaPoint(RuleEstimate):
    """What is expected of the rule that would be certified at one alpha."""

    alpha: float
    chance: float
    """Estimated chance that there will be a certificate, by halves of calibration: more careful than the shares."""

    @property
    def is_likely(self) -> bool:
        """Whether there are enough examples for a certificate at this alpha."""
        return self.chance >= POWER


@dataclass(frozen=True)
class AlphaCurve:
    """What would be admitted at each alpha, and how much of it would be wrong, estimated on calibration."""

    points: tuple[AlphaPoint, ...]
    """By ascending alpha."""
    everything: RuleEstimate
    """If every answer were acted on, without any rule."""
    n_certification: int
    """Size of the certification sample that the rules would be certified on."""

    @classmethod
    def of(
        cls,
        calibration: ScoredSample,
        n_classes: int,
        n_certification: int,
        *,
        delta: float = 0.1,
        control: str = "groups",
        families: Array | None = None,
        alphas: Sequence[float] = ALPHAS,
    ) -> AlphaCurve:
        """Estimate the curve by calibration points alone.

        Parameters
        ----------
        calibration : ScoredSample
            Never the points that will be certified on: the promise is for an alpha that was chosen before they are
            seen.
        n_classes : int
        n_certification : int
            How many points will be certified on. More of them admit more at the same alpha.
        delta, control, families
            Of the certificate; see ``certify``.
        alphas : sequence of float
            To choose from.
        """
        caller = "AlphaCurve.of"
        check_share(delta, "delta", caller)
        check_choice(control, CONTROLS, "control", caller)
        check_positive(n_certification, "n_certification", caller, integer=True)
        if not len(calibration):
            raise InvalidInputError(f"'calibration' of {caller} must have points. Got none.")
        points = []
        for alpha in sorted(check_alphas(alphas, caller)):
            if alpha == 1:
                raise InvalidInputError(f"'alphas' of {caller} must be below 1: nothing can be certified at 1.")
            terms = {"delta": delta, "control": control, "families": families}
            points.append(_point(calibration, n_classes, n_certification, alpha, **terms))
        everyone = np.ones(len(calibration), dtype=bool)
        share, *errors = _counted(calibration, everyone, n_classes).tolist()
        return cls(tuple(points), RuleEstimate(share, tuple(errors)), int(n_certification))

    def choose(self, prices: Prices) -> AlphaChoice:
        """The largest alpha at about the least cost, among those that will probably be certified."""
        likely = [point for point in self.points if point.is_likely]
        least = min((point.cost(prices) for point in likely), default=0.0)
        cheap = [point for point in likely if point.cost(prices) <= _ABOUT * least]
        return AlphaChoice(prices, self, cheap[-1] if cheap else None)


@dataclass(frozen=True)
class AlphaChoice:
    """The alpha of least expected cost, and what else could be done. All costs are per input."""

    prices: Prices
    curve: AlphaCurve
    best: AlphaPoint | None
    """None if nothing will probably be certified at any alpha."""

    @property
    def alpha(self) -> float | None:
        """The chosen alpha."""
        return None if self.best is None else self.best.alpha

    @property
    def expected_cost(self) -> float | None:
        """Of the rule that would be certified at the chosen alpha."""
        return None if self.best is None else self.best.cost(self.prices)

    @property
    def admitted_share(self) -> float | None:
        """Of all inputs, by that rule."""
        return None if self.best is None else self.best.admitted_share

    @property
    def error_rate(self) -> float | None:
        """Of the answers that it admits."""
        return None if self.best is None else self.best.error_rate

    @property
    def costs(self) -> tuple[float, ...]:
        """Of every point of the curve."""
        return tuple(point.cost(self.prices) for point in self.curve.points)

    @property
    def cost_of_reviewing_everything(self) -> float:
        """The price of one review."""
        return self.prices.review

    @property
    def cost_of_admitting_everything(self) -> float:
        """If every answer were acted on, without any rule and without a promise."""
        return self.curve.everything.cost(self.prices)

    @property
    def pays(self) -> bool:
        """Whether the rule is expected to cost less than reviewing everything."""
        return self.expected_cost is not None and self.expected_cost < self.cost_of_reviewing_everything

    def explain(self) -> str:
        """The choice and its alternatives, with numbers, in one or two sentences."""
        review, everything = self.cost_of_reviewing_everything, self.cost_of_admitting_everything
        if self.best is None:
            return (
                f"No alpha will probably be certified with {self.curve.n_certification:,} certification points. "
                f"Reviewing everything costs {review:.4g} per input, acting on every answer about {everything:.4g}."
            )
        rule = (
            f"alpha = {self.best.alpha:g} costs about {self.expected_cost:.4g} per input: "
            f"{self.best.admitted_share:.1%} admitted, {self.best.error_rate:.2%} of them wrong"
        )
        if not self.pays:
            return (
                f"Review everything: {review:.4g} per input. The cheapest rule that will probably be certified, "
                f"{rule}; acting on every answer costs about {everything:.4g}."
            )
        if everything < self.best.cost(self.prices):
            return (
                f"{rule}. Acting on every answer would cost less, about {everything:.4g}, but promises nothing; "
                f"reviewing everything costs {review:.4g}."
            )
        return f"{rule}. Reviewing everything costs {review:.4g}, acting on every answer about {everything:.4g}."

    def to_json(self) -> dict[str, Any]:
        """Plain values, for strict JSON."""

        def values(of: Any, *names: str) -> dict[str, Any]:
            return {name: getattr(of, name) for name in names}

        rows = zip(self.curve.points, self.costs, strict=True)
        return {
            **values(self, "alpha", "expected_cost", "admitted_share", "error_rate", "pays"),
            **values(self, "cost_of_reviewing_everything", "cost_of_admitting_everything"),
            "prices": {"error": list(self.prices.error), "review": self.prices.review},
            "n_certification": self.curve.n_certification,
            "curve": [
                values(point, "alpha", "admitted_share", "error_rate", "chance") | {"cost": cost}
                for point, cost in rows
            ],
            "explanation": self.explain(),
        }


def _point(calibration: ScoredSample, n_classes: int, n_certification: int, alpha: float, **terms: Any) -> AlphaPoint:
    """What to expect of a certificate at one alpha; predictions are walked one by one, and add up."""
    expected, chance = np.zeros(1 + n_classes), 0.0
    for of_one, ends, rules in _walks(calibration, n_classes, n_certification, alpha, **terms):
        chance = max(chance, of_one)
        for probability, thresholds in zip(ends, rules, strict=True):
            expected += probability * _counted(calibration, calibration.admitted_by(thresholds), n_classes)
    share, *errors = expected.tolist()
    return AlphaPoint(share, tuple(errors), alpha, chance)


def _walks(
    calibration: ScoredSample,
    n_classes: int,
    n_certification: int,
    alpha: float,
    *,
    delta: float,
    control: str,
    families: Array | None,
) -> Iterator[tuple[float, Array, list[Array]]]:
    """The walks of a certificate: ``_walk`` of each, with thresholds (C,) as rules."""
    if control != "predictions":
        asked: dict[str, Any] = {"alpha": alpha, "delta": delta, "control": control}
        asked["pools"] = pools_of(calibration, n_classes, n_certification, **asked, families=families)
        yield _walk(calibration, n_classes, n_certification, **asked)
        return
    tried = predictions_to_try(calibration, n_classes, n_certification, alpha=alpha, delta=delta)
    for c, n in tried.items():
        part, level = of_prediction(calibration, c), delta / len(tried)
        chance, ends, rules = _walk(part, 2, n, alpha=alpha, delta=level, control="all")
        is_it = np.arange(n_classes) == c
        yield chance, ends, [np.where(is_it, thresholds[0], np.inf) for thresholds in rules]


def _walk(*sample: Any, **asked: Any) -> tuple[float, Array, list[Array]]:
    """The chance that a walk begins, how likely it is to end at each rule of its path (K,), and the rules."""
    path = ThresholdPath.of(*sample, **asked)
    return chance_of_first(*sample, **asked), path.ends(), list(path)


def _counted(calibration: ScoredSample, admitted: Array, n_classes: int) -> Array:
    """s, then s e of each true class (1 + C,); the half error that is added is shared out as the classes are."""
    n, share = int(admitted.sum()), float(admitted.mean())
    wrong = admitted & (calibration.labels != calibration.predictions)
    k = np.bincount(calibration.labels[wrong], minlength=n_classes)
    classes = np.bincount(calibration.labels, minlength=n_classes) / len(calibration)
    return np.append(share, share * (k + classes / 2) / (n + 1))
