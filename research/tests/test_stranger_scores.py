"""Scores that tell strangers: each against its formula, on a few points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.covariance import LedoitWolf

from research.experiments.stranger_scores import stranger_scores
from small import small_settings
from torchsdm import LabelledStates, SDMClassifier
from torchsdm.baselines import TunedLogisticModel
from torchsdm.baselines.softmax import softmax as softmax_of_ours

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")


def blobs(n, seed, centre=0.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = 4 * np.eye(3, 5)[y] + rng.standard_normal((n, 5)) + centre
    return LabelledStates(X.astype(np.float32), y)


@pytest.fixture(scope="module")
def fitted():
    pool = blobs(600, 0)
    classifier = SDMClassifier(0.9, control="all", **small_settings()).fit(pool)
    inside, outside = blobs(90, 1), blobs(60, 2, centre=np.array([-3, -3, 1, 2, 2]))
    scores = {(one.of, one.name): one for one in stranger_scores(classifier, pool, inside, outside)}
    return pool, classifier, inside, outside, scores


def measured(inside, outside):
    """AUROC by counting pairs, and the share of strangers above all but the lowest 5 % of the others."""
    pairs = inside[:, None] - outside
    threshold = np.sort(inside)[int(0.05 * len(inside))]
    return np.mean((pairs > 0) + 0.5 * (pairs == 0)), np.mean(outside >= threshold)


def assert_score(found, inside, outside):
    assert (found.auroc, found.fpr_at_95) == pytest.approx(measured(inside, outside))


def test_scores_over_hidden_states_are_their_formulas(fitted):
    pool, classifier, inside, outside, scores = fitted
    rows = classifier.training_rows_
    X, y = np.asarray(pool.hidden_states)[rows].astype(float), pool.labels[rows]
    regression = TunedLogisticModel().fit(X, y)
    means = np.stack([X[y == c].mean(axis=0) for c in range(3)])
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(X - means[y]).covariance_)
    unit = X / np.linalg.norm(X, axis=1)[:, None]

    def of(data):
        h = np.asarray(data.hidden_states).astype(float)
        z = regression.logits(h)
        from_means = h[:, None] - means
        to_others = np.linalg.norm(h[:, None] / np.linalg.norm(h, axis=1)[:, None, None] - unit, axis=2)
        return {
            "largest probability": softmax_of_ours(z).max(axis=1),  # many are 1 but for the last bits
            "energy": logsumexp(z, axis=1),
            "Mahalanobis": -np.sqrt(np.einsum("ncd,de,nce->nc", from_means, precision, from_means)).min(axis=1),
            "k-th neighbour": -np.sort(to_others, axis=1)[:, 9],
        }

    expected = of(inside), of(outside)
    for name in expected[0]:
        found = scores["hidden states", name]
        auroc, fpr = measured(expected[0][name], expected[1][name])
        assert found.auroc == pytest.approx(auroc, abs=2e-3) and found.fpr_at_95 == pytest.approx(fpr, abs=0.04), name


def test_scores_of_the_classifier_are_its_signals(fitted):
    _, classifier, inside, outside, scores = fitted
    a, b = (classifier.decide(data.hidden_states) for data in (inside, outside))
    assert_score(scores["classifier", "q′"], a.rescaled_similarity, b.rescaled_similarity)
    assert_score(scores["classifier", "q′, lower"], a.rescaled_similarity_lower, b.rescaled_similarity_lower)
    assert_score(scores["classifier", "SDM confidence"], a.confidence, b.confidence)
    assert_score(scores["classifier", "SDM confidence, lower"], a.confidence_lower, b.confidence_lower)
    assert_score(scores["classifier", "nearest distance"], -a.nearest_distance, -b.nearest_distance)
    familiar = [np.where(one.lane == "unfamiliar", 0, one.score) for one in (a, b)]
    assert_score(scores["classifier", "reliability"], *familiar)


def test_one_ecdf_ranks_distances_among_all_calibration_points(fitted):
    _, classifier, inside, outside, scores = fitted
    calibration = classifier.model_.calibration
    known = calibration.nearest_distance.numpy()[calibration.similarity.numpy() > 0]

    def confidence(decisions):
        d = np.array([np.mean(known >= distance) for distance in decisions.nearest_distance])
        z = decisions.logits.astype(float) * (d * np.log(2 + decisions.similarity))[:, None]
        return softmax(z, axis=1)[np.arange(len(z)), decisions.logits.argmax(axis=1)]

    expected = [confidence(classifier.decide(data.hidden_states)) for data in (inside, outside)]
    found = scores["classifier", "SDM confidence, one eCDF"]
    assert (found.auroc, found.fpr_at_95) == pytest.approx(measured(*expected), abs=2e-3)


def test_without_a_certificate_there_is_no_reliability(fitted):
    pool, _, inside, outside, _ = fitted
    classifier = SDMClassifier(
        0.9, n_filters=8, n_rounds=1, training="sdm", max_epochs=2, random_state=0, certification_size=None
    )
    scores = stranger_scores(classifier.fit(pool), pool, inside, outside)
    assert "reliability" not in {one.name for one in scores} and len(scores) == 10
