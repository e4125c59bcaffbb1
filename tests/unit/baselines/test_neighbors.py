"""Thresholds on distances and the vote of neighbours: against loops, brute force and known Gaussians; bad input."""

from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conftest import make_blobs
from torchsdm import LabelledStates
from torchsdm.arithmetic.exact import pair_distances
from torchsdm.baselines.cross_entropy import CrossEntropyClassifier
from torchsdm.baselines.logistic import LogisticModel
from torchsdm.baselines.neighbors import (
    CosineNeighborVote,
    MahalanobisThreshold,
    NearestNeighborThreshold,
    keeping_threshold,
    permissive_threshold,
)
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, RegionWarning
from torchsdm.training.data import TrainingData, TrainingSettings, split_of_round
from torchsdm.validation import draw_seed

KINDS = [MahalanobisThreshold, NearestNeighborThreshold, CosineNeighborVote]
QUICK_MODEL = {"n_filters": 8, "n_rounds": 2, "max_epochs": 5, "learning_rate": 2e-2, "random_state": 0}


def three_classes(n=240, seed=0, distance=2.5):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return (1 + distance * np.eye(3, 5)[y] + rng.standard_normal((n, 5))).astype(np.float32), y


@pytest.fixture(scope="module")
def data():
    return three_classes()


def parts(estimator, X, y):
    train, calibration = estimator.training_rows_, estimator.calibration_rows_
    return X[train], y[train], X[calibration], y[calibration]


# --- The threshold ---------------------------------------------------------------------------------------------------


def brute_threshold(scores, correct, alpha):
    """Every score tried as a threshold; the smallest that qualifies."""
    found = np.inf
    for t in scores:
        admitted = [c for s, c in zip(scores, correct, strict=True) if s >= t]
        if sum(admitted) / len(admitted) >= alpha:
            found = min(found, t)
    return found


@pytest.mark.parametrize("alpha", [0.6, 0.75, 0.9, 1.0])
def test_the_threshold_is_that_of_brute_force(alpha):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 40))
        scores = rng.integers(0, 8, n) / 7.0 if seed % 2 else rng.standard_normal(n)  # with ties and without
        correct = rng.random(n) < 0.5 + 0.4 * (scores > np.median(scores))
        expected = brute_threshold(scores, correct, alpha)
        assert permissive_threshold(scores, correct, alpha) == expected, f"seed {seed}"


def test_the_threshold_by_hand():
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    correct = np.array([True, False, True, True, False])
    assert permissive_threshold(scores, correct, 0.75) == 2.0  # 3 of 4, though 1 of 2 on the way is too few
    assert permissive_threshold(scores, correct, 0.76) == 5.0
    assert permissive_threshold(scores, correct, 0.6) == 1.0
    assert permissive_threshold(scores, ~correct, 0.76) == np.inf
    ties = np.array([2.0, 1.0, 1.0, 1.0])
    assert permissive_threshold(ties, np.array([True, True, False, False]), 0.6) == 2.0  # ties stand or fall together


