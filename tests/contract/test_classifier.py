"""What users rely on in SDMClassifier and SDMEnsemble, beyond scikit-learn's own checks."""

from __future__ import annotations

import os
import threading
from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from small import small_settings
from torchsdm import Decisions, LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.core import SDMDecisions
from torchsdm.errors import CheckpointError, InvalidInputError, InvalidTypeError

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

QUICK = small_settings(alpha=0.8, n_filters=12, learning_rate=2e-2, certification_size=None)


@pytest.fixture(scope="module")
def data():
    X, y = make_blobs(420, n_features=6, centers=3, cluster_std=2.5, random_state=2)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def classifier(data):
    return SDMClassifier(**QUICK).fit(*data)


@pytest.fixture(scope="module")
def certified(data):
    fitted = SDMClassifier(**{**QUICK, "certification_size": 0.25}).fit(*data)
    assert fitted.certificate_.found
    return fitted


@pytest.fixture(scope="module")
def ensemble(data):
    return SDMEnsemble(**{**QUICK, "n_rounds": 3}).fit(*data)


def assert_same(a: SDMDecisions, b: SDMDecisions) -> None:
    for field in fields(SDMDecisions):
        if getattr(a, field.name) is not None:
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), err_msg=field.name)


# --- a decision does not depend on its batch -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 97])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["classifier", "certified", "ensemble"])
def test_decisions_do_not_depend_on_batch_or_threads(kind, size, threads, data, request):
    estimator = request.getfixturevalue(kind)
    X = data[0] * np.linspace(0.2, 4, len(data[0]), dtype=np.float32)[:, None]  # near and far
    whole = estimator.decide(X)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    parts = [estimator.decide(X[start : start + size]) for start in range(0, 194, size)]
    torch.set_num_threads(before)
    assert_same(Decisions.concatenate(parts)[:194], whole[:194])


def test_training_does_not_depend_on_threads():
    """At a size where products are shared out among threads."""
    rng = np.random.default_rng(0)
    y = np.arange(1000) % 2
    X = (rng.normal(size=(1000, 384)) + 0.1 * y[:, None]).astype(np.float32)
    before, fitted = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        fitted.append(
            SDMClassifier(0.8, n_filters=300, n_rounds=1, training="sdm", max_epochs=2, random_state=0).fit(X, y)
        )
    torch.set_num_threads(before)
    one, two = (estimator.model_.adaptor.state_dict() for estimator in fitted)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert_same(fitted[0].decide(X[:100]), fitted[1].decide(X[:100]))


