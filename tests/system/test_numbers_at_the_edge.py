"""Whole classifiers at the edge of what numbers can be: each decision against slow loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from torchsdm import SDMClassifier, sdm_activation
from torchsdm.errors import InvalidInputError
from torchsdm.matching import SupportSet

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

QUICK = {"n_filters": 6, "n_rounds": 1, "training": "sdm", "max_epochs": 4, "learning_rate": 1e-2, "random_state": 0}


def drawn(n=120, n_classes=2, scale=1.0, offset=0.0, seed=0, n_inputs=5):
    """States of classes that overlap a little."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    centres = 2.5 * rng.normal(size=(n_classes, n_inputs))
    return ((rng.normal(size=(n, n_inputs)) + centres[labels]) * scale + offset).astype(np.float32), labels


def assert_as_by_loops(classifier, X):
    """Similarity, distance, quantile and probabilities of every input, from the adaptor's output on."""
    decisions, model = classifier.decide(X), classifier.model_
    exemplars, logits = (part.numpy() for part in model.adaptor.encode_exactly(torch.from_numpy(X)))
    support = classifier.support_
    found = reference.match(
        exemplars, logits.argmax(axis=1), support.exemplars.numpy(), support.labels.numpy(), support.predictions.numpy()
    )
    assert decisions.similarity.tolist() == found.similarity
    np.testing.assert_allclose(decisions.nearest_distance, found.nearest_distance, rtol=1e-15)
    for row in range(len(X)):
        d = decisions.distance_quantile[row]
        expected = reference.sdm_activation(logits[row], found.similarity[row], d)
        np.testing.assert_allclose(decisions.probabilities[row], expected, rtol=1e-12, atol=1e-300)
        rescaled = reference.rescaled_similarity(found.similarity[row], decisions.confidence[row])
        np.testing.assert_allclose(decisions.rescaled_similarity[row], rescaled, rtol=1e-12)
    for values in (decisions.probabilities, decisions.confidence, decisions.distance_quantile):
        assert np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()
    return decisions


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("standardization", ["scalar", "per_dimension"])
def test_the_size_of_states_is_no_matter(scale, standardization):
    X, y = drawn(scale=scale)
    classifier = SDMClassifier(0.8, standardization=standardization, **{**QUICK, "max_epochs": 30}).fit(X, y)
    decisions = assert_as_by_loops(classifier, X[:40])
    assert (decisions.predictions == y[:40]).mean() > 0.8


@pytest.mark.parametrize("offset", [1e4, 1e7])
def test_states_far_from_the_origin(offset):
    X, y = drawn(offset=offset)
    assert_as_by_loops(SDMClassifier(0.8, **QUICK).fit(X, y), X[:40])


def test_an_input_as_large_as_float32_allows():
    X, y = drawn()
    classifier = SDMClassifier(0.8, **QUICK).fit(X, y)
    huge = np.full((3, 5), np.finfo(np.float32).max, dtype=np.float32) * np.float32([[1], [-1], [0.5]])
    decisions = classifier.decide(huge)
    assert not decisions.admitted.any() and not decisions.similarity.any() and not decisions.distance_quantile.any()
    assert np.allclose(decisions.probabilities, 0.5) and not np.isnan(decisions.nearest_distance).any()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_what_it_is_in_float32(kind):
    X, y = drawn()
    halved = torch.from_numpy(X).to(kind)
    classifier = SDMClassifier(0.8, **QUICK).fit(halved, y)
    twin = SDMClassifier(0.8, **QUICK).fit(halved.float().numpy(), y)
    assert classifier.decide(halved).to_dicts() == twin.decide(halved.float().numpy()).to_dicts()
    assert_as_by_loops(classifier, halved.float().numpy()[:20])


def test_states_that_differ_in_their_last_bit():
    """Clusters whose points are a rounding apart: the order decides, and it is that of exact arithmetic."""
    rng = np.random.default_rng(3)
    centres, labels = rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 2
    X, y = np.repeat(centres, 10, axis=0), np.repeat(labels, 10)
    steps = rng.integers(-2, 3, size=X.shape)
    X = (X.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    classifier = SDMClassifier(0.8, certification_size=None, **QUICK).fit(X, y)
    assert_as_by_loops(classifier, X[:60])


def test_a_similarity_of_millions():
    """2,100,000 points that vouch, then one that does not: the count is exact and the activation keeps its digits."""
    n = 2_100_000
    exemplars = np.zeros((n + 1, 1), dtype=np.float32)
    exemplars[:n, 0] = np.arange(n, dtype=np.float32) / np.float32(2**22)
    exemplars[n] = 1.0
    labels = np.zeros(n + 1, dtype=np.int64)
    labels[n] = 1
    support = SupportSet(exemplars, labels, np.zeros(n + 1, dtype=np.int64))
    found = support.match(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64))
    assert found.similarity.tolist() == [n]

    logits = np.array([[2.5, 0.25, -1.0], [0.01, 0.0, -0.01]])
    similarity, quantile = np.array([n, 5_000_000.0]), np.array([0.7, 1.0])
    got = sdm_activation(*map(torch.from_numpy, (logits, similarity, quantile)))
    for row, (q, d) in enumerate(zip(similarity, quantile, strict=True)):
        np.testing.assert_allclose(got[row], reference.sdm_activation(logits[row], q, d), rtol=1e-12)


def test_alpha_1_is_a_promise_that_no_probability_keeps():
    """A region needs probabilities of at least alpha, and none is 1: nothing is admitted, and everything is finite."""
    X, y = drawn(300)
    classifier = SDMClassifier(1.0, certification_size=None, **QUICK).fit(X, y)
    decisions = assert_as_by_loops(classifier, X[:40])
    assert not classifier.region_.found and 0.5 < classifier.region_.largest_alpha < 1
    assert not decisions.admitted.any() and not decisions.admitted_at.any()


def test_a_thousand_classes():
    X, y = drawn(8000, 1000, n_inputs=24)
    classifier = SDMClassifier(0.8, **{**QUICK, "n_filters": 32, "max_epochs": 2}).fit(X, y)
    decisions = assert_as_by_loops(classifier, X[:5])
    np.testing.assert_allclose(classifier.decide(X[:200]).probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert decisions.probabilities.shape == (5, 1000)


@pytest.mark.parametrize("n", [4, 5, 6, 8])
def test_a_handful_of_points_is_a_model(n):
    X, y = drawn(n)
    assert_as_by_loops(SDMClassifier(0.8, certification_size=None, **QUICK).fit(X, y), X)


@pytest.mark.parametrize(("n", "said"), [(1, "at least two classes"), (3, "at least two examples of each class")])
def test_fewer_are_refused(n, said):
    with pytest.raises(InvalidInputError, match=said):
        SDMClassifier(0.8, certification_size=None, **QUICK).fit(*drawn(n))
