"""Scores of other estimators behind a certificate: against plain loops, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from conftest import make_blobs
from small import quiet
from torchsdm import SDMClassifier
from torchsdm.baselines import (
    CertifiedScore,
    CosineNeighborVote,
    NearestNeighborThreshold,
    NoReject,
    TemperatureScaling,
)
from torchsdm.baselines.certified import log_odds, negative_energy
from torchsdm.errors import InvalidInputError, NotFittedError
from torchsdm.trust import ScoredSample
from torchsdm.trust._path import ThresholdPath

ALPHA, DELTA = 0.9, 0.1
NAMES = np.array(["no", "yes", "maybe"])  # sorted: maybe, no, yes
RIGHT = {"alpha": ALPHA, "delta": DELTA}


def three_classes(seed, n):
    blobs = make_blobs(seed=seed, n=n, distance=3.0)
    far = blobs.X[:, 1] > 0.8
    X = blobs.X + np.where(far, 3.0, 0.0)[:, None].astype(np.float32) * np.array([0, 1], dtype=np.float32)
    return X, NAMES[np.where(far, 2, blobs.y)]


TRAIN, CALIBRATION, CERTIFICATION, TEST = (
    three_classes(seed, n) for seed, n in ((1, 400), (2, 600), (3, 600), (4, 80))
)


@pytest.fixture(scope="module")
def models():
    """Estimators of each kind, fitted; each score of each is certified below."""
    with quiet():
        classifier = SDMClassifier(ALPHA, 8, 1, 6, learning_rate=1e-2, random_state=0, certification_size=None)
        classifier.fit(*TRAIN, calibration=CALIBRATION)
        return {
            "softmax": NoReject(ALPHA, classifier).fit(),
            "temperature": TemperatureScaling(ALPHA, classifier).fit(),
            "distance": NearestNeighborThreshold(ALPHA).fit(*TRAIN, CALIBRATION),
            "vote": CosineNeighborVote(ALPHA).fit(*TRAIN, CALIBRATION),
        }


def slow_score(score, decisions, row):
    """One input at a time, as in the docstring."""
    p, z = decisions.probabilities[row].tolist(), decisions.logits[row].tolist()
    y_hat = max(range(len(z)), key=z.__getitem__)
    if score == "odds":
        return math.log(p[y_hat] / sum(value for c, value in enumerate(p) if c != y_hat))
    if score == "energy":
        return math.log(sum(math.exp(value) for value in z))
    return decisions.score[row]


def slow_certificate(calibration, certification, n_classes, control, u):
    """The certified thresholds: the walk over the path as loops over groups and points."""
    path = ThresholdPath.of(calibration, n_classes, len(certification), alpha=ALPHA, delta=DELTA, control=control)
    best = None
    y, y_hat = certification.labels.tolist(), certification.predictions.tolist()
    for thresholds in path:
        admitted = [i for i, score in enumerate(certification.score) if score >= thresholds[y_hat[i]]]
        groups = [[i for i in admitted if one[i] == c] for one in (y, y_hat) for c in range(n_classes)]
        for rows in groups if control == "groups" else [admitted]:
            n_wrong = sum(y[i] != y_hat[i] for i in rows)
            errors = stats.binom(len(rows), 1 - ALPHA)
            p = errors.cdf(n_wrong) - (1 - u) * errors.pmf(n_wrong)  # randomised by the inputs
            if not rows or max(p, ALPHA ** len(rows)) > DELTA:
                return best
        best = thresholds
    return best


SCORED = [
    *(("softmax", "odds"), ("temperature", "odds"), ("softmax", "energy")),
    *(("distance", "odds"), ("distance", "own"), ("vote", "own")),
]


@pytest.mark.parametrize("control", ["groups", "all"])
@pytest.mark.parametrize(("name", "score"), SCORED)
def test_the_rule_is_that_of_plain_loops(models, name, score, control):
    estimator, classes = models[name], np.sort(NAMES)
    parts, samples = [], []
    for X, y in (CALIBRATION, CERTIFICATION):
        decisions = estimator.decide(X)
        scores = np.array([slow_score(score, decisions, row) for row in range(len(X))])
        numbers = np.array([classes.tolist().index(label) for label in y])
        predicted = np.array([classes.tolist().index(label) for label in decisions.predictions])
        samples.append(ScoredSample(numbers, predicted, scores, np.ones(len(X), dtype=bool)))
        parts.append((decisions, y))
    certified = CertifiedScore(estimator, score, control=control, **RIGHT).fit(*parts)
    expected = slow_certificate(*samples, 3, control, certified.certificate_.u)
    assert certified.certificate_.found == (expected is not None)
    thresholds = np.full(3, np.inf) if expected is None else expected
    np.testing.assert_allclose(certified.certificate_.thresholds, thresholds, rtol=1e-9)
    assert (certified.certificate_.control, certified.certificate_.n_certification) == (control, 600)
    decisions, own = certified.decide(TEST[0]), estimator.decide(TEST[0])
    for row, label in enumerate(own.predictions):
        value, limit = slow_score(score, own, row), thresholds[classes.tolist().index(label)]
        assert abs(value - limit) > 1e-9 or value == limit  # rounding decides nothing
        assert decisions.admitted[row] == (value >= limit)
        assert decisions.score[row] == pytest.approx(value, rel=1e-9)
    np.testing.assert_array_equal(decisions.predictions, own.predictions)
    np.testing.assert_array_equal(decisions.probabilities, own.probabilities)


def test_something_is_certified(models):
    """The loops above are not equal because nothing ever is."""
    found = []
    for name, score in SCORED:
        parts = [(models[name].decide(X), y) for X, y in (CALIBRATION, CERTIFICATION)]
        found.append(CertifiedScore(models[name], score, control="all", **RIGHT).fit(*parts).certificate_.found)
    assert sum(found) >= 4


def test_odds_order_what_the_softmax_rounds_to_one():
    logits = np.array([[0.0, 40.0, 1.0], [60.0, 0.0, 1.0], [1.0, 2.0, 0.0], [0.0, 0.0, 800.0], [0.0, 0.0, 900.0]])
    decisions = NoReject(ALPHA).fit(logits[[0, 1, 3, 0, 1, 3]], [1, 0, 2, 1, 0, 2]).decide_logits(logits)
    assert decisions.confidence[0] == decisions.confidence[1] == 1
    odds = log_odds(decisions.probabilities, logits.argmax(axis=1))
    expected = [
        [40 - math.log(math.exp(0) + math.exp(1)), 60 - math.log(math.exp(0) + math.exp(1))],
        [2 - math.log(math.exp(1) + math.exp(0))],
    ]
    np.testing.assert_allclose(odds[:3], [*expected[0], *expected[1]], rtol=1e-12)
    assert odds[1] < odds[3] == odds[4] < np.inf  # beyond the smallest float64 they are alike
    np.testing.assert_allclose(negative_energy(logits)[2:], [math.log(math.e + math.e**2 + 1), 800, 900], rtol=1e-15)


def test_with_two_classes_a_temperature_changes_no_order_and_with_three_it_does():
    rng = np.random.default_rng(0)
    for n_classes, is_same in ((2, True), (3, False)):
        logits, labels = rng.normal(size=(300, n_classes)), np.arange(300) % n_classes
        orders = [
            log_odds(rule.fit(logits, labels).decide_logits(3 * logits).probabilities, logits.argmax(axis=1)).argsort()
            for rule in (NoReject(ALPHA), scaled(0.4))
        ]
        assert np.array_equal(*orders) == is_same


def scaled(temperature):
    rule = TemperatureScaling(ALPHA)
    rule._calibrate = lambda logits, labels: setattr(rule, "temperature_", temperature)
    return rule


def test_what_cannot_be_certified_is_refused(models):
    parts = [(models["softmax"].decide(X), y) for X, y in (CALIBRATION, CERTIFICATION)]
    with pytest.raises(NotFittedError, match="call fit before decide"):
        CertifiedScore(models["softmax"]).decide(TEST[0])
    with pytest.raises(InvalidInputError, match="NoReject has no score of its own"):
        CertifiedScore(models["softmax"], "own", **RIGHT).fit(*parts)
    with pytest.raises(InvalidInputError, match="'score' of CertifiedScore must be one of"):
        CertifiedScore(models["softmax"], "margin", **RIGHT).fit(*parts)
    with pytest.raises(InvalidInputError, match="only labels seen in fit"):
        CertifiedScore(models["softmax"], **RIGHT).fit(parts[0], (parts[1][0], ["never"] * 600))
    with pytest.raises(InvalidInputError, match="600"):
        CertifiedScore(models["softmax"], **RIGHT).fit(parts[0], (parts[1][0], parts[1][1][:-1]))
    with pytest.raises(InvalidInputError, match="must be below 1"):
        CertifiedScore(models["softmax"], alpha=1.0).fit(*parts)
