"""scikit-learn's own checks, and life inside its tools."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchsdm import SDMClassifier, SDMEnsemble

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

QUICK = {"n_filters": 16, "training": "sdm", "max_epochs": 5, "learning_rate": 2e-2, "batch_size": 32}


def expected_to_fail(estimator):
    if estimator.training == "linear" or estimator.adaptor == "identity":
        return {}
    return {"check_class_weight_classifiers": "the paper's training keeps the epoch with the smallest balanced loss"}


@parametrize_with_checks(
    [
        SDMClassifier(n_filters=16),
        SDMClassifier(adaptor="identity"),
        SDMClassifier(n_rounds=1, **QUICK),
        SDMClassifier(
            n_rounds=1, adaptor="identity", standardization="per_dimension", **{**QUICK, "learning_rate": 0.3}
        ),
        SDMEnsemble(n_rounds=2, **QUICK),
    ],
    expected_failed_checks=expected_to_fail,
)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(240, n_features=6, centers=3, cluster_std=1.5, random_state=3)
    return X, np.array(["ant", "bee", "cat"])[y]


def test_pipeline_and_cross_validation(blobs):
    X, y = blobs
    pipeline = make_pipeline(StandardScaler(), SDMClassifier(n_rounds=1, random_state=0, **QUICK))
    scores = cross_val_score(pipeline, X, y, cv=3)
    assert scores.min() > 0.9


def test_grid_search_finds_the_better_learning_rate(blobs):
    X, y = blobs
    search = GridSearchCV(
        SDMClassifier(n_rounds=1, n_filters=16, training="sdm", max_epochs=4, batch_size=16, random_state=0),
        {"learning_rate": [1e-6, 1e-2]},
        cv=2,
    )
    assert search.fit(X, y).best_params_ == {"learning_rate": 1e-2}


def test_clone_carries_every_parameter():
    estimator = SDMClassifier(
        alpha=[0.8, 0.9],
        n_filters=3,
        n_rounds=2,
        max_epochs=4,
        batch_size=5,
        learning_rate=0.1,
        random_state=6,
        device="cpu",
        adaptor="identity",
        standardization="per_dimension",
        calibration_size=0.3,
        patience=7,
        min_class_count=8,
        checkpoint="somewhere",
        block_size=9,
        verbose=True,
    )
    assert clone(estimator).get_params() == estimator.get_params()