@pytest.mark.parametrize("kind", KINDS)
def test_admitted_calibration_points_are_right_often_enough_and_no_lower_threshold_does(kind, data):
    X, y = data
    estimator = kind([0.95, 0.8, 0.9], random_state=3).fit(X, y)
    assert estimator.alphas_.tolist() == [0.8, 0.9, 0.95]
    _, _, X_ca, y_ca = parts(estimator, X, y)
    decisions = estimator.decide(X_ca)
    right = decisions.predictions == y_ca
    for column, alpha in enumerate(estimator.alphas_):
        admitted = decisions.admitted_at[:, column]
        assert admitted.any() and right[admitted].mean() >= alpha
        assert estimator.thresholds_[column] == brute_threshold(decisions.score, right, alpha)
    assert (np.diff(estimator.thresholds_) >= 0).all()  # the nearer alpha is to 1, the fewer are admitted
    assert 0 < decisions.admitted_at[:, -1].sum() < len(y_ca)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_admitted_where_it_is_impossible(kind):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((400, 3)).astype(np.float32), rng.integers(0, 4, 400)  # labels are noise
    with pytest.warns(RegionWarning, match="nothing will be admitted at this alpha"):
        estimator = kind([0.9, 0.99], random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decisions = estimator.decide(X)
    impossible = np.isinf(estimator.thresholds_)
    assert impossible.any() and not decisions.admitted_at[:, impossible].any()
    if impossible.all():
        assert not decisions.admitted.any() and np.isnan(decisions.admitted_alpha).all()


# --- Mahalanobis -----------------------------------------------------------------------------------------------------


def slow_mahalanobis(X_tr, y_tr, X):
    """The nearest class mean in the metric of the shared covariance, point by point."""
    X_tr = X_tr.astype(np.float64)
    means = np.array([X_tr[y_tr == c].mean(axis=0) for c in np.unique(y_tr)])
    residuals = np.array([x - means[label] for x, label in zip(X_tr, y_tr, strict=True)])
    covariance, _ = ledoit_wolf(residuals, assume_centered=True)
    inverse = np.linalg.inv(covariance)
    distances = [[np.sqrt((x - mean) @ inverse @ (x - mean)) for mean in means] for x in X.astype(np.float64)]
    return np.min(distances, axis=1), covariance, means


def test_mahalanobis_scores_are_those_of_the_loops(data):
    X, y = data
    estimator = MahalanobisThreshold(0.8, random_state=1).fit(X, y)
    X_tr, y_tr, _, _ = parts(estimator, X, y)
    queries = np.concatenate([X, 30 * X[:20]])
    distance, covariance, means = slow_mahalanobis(X_tr, y_tr, queries)
    np.testing.assert_allclose(estimator.covariance_, covariance, rtol=1e-10)
    np.testing.assert_allclose(estimator.means_, means, rtol=1e-10)
    np.testing.assert_allclose(estimator.decide(queries).score, -distance, rtol=1e-5)


def test_mahalanobis_on_known_gaussians_is_the_closed_form():
    """Two classes with one covariance: in its metric the squared distance to the own mean is chi-squared."""
    rng = np.random.default_rng(0)
    factor = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [-1.0, 0.3, 3.0]])
    means = np.array([[0.0, 0.0, 0.0], [9.0, 5.0, -40.0]])
    y = rng.integers(0, 2, 20_000)
    X = means[y] + rng.standard_normal((20_000, 3)) @ factor.T
    estimator = MahalanobisThreshold(random_state=0).fit(X, y)
    np.testing.assert_allclose(estimator.covariance_, factor @ factor.T, atol=0.35)
    inverse = np.linalg.inv(factor @ factor.T)
    queries = rng.standard_normal((50, 3)) * 10
    truth = [min(np.sqrt((x - mean) @ inverse @ (x - mean)) for mean in means) for x in queries]
    np.testing.assert_allclose(-estimator.decide(queries).score, truth, rtol=0.03)
    assert np.mean(estimator.decide(X).score ** 2) == pytest.approx(3, rel=0.03)  # the mean of chi-squared(3)


def test_mahalanobis_is_the_nearest_of_all_means_to_the_bit(data):
    X, y = data
    estimator = MahalanobisThreshold(0.8, random_state=1).fit(X, y)
    states = torch.from_numpy(np.asarray(X, dtype=np.float32))
    points, means = estimator._whiten(states), estimator._whiten(torch.from_numpy(estimator.means_))
    for row, score in enumerate(estimator.decide(X).score.tolist()):
        alone = torch.full((len(means),), row)
        assert -score == pair_distances(points, means, alone, torch.arange(len(means))).min()


def test_mahalanobis_refuses_states_that_do_not_vary():
    X = np.repeat(np.eye(2), 10, axis=0)
    with pytest.raises(InvalidInputError, match="must vary within classes"):
        MahalanobisThreshold().fit(X, np.repeat([0, 1], 10))


def test_more_dimensions_than_points():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    X = (rng.standard_normal((60, 200)) + 2 * y[:, None]).astype(np.float32)
    assert MahalanobisThreshold(0.8, random_state=0).fit(X, y).score(X, y) > 0.9


