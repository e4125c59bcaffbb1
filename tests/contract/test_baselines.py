"""Every estimator to compare with keeps one contract: the same ``fit``, ``decide`` and ``Decisions``."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from conftest import make_blobs
from small import quiet
from torchsdm import Decisions, SDMClassifier
from torchsdm.baselines import (
    APS,
    RAPS,
    CosineNeighborVote,
    CrossEntropyClassifier,
    MahalanobisThreshold,
    NearestNeighborThreshold,
    NoReject,
    RiskControlledAbstention,
    SDMRule,
    SoftmaxThreshold,
    TemperatureScaling,
    VBLLClassifier,
)
from torchsdm.errors import InvalidInputError, NotFittedError

TRAINING = {"n_rounds": 1, "max_epochs": 5, "learning_rate": 1e-2, "random_state": 0}
NAMES = np.array(["yes", "no", "none"])  # not in the order of the numbers
ALPHAS = [0.8, 0.9]


def cnn():
    return CrossEntropyClassifier(n_filters=8, **TRAINING)


ESTIMATORS = {
    "no reject": lambda: NoReject(ALPHAS, cnn()),
    "softmax": lambda: SoftmaxThreshold(ALPHAS, cnn()),
    "temperature": lambda: TemperatureScaling(ALPHAS, cnn()),
    "APS": lambda: APS(ALPHAS, cnn(), random_state=0),
    "RAPS, reference": lambda: RAPS(ALPHAS, cnn(), reference=True, random_state=0),
    "VBLL": lambda: VBLLClassifier("discriminative", ALPHAS, n_hidden=8, **TRAINING),
    "generative VBLL": lambda: VBLLClassifier("generative", ALPHAS, n_hidden=8, **TRAINING),
    "Mahalanobis": lambda: MahalanobisThreshold(ALPHAS, random_state=0),
    "k-th neighbour": lambda: NearestNeighborThreshold(ALPHAS, random_state=0),
    "vote": lambda: CosineNeighborVote(ALPHAS, random_state=0),
    "risk control": lambda: RiskControlledAbstention(ALPHAS, cnn()),
    "SDM": lambda: SDMRule(SDMClassifier(ALPHAS, n_filters=8, **TRAINING), "sdm"),
}


def three_classes(seed, n=600):
    blobs = make_blobs(seed=seed, n=n, distance=4.0)
    far = blobs.X[:, 1] > 1
    return blobs.X + np.where(far, 4.0, 0.0)[:, None].astype(np.float32) * [0, 1], NAMES[np.where(far, 2, blobs.y)]


@pytest.fixture(scope="module", params=ESTIMATORS)
def fitted(request):
    X, y = three_classes(1)
    with quiet():
        return ESTIMATORS[request.param]().fit(X, y)


def test_decisions_have_the_common_fields(fitted):
    X, y = three_classes(2, 200)
    decisions = fitted.decide(X)
    assert isinstance(decisions, Decisions) and len(decisions) == 200
    assert decisions.classes.tolist() == fitted.classes_.tolist() == ["no", "none", "yes"]
    assert decisions.alphas.tolist() == ALPHAS and decisions.admitted_at.shape == (200, 2)
    np.testing.assert_array_equal(decisions.admitted, decisions.admitted_at.any(axis=1))
    np.testing.assert_array_equal(decisions.predictions, decisions.classes[decisions.logits.argmax(axis=1)])
    np.testing.assert_allclose(decisions.probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.predict(X), decisions.predictions)
    assert (decisions.predictions == y).mean() > 0.7
    assert decisions.to_dicts()[0]["prediction"] in NAMES and decisions.to_pandas().shape[0] == 200


def test_an_answer_does_not_depend_on_its_batch(fitted):
    X, _ = three_classes(3, 60)
    together = fitted.decide(X)
    for row in (0, 17, 59):
        alone = fitted.decide(X[row : row + 1])
        np.testing.assert_array_equal(alone.admitted_at[0], together.admitted_at[row])
        np.testing.assert_array_equal(alone.probabilities[0], together.probabilities[row])


def test_it_can_be_cloned_pickled_and_fitted_again_alike(fitted):
    X, y = three_classes(1)
    queries, _ = three_classes(4, 50)
    with quiet():
        again = clone(fitted).fit(X, y)
    expected = fitted.decide(queries).admitted_at
    np.testing.assert_array_equal(again.decide(queries).admitted_at, expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).decide(queries).admitted_at, expected)


def test_parameters_are_left_as_they_were_given(fitted):
    model = fitted.get_params(deep=False).get("model")
    assert model is None or not hasattr(model, "classes_")  # a copy of it was fitted


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_not_fitted_or_not_finite_is_refused(name):
    with pytest.raises(NotFittedError, match="not fitted"):
        ESTIMATORS[name]().decide(np.zeros((1, 2)))
    X, y = three_classes(1, 60)
    X[3, 1] = np.nan
    with pytest.raises(InvalidInputError, match="NaN"):
        ESTIMATORS[name]().fit(X, y)
