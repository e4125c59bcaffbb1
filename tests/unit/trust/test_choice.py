"""Choosing alpha by prices: the curve, the cost, the choice, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.trust import AlphaCurve, Prices, ScoredSample, certify, choose_control
from torchsdm.trust._path import ThresholdPath
from torchsdm.trust.choice import ALPHAS


def two_levels(n=4000, errors=(40, 400)):
    """Two classes alike; half of the points have a high score and few errors, the others a low score and many."""
    predictions = np.arange(n) % 2
    is_high = np.arange(n) < n // 2
    wrong = np.zeros(n, dtype=bool)
    wrong[: errors[0]] = True
    wrong[n // 2 : n // 2 + errors[1]] = True
    labels = np.where(wrong, 1 - predictions, predictions)
    return ScoredSample(labels, predictions, np.where(is_high, 0.9, 0.1), np.ones(n, dtype=bool))


def draw(n, seed, n_classes=2):
    """Points whose predictions are right the more often, the higher their score."""
    rng = np.random.default_rng(seed)
    predictions, score = rng.integers(0, n_classes, n), rng.random(n)
    right = rng.random(n) < 0.6 + 0.4 * np.sqrt(score)
    labels = np.where(right, predictions, (predictions + 1) % n_classes)
    return ScoredSample(labels, predictions, score, rng.random(n) < 0.9)


def choose_alpha(calibration, n_classes, n_certification, *, cost_error, cost_review, **terms):
    prices = Prices.of(cost_error, cost_review, n_classes, "choose_alpha")
    return AlphaCurve.of(calibration, n_classes, n_certification, **terms).choose(prices)


def point_at(curve, alpha):
    return next(point for point in curve.points if point.alpha == alpha)


def test_the_curve_in_closed_form():
    """Half of the points at an error of 0.02, half at 0.2; at these alphas either rule is certain."""
    curve = AlphaCurve.of(two_levels(), 2, 4000, control="all", alphas=(0.8, 0.95))
    lenient, strict = curve.points
    assert lenient.admitted_share == pytest.approx(1.0, abs=1e-4)
    assert lenient.error_rate == pytest.approx(440.5 / 4001, abs=1e-4)
    assert strict.admitted_share == pytest.approx(0.5, abs=1e-3) and strict.chance > 0.999
    assert strict.error_rate == pytest.approx(40.5 / 2001, abs=1e-3)
    assert curve.everything.admitted_share == 1 and curve.everything.error_rate == pytest.approx(440.5 / 4001)


@pytest.mark.parametrize(("price", "alpha"), [(2.0, 0.8), (20.0, 0.95)])
def test_the_cheapest_alpha_in_closed_form(price, alpha):
    """Lenient: 0.11 price. Strict: 0.5 * 0.02 price + 0.5. They cost the same at a price of 5."""
    choice = choose_alpha(two_levels(), 2, 4000, control="all", cost_error=price, cost_review=1, alphas=(0.8, 0.95))
    costs = {0.8: price * 440.5 / 4001, 0.95: price * 0.5 * 40.5 / 2001 + 0.5}
    assert choice.alpha == alpha == min(costs, key=costs.get)
    assert choice.expected_cost == pytest.approx(costs[alpha], abs=2e-3)
    assert choice.costs == pytest.approx((costs[0.8], costs[0.95]), abs=2e-3)
    assert choice.cost_of_reviewing_everything == 1
    assert choice.cost_of_admitting_everything == pytest.approx(price * 440.5 / 4001)
    assert choice.pays and f"alpha = {alpha:g} costs about" in choice.explain()


def test_of_equal_costs_the_larger_alpha_is_chosen():
    choice = choose_alpha(
        two_levels(), 2, 4000, control="all", cost_error=2.0, cost_review=1, alphas=(0.6, 0.7, 0.8, 0.95)
    )
    assert choice.alpha == 0.8


def test_reviewing_everything_may_be_cheapest():
    choice = choose_alpha(two_levels(), 2, 4000, control="all", cost_error=100.0, cost_review=1, alphas=(0.8, 0.95))
    assert choice.alpha == 0.95 and choice.expected_cost > 1 and not choice.pays
    assert choice.explain().startswith("Review everything: 1 per input.")


def test_acting_on_everything_may_be_cheapest_and_is_said():
    sample = dataclasses.replace(two_levels(errors=(20, 20)), eligible=np.arange(4000) % 10 > 0)
    choice = choose_alpha(sample, 2, 4000, control="all", cost_error=2.0, cost_review=1, alphas=(0.9,))
    assert choice.pays and choice.expected_cost == pytest.approx(0.1 + 0.9 * 0.01 * 2, abs=2e-3)
    assert "Acting on every answer would cost less, about 0.02" in choice.explain()


def test_too_few_points_choose_nothing():
    choice = choose_alpha(two_levels(40, (1, 6)), 2, 10, cost_error=5.0, cost_review=1, alphas=(0.9, 0.99))
    assert (choice.alpha, choice.expected_cost, choice.admitted_share, choice.error_rate) == (None,) * 4
    assert not choice.pays and "No alpha will probably be certified with 10" in choice.explain()
    assert choice.to_json()["alpha"] is None


def slow_point(calibration, n_classes, n_certification, alpha):
    """The expectation over the walk as loops, in float64."""
    path = ThresholdPath.of(calibration, n_classes, n_certification, alpha=alpha, delta=0.1, control="groups")
    n = len(calibration)
    share, errors = 0.0, [0.0] * n_classes
    passes = [math.prod(stats.norm.cdf(z) for z in of_groups) for of_groups in path.sureness]
    reach = [min(passes[: i + 1]) for i in range(len(passes))]
    for i, thresholds in enumerate(path):
        here = reach[i] - (reach[i + 1] if i + 1 < len(reach) else 0.0)
        rows = [
            row
            for row in range(n)
            if calibration.eligible[row] and calibration.score[row] >= thresholds[calibration.predictions[row]]
        ]
        share += here * len(rows) / n
        for c in range(n_classes):
            k = sum(calibration.labels[row] == c != calibration.predictions[row] for row in rows)
            half = sum(calibration.labels == c) / n / 2
            errors[c] += here * len(rows) / n * (k + half) / (len(rows) + 1)
    return share, errors


@pytest.mark.parametrize("alpha", [0.75, 0.85, 0.9])
def test_the_curve_is_that_of_plain_loops(alpha):
    calibration = draw(300, 3, n_classes=3)
    (point,) = AlphaCurve.of(calibration, 3, 250, alphas=(alpha,)).points
    share, errors = slow_point(calibration, 3, 250, alpha)
    assert point.admitted_share == pytest.approx(share, rel=1e-12)
    np.testing.assert_allclose(point.class_errors, errors, rtol=1e-12)
    assert point.chance == choose_control(calibration, 3, 250, alpha=alpha).chances["groups"]


@pytest.mark.parametrize("control", ["groups", "predictions", "all"])
def test_what_is_expected_is_about_what_is_certified(control):
    """Means over draws, with a fresh sample for the truth."""
    expected, certified = [], []
    for seed in range(30):
        calibration, certification, fresh = (draw(900, 10 * seed + part) for part in range(3))
        (point,) = AlphaCurve.of(calibration, 2, 900, control=control, alphas=(0.87,)).points
        rule = certify(calibration, certification, 2, alpha=0.87, control=control, advice=False)
        admitted = fresh.admitted_by(rule.thresholds)
        expected.append((point.admitted_share, sum(point.class_errors)))
        certified.append((admitted.mean(), (admitted & (fresh.labels != fresh.predictions)).mean()))
    (share, errors), (true_share, true_errors) = np.mean(expected, axis=0), np.mean(certified, axis=0)
    assert true_share > 0.5
    assert abs(share - true_share) < 0.1 and abs(errors - true_errors) < 0.02


def test_predictions_add_up():
    """One prediction that is always right beside one that is never: only the first is admitted."""
    predictions = np.arange(1000) % 2
    sample = ScoredSample(np.zeros(1000, dtype=int), predictions, np.full(1000, 0.5), np.ones(1000, dtype=bool))
    (point,) = AlphaCurve.of(sample, 2, 1000, control="predictions", alphas=(0.9,)).points
    assert point.admitted_share == pytest.approx(0.5, abs=1e-3)
    assert point.error_rate == pytest.approx(0.5 / 501, abs=1e-4)


def test_a_price_for_each_class():
    calibration = draw(2000, 0)
    one = choose_alpha(calibration, 2, 2000, cost_error=5.0, cost_review=1)
    same = choose_alpha(calibration, 2, 2000, cost_error=(5.0, 5.0), cost_review=1)
    assert one.costs == pytest.approx(same.costs) and one.alpha == same.alpha
    skewed = choose_alpha(calibration, 2, 2000, cost_error=(50.0, 0.5), cost_review=1)
    point = point_at(skewed.curve, 0.9)
    expected = 50 * point.class_errors[0] + 0.5 * point.class_errors[1] + 1 - point.admitted_share
    assert skewed.costs[[p.alpha for p in skewed.curve.points].index(0.9)] == pytest.approx(expected)


def test_a_dearer_error_never_admits_more():
    calibration = draw(3000, 5)
    curve = AlphaCurve.of(calibration, 2, 2000)
    shares = [curve.choose(Prices.of(price, 1, 2, "test")).admitted_share for price in (1.5, 3, 6, 12, 25)]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]


def test_the_walk_ends_somewhere():
    path = ThresholdPath.of(draw(500, 1), 2, 400, alpha=0.85, delta=0.1, control="groups")
    ends = path.ends()
    assert len(ends) == len(list(path)) and (ends >= 0).all()
    assert ends.sum() == pytest.approx(math.prod(stats.norm.cdf(path.sureness[0])))
    assert len(ThresholdPath([], []).ends()) == 0


@pytest.mark.parametrize(
    ("error", "review", "words"),
    [
        (-1, 1, "'cost_error' of choose_alpha must be positive"),
        (0, 1, "'cost_error' of choose_alpha must be positive"),
        (5, 0, "'cost_review' of choose_alpha must be positive"),
        (5, -2, "'cost_review' of choose_alpha must be positive"),
        (1, 1, "reviewing never pays; act on every answer"),
        ((1, 0.5), 2, "reviewing never pays"),
        ((5, 6, 7), 1, "one per class, 2. Got 3"),
        ("much", 1, "must be a number"),
        (float("nan"), 1, "must be positive"),
    ],
)
def test_prices_that_make_no_sense_are_refused(error, review, words):
    with pytest.raises(TorchSDMError, match=words):
        choose_alpha(two_levels(200, (2, 20)), 2, 100, cost_error=error, cost_review=review)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alphas": (0.9, 1.0)}, "below 1"),
        ({"alphas": (0.3,)}, "alpha"),
        ({"delta": 0}, "delta"),
        ({"control": "some"}, "control"),
        ({"n_certification": 0}, "n_certification"),
        ({"calibration": two_levels(4, (0, 0))[np.array([], dtype=int)]}, "must have points"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, words):
    arguments = {"calibration": two_levels(200, (2, 20)), "n_classes": 2, "n_certification": 100, **change}
    with pytest.raises(TorchSDMError, match=words):
        AlphaCurve.of(**arguments)


def test_the_alphas_to_choose_from():
    assert ALPHAS[0] == 0.55 and ALPHAS[-1] == 0.995 and list(ALPHAS) == sorted(set(ALPHAS))
    assert {0.8, 0.9, 0.95, 0.99} <= set(ALPHAS)
    with pytest.raises(InvalidInputError):
        AlphaCurve.of(two_levels(200, (2, 20)), 2, 100, alphas=())