# --- Nearest neighbours ----------------------------------------------------------------------------------------------


def slow_neighbors(X_tr, x, k):
    """Training points by cosine, the largest first, ties by row, and the chords to them."""
    unit = X_tr.astype(np.float64) / np.linalg.norm(X_tr.astype(np.float64), axis=1, keepdims=True)
    own = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64))
    cosine = np.array([row @ own for row in unit])
    order = np.argsort(-cosine, kind="stable")[:k]
    return order, np.linalg.norm(unit[order] - own, axis=1)


@pytest.mark.parametrize("k", [1, 4, 30])
def test_the_kth_distance_is_that_of_the_loop(data, k):
    X, y = data
    estimator = NearestNeighborThreshold(0.7, random_state=1, n_neighbors=k).fit(X, y)
    X_tr, _, _, _ = parts(estimator, X, y)
    expected = [-slow_neighbors(X_tr, x, k)[1][-1] for x in X]
    np.testing.assert_allclose(estimator.decide(X).score, expected, atol=2e-6)


def test_length_does_not_matter_and_a_state_of_zeros_is_no_harm(data):
    X, y = data
    estimator = NearestNeighborThreshold(0.7, random_state=1).fit(X, y)
    np.testing.assert_allclose(estimator.decide(7 * X).score, estimator.decide(X).score, atol=1e-6)
    zero = estimator.decide(np.zeros((1, 5), dtype=np.float32)).score
    assert zero == pytest.approx(-1)  # every direction is one away
    assert np.isfinite(estimator.decide(np.full((1, 5), 1e30, dtype=np.float32)).score).all()


@pytest.mark.parametrize("k", [1, 5, 10])
def test_the_vote_is_that_of_the_loop(data, k):
    X, y = data
    estimator = CosineNeighborVote(0.7, n_neighbors=k, random_state=2).fit(X, y)
    X_tr, y_tr, _, _ = parts(estimator, X, y)
    decisions = estimator.decide(X)
    for i, x in enumerate(X):
        votes = [0, 0, 0]
        for row in slow_neighbors(X_tr, x, k)[0]:
            votes[y_tr[row]] += 1
        assert decisions.predictions[i] == votes.index(max(votes))
        assert decisions.score[i] == max(votes) / k
        np.testing.assert_allclose(decisions.probabilities[i], [(n + 1) / (k + 3) for n in votes])
    np.testing.assert_allclose(decisions.probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(decisions.logits, np.log(decisions.probabilities))
    np.testing.assert_allclose(decisions.confidence, decisions.probabilities.max(axis=1))


# --- The model under a distance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_default_model_is_scikit_learns_logistic_regression(data, n_classes):
    X, y = data[0][data[1] < n_classes], data[1][data[1] < n_classes]
    estimator = MahalanobisThreshold(0.8, random_state=1).fit(X, y)
    X_tr, y_tr, _, _ = parts(estimator, X, y)
    c = (2 if n_classes == 2 else 1) / estimator.fitted_model_.penalty_  # scikit-learn has one row of weights for two
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)).fit(X_tr, y_tr)
    np.testing.assert_allclose(estimator.predict_proba(X), plain.predict_proba(X), atol=0.01)
    assert (estimator.predict(X) == plain.predict(X)).mean() > 0.99


def test_an_unfitted_model_is_fitted_on_the_training_part_alone(data):
    X, y = data
    model = CrossEntropyClassifier(**QUICK_MODEL)
    estimator = NearestNeighborThreshold(0.7, model, random_state=1).fit(X, y)
    assert not hasattr(model, "classes_")  # the one given is left as it was
    X_tr, y_tr, _, _ = parts(estimator, X, y)
    expected = CrossEntropyClassifier(**QUICK_MODEL).fit(X_tr, y_tr)
    np.testing.assert_array_equal(estimator.decide(X).logits, expected.logits(X))


