"""The share admitted at an accuracy that holds, as a score for searches."""

from __future__ import annotations

import pickle
from math import comb

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conftest import make_blobs
from torchsdm import CertifiedClassifier, Decisions, SDMClassifier
from torchsdm.baselines import SoftmaxThreshold
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.evaluation import AdmittedShareScorer

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")


class Rule(ClassifierMixin, BaseEstimator):
    """Predicts the sign of the first column, and admits what lies at least ``margin`` away from 0."""

    def __init__(self, margin=0.0):
        self.margin = margin

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decide(self, X):
        z = np.stack([-X[:, 0], X[:, 0]], axis=1)
        admitted = np.abs(X[:, 0]) >= self.margin
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        return Decisions.of_probabilities(np.array([0, 1]), [0.9], z, p, admitted[:, None])


def fold(n, n_admitted, n_wrong):
    """Inputs of class 1: the first ones admitted, some of those taken for class 0."""
    X = np.full((n, 1), 0.1)
    X[:n_admitted] = 1.0
    X[:n_wrong] = -1.0
    return X, np.ones(n, dtype=int)


def score(n, n_admitted, n_wrong, **settings):
    X, y = fold(n, n_admitted, n_wrong)
    return AdmittedShareScorer(**settings)(Rule(margin=0.5), X, y)


def tail(n, p, k):
    """P(Binomial(n, p) >= k), term by term."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def test_the_share_counts_where_accuracy_holds():
    assert score(200, 100, 5) == 0.5
    assert score(200, 100, 0) == 0.5
    assert score(200, 0, 0) == 0.0


def test_an_allowance_for_chance_and_no_more():
    first = next(k for k in range(101) if tail(100, 0.1, k) < 0.05)
    assert first == 16  # 15 errors of 100 happen to a rule that is right 0.9 of the time
    assert score(200, 100, 15) == 0.5
    assert score(200, 100, 16) == pytest.approx(84 / 100 - 0.9)
    assert score(200, 100, 15, level=0.2) == pytest.approx(85 / 100 - 0.9)
    assert score(200, 100, 15, alpha=0.95) == pytest.approx(85 / 100 - 0.95)


def test_whoever_holds_comes_before_whoever_does_not():
    assert score(200, 1, 0) > score(200, 0, 0) > score(200, 100, 16) > score(200, 100, 40) > score(200, 200, 200)


def test_at_alpha_1_one_error_is_too_many():
    assert score(200, 100, 0, alpha=1.0) == 0.5
    assert score(200, 100, 1, alpha=1.0) == pytest.approx(-0.01)


def test_a_label_that_training_did_not_have_is_an_error():
    X, y = fold(20, 10, 0)
    assert AdmittedShareScorer()(Rule(margin=0.5), X, y) == 0.5
    assert AdmittedShareScorer()(Rule(margin=0.5), X, np.full(20, 7)) == -0.9


def test_settings_are_checked():
    with pytest.raises(InvalidInputError, match=r"'alpha' of AdmittedShareScorer must be in \(0.5, 1\]"):
        AdmittedShareScorer(0.05)
    with pytest.raises(InvalidInputError, match="'level' of AdmittedShareScorer"):
        AdmittedShareScorer(0.9, level=0)
    with pytest.raises(InvalidTypeError, match="Got LogisticRegression"):
        AdmittedShareScorer()(LogisticRegression().fit(*fold(8, 4, 4)[:1], [0, 1] * 4), *fold(8, 4, 4))


def test_it_travels_to_other_processes():
    scorer = AdmittedShareScorer(0.8, level=0.1)
    assert pickle.loads(pickle.dumps(scorer)) == scorer


def test_a_search_finds_the_least_margin_that_holds():
    """With means at -1.5 and 1.5, a margin m is right Phi(1.5 - m) / (Phi(1.5 - m) + Phi(-1.5 - m)) of the time.

    That is 0.933 for m = 0 and 0.974 for m = 0.5; larger ones admit less.
    """
    blobs = make_blobs(seed=1, n=4000, distance=3.0)
    margins = [0.0, 0.5, 1.0, 1.5, 9.0]
    search = GridSearchCV(Rule(), {"margin": margins}, scoring=AdmittedShareScorer(0.96), cv=4)
    search.fit(blobs.X, blobs.y)
    assert search.best_params_ == {"margin": 0.5}
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < 0 and scores[1] > scores[2] > scores[3] > scores[4] == 0


def test_a_search_over_a_pipeline_finds_the_better_setting():
    blobs = make_blobs(seed=2, n=1200, distance=4.0, n_inputs=4)
    quick = SDMClassifier(0.9, n_filters=8, n_rounds=1, training="sdm", max_epochs=8, control="all", random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), quick),
        {"sdmclassifier__learning_rate": [1e-7, 1e-2]},
        scoring=AdmittedShareScorer(0.9),
        cv=2,
    )
    search.fit(blobs.X, blobs.y)
    assert search.best_params_ == {"sdmclassifier__learning_rate": 1e-2}
    assert search.best_score_ > 0.5


@pytest.mark.parametrize(
    "estimator",
    [
        CertifiedClassifier(LogisticRegression(), alpha=0.9, random_state=0),
        SoftmaxThreshold(0.9, SDMClassifier(0.9, n_filters=8, n_rounds=1, learning_rate=1e-2, random_state=0)),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_other_classifiers_that_decide(estimator):
    blobs, fresh = make_blobs(seed=3, n=1200, distance=4.0), make_blobs(seed=4, n=300, distance=4.0)
    share = estimator.fit(blobs.X, blobs.y).decide(fresh.X).admitted.mean()
    assert AdmittedShareScorer(0.9)(estimator, fresh.X, fresh.y) == share > 0.1
    assert cross_val_score(estimator, blobs.X, blobs.y, scoring=AdmittedShareScorer(0.9), cv=2).min() > 0.1
