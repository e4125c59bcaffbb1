"""Lanes and reasons: every rule on rows made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from torchsdm.core import ClassEcdfs, Familiarity, HighReliabilityRegion, decide
from torchsdm.matching import Match
from torchsdm.trust import Certificate, DriftGuard, LaneRule, Reliability, demoted
from torchsdm.trust._windows import WindowCheck
from torchsdm.trust.lanes import evidence_of, familiarity_of, is_familiar


def points(n, seed, weights=(0.7, 1.0, 0.5), intercept=-1.5):
    rng = np.random.default_rng(seed)
    evidence = np.log1p(np.stack([rng.integers(0, 200, n), rng.exponential(2, n), rng.exponential(3, n)], axis=1))
    return evidence, rng.random(n) < expit(intercept + evidence @ weights)


def test_evidence_is_the_log_of_neighbours_margin_and_sharpened_margin_and_the_odds():
    logits = np.array([[1.0, 4.5, 2.0], [0.0, 0.0, -7.0]])
    evidence = evidence_of(logits, np.array([6, 0]), np.array([0.5, 1.0]))
    odds = 4.5 - np.log(np.exp(1.0) + np.exp(2.0)), -np.log(1 + np.exp(-7.0))
    expected = [[np.log(1 + 6), np.log(1 + 2.5), np.log(1 + 0.5 * np.log(8) * 2.5), odds[0]], [0.0, 0.0, 0.0, odds[1]]]
    np.testing.assert_allclose(evidence, expected, rtol=1e-14)


def test_an_earlier_model_has_three_weights():
    evidence = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert Reliability(np.array([1.0, 1.0, 1.0]), -6.0).of(evidence) == 0.5
    assert Reliability(np.array([1.0, 1.0, 1.0, 1.0]), -10.0).of(evidence) == 0.5


def test_without_bounds_in_the_way_it_is_logistic_regression():
    """scikit-learn has no fractional targets: each point is there twice, right and wrong, with weights t and 1 - t."""
    evidence, right = points(4000, 0)
    target = np.where(right, (right.sum() + 1) / (right.sum() + 2), 1 / ((~right).sum() + 2))
    x = evidence / evidence.std(axis=0)
    known = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(
        np.concatenate([x, x]), np.repeat([1, 0], len(x)), np.concatenate([target, 1 - target])
    )
    fitted = Reliability.fit(evidence, right)
    np.testing.assert_allclose(fitted.weights * evidence.std(axis=0), known.coef_[0], rtol=1e-3)
    np.testing.assert_allclose(fitted.of(evidence), known.predict_proba(x)[:, 1], atol=1e-4)


def test_no_weight_is_negative():
    evidence, right = points(2000, 1, weights=(-1.0, 2.0, 0.5), intercept=1.0)  # more neighbours, less often right
    fitted = Reliability.fit(evidence, right)
    assert fitted.weights[0] == 0 and fitted.weights[1] > 0
    more = evidence + np.array([[0.7, 0.3, 0.1]])
    assert (fitted.of(more) >= fitted.of(evidence)).all()


@pytest.mark.parametrize("right", [True, False])
def test_points_that_are_all_alike_give_a_finite_score(right):
    evidence, _ = points(50, 2)
    score = Reliability.fit(evidence, np.full(50, right)).of(evidence)
    assert np.isfinite(score).all() and (score > 0).all() and (score < 1).all()
    assert (score.mean() > 0.9) == right


def test_no_points_give_a_score():
    fitted = Reliability.fit(np.empty((0, 3)), np.empty(0, dtype=bool))
    assert fitted.of(np.zeros((1, 3))).tolist() == [0.5]


def test_json_restores_it_to_the_bit():
    evidence, right = points(300, 3)
    fitted = Reliability.fit(evidence, right)
    restored = Reliability.from_json(json.loads(json.dumps(fitted.to_json())))
    assert (restored.of(evidence) == fitted.of(evidence)).all()


def test_a_row_does_not_depend_on_its_batch():
    rng = np.random.default_rng(4)
    logits, q, d = rng.standard_normal((257, 5)).astype(np.float32), rng.integers(0, 1000, 257), rng.random(257)
    fitted = Reliability(np.array([0.3, 1.7, 0.2]), -0.4)
    whole = fitted.of(evidence_of(logits, q, d))
    rows = (slice(i, i + 1) for i in range(257))
    single = np.concatenate([fitted.of(evidence_of(logits[row], q[row], d[row])) for row in rows])
    assert (whole == single).all()


CLASSES = np.array(["ant", "bee"])
RELIABILITY = Reliability(np.array([0.5, 1.0, 0.0]), 0.0)


def region(q_min=10.0, thresholds=(0.9, 0.9), alpha=0.9):
    return HighReliabilityRegion(alpha, q_min, torch.tensor(thresholds, dtype=torch.float64), torch.tensor([50, 50]))


def certificate(thresholds=(0.8, 0.8)):
    found = bool(np.isfinite(thresholds).any())
    return Certificate(0.9, 0.1, "groups", np.array(thresholds), found, (), 100, 60)


def windows(*lowers, thresholds=(0.8, 0.8)):
    """A certificate with windows of 'ant' from these scores on, the surest first."""
    edges = [None, *lowers]
    held = tuple(WindowCheck("prediction", 0, 100, 1, 0.01, 0.95, *ends) for ends in zip(lowers, edges, strict=False))
    return replace(certificate(thresholds), windows=held)


def decisions(q, d, margin=3.0, regions=None):
    """One row per q and d; the prediction is 'ant' where the margin is positive."""
    q, d, margin = np.broadcast_arrays(q, d, margin)
    logits = torch.tensor(np.stack([margin / 2, -margin / 2], axis=1), dtype=torch.float32)
    match = Match(
        torch.tensor(q, dtype=torch.int64),
        torch.tensor(1 - d, dtype=torch.float64),
        torch.zeros(len(q), dtype=torch.int64),
    )
    distances = torch.arange(1000, dtype=torch.float64) / 1000  # of both classes, so that d is the d asked for
    ecdfs, calibration = ClassEcdfs((distances, distances)), (torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    return decide(logits, match, ecdfs, *calibration, regions or [region()], CLASSES)


@pytest.mark.parametrize(
    ("familiarity", "bound", "expected"),
    [(0.05, 0.05, True), (0.049, 0.05, False), (0.0, 0.0, False), (1e-9, 0.0, True)],
)
def test_what_is_below_the_bound_or_like_the_background_is_unfamiliar(familiarity, bound, expected):
    assert is_familiar(np.array([familiarity]), bound).tolist() == [expected]


def test_without_a_measure_familiar_needs_a_neighbour_and_a_small_distance():
    rows = decisions([1, 1, 0, 1], [0.5, 0.1, 1.0, 0.0])
    assert familiarity_of(rows, None).tolist() == [0.5, 0.1, 0.0, 0.0]
    background = replace(rows, background=np.array([True, False, False, False]))
    assert familiarity_of(background, None).tolist() == [0.0, 0.1, 0.0, 0.0]


def test_with_a_measure_the_score_decides_on_what_a_neighbour_contradicts():
    """Near and contradicted is a matter of review; far is unfamiliar, whoever vouches."""
    rng = np.random.default_rng(0)
    logits = np.stack([np.abs(rng.normal(size=400)), np.zeros(400)], axis=1)
    measure = Familiarity.fit(rng.uniform(0, 1, 400), logits)
    rule = LaneRule(certificate(), RELIABILITY, familiarity=0.05, region=region(), measure=measure)
    rows = rule.apply(decisions([0, 0, 50, 50], [0.9, 0.9, 0.9, -4.0], [0.1, 5.0, 5.0, 5.0]))
    assert rows.lane.tolist() == ["review", "certified", "trusted", "unfamiliar"]
    assert rows.familiarity[3] == 0 and (rows.familiarity[:3] >= 0.05).all()
    assert all(reason.startswith("the nearest training example contradicts it; ") for reason in rows.reason[:2])
    assert rows.reason[3] == "too far: all calibration points of 'ant' are nearer to the training data"
    like_background = replace(decisions([50], [0.9], [5.0]), background=np.array([True]))
    assert rule.apply(like_background).lane.tolist() == ["unfamiliar"]


def test_each_lane_is_reached_and_admitted_by_policy():
    rule = LaneRule(certificate(), RELIABILITY, familiarity=0.05, region=region())
    # many neighbours; few, but a large margin; few and a small margin; none; too far
    rows = decisions([50, 3, 1, 0, 50], [0.9, 0.9, 0.9, 0.9, 0.01], [5.0, 5.0, 0.1, 5.0, 5.0])
    judged = rule.apply(rows)
    assert judged.lane.tolist() == ["trusted", "certified", "review", "unfamiliar", "unfamiliar"]
    assert judged.certified.tolist() == [True, True, False, False, False]
    assert judged.admitted.tolist() == [True, True, False, False, False]
    assert judged.admitted_at[:, 0].tolist() == rows.admitted_at[:, 0].tolist()  # the paper's region stays as it is
    assert set(judged.certificate.tolist()) == {certificate().identity}
    cautious = replace(rule, policy="trusted").apply(rows)
    assert cautious.lane.tolist() == judged.lane.tolist()
    assert cautious.admitted.tolist() == [True, False, False, False, False]


def test_the_region_alone_is_trusted_only_without_a_certificate():
    rows = decisions([50], [0.9], [5.0])
    assert rows.admitted.tolist() == [True]
    strict = LaneRule(certificate((0.9999, 0.9999)), RELIABILITY, region=region()).apply(rows)
    assert (strict.lane.tolist(), strict.admitted.tolist()) == (["review"], [False])
    nothing = LaneRule(certificate((np.inf, np.inf)), RELIABILITY, region=region()).apply(rows)
    assert (nothing.lane.tolist(), nothing.admitted.tolist()) == (["trusted"], [True])
    assert nothing.certificate.tolist() == [None] and nothing.score is not None
    papers = LaneRule(region=region()).apply(rows)
    assert (papers.lane.tolist(), papers.certified.tolist(), papers.score) == (["trusted"], [False], None)


def test_windows_decide_what_is_trusted_and_the_region_no_longer():
    rows = decisions([50, 50, 3, 1, 50], [0.9, 0.9, 0.9, 0.9, 0.9], [5.0, 2.0, 5.0, 0.1, -5.0])
    in_region = LaneRule(certificate(), RELIABILITY, region=region()).apply(rows)
    assert in_region.lane.tolist() == ["trusted", "trusted", "certified", "review", "trusted"]
    judged = LaneRule(windows(0.97, 0.94), RELIABILITY, region=region()).apply(rows)
    assert judged.score.round(3).tolist() == [0.977, 0.955, 0.923, 0.609, 0.977]
    assert judged.lane.tolist() == ["trusted", "trusted", "certified", "review", "certified"]
    assert judged.certified.tolist() == in_region.certified.tolist()
    assert judged.reason[1] == (
        "50 neighbours vouch for it; reliability 0.9554 reaches 0.9400, down to which 'ant' is certified at every "
        "level of evidence"
    )
    assert judged.reason[4].endswith("reaches 0.8000, the certified threshold of 'bee'")
    strict = LaneRule(windows(0.97, 0.94, thresholds=(0.96, np.inf)), RELIABILITY, region=region()).apply(rows)
    assert strict.lane.tolist() == ["trusted", "review", "review", "review", "review"]  # whole windows only


def test_windows_stand_alone_where_nothing_is_certified_on_average():
    rows = decisions([50, 3, 50], [0.9, 0.9, 0.01], [5.0, 5.0, 5.0])
    rule = LaneRule(windows(0.97, 0.94, thresholds=(np.inf, np.inf)), RELIABILITY, familiarity=0.05, region=region())
    judged = rule.apply(rows)
    assert judged.lane.tolist() == ["trusted", "review", "unfamiliar"]
    assert judged.admitted.tolist() == [True, False, False] and not judged.certified.any()
    assert judged.certificate.tolist() == [rule.certificate.identity] * 3
    assert "is below 0.9400, down to which 'ant' is certified at every level" in judged.reason[1]


@pytest.mark.parametrize(
    ("rule", "rows", "words"),
    [
        (LaneRule(certificate(), RELIABILITY), ([0], [0.5]), "no neighbour vouches"),
        (LaneRule(certificate(), RELIABILITY, 0.05), ([3], [0.0]), "too far: all calibration points of 'ant'"),
        (
            LaneRule(certificate(), RELIABILITY, 0.05),
            ([3], [0.021]),
            "too far: 97.9% of the calibration points",
        ),
        (
            LaneRule(certificate(), RELIABILITY),
            ([3], [0.5]),
            "3 neighbours vouch for it; reliability 0.8889 reaches 0.8",
        ),
        (
            LaneRule(certificate((0.95, 0.1)), RELIABILITY),
            ([1], [0.5]),
            "the nearest example agrees, the next does not; reliability 0.8498 is below 0.9500, the certified "
            "threshold of 'ant'",
        ),
        (LaneRule(certificate((np.inf, 0.1)), RELIABILITY), ([9], [0.5]), "predictions of 'ant' are not certified"),
        (LaneRule(region=region()), ([50], [0.9]), "50 neighbours vouch for it; the paper's region admits it: q' 50"),
        (LaneRule(region=region()), ([3], [0.9]), "the 3 nearest examples agree, the next does not; q' 3 is below 10"),
        (LaneRule(region=region(2.0)), ([3], [0.05]), "confidence 0.5601 is below 0.9000, the threshold of 'ant'"),
        (LaneRule(region=region(np.inf)), ([3], [0.9]), "there is neither a certificate nor a region at alpha 0.9"),
        (LaneRule(), ([3], [0.9]), "not all rounds agree and admit it"),
    ],
)
def test_reasons_are_worded_from_the_numbers(rule, rows, words):
    found = rule.region or region()
    assert words in rule.apply(decisions(*rows, regions=[found])).reason[0]


def test_certified_rows_are_demoted_where_a_guard_is_not_calm():
    rule = LaneRule(certificate(), RELIABILITY, familiarity=0.05, region=region())
    judged = rule.apply(decisions([50, 3, 50, 3, 1], [0.9] * 5, [5.0, 5.0, 5.0, 5.0, 0.1]))
    after = demoted(judged, np.array([True, True, False, False, False]))
    assert after.lane.tolist() == ["trusted", "certified", "trusted", "review", "review"]
    assert after.admitted.tolist() == [True, True, True, False, False]
    assert after.certified.tolist() == [True, True, False, False, False]
    assert "drift guard is raised" in after.reason[3] and after.reason[4] == judged.reason[4]


def test_lanes_survive_selection_and_concatenation():
    rule = LaneRule(certificate(), RELIABILITY, region=region())
    judged = rule.apply(decisions([50, 3, 0], [0.9, 0.9, 0.9]))
    joined = judged.concatenate([judged[:1], judged[1:]])
    assert joined.to_dicts() == judged.to_dicts()
    assert list(judged.to_pandas()["lane"]) == judged.lane.tolist()


def test_at_one_of_several_alphas_lanes_are_left_out():
    several = [region(alpha=0.9), region(q_min=1.0, alpha=0.8)]
    judged = LaneRule(certificate(), RELIABILITY, region=several[0]).apply(decisions([3], [0.9], 5.0, several))
    at = judged.at(0.8)
    assert at.lane is None and at.certified is None and "lane" not in at.to_dicts()[0]
    assert at.admitted.tolist() == [True]


def test_the_input_that_raises_the_guard_is_the_first_to_be_demoted():
    rule = LaneRule(certificate(), RELIABILITY, familiarity=0.05, region=region())
    judged = rule.apply(decisions(np.full(60, 3), np.full(60, 0.9), 5.0))  # all certified, at distance 0.1
    assert set(judged.lane.tolist()) == {"certified"}
    nearer = np.linspace(0.0, 0.05, 200)
    guard = DriftGuard(nearer, np.full(200, judged.confidence[0]), np.ones(200))
    watched = guard.watch(judged)
    assert 1 < guard.raised_at < 60
    first = guard.raised_at - 1
    assert watched.lane.tolist() == ["certified"] * first + ["review"] * (60 - first)