def test_a_fitted_model_is_used_as_it_is(data):
    other = three_classes(seed=9)
    model = CrossEntropyClassifier(**QUICK_MODEL).fit(*other)
    estimator = MahalanobisThreshold(0.7, model, random_state=1).fit(*data)
    assert estimator.fitted_model_ is model
    np.testing.assert_array_equal(estimator.predict(data[0]), model.predict(data[0]))


def test_a_fitted_model_of_other_classes_is_refused(data):
    model = LogisticModel(1.0).fit(data[0], data[1] + 5)
    with pytest.raises(InvalidInputError, match=re.escape("must know the classes of y, [0, 1, 2]. Got [5, 6, 7]")):
        MahalanobisThreshold(model=model).fit(*data)


# --- The threshold of the literature ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "n", "kept"), [(0.95, 20, 19), (0.95, 21, 20), (0.55, 100, 55), (1, 7, 7), (0.01, 5, 1)]
)
def test_the_threshold_keeps_a_share(share, n, kept):
    scores = np.random.default_rng(n).permutation(n).astype(float)
    assert (scores >= keeping_threshold(scores, share)).sum() == kept
    assert keeping_threshold(np.array([1.0, 2.0, 2.0, 2.0]), 0.5) == 2.0  # equal scores are kept together


@pytest.mark.parametrize("kind", [MahalanobisThreshold, NearestNeighborThreshold])
def test_distances_can_keep_a_share_of_calibration_whatever_alpha_is(kind, data):
    X, y = data
    estimator = kind([0.8, 0.99], random_state=1, keep=0.95).fit(X, y)
    _, _, X_ca, _ = parts(estimator, X, y)
    admitted = estimator.decide(X_ca).admitted_at
    assert admitted.sum(axis=0).tolist() == [114, 114] and len(X_ca) == 120
    other = kind(0.8, random_state=1).fit(X, y)
    np.testing.assert_array_equal(other.decide(X).score, estimator.decide(X).score)
    assert other.thresholds_[0] != estimator.thresholds_[0]
    for keep, message in ((0, "must be positive"), (1.01, r"must be in \(0, 1\]"), (True, "must be a number")):
        with pytest.raises((InvalidInputError, InvalidTypeError), match=f"'keep' of {kind.__name__}.fit {message}"):
            kind(keep=keep).fit(X, y)


# --- What all share --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_two_blobs(kind):
    train, test = make_blobs(0, 800, 3.0, n_inputs=4), make_blobs(1, 1000, 3.0, n_inputs=4)
    decisions = kind(0.95, random_state=0).fit(train.X, train.y).decide(test.X)
    right = decisions.predictions == test.y
    assert right.mean() > 0.88
    assert decisions.admitted.any() and right[decisions.admitted].mean() > 0.92
    assert 0 < decisions.admitted.mean() <= 1 and (decisions.admitted == decisions.admitted_at[:, 0]).all()