def test_decisions_do_not_depend_on_precision_contexts(classifier, data):
    X, _ = data
    expected = classifier.decide(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(classifier.decide(X), expected)
    with torch.inference_mode():
        assert_same(classifier.decide(X), expected)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        assert_same(classifier.decide(X), expected)
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # and the user's setting is back
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


def test_training_does_not_depend_on_contexts(classifier, data):
    expected = classifier.decide(data[0])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert_same(SDMClassifier(**QUICK).fit(*data).decide(data[0]), expected)
    with torch.inference_mode():
        assert_same(SDMClassifier(**QUICK).fit(*data).decide(data[0]), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(SDMClassifier(**QUICK).fit(*data).decide(data[0]), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_training_leaves_global_randomness_alone(data):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    SDMClassifier(**QUICK).fit(*data)
    assert torch.equal(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


def test_calibration_points_are_decided_as_they_were_calibrated(classifier, data):
    """A point that defines a threshold must not drop out by a unit in the last place."""
    X, _ = data
    ids = classifier.model_.calibration.known.examples.all()[0]
    decisions = classifier.decide(X[ids])
    calibration = classifier.model_.calibration
    np.testing.assert_array_equal(decisions.rescaled_similarity, calibration.rescaled_similarity.numpy())
    np.testing.assert_array_equal(decisions.distance_quantile, calibration.distance_quantile.numpy())
    region = classifier.region_
    inside = decisions.rescaled_similarity >= region.min_rescaled_similarity
    truth = decisions.probabilities[np.arange(len(ids)), calibration.labels.numpy()]
    for label in range(3):
        values = np.sort(truth[inside & (calibration.labels.numpy() == label)])
        assert region.thresholds[label] in values


# --- what goes in ----------------------------------------------------------------------------------------------------


def test_arrays_memory_maps_and_tensors_are_alike(data, tmp_path, classifier):
    X, y = data
    np.save(tmp_path / "X.npy", X)
    for form in (
        np.load(tmp_path / "X.npy", mmap_mode="r"),
        torch.from_numpy(X),
        torch.from_numpy(X).requires_grad_(),
        np.asfortranarray(X),
        X.tolist(),
    ):
        other = SDMClassifier(**QUICK).fit(form, torch.from_numpy(y) if isinstance(form, torch.Tensor) else y)
        assert_same(other.decide(form), classifier.decide(X))


def test_half_precision_states_are_taken_as_they_are(data):
    X, y = data
    half = torch.from_numpy(X).to(torch.bfloat16)
    assert_same(
        SDMClassifier(**QUICK).fit(half, y).decide(half),
        SDMClassifier(**QUICK).fit(half.float(), y).decide(half.float()),
    )


@pytest.mark.parametrize("random_state", [np.random.RandomState(1), np.random.default_rng(1), None])
def test_forms_of_random_state(data, random_state):
    fitted = SDMClassifier(**{**QUICK, "random_state": random_state}).fit(*data)
    again = SDMClassifier(**{**QUICK, "random_state": fitted.random_seed_})
    assert fitted.score(*data) > 0.9
    assert isinstance(again.fit(*data).random_seed_, int)


def test_an_explicit_calibration_set(data):
    X, y = data
    names = np.array(["a", "b", "c"])[y]
    given = LabelledStates(X[300:], names[300:], ids=[f"ca{i}" for i in range(120)], texts=["t"] * 120)
    fitted = SDMClassifier(**QUICK).fit(X[:300], names[:300], calibration=given)
    assert len(fitted.support_) == 300
    assert fitted.model_.calibration.known.examples.all()[0] == [f"ca{i}" for i in range(120)]
    assert {p.id for e in fitted.explain(X[:20]) for p in e.calibration_points} <= set(given.ids)
    same = SDMClassifier(**QUICK).fit(X[:300], names[:300], calibration=(X[300:], names[300:]))
    assert_same(same.decide(X), fitted.decide(X))


def test_several_positions(data):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 3, 5)).astype(np.float32)
    X[np.arange(300), rng.integers(0, 3, 300), 0] += np.where(y == 1, 8, -8)
    fitted = SDMClassifier(**{**QUICK, "max_epochs": 20}).fit(X[:200], y[:200])
    assert fitted.score(X[200:], y[200:]) > 0.95
    assert fitted.n_features_in_ == 5
    assert_same(fitted.decide(X[:, ::-1].copy()), fitted.decide(X))  # the maximum knows no order of positions
    with pytest.raises(InvalidInputError, match="5 features"):
        fitted.decide(X[:, :, :4])


def test_imbalance_and_many_classes():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(8, 10)) * 8
    y = np.repeat(np.arange(8), [300, 200, 120, 80, 50, 30, 20, 14])  # twenty to one
    X = centres[y] + rng.normal(size=(len(y), 10))
    fitted = SDMClassifier(**{**QUICK, "max_epochs": 30}).fit(X, y)
    assert np.unique(fitted.model_.calibration.labels.numpy()).tolist() == list(range(8))
    assert np.unique(fitted.support_.labels.numpy()).tolist() == list(range(8))
    assert fitted.history_.best.calibration_balanced_accuracy > 0.9


def test_a_class_that_is_not_yet_predicted_can_still_be_learned():
    """With d = 0 for everything, as the eCDFs of a class without q > 0 demand, every gradient would be 0."""
    X, y = make_blobs(400, n_features=6, centers=4, cluster_std=1.0, random_state=0)
    fitted = SDMClassifier(**{**QUICK, "learning_rate": 2e-3, "max_epochs": 40}).fit(X, y)
    first, last = fitted.history_[0], fitted.history_[-1]
    assert first.train_balanced_accuracy <= 0.75  # after the softmax epoch some class is never predicted
    assert last.train_balanced_accuracy > 0.9


def test_the_same_seed_gives_the_same_model_and_another_another(data, classifier):
    assert_same(SDMClassifier(**QUICK).fit(*data).decide(data[0]), classifier.decide(data[0]))
    other = SDMClassifier(**{**QUICK, "random_state": 1}).fit(*data)
    assert not np.array_equal(other.decide(data[0]).logits, classifier.decide(data[0]).logits)


# --- updates ---------------------------------------------------------------------------------------------------------


def fitted_with_names(data) -> SDMClassifier:
    X, y = data
    return SDMClassifier(**QUICK).fit(X, y, ids=[f"x{i}" for i in range(len(X))])


def test_labels_outside_the_classes_shorten_similarity(data):
    X, _ = data
    fitted = fitted_with_names(data)
    before = fitted.decide(X)
    fitted.add_exemplars(X, ["elsewhere"] * len(X), repeated="keep", allow_new_labels=True)
    after = fitted.decide(X)
    np.testing.assert_array_equal(after.predictions, before.predictions)
    np.testing.assert_array_equal(after.logits, before.logits)
    assert (after.similarity <= 1).all()  # at most the support's own copy, which has the smaller index
    assert (after.nearest_distance == 0).all()
    assert after.similarity.sum() < before.similarity.sum()


def test_mixed_labels_keep_their_types(data):
    X, y = data
    fitted = fitted_with_names(data)
    fitted.add_exemplars(X[:3] + 0.1, [int(y[0]), np.int64(y[1]), "ood"], ids=["n0", "n1", "n2"], allow_new_labels=True)
    assert fitted.support_.labels[-3:].tolist() == [y[0], y[1], 3]
    fitted.relabel_exemplars(["n0", "n1"], ["ood", int(y[1])], allow_new_labels=True)
    assert fitted.support_.labels[-3:].tolist() == [3, y[1], 3]


@pytest.mark.parametrize("label", [None, float("nan"), np.nan, float("inf"), ("a",), 1j])
def test_unlabelled_points_are_refused(data, label):
    fitted = fitted_with_names(data)
    before = fitted.decide(data[0])
    with pytest.raises(InvalidInputError, match="unlabelled"):
        fitted.add_exemplars(data[0][:2], [0, label])
    assert_same(fitted.decide(data[0]), before)


def test_removing_what_was_added_gives_the_old_answers(data):
    X, y = data
    fitted = fitted_with_names(data)
    before = fitted.decide(X)
    fitted.add_exemplars(X[:40] + 0.1, y[:40], ids=[f"new{i}" for i in range(40)])
    assert not np.array_equal(fitted.decide(X).nearest_distance, before.nearest_distance)
    fitted.remove_exemplars([f"new{i}" for i in range(40)])
    assert_same(fitted.decide(X), before)


def test_relabelling_there_and_back(data):
    fitted = fitted_with_names(data)
    before = fitted.decide(data[0])
    names = fitted.model_.examples.all()[0][:30]
    labels = [int(label) for label in fitted.support_.labels[:30]]
    fitted.relabel_exemplars(names, ["other"] * 30, allow_new_labels=True)
    assert fitted.decide(data[0]).similarity.sum() < before.similarity.sum()
    fitted.relabel_exemplars(names, labels)
    assert_same(fitted.decide(data[0]), before)


def test_recalibrate_after_updates_equals_a_fresh_calibration(data):
    X, y = data
    fitted = fitted_with_names(data)
    fitted.add_exemplars(X[:100] + 0.05, y[:100])
    region_before = fitted.region_
    assert fitted.region_ is region_before  # updates alone leave the region
    fitted.recalibrate()
    model = fitted.model_
    match = model.support.match(model.calibration.known.points.exemplars, model.calibration.predictions)
    assert torch.equal(match.similarity, model.calibration.similarity)
    assert torch.equal(match.nearest_distance, model.calibration.nearest_distance)


def test_recalibrate_for_another_alpha_equals_fitting_with_it(data):
    X, y = data
    recalibrated = SDMClassifier(**QUICK).fit(X, y).recalibrate(alpha=0.9)
    assert_same(recalibrated.decide(X), SDMClassifier(**{**QUICK, "alpha": 0.9}).fit(X, y).decide(X))


def test_a_failed_update_changes_nothing(data):
    X, y = data
    fitted = fitted_with_names(data)
    before, region = fitted.decide(X), fitted.region_
    support_name = fitted.model_.examples.all()[0][0]
    calibration_name = fitted.model_.calibration.known.examples.all()[0][0]
    for call in (
        lambda: fitted.add_exemplars(X[:2], y[:2], ids=["new", support_name]),
        lambda: fitted.add_exemplars(X[:2], y[:2], ids=["new", calibration_name]),
        lambda: fitted.add_exemplars(X[:2], y[:2], ids=["new", "new"]),
        lambda: fitted.add_exemplars(X[:2], y[:1]),
        lambda: fitted.add_exemplars(X[:2, :3], y[:2]),
        lambda: fitted.remove_exemplars([support_name, "unknown"]),
        lambda: fitted.remove_exemplars([calibration_name]),
        lambda: fitted.remove_exemplars(fitted.model_.examples.all()[0]),
        lambda: fitted.relabel_exemplars([support_name], [0, 1]),
        lambda: fitted.relabel_exemplars([support_name], [None]),
        lambda: fitted.recalibrate(alpha=0.05),
        lambda: fitted.recalibrate(alpha=[]),
        lambda: fitted.recalibrate(min_class_count=-1),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert_same(fitted.decide(X), before)
    assert fitted.region_ is region


# --- several alphas and the ensemble ---------------------------------------------------------------------------------


def test_several_alphas_are_each_on_their_own(data):
    X, y = data
    alphas = [0.95, 0.7, 0.8]
    together = SDMClassifier(**{**QUICK, "alpha": alphas}).fit(X, y).decide(X)
    assert together.alphas.tolist() == sorted(alphas)
    best, best_lower = np.full(len(X), np.nan), np.full(len(X), np.nan)
    for column, alpha in enumerate(sorted(alphas)):
        alone = SDMClassifier(**{**QUICK, "alpha": alpha}).fit(X, y).decide(X)
        np.testing.assert_array_equal(together.admitted_at[:, column], alone.admitted)
        np.testing.assert_array_equal(together.admitted_lower_at[:, column], alone.admitted_lower)
        best[alone.admitted], best_lower[alone.admitted_lower] = alpha, alpha
    np.testing.assert_array_equal(together.admitted_alpha, best)
    np.testing.assert_array_equal(together.admitted_lower_alpha, best_lower)
    np.testing.assert_array_equal(together.admitted, ~np.isnan(best))


def test_the_ensemble_rule(ensemble, data):
    X = np.concatenate([data[0], data[0] * 3])
    decisions = ensemble.decide(X)
    rows = [model.decide(torch.from_numpy(X)) for model in ensemble.models_]
    assert len(rows) == 3
    for i in range(len(X)):
        votes = [row.predictions[i] for row in rows]
        counts = {label: votes.count(label) for label in votes}
        winner = min(label for label in counts if counts[label] == max(counts.values()))
        agreeing = [j for j in range(3) if votes[j] == winner]
        assert decisions.predictions[i] == winner
        assert decisions.confidence[i] == min(rows[j].confidence[i] for j in agreeing)
        admitted = len(agreeing) == 3 and all(row.admitted_lower[i] for row in rows)
        assert decisions.admitted[i] == decisions.admitted_lower[i] == admitted
        assert decisions.similarity[i] == rows[decisions.member[i]].similarity[i]
    assert 0 < decisions.admitted.sum() < len(X)
    np.testing.assert_array_equal(ensemble.predict(X), decisions.predictions)


@pytest.mark.parametrize("kind", [SDMClassifier, SDMEnsemble])
def test_a_seed_given_to_fit_is_the_seed_itself(data, kind):
    first = kind(**QUICK).fit(*data)
    again = kind(**{**QUICK, "random_state": 99}).fit(*data, seed=first.random_seed_)
    drawn = kind(**{**QUICK, "random_state": first.random_seed_}).fit(*data)  # drawn from it, so another
    assert again.random_seed_ == first.random_seed_ != drawn.random_seed_
    np.testing.assert_array_equal(again.decide(data[0]).logits, first.decide(data[0]).logits)
    with pytest.raises(InvalidInputError, match=f"'seed' of {kind.__name__}.fit must be at least 0. Got -1"):
        first.fit(*data, seed=-1)
    assert first.random_seed_ == again.random_seed_  # a call that fails changes nothing


def test_the_rows_of_both_parts_are_known(data):
    fitted = SDMClassifier(**QUICK).fit(*data)
    model, X = fitted.model_, data[0]
    assert model.examples.all()[0] == fitted.training_rows_.tolist()
    assert model.calibration.known.examples.all()[0] == fitted.calibration_rows_.tolist()
    assert sorted([*fitted.training_rows_, *fitted.calibration_rows_]) == list(range(len(X)))


def test_an_ensemble_from_kept_rounds(data, ensemble):
    fitted = SDMClassifier(**{**QUICK, "n_rounds": 3}).fit(*data, keep_rounds=True)
    assert_same(SDMEnsemble.from_classifier(fitted).decide(data[0]), ensemble.decide(data[0]))
    assert fitted.model_ in fitted.round_models_
    losses = [min(r.calibration_balanced_loss for r in fitted.history_ if r.round == j) for j in range(3)]
    assert fitted.round_models_.index(fitted.model_) == int(np.argmin(losses))
    fitted.recalibrate(0.7)  # the kept rounds would not have it
    with pytest.raises(InvalidInputError, match="keep_rounds"):
        SDMEnsemble.from_classifier(fitted)


def test_new_exemplars_have_the_same_new_id_in_every_round(data):
    X, _ = data
    estimator = SDMEnsemble(**{**QUICK, "n_rounds": 3}).fit(*data)
    sizes = [len(model.support) for model in estimator.models_]
    estimator.add_exemplars(X[:1] + 0.1, ["ood"], allow_new_labels=True)
    assert {model.examples.all()[0][-1] for model in estimator.models_} == {len(X)}
    estimator.remove_exemplars([len(X)])
    assert [len(model.support) for model in estimator.models_] == sizes


def test_the_ensemble_explains_by_the_round_it_names(ensemble, data):
    explanations = ensemble.explain(data[0][:10], k=2)
    decisions = ensemble.decide(data[0][:10])
    for explanation, member, row in zip(explanations, decisions.member, decisions.to_dicts(), strict=True):
        assert explanation.decision == row
        support = ensemble.models_[member].support
        assert explanation.exemplars[0].index == row["nearest_index"]
        assert explanation.exemplars[0].label == support.labels[row["nearest_index"]]


# --- settings, checkpoints, files ------------------------------------------------------------------------------------


def test_numpy_numbers_as_settings_survive(data, tmp_path):
    settings = {
        "alpha": np.array([0.7, 0.8]),
        "n_filters": np.int64(8),
        "n_rounds": np.int32(1),
        "max_epochs": np.int64(2),
        "learning_rate": np.float32(0.01),
        "random_state": np.int64(3),
    }
    fitted = SDMClassifier(**settings, checkpoint=tmp_path / "c").fit(*data)
    fitted.save(tmp_path / "m")
    loaded = SDMClassifier.load(tmp_path / "m")
    assert loaded.alpha == [0.7, 0.8]
    assert loaded.max_epochs == 2
    assert_same(loaded.decide(data[0]), fitted.decide(data[0]))


def test_labels_of_another_type_are_other_data(data, tmp_path):
    X, y = data
    y = np.array([2, 10, 5])[y]
    SDMClassifier(**QUICK, checkpoint=tmp_path).fit(X, y)
    with pytest.raises(CheckpointError, match="other data"):
        SDMClassifier(**QUICK, checkpoint=tmp_path).fit(X, y.astype(str))


def test_a_loaded_model_outlives_a_change_of_folder_and_of_the_model_there(data, classifier, tmp_path, monkeypatch):
    X, _ = data
    monkeypatch.chdir(tmp_path)
    classifier.save("model")
    loaded = SDMClassifier.load("model")
    os.chdir("/")
    other = SDMClassifier(**{**QUICK, "random_state": 9}).fit(*data)
    other.save(tmp_path / "model")
    assert [e.to_dict() for e in loaded.explain(X[:3])] == [e.to_dict() for e in classifier.explain(X[:3])]
    loaded.save(tmp_path / "elsewhere")
    assert_same(SDMClassifier.load(tmp_path / "elsewhere").decide(X), classifier.decide(X))


def test_reading_while_another_thread_saves(data, classifier, tmp_path):
    other = SDMClassifier(**{**QUICK, "random_state": 9}).fit(*data)
    classifier.save(tmp_path)
    stop = threading.Event()

    def save_on() -> None:
        while not stop.is_set():
            for model in (other, classifier):
                model.save(tmp_path)
                stop.wait(0.02)

    writer = threading.Thread(target=save_on)
    writer.start()
    try:
        seeds = {SDMClassifier.load(tmp_path).random_seed_ for _ in range(30)}
    finally:
        stop.set()
        writer.join()
    assert seeds <= {classifier.random_seed_, other.random_seed_}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"alpha": "0.9"}, InvalidTypeError),
        ({"alpha": True}, InvalidTypeError),
        ({"alpha": [0.9, 0.2]}, InvalidInputError),
        ({"random_state": "abc"}, InvalidInputError),
        ({"random_state": -1}, InvalidInputError),
        ({"device": "cuda:7"}, InvalidInputError),
        ({"device": "toaster"}, InvalidInputError),
        ({"checkpoint": 5}, InvalidTypeError),
        ({"patience": 0}, InvalidInputError),
        ({"n_filters": 0}, InvalidInputError),
        ({"n_filters": 1.5}, InvalidTypeError),
        ({"learning_rate": float("nan")}, InvalidInputError),
        ({"calibration_size": 1.0}, InvalidInputError),
        ({"adaptor": "cnn"}, InvalidInputError),
        ({"standardization": "none"}, InvalidInputError),
        ({"min_class_count": -1}, InvalidInputError),
    ],
)
def test_bad_settings(data, settings, error):
    with pytest.raises(error, match=f"'{next(iter(settings))}'"):
        SDMClassifier(**{**QUICK, **settings}).fit(*data)
