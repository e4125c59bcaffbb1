"""Which control is chosen by calibration, and how its chance is estimated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from torchsdm.core import GroupCounts
from torchsdm.errors import InvalidInputError
from torchsdm.settings import CONTROLS
from torchsdm.trust import Certificate, ScoredSample, can_certify, certify, choose_control
from torchsdm.trust._walk import p_values
from torchsdm.trust.control import chances_to_pass

ALPHA, DELTA = 0.9, 0.1


def draw(n, seed, shares=(0.5, 0.5), low=0.8, high=1.0, confused=None):
    """Points that are right the more often, the higher their score; errors of any prediction are of class ``confused``.

    Then that class is rarely right where it is the truth, while its predictions are as good as any.
    """
    rng = np.random.default_rng(seed)
    n_classes = len(shares)
    predictions, score = rng.choice(n_classes, n, p=shares), rng.random(n)
    right = rng.random(n) < low + (high - low) * score
    other = (predictions + 1 + rng.integers(0, n_classes - 1, n)) % n_classes
    if confused is not None:
        other = np.where(predictions == confused, other, confused)
    return ScoredSample(np.where(right, predictions, other), predictions, score, np.ones(n, dtype=bool))


MANY = (0.4, 0.36, *[0.03] * 8)


@pytest.mark.parametrize(
    ("calibration", "n_certification", "expected", "known"),
    [
        (draw(3000, 0, low=0.9), 1500, "groups", ["groups", "predictions", "all"]),  # no class needs a pool
        (draw(3000, 0, MANY, low=0.97), 1500, "pooled", list(CONTROLS)),
        (
            draw(3000, 0, (0.45, 0.4, 0.15), 0.97, 0.97, confused=2),
            1500,
            "predictions",
            ["groups", "predictions", "all"],
        ),
        (draw(3000, 0, (0.1,) * 10, 0.945, 0.965), 150, "all", list(CONTROLS)),
    ],
)
def test_the_strongest_control_that_will_probably_be_certified_is_chosen(calibration, n_certification, expected, known):
    n_classes = int(calibration.predictions.max()) + 1
    choice = choose_control(calibration, n_classes, n_certification, alpha=ALPHA, delta=DELTA)
    assert list(choice.chances) == known and choice.control == expected
    before = known[: known.index(expected)]
    assert choice.chances[expected] >= 0.8 and all(choice.chances[control] < 0.8 for control in before)


def test_without_any_likely_one_the_likeliest_is_chosen():
    choice = choose_control(draw(600, 0, low=0.86, high=0.92), 2, 150, alpha=ALPHA, delta=DELTA)
    assert 0 < max(choice.chances.values()) < 0.8
    assert choice.chances[choice.control] == max(choice.chances.values())


def test_nothing_eligible_has_no_chance():
    sample = draw(100, 0)
    nobody = ScoredSample(sample.labels, sample.predictions, sample.score, np.zeros(100, dtype=bool))
    assert set(choose_control(nobody, 2, 100, alpha=ALPHA).chances.values()) == {0.0}


def test_predictions_that_are_tried_must_be_half_of_all():
    """One prediction in five is sure to pass, the others are hopeless."""
    rng = np.random.default_rng(0)
    predictions = rng.choice(5, 3000, p=[0.3, 0.175, 0.175, 0.175, 0.175])
    labels = np.where((predictions == 0) | (rng.random(3000) < 0.5), predictions, (predictions + 1) % 5)
    sample = ScoredSample(labels, predictions, rng.random(3000), np.ones(3000, dtype=bool))
    assert choose_control(sample, 5, 1500, alpha=ALPHA).chances["predictions"] == 0
    usual = ScoredSample(labels, np.where(predictions > 2, 0, predictions), sample.score, sample.eligible)
    most = ScoredSample(usual.predictions, usual.predictions, sample.score, sample.eligible)
    assert choose_control(most, 5, 1500, alpha=ALPHA).chances["predictions"] > 0.99


def test_targets_by_class_leave_groups_and_predictions():
    choice = choose_control(draw(3000, 0, low=0.9), 2, 1500, alpha=(0.9, 0.8), delta=DELTA)
    assert list(choice.chances) == ["groups", "predictions"] and choice.control == "groups"
    sample = draw(1500, 1, low=0.9)
    certificate = certify(draw(3000, 0, low=0.9), sample, 2, alpha=(0.9, 0.8), control="auto")
    assert certificate.control == "groups" and certificate.class_alphas == (0.9, 0.8)


def test_families_count():
    shares = (1 / 60,) * 60
    calibration = draw(1500, 0, shares, low=0.95)
    one, five = (choose_control(calibration, 60, 1500, alpha=ALPHA, families=f) for f in (None, np.arange(60) % 5))
    assert one.chances["pooled"] != five.chances["pooled"] and one.chances["all"] == five.chances["all"]


def test_the_chance_of_a_group_is_that_of_draws():
    """Sizes, errors and u are drawn, and tested as a certificate does."""
    rng, n_draws, ratio = np.random.default_rng(0), 20_000, 0.5
    n, k, alpha = np.array([60, 300, 300, 2000, 70]), np.array([0, 5, 20, 150, 3]), np.array([0.9, 0.95, 0.9, 0.9, 0.8])
    m = np.rint(rng.normal(ratio * n, np.sqrt(ratio * n * (1 + ratio)), (n_draws, 5))).astype(int)
    m = np.maximum(m, 0)
    wrong = rng.binomial(m, rng.beta(k + 1, n - k + 0.5, (n_draws, 5)))
    rows = zip(m, wrong, 1 - rng.random(n_draws), strict=True)
    drawn = [p_values(GroupCounts(*counts), alpha, u) <= DELTA for *counts, u in rows]
    chances = chances_to_pass(GroupCounts(n, k), alpha, DELTA, ratio)
    assert chances.min() > 0.05 and chances.max() < 0.95
    np.testing.assert_allclose(chances, np.mean(drawn, axis=0), atol=0.03)  # nine sizes stand for all


def test_a_certificate_says_what_was_chosen():
    calibration, certification = draw(3000, 0, low=0.9), draw(1500, 1, low=0.9)
    choice = choose_control(calibration, 2, 1500, alpha=ALPHA)
    auto, named = (certify(calibration, certification, 2, alpha=ALPHA, control=c) for c in ("auto", choice.control))
    assert auto.control == choice.control and auto.chances == choice.chances and named.chances == {}
    assert auto.identity == named.identity and auto.groups == named.groups
    restored = Certificate.from_json(json.loads(json.dumps(auto.to_json())))
    assert restored.chances == auto.chances and "chances" not in named.to_json()
    with pytest.raises(InvalidInputError, match="'control' of a certificate"):
        Certificate.from_json({**auto.to_json(), "control": "auto"})


@pytest.mark.parametrize(
    ("counts", "alpha", "expected"),
    [([12, 10], 0.9, True), ([11, 10], 0.9, False), ([3, 11], (0.9, 0.8), True), ([21, 10], (0.9, 0.8), False)],
)
def test_it_can_be_certified_if_the_weakest_control_can(counts, alpha, expected):
    """0.9^22 <= 0.1 and 0.8^11 <= 0.1, but not with a point less."""
    assert can_certify(np.array(counts), alpha=alpha, delta=DELTA, control="auto") is expected


def test_without_a_test_the_weakest_control_is_named():
    assert Certificate.without_test(0.9, DELTA, "auto", 2).control == "all"
    assert Certificate.without_test((0.9, 0.8), DELTA, "auto", 2).control == "predictions"