@pytest.mark.parametrize("kind", [MahalanobisThreshold, NearestNeighborThreshold])
def test_what_is_far_is_rejected(kind, data):
    estimator = kind(0.9, random_state=0).fit(*data)
    far = np.tile(np.array([[-40, -40, -40, 60, -60]], dtype=np.float32), (3, 1))
    assert not estimator.decide(far).admitted.any()


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_apart_stratified_and_those_of_our_first_round(kind, data):
    X, y = data
    estimator = kind(0.7, random_state=5, calibration_size=0.3).fit(X, y)
    assert sorted([*estimator.training_rows_, *estimator.calibration_rows_]) == list(range(240))
    assert len(estimator.calibration_rows_) == 72
    ours = draw_seed(5, "SDMClassifier")
    settings = TrainingSettings(n_classes=3, calibration_size=0.3)
    train, _ = split_of_round(TrainingData(torch.from_numpy(X), torch.from_numpy(y)), settings, ours, 0)
    np.testing.assert_array_equal(estimator.training_rows_, train.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_calibration_set_of_ones_own_is_used_whole(kind, data):
    X, y = data
    rows = kind(0.7, random_state=5).fit(X, y)
    X_tr, y_tr, X_ca, y_ca = parts(rows, X, y)
    for given in ((X_ca, y_ca), LabelledStates(X_ca, y_ca)):
        estimator = kind(0.7, random_state=9).fit(X_tr, y_tr, calibration=given)
        np.testing.assert_array_equal(estimator.thresholds_, rows.thresholds_)
        np.testing.assert_array_equal(estimator.decide(X).score, rows.decide(X).score)
        assert (len(estimator.training_rows_), len(estimator.calibration_rows_)) == (len(X_tr), len(X_ca))
    with pytest.raises(InvalidTypeError, match=r"must be LabelledStates or \(X, y\)"):
        kind().fit(X, y, calibration=X)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_bits_in_any_batch(kind):
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 300)
    X = (rng.standard_normal((300, 120)) + 2 * np.eye(3, 120)[y]).astype(np.float32)
    whole = kind(0.6, random_state=0).fit(X, y).decide(X)
    again = kind(0.6, random_state=0).fit(X, y)
    for size in (1, 7, 128):
        for start in range(0, 130, size):
            part = again.decide(X[start : start + size])
            for field in ("logits", "probabilities", "score", "admitted", "predictions"):
                np.testing.assert_array_equal(getattr(part, field), getattr(whole, field)[start : start + size])
    assert not np.array_equal(kind(0.6, random_state=1).fit(X, y).training_rows_, again.training_rows_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7]])
def test_labels_of_any_type(kind, labels):
    blobs = make_blobs(0, 200, 5.0)
    y = np.array(labels)[blobs.y]
    estimator = kind(random_state=0).fit(blobs.X.tolist(), y.tolist())
    assert estimator.classes_.tolist() == labels and estimator.score(blobs.X, y) > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_clone_and_pickle(kind, data):
    estimator = kind(0.8, random_state=0).fit(*data)
    copied = clone(estimator)
    assert copied.get_params() == estimator.get_params() and not hasattr(copied, "thresholds_")
    loaded = pickle.loads(pickle.dumps(estimator)).decide(data[0])
    np.testing.assert_array_equal(loaded.score, estimator.decide(data[0]).score)


def test_parameters():
    assert set(MahalanobisThreshold().get_params()) == {"alpha", "model", "calibration_size", "random_state", "keep"}
    assert NearestNeighborThreshold().get_params()["n_neighbors"] == 10
    assert set(CosineNeighborVote().get_params()) == {"alpha", "n_neighbors", "calibration_size", "random_state"}


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_named(kind, data):
    X, y = data
    name = kind.__name__
    for change, message in (
        ({"alpha": 0.05}, f"'alpha' of {name}.fit must be in (0.5, 1]"),
        ({"calibration_size": 1}, f"'calibration_size' of {name}.fit must be in (0, 1)"),
        ({"random_state": "x"}, f"'random_state' of {name}"),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            kind(**change).fit(X, y)
    for states, labels, message in (
        (X[:, None], y, "must have shape (N, D). Got (240, 1, 5); pool the positions first"),
        (X, y[:5], "must have one value for each of 240 inputs"),
        (X, None, "must contain labels"),
        (X, np.zeros(240), "at least two classes"),
        (np.where(X > 3, np.inf, X), y, "must be finite"),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            kind().fit(states, labels)
    with pytest.raises(NotFittedError, match=f"This {name} is not fitted yet: call fit before decide"):
        kind().predict(X)
    with pytest.raises(InvalidInputError, match="expecting 5 features"):
        kind(0.7).fit(X, y).decide(X[:, :3])


@pytest.mark.parametrize("kind", [NearestNeighborThreshold, CosineNeighborVote])
def test_numbers_of_neighbours_are_checked(kind, data):
    with pytest.raises(InvalidTypeError, match=f"'n_neighbors' of {kind.__name__}.fit must be an integer"):
        kind(n_neighbors=2.5).fit(*data)
    with pytest.raises(InvalidInputError, match=r"the number of training points, 120\. Got 121"):
        kind(n_neighbors=121).fit(*data)
