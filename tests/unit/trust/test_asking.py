"""What needs a label for a certificate, and what a certificate makes of points without one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from torchsdm.core import GroupCounts
from torchsdm.trust import UNLABELLED, Certificate, Floor, ScoredSample, certify
from torchsdm.trust._path import ThresholdPath, group_counts
from torchsdm.trust._windows import windows_to_try
from torchsdm.trust.asking import CHANCE

ALPHA, DELTA = 0.9, 0.1
CONTROLS = ("groups", "pooled", "predictions", "all", "auto")


def draw(n, seed, n_classes=3, low=0.6, high=1.0, eligible=0.9):
    """Points whose predictions are right the more often, the higher their score."""
    rng = np.random.default_rng(seed)
    predictions, score = rng.integers(0, n_classes, n), rng.random(n)
    right = rng.random(n) < low + (high - low) * score
    labels = np.where(right, predictions, (predictions + 1 + rng.integers(0, n_classes - 1, n)) % n_classes)
    return ScoredSample(labels, predictions, score, rng.random(n) < eligible)


def without_labels(sample, rows):
    return dataclasses.replace(sample, labels=np.where(rows, UNLABELLED, sample.labels))


def certified(calibration, sample, control, **more):
    return certify(calibration, sample, 3, alpha=ALPHA, delta=DELTA, control=control, advice=False, **more)


@pytest.mark.parametrize("control", CONTROLS)
def test_labels_below_the_floor_change_nothing_in_the_certificate(control):
    n_same = n_found = 0
    for seed in range(4):
        calibration = draw(2000, seed)
        floor = Floor.planned(calibration, 3, 900, 10**6, alpha=ALPHA, delta=DELTA, control=control)
        full = draw(floor.n_drawn, 1000 + seed)
        reaches = floor.reached_by(full)
        asked = certified(calibration, without_labels(full, ~reaches), control)
        plain = certified(calibration, full, control)
        assert asked.n_unlabelled == (~reaches).sum() > 0 and not plain.n_unlabelled and asked.class_errors == ()
        n_found += plain.found
        if (plain.thresholds >= floor.thresholds).all():
            n_same += 1
            expected = dataclasses.replace(plain, n_unlabelled=asked.n_unlabelled, class_errors=())
            assert asked.to_json() == expected.to_json() and asked.identity == plain.identity
        else:  # a walk that comes further than expected stops near the floor
            assert (asked.thresholds >= plain.thresholds).all()
    assert n_same >= 3 and n_found >= 2


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("u", [0.3, 1.0])
def test_without_some_labels_nothing_is_certified_that_is_not_with_all(control, u):
    """Whichever labels are missing: a random part, those of errors, or those of right answers."""
    for seed in range(4):
        calibration, full = draw(900, seed), draw(900, 500 + seed)
        plain, wrong = certified(calibration, full, control, u=u), full.labels != full.predictions
        some = np.random.default_rng(seed).random(900) < 0.02
        for missing in (some, wrong, ~wrong & some):
            asked = certified(calibration, without_labels(full, missing), control, u=u)
            assert (asked.thresholds >= plain.thresholds).all()
            assert {(one.class_number, one.lower) for one in asked.windows} <= {
                (one.class_number, one.lower) for one in plain.windows
            } or (asked.thresholds > plain.thresholds).any()  # windows below the average's thresholds are not shown


def test_a_point_without_a_label_is_an_error_of_its_prediction_and_of_every_true_class():
    sample = ScoredSample(
        np.array([0, 1, UNLABELLED, UNLABELLED, 2]), np.array([0, 0, 1, 2, 2]), np.ones(5), np.ones(5, dtype=bool)
    )
    admitted = np.array([True, True, True, False, True])
    for control, pools, n, k in (
        ("groups", None, [2, 2, 2, 2, 1, 1], [1, 2, 1, 1, 1, 0]),
        ("pooled", np.array([0, 1, 1]), [2, 3, 2, 2], [1, 2, 1, 1]),
        ("all", None, [4], [2]),
    ):
        counts = group_counts(sample, admitted, 3, control, pools)
        assert counts.n.tolist() == n and counts.k.tolist() == k
    assert isinstance(counts, GroupCounts)


def test_the_floor_is_the_last_element_of_the_path_that_has_a_chance():
    calibration = draw(900, 0, low=0.4)
    terms = {"alpha": ALPHA, "delta": DELTA, "control": "all"}
    path = ThresholdPath.of(calibration, 3, 80, **terms)  # 80 points fill no window
    passes = np.minimum.accumulate([stats.norm.cdf(z).prod() for z in path.sureness])
    last = int(np.flatnonzero(passes >= CHANCE)[-1])
    assert 0 < last < len(passes) - 1  # neither end of the path
    np.testing.assert_array_equal(Floor.of(calibration, 3, 80, **terms).thresholds, path.thresholds[last])


def test_a_window_that_has_a_chance_lowers_the_floor():
    calibration = draw(3000, 0, low=0.85)
    terms = {"alpha": ALPHA, "delta": DELTA}
    windows = windows_to_try(calibration, 3, 2000, **terms)
    floor = Floor.of(calibration, 3, 2000, **terms, control="all").thresholds
    path = ThresholdPath.of(calibration, 3, 2000, **terms, control="all").thresholds
    for c, of_one in windows.items():
        chances = stats.norm.cdf(of_one.z).cumprod()
        lowest = of_one.edges[np.flatnonzero(chances >= CHANCE)[-1]]
        assert floor[c] <= lowest and floor[c] in (lowest, *(one[c] for one in path))
    assert len(windows) == 3


def test_fewer_points_are_asked_for_where_fewer_can_pass():
    calibration = draw(2000, 0)
    for control in CONTROLS:
        shares = [
            Floor.of(calibration, 3, 800, alpha=alpha, delta=DELTA, control=control).reached_by(calibration).mean()
            for alpha in (0.7, 0.8, 0.9)
        ]
        assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]


@pytest.mark.parametrize("control", CONTROLS)
def test_about_as_many_are_drawn_as_bring_the_labels_asked_for(control):
    calibration = draw(2000, 0)
    floor = Floor.planned(calibration, 3, 200, 10**6, alpha=ALPHA, delta=DELTA, control=control)
    asked = floor.n_drawn * floor.reached_by(calibration).mean()
    assert asked == pytest.approx(200, abs=1) and floor.n_drawn > 200
    small = Floor.planned(calibration, 3, 200, 210, alpha=ALPHA, delta=DELTA, control=control)
    assert small.n_drawn == 210  # there are no more


def test_nothing_is_asked_where_nothing_may_be_admitted():
    calibration = draw(400, 0, eligible=0.0)
    floor = Floor.planned(calibration, 3, 50, 300, alpha=ALPHA, delta=DELTA, control="groups")
    assert np.isinf(floor.thresholds).all() and floor.n_drawn == 300 and not floor.reached_by(calibration).any()


def test_the_certificate_says_how_many_points_were_labelled_and_survives_storage():
    calibration, full = draw(2000, 0, low=0.8), draw(900, 1, low=0.8)
    asked = certified(calibration, without_labels(full, full.score < 0.05), "all")
    assert (
        asked.found and f"900 certification points ({900 - asked.n_unlabelled} of them labelled)" in asked.holds_for()
    )
    again = Certificate.from_json(asked.to_json())
    assert again.n_unlabelled == asked.n_unlabelled > 0 and again.to_json() == asked.to_json()
    assert "n_unlabelled" not in certified(calibration, full, "all").to_json()
