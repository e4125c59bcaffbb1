"""Ways to cook the books by accident, with known truth: no more promises are broken than were declared."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from small import quiet
from torchsdm import CertifiedClassifier, SDMClassifier, audit_labels

DELTA = 0.1


def most(n):
    """Broken promises among n that a rate of delta explains, three standard errors included."""
    return DELTA * n + 3 * np.sqrt(DELTA * (1 - DELTA) * n)


def clouds(n, distance, rng, n_dimensions=8):
    """Two Gaussian clouds whose centres are some standard deviations apart."""
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, n_dimensions))
    X[:, 0] += distance * y
    return X, y


def is_broken(classifier, X, y):
    """Whether a class or a prediction is right less often than promised among what is admitted of fresh inputs."""
    if not classifier.certificate_.found or classifier.certificate_.confidence < 1 - DELTA - 1e-9:
        return False  # nothing is promised, or less than a single certificate promises
    decisions = classifier.decide(X)
    right = decisions.predictions == y
    groups = [part[decisions.certified] for c in (0, 1) for part in (y == c, decisions.predictions == c)]
    right = right[decisions.certified]
    return any(right[group].mean() < classifier.certificate_.alpha for group in groups if group.any())


class OneFeature(ClassifierMixin, BaseEstimator):
    """Answers with a single feature, 0 or 1."""

    def __init__(self, feature=0):
        self.feature = feature

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.stack([1 - X[:, self.feature], X[:, self.feature]], axis=1)


def test_whoever_tries_estimators_until_one_passes_pays_for_every_try():
    """Each is right 89 times in 100, whatever it answers, so any certificate at 0.9 is wrong."""
    n_fits, n_passed = 30, 0
    confidences = []
    for seed in range(n_fits):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, 800)
        X = np.where(rng.random((800, 15)) < 0.89, y[:, None], 1 - y[:, None]).astype(float)
        X = np.column_stack([X, rng.normal(size=800)])  # without it some rows would be copies
        for feature in range(15):
            with quiet():
                one = CertifiedClassifier(OneFeature(feature), alpha=0.9, control="all", random_state=seed).fit(X, y)
            assert one.certificate_.looks == feature + 1
            if one.certificate_.found:
                n_passed += 1
                confidences.append(one.certificate_.confidence)
                break
    assert n_passed > 0.5 * n_fits  # the temptation is real
    assert sum(confidence > 0.85 for confidence in confidences) <= most(n_fits)


def test_selecting_features_inside_is_certified_honestly():
    """No feature says anything: what was chosen on all rows looks like knowledge on every part of them."""
    n_broken = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(600, 3000)), rng.integers(0, 2, 600)
        steps = make_pipeline(SelectKBest(k=20), LogisticRegression())
        with quiet():
            n_broken += CertifiedClassifier(steps, alpha=0.8, random_state=seed).fit(X, y).certificate_.found
    assert n_broken == 0


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_come_twice_do_not_certify_each_other(seed):
    """Every row is there twice, with its label, which is wrong in a fifth of the cases."""
    rng = np.random.default_rng(seed)
    X, y = clouds(1000, 4.0, rng)
    y = np.where(rng.random(1000) < 0.2, 1 - y, y)
    with quiet():
        classifier = SDMClassifier(alpha=0.85, random_state=seed).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    X_new, y_new = clouds(4000, 4.0, rng)
    y_new = np.where(rng.random(4000) < 0.2, 1 - y_new, y_new)
    assert not is_broken(classifier, X_new, y_new)


def test_labels_that_the_model_helped_to_choose_certify_nothing():
    """The classes overlap: correcting what the audit lists makes them look as if they did not."""
    n_fits, n_broken = 12, 0
    for seed in range(n_fits):
        rng = np.random.default_rng(seed)
        X, y = clouds(1200, 2.2, rng)
        corrected = y.copy()
        for one in audit_labels(X, y).contradicted:
            corrected[one.row] = one.suggested
        with quiet():
            classifier = SDMClassifier(alpha=0.9, random_state=seed).fit(X, corrected)
        n_broken += is_broken(classifier, *clouds(4000, 2.2, rng))
    assert n_broken <= most(n_fits)
