"""Reliability: a monotone logistic regression, against scikit-learn's and a slow minimum."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from torchsdm.trust import Reliability
from torchsdm.trust.reliability import evidence_of


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
