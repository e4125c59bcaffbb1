"""Linear training through the estimator: all points train, support and calibrate, each out of fold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from small import quiet
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.baselines import TunedLogisticModel
from torchsdm.core import ClassEcdfs
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import Strength

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
NAMES = np.array(["ant", "bee", "cat"])


def draw(n, seed, shares=(0.5, 0.3, 0.2), spread=1.3):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    X = 2.0 * np.eye(3, 8)[y] + spread * rng.standard_normal((n, 8))
    return X.astype(np.float32), NAMES[y]


def fitted(X, y, **settings):
    with quiet():
        return SDMClassifier(0.8, control="all", random_state=0, n_filters=30, **settings).fit(X, y)


@pytest.fixture(scope="module")
def clf():
    return fitted(*draw(900, 0))


def test_it_answers_as_the_logistic_regression_on_the_same_rows(clf):
    (X, y), (X_new, _) = draw(900, 0), draw(500, 1)
    rest = np.setdiff1d(np.arange(900), clf.certification_rows_)
    assert np.array_equal(clf.training_rows_, rest) and np.array_equal(clf.calibration_rows_, rest)
    regression = TunedLogisticModel().fit(X[rest], y[rest])
    assert (clf.predict(X_new) == regression.classes_[regression.logits(X_new).argmax(axis=1)]).mean() > 0.99


def test_every_training_point_calibrates_against_all_others(clf):
    """q and the nearest distance by loops over the exemplars, with the logits out of fold, also in the exemplar."""
    model = clf.model_
    exemplars, labels = clf.support_.exemplars.double(), clf.support_.labels
    known = model.calibration
    ratio = 1 / model.adaptor.output.weight[0, 0].item()
    torch.testing.assert_close(known.known.points.exemplars[:, :3], ratio * known.logits)
    assert torch.equal(known.known.points.exemplars[:, 3:], clf.support_.exemplars[:, 3:])
    assert torch.equal(known.known.places, torch.arange(len(labels)))
    assert torch.equal(clf.support_.predictions, known.predictions)
    for i in range(0, len(labels), 37):
        distance = (exemplars - known.known.points.exemplars[i].double()).norm(dim=1)
        order = [j for j in torch.argsort(distance, stable=True).tolist() if j != i]
        c, q = int(known.predictions[i]), 0
        while q < len(order) and int(labels[order[q]]) == c == int(known.predictions[order[q]]):
            q += 1
        assert int(known.similarity[i]) == q
        assert float(known.nearest_distance[i]) == pytest.approx(float(distance[order[0]]), rel=1e-6)
    ecdfs = ClassEcdfs.fit(known.nearest_distance, known.similarity, known.labels, 3)
    assert all(torch.equal(a, b) for a, b in zip(ecdfs.sorted_distances, known.ecdfs.sorted_distances, strict=True))


def test_calibration_looks_like_new_inputs_where_there_are_few_points_and_many_dimensions():
    """Its own label must not help a point to neighbours that agree: else q says more on calibration than later."""
    rng = np.random.default_rng(0)
    n, width = 400, 200
    y = rng.integers(0, 2, 6000)
    X = (0.9 * np.eye(2, width)[y] + rng.standard_normal((6000, width))).astype(np.float32)
    clf = SDMClassifier(0.8, control="all", random_state=0, certification_size=None).fit(X[:n], y[:n])
    decisions, known = clf.decide(X[n:]), clf.model_.calibration
    right = (known.predictions == known.labels).numpy()
    for least in (1, 3):
        vouched, later = known.similarity.numpy() >= least, decisions.similarity >= least
        assert abs(right[vouched].mean() - (decisions.predictions == y[n:])[later].mean()) < 0.07
        assert abs(vouched.mean() - later.mean()) < 0.07


def test_calibration_looks_like_new_inputs(clf):
    """Out of fold nothing flatters: accuracy, q = 0 and familiarity are those of new points."""
    X, y = draw(4000, 2)
    decisions, known = clf.decide(X), clf.model_.calibration
    right = float((known.predictions == known.labels).double().mean())
    assert abs(right - (decisions.predictions == y).mean()) < 0.04
    assert abs(float((known.similarity == 0).double().mean()) - (decisions.similarity == 0).mean()) < 0.05
    assert abs((decisions.lane == "unfamiliar").mean() - 0.05) < 0.03


def test_the_same_seed_gives_the_same_model_and_saves_it(clf, tmp_path):
    again = fitted(*draw(900, 0))
    X = draw(50, 3)[0]
    assert clf.decide(X).to_dicts() == again.decide(X).to_dicts()
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.decide(X).to_dicts() == clf.decide(X).to_dicts()
    assert torch.equal(loaded.model_.calibration.known.places, clf.model_.calibration.known.places)
    assert loaded.is_cross_fitted_ and loaded.training == "linear"


def test_recalibrating_after_updates_matches_each_point_without_itself(tmp_path):
    X, y = draw(300, 0)
    clf = fitted(X, y, certification_size=None)
    known = clf.model_.calibration.similarity.clone()
    clf.remove_exemplars([0, 5, 299])
    assert clf.model_.calibration_points.places[:7].tolist() == [-1, 0, 1, 2, 3, -1, 4]
    clf.add_exemplars(*draw(20, 9))
    clf.save(tmp_path / "model")  # with what is not calibrated yet
    loaded = SDMClassifier.load(tmp_path / "model").recalibrate()
    clf.recalibrate()
    now = clf.model_.calibration
    assert torch.equal(now.similarity, loaded.model_.calibration.similarity) and not torch.equal(now.similarity, known)
    exemplars = clf.support_.exemplars.double()
    for i in (0, 1, 6, 100):
        distance = (exemplars - now.known.points.exemplars[i].double()).norm(dim=1)
        if now.known.places[i] >= 0:
            distance[now.known.places[i]] = torch.inf
        assert float(now.nearest_distance[i]) == pytest.approx(float(distance.min()), rel=1e-6)


def test_a_point_is_relabelled_and_removed_in_support_and_calibration_at_once():
    X, y = draw(300, 0)
    clf = fitted(X, y, certification_size=None)
    other = "bee" if y[7] != "bee" else "ant"
    clf.relabel([7], [other]).remove([8]).recalibrate()
    place = clf.model_.examples.positions([7])[0]
    assert clf.classes_[clf.support_.labels[place]] == other
    assert clf.classes_[clf.model_.calibration.labels[place]] == other
    assert len(clf.support_) == len(clf.model_.calibration.labels) == 299


def test_a_calibration_set_of_ones_own_is_used_as_it_is():
    (X, y), own = draw(300, 0), draw(200, 4)
    clf = SDMClassifier(0.8, random_state=0, n_filters=30).fit(X, y, calibration=own)
    assert not clf.is_cross_fitted_ and len(clf.support_) == 300 and len(clf.model_.calibration.labels) == 200


def test_background_is_in_the_support_and_calibrates_nothing():
    X, y = draw(600, 0)
    strange = np.random.default_rng(1).normal(size=(80, 8)).astype(np.float32) + 6
    clf = SDMClassifier(0.8, control="all", random_state=0).fit(X, y, background=strange)
    assert len(clf.support_) == len(clf.model_.calibration.labels) + 80
    assert not clf.decide(strange + 0.1).admitted.any()
    assert (clf.decide(strange).lane == "unfamiliar").all()


def test_more_classes_than_filters():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 20
    X = (4 * np.eye(20)[y] + rng.standard_normal((400, 20))).astype(np.float32)
    clf = SDMClassifier(0.8, n_filters=4, control="all", random_state=0).fit(X, y)
    assert clf.support_.exemplars.shape[1] == 40 and clf.score(X, y) > 0.9


def test_states_of_several_positions_are_trained_in_rounds():
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    X = (rng.standard_normal((80, 3, 4)) + y[:, None, None]).astype(np.float32)
    clf = SDMClassifier(0.8, n_filters=8, n_rounds=1, max_epochs=2, random_state=0).fit(X, y)
    assert not clf.is_cross_fitted_ and len(clf.history_) == 2


def test_rounds_cannot_be_kept_where_there_are_none():
    with pytest.raises(InvalidInputError, match=r"'keep_rounds' of SDMClassifier\.fit is for training='sdm'"):
        SDMClassifier().fit(*draw(60, 0), keep_rounds=True)
    with pytest.raises(InvalidInputError, match=r"'training' of SDMClassifier\.fit"):
        SDMClassifier(training="svm").fit(*draw(60, 0))
    ensemble = SDMEnsemble(0.8, n_filters=8, n_rounds=2, max_epochs=2, random_state=0).fit(*draw(100, 0))
    assert len(ensemble.models_) == 2


# --- Imbalance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", ["linear", "sdm"])
def test_balanced_weights_recognise_more_of_the_rare(training):
    shares, quick = (0.9, 0.06, 0.04), {"n_rounds": 1, "max_epochs": 20, "learning_rate": 1e-2}
    (X, y), (X_new, y_new) = draw(1500, 0, shares), draw(4000, 1, shares)
    plain, balanced = (
        fitted(X, y, training=training, class_weight=weight, **(quick if training == "sdm" else {}))
        for weight in (None, "balanced")
    )
    before, after = (balanced_accuracy_score(y_new, one.predict(X_new)) for one in (plain, balanced))
    assert after > before + 0.03


def test_weights_by_class(tmp_path):
    X, y = draw(600, 0)
    heavy = fitted(X, y, class_weight={"cat": 50.0})
    assert (heavy.predict(X) == "cat").mean() > 1.5 * (fitted(X, y).predict(X) == "cat").mean()
    heavy.save(tmp_path / "model")
    assert SDMClassifier.load(tmp_path / "model").class_weight == {"cat": 50.0}


@pytest.mark.parametrize(
    ("weight", "error", "said"),
    [
        ("even", InvalidInputError, "'class_weight' of SDMClassifier.fit"),
        ({"dog": 2.0}, InvalidInputError, "Got 'dog', which is not one"),
        ({"cat": -1.0}, InvalidInputError, "'class_weight' of SDMClassifier.fit must be positive"),
        (2.0, InvalidTypeError, "must be None, 'balanced' or a mapping"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weight, error, said):
    with pytest.raises(error, match=said):
        SDMClassifier(class_weight=weight).fit(*draw(60, 0))


# --- Strength --------------------------------------------------------------------------------------------------------


def test_strength_is_counted_out_of_fold(clf):
    X, y = draw(900, 0)
    strength, known = Strength.of(clf, LabelledStates(X, y)), clf.model_.calibration
    labels, predictions = clf.classes_[known.labels], clf.classes_[known.predictions]
    assert strength.right == (labels == predictions).mean() and strength.n == len(labels)
    assert strength.largest_class == "ant" and strength.largest_share == (labels == "ant").mean()
    by_class = {c: (predictions[labels == c] == c).mean() for c in NAMES}
    assert (strength.lowest_class, strength.lowest_right) == min(by_class.items(), key=lambda one: one[1])
    assert strength.regression is None and not strength.is_idle and not strength.is_below_regression


def test_a_training_that_loses_to_a_regression_is_told():
    X, y = draw(900, 0)
    weak = fitted(X, y, training="sdm", n_rounds=1, max_epochs=1, learning_rate=1e-7)
    strength = Strength.of(weak, LabelledStates(X, y))
    assert strength.regression > 0.75 and strength.is_below_regression
    noise = fitted(np.random.default_rng(0).standard_normal(X.shape).astype(np.float32), y)
    assert Strength.of(noise, LabelledStates(X, y)).is_idle
