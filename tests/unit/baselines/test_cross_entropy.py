"""The cross-entropy baseline: its steps, its choice of the epoch, replays, checkpoints, and bad input."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from conftest import make_blobs
from torchsdm import LabelledStates, SDMClassifier
from torchsdm.baselines import cross_entropy
from torchsdm.baselines.base import LogitModel
from torchsdm.baselines.cross_entropy import CrossEntropyClassifier, CrossEntropyLearner
from torchsdm.errors import CheckpointError, InvalidInputError, InvalidTypeError, NotFittedError, TrainingError
from torchsdm.training.callbacks import Checkpointing, stored_seed
from torchsdm.training.data import TrainingData, TrainingSettings, random_generator, split_of_round

QUICK = {"n_filters": 8, "n_rounds": 3, "max_epochs": 5, "batch_size": 16, "learning_rate": 1e-2, "random_state": 0}
QUICK |= {"standardization": "scalar", "patience": None}


def three_classes(n=150, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return (3 * np.eye(3, 5)[y] + rng.standard_normal((n, 5))).astype(np.float32), y


@pytest.fixture(scope="module")
def data():
    return three_classes()


@pytest.fixture(scope="module")
def fitted(data):
    """A fitted model and a copy of the network after each epoch of each round."""
    networks = []
    original = CrossEntropyLearner.epoch

    def recorded(learner, number):
        record = original(learner, number)
        networks.append((learner.number, number, copy.deepcopy(learner.network)))
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrossEntropyLearner, "epoch", recorded)
        model = CrossEntropyClassifier(**QUICK).fit(*data)
    return model, networks


def slow_balanced_loss(network, X, y):
    """The mean over classes of the mean of -log softmax(z)_y, by loops in float64."""
    with torch.no_grad():
        z = network(torch.from_numpy(X))[1].double().numpy()
    of_class = {}
    for row, label in zip(z, y, strict=True):
        of_class.setdefault(label, []).append(np.log(np.exp(row - row.max()).sum()) - (row[label] - row.max()))
    return np.mean([np.mean(losses) for losses in of_class.values()])


# --- Learning --------------------------------------------------------------------------------------------------------


def test_it_learns_two_blobs_about_as_well_as_can_be():
    train, test = make_blobs(0, 600, 3.0), make_blobs(1, 2000, 3.0)
    model = CrossEntropyClassifier(**{**QUICK, "max_epochs": 15}).fit(train.X, train.y)
    best = np.mean((test.posterior > 0.5) == test.y)
    assert best > 0.9 and model.score(test.X, test.y) > best - 0.02
    assert np.abs(model.predict_proba(test.X)[:, 1] - test.posterior).mean() < 0.06


def test_it_learns_three_classes(fitted):
    X, y = three_classes(500, seed=1)
    assert fitted[0].score(X, y) > 0.85
    probabilities = fitted[0].predict_proba(X)
    z = fitted[0].logits(X).astype(np.float64)
    np.testing.assert_allclose(probabilities, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), rtol=1e-12)
    assert (fitted[0].classes_[probabilities.argmax(axis=1)] == fitted[0].predict(X)).all()


def test_an_epoch_equals_a_plain_loop_of_adam_on_cross_entropy(data):
    X, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    settings = TrainingSettings(n_classes=3, n_filters=6, batch_size=16, learning_rate=1e-2)
    train, calibration = split_of_round(TrainingData(X, y), settings, 7, 2)
    learner = CrossEntropyLearner(train, calibration, settings, 7, 2)
    h = X[train.rows]
    h = (h - h.double().mean().float()) / h.double().std().float()
    network = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    network[0].load_state_dict(learner.network.filters.state_dict())
    network[1].load_state_dict(learner.network.output.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in (1, 2, 3):
        learner.epoch(epoch)
        order = random_generator(7, 2, 2, epoch).permutation(len(train))
        for batch in np.split(order, range(16, len(order), 16)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(h[batch]), y[train.rows][batch]).backward()
            optimizer.step()
    torch.testing.assert_close(learner.network.filters.weight, network[0].weight, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(learner.network.output.weight, network[1].weight, rtol=1e-3, atol=2e-5)


# --- The epoch that is kept ------------------------------------------------------------------------------------------


def test_the_kept_epoch_has_the_lowest_balanced_loss_of_all_rounds(fitted, data):
    model, networks = fitted
    X, y = data
    states = TrainingData(torch.from_numpy(X), torch.from_numpy(y))
    settings = TrainingSettings(n_classes=3)
    slow = np.full((3, 5), np.nan)
    for number, epoch, network in networks:
        _, calibration = split_of_round(states, settings, model.random_seed_, number)
        slow[number, epoch - 1] = slow_balanced_loss(network, X[calibration.rows], y[calibration.rows])
    np.testing.assert_allclose(model.calibration_losses_, slow, rtol=1e-5)
    best = np.unravel_index(slow.argmin(), slow.shape)
    assert (model.best_round_, model.best_epoch_ - 1) == best
    kept = next(network for number, epoch, network in networks if (number, epoch - 1) == best)
    for name, value in kept.state_dict().items():
        assert torch.equal(model.network_.state_dict()[name], value)
    assert slow_balanced_loss(model.network_, X[model.calibration_rows_], y[model.calibration_rows_]) == slow.min()


def test_an_early_best_epoch_is_not_overwritten(data):
    model = CrossEntropyClassifier(**{**QUICK, "learning_rate": 0.5, "n_rounds": 1, "max_epochs": 8}).fit(*data)
    assert model.best_epoch_ < 8
    again = CrossEntropyClassifier(
        **{**QUICK, "learning_rate": 0.5, "n_rounds": 1, "max_epochs": model.best_epoch_}
    ).fit(*data)
    np.testing.assert_array_equal(model.logits(data[0]), again.logits(data[0]))


def test_the_loss_weighs_classes_alike():
    """With 9 of 10 points in one class, the balanced and the plain mean would choose other numbers."""
    rng = np.random.default_rng(3)
    y = (rng.random(400) < 0.1).astype(int)
    X = (1.5 * y[:, None] + rng.standard_normal((400, 4))).astype(np.float32)
    model = CrossEntropyClassifier(**{**QUICK, "n_rounds": 1}).fit(X, y)
    z, labels = model.calibration_logits()
    losses = nn.functional.cross_entropy(torch.from_numpy(z), torch.from_numpy(labels), reduction="none").numpy()
    balanced = (losses[labels == 0].mean() + losses[labels == 1].mean()) / 2
    assert model.calibration_losses_.min() == pytest.approx(balanced, rel=1e-5)
    assert abs(losses.mean() - balanced) > 0.1


def test_patience_ends_rounds_early(data):
    settings = {**QUICK, "learning_rate": 0.3, "max_epochs": 12}
    full = CrossEntropyClassifier(**settings).fit(*data).calibration_losses_
    short = CrossEntropyClassifier(**{**settings, "patience": 2}).fit(*data).calibration_losses_
    assert np.isnan(short).any() and not np.isnan(full).any()
    for row, whole in zip(short, full, strict=True):
        end = int((~np.isnan(row)).sum())
        np.testing.assert_array_equal(row[:end], whole[:end])
        since_best = [epoch - int(whole[: epoch + 1].argmin()) for epoch in range(12)]
        assert end == next((epoch + 1 for epoch, n in enumerate(since_best) if n >= 2), 12)


def test_of_equal_losses_the_earliest_is_kept(data, monkeypatch, tmp_path):
    original = CrossEntropyLearner.epoch
    losses = [[3.0, 2.0, 2.0], [2.0, 2.0, 2.0], [5.0, 4.0, 2.0]]

    def train_epoch(learner, number):
        return dataclasses.replace(original(learner, number), calibration_loss=losses[learner.number][number - 1])

    two_epochs = CrossEntropyClassifier(**{**QUICK, "n_rounds": 1, "max_epochs": 2})
    monkeypatch.setattr(CrossEntropyLearner, "epoch", train_epoch)
    for checkpoint in (None, tmp_path, tmp_path):  # trained; trained and stored; read
        model = CrossEntropyClassifier(**{**QUICK, "max_epochs": 3}, checkpoint=checkpoint).fit(*data)
        assert (model.best_round_, model.best_epoch_) == (0, 2)
        np.testing.assert_array_equal(model.calibration_losses_, losses)
        np.testing.assert_array_equal(model.logits(data[0]), two_epochs.fit(*data).logits(data[0]))


# --- Parts -----------------------------------------------------------------------------------------------------------


def test_the_calibration_part_is_apart_and_stratified(fitted, data):
    model, _ = fitted
    assert sorted([*model.training_rows_, *model.calibration_rows_]) == list(range(len(data[1])))
    counts = np.bincount(data[1][model.training_rows_]) - np.bincount(data[1][model.calibration_rows_])
    assert np.abs(counts).max() <= 1
    logits, labels = model.calibration_logits()
    np.testing.assert_array_equal(logits, model.logits(data[0][model.calibration_rows_]))
    np.testing.assert_array_equal(labels, data[1][model.calibration_rows_])


def test_standardisation_sees_the_training_part_alone(fitted, data):
    part = data[0][fitted[0].training_rows_].astype(np.float64)
    assert float(fitted[0].network_.mean) == pytest.approx(part.mean(), rel=1e-6)
    assert float(fitted[0].network_.scale) == pytest.approx(part.std(ddof=1), rel=1e-6)
    model = CrossEntropyClassifier(**{**QUICK, "standardization": "per_dimension", "calibration_size": 0.2}).fit(*data)
    assert len(model.calibration_rows_) == 30
    part = data[0][model.training_rows_].astype(np.float64)
    np.testing.assert_allclose(model.network_.mean, part.mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda X, y: (X, y), LabelledStates])
def test_a_calibration_set_of_ones_own_is_used_whole(data, wrap):
    X, y = three_classes(60, seed=5)
    names = np.array(["a", "b", "c"])
    model = CrossEntropyClassifier(**QUICK).fit(data[0], names[data[1]], calibration=wrap(X, names[y]))
    logits, labels = model.calibration_logits()
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(logits, model.logits(X))
    assert len(model.training_rows_) == len(data[1])
    loss = slow_balanced_loss(model.network_, X, y)
    assert model.calibration_losses_.min() == pytest.approx(loss, rel=1e-5)


# --- Replays ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not(fitted, data):
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        again = CrossEntropyClassifier(**QUICK).fit(*data)
    assert torch.equal(torch.rand(2), expected)  # global randomness is left alone
    np.testing.assert_array_equal(again.logits(data[0]), fitted[0].logits(data[0]))
    np.testing.assert_array_equal(again.calibration_losses_, fitted[0].calibration_losses_)
    other = CrossEntropyClassifier(**{**QUICK, "random_state": 1}).fit(*data)
    assert not np.array_equal(other.logits(data[0]), fitted[0].logits(data[0]))


def test_generators_are_taken_as_random_states(data):
    models = [
        CrossEntropyClassifier(**{**QUICK, "n_rounds": 1, "max_epochs": 1, "random_state": kind(4)}).fit(*data)
        for kind in (np.random.default_rng, np.random.default_rng, np.random.RandomState)
    ]
    assert models[0].random_seed_ == models[1].random_seed_ != models[2].random_seed_


def test_a_seed_is_taken_as_it_is(fitted, data):
    model = CrossEntropyClassifier(**{**QUICK, "random_state": 99}).fit(*data, seed=fitted[0].random_seed_)
    assert model.random_seed_ == fitted[0].random_seed_
    np.testing.assert_array_equal(model.logits(data[0]), fitted[0].logits(data[0]))
    np.testing.assert_array_equal(model.calibration_rows_, fitted[0].calibration_rows_)
    for seed, message in ((-1, "must be at least 0"), (1.5, "must be an integer"), (2**63, "must be below")):
        with pytest.raises(
            (InvalidInputError, InvalidTypeError), match=f"'seed' of CrossEntropyClassifier.fit {message}"
        ):
            model.fit(*data, seed=seed)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_the_first_epoch_is_that_of_ours(data):
    settings = {**QUICK, "n_rounds": 1, "max_epochs": 1}
    model, ours = (
        CrossEntropyClassifier(**settings).fit(*data),
        SDMClassifier(0.8, training="sdm", **settings).fit(*data),
    )
    assert model.random_seed_ == ours.random_seed_
    for name, value in ours.models_[0].adaptor.state_dict().items():
        assert torch.equal(model.network_.state_dict()[name], value)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_logits_do_not_depend_on_the_batch(size):
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((130, 300)).astype(np.float32), rng.integers(0, 2, 130)
    model = CrossEntropyClassifier(**{**QUICK, "n_filters": 40, "n_rounds": 1, "max_epochs": 2}).fit(X, y)
    parts = [model.logits(X[start : start + size]) for start in range(0, 130, size)]
    np.testing.assert_array_equal(np.concatenate(parts), model.logits(X))


# --- Checkpoints -----------------------------------------------------------------------------------------------------

OTHER = "safetensors belongs to a fit on other data or with other settings. Use another checkpoint directory"


class Killed(BaseException):
    """Stands for a kill at any place."""


def fit_until_killed(model, data, rounds):
    """Die in the third epoch after as many rounds were finished."""
    original = CrossEntropyLearner.epoch

    def train_epoch(learner, number):
        if (learner.number, number) == (rounds, 3):
            raise Killed
        return original(learner, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrossEntropyLearner, "epoch", train_epoch)
        with pytest.raises(Killed):
            model.fit(*data)


def assert_identical(a, b, X):
    left, right = a.network_.state_dict(), b.network_.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert (a.random_seed_, a.best_round_, a.best_epoch_) == (b.random_seed_, b.best_round_, b.best_epoch_)
    np.testing.assert_array_equal(a.calibration_losses_, b.calibration_losses_)
    np.testing.assert_array_equal(a.training_rows_, b.training_rows_)
    np.testing.assert_array_equal(a.calibration_logits()[0], b.calibration_logits()[0])
    np.testing.assert_array_equal(a.logits(X), b.logits(X))


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("change", [{}, {"learning_rate": 0.3, "max_epochs": 12, "patience": 2}], ids=["", "patience"])
def test_an_interrupted_fit_called_again_goes_on_with_the_same_bits(data, tmp_path, monkeypatch, rounds, change):
    settings, trained = {**QUICK, **change}, []
    expected = CrossEntropyClassifier(**settings).fit(*data)
    fit_until_killed(CrossEntropyClassifier(**settings, checkpoint=tmp_path), data, rounds)
    stored = {f"current-{rounds:03d}.safetensors", *(f"round-{number:03d}.safetensors" for number in range(rounds))}
    assert {path.name for path in tmp_path.iterdir()} == stored
    original = CrossEntropyLearner.epoch
    monkeypatch.setattr(
        CrossEntropyLearner, "epoch", lambda self, n: (trained.append((self.number, n)), original(self, n))[1]
    )
    assert_identical(CrossEntropyClassifier(**settings, checkpoint=tmp_path).fit(*data), expected, data[0])
    assert trained[0] == (rounds, 3)  # nothing that is finished is trained again
    assert {number for number, _ in trained} == set(range(rounds, 3))
    trained.clear()
    assert_identical(CrossEntropyClassifier(**settings, checkpoint=str(tmp_path)).fit(*data), expected, data[0])
    assert not trained


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(1)])
def test_an_unseeded_fit_takes_up_the_stored_seed(data, tmp_path, random_state):
    settings = {**QUICK, "random_state": random_state}
    fit_until_killed(CrossEntropyClassifier(**settings, checkpoint=tmp_path), data, 1)
    resumed = CrossEntropyClassifier(**settings, checkpoint=tmp_path).fit(*data)
    plain = CrossEntropyClassifier(**settings).fit(*data, seed=stored_seed(tmp_path))
    assert_identical(resumed, plain, data[0])


def test_progress_is_shown_on_request(data, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    CrossEntropyClassifier(**QUICK).fit(*data)
    assert screen.getvalue() == ""
    CrossEntropyClassifier(**QUICK, verbose=True).fit(*data)
    assert "round 3/3" in screen.getvalue() and "15/15" in screen.getvalue() and "best=" in screen.getvalue()


def test_more_rounds_may_follow(fitted, data, tmp_path):
    CrossEntropyClassifier(**{**QUICK, "n_rounds": 1}, checkpoint=tmp_path).fit(*data)
    assert_identical(CrossEntropyClassifier(**QUICK, checkpoint=tmp_path).fit(*data), fitted[0], data[0])


@pytest.mark.parametrize(
    "change",
    [
        {"n_filters": 7},
        {"max_epochs": 6},
        {"batch_size": 8},
        {"learning_rate": 2e-2},
        {"random_state": 1},
        {"standardization": "per_dimension"},
        {"calibration_size": 0.4},
        {"patience": 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_with_other_settings_is_refused(fitted, data, tmp_path, change):
    fit_until_killed(CrossEntropyClassifier(**QUICK, checkpoint=tmp_path), data, 1)
    with pytest.raises(CheckpointError, match=OTHER):
        CrossEntropyClassifier(**{**QUICK, **change}, checkpoint=tmp_path).fit(*data)
    assert_identical(CrossEntropyClassifier(**QUICK, checkpoint=tmp_path).fit(*data), fitted[0], data[0])


def test_a_checkpoint_of_other_data_is_refused(data, tmp_path):
    (X, y), moved = data, data[0].copy()
    moved[7, 2] += 1e-3
    names = np.array(["a", "b", "c"])
    model = CrossEntropyClassifier(**{**QUICK, "n_rounds": 1}, checkpoint=tmp_path / "split").fit(X, y)
    for others in ((moved, y), (X, np.roll(y, 1)), (X, names[y]), (X, y, (X, y))):
        with pytest.raises(CheckpointError, match=OTHER):
            model.fit(*others)
    given = model.set_params(checkpoint=tmp_path / "given").fit(X, y, (X[:60], y[:60]))
    for calibration in (None, (moved[:60], y[:60]), (X[:60], np.roll(y[:60], 1)), (X[:59], y[:59])):
        with pytest.raises(CheckpointError, match=OTHER):
            given.fit(X, y, calibration)
    given.fit(X, y, LabelledStates(X[:60], y[:60]))


def test_a_fit_of_ours_in_its_first_round_is_not_mixed_with(data, tmp_path, monkeypatch):
    original = Checkpointing.after_epoch

    def after_epoch(self, current, state):
        original(self, current, state)
        raise Killed

    monkeypatch.setattr(Checkpointing, "after_epoch", after_epoch)
    with pytest.raises(Killed):
        SDMClassifier(alpha=0.8, training="sdm", **QUICK, checkpoint=tmp_path).fit(*data)
    with pytest.raises(CheckpointError, match=f"current-000.{OTHER}"):
        CrossEntropyClassifier(**QUICK, checkpoint=tmp_path).fit(*data)
    assert [path.name for path in tmp_path.iterdir()] == ["current-000.safetensors"]


@pytest.mark.parametrize("random_state", [0, None])
def test_a_damaged_checkpoint_is_named(data, tmp_path, random_state):
    model = CrossEntropyClassifier(**{**QUICK, "random_state": random_state}, checkpoint=tmp_path).fit(*data)
    expected, path = copy.deepcopy(model), tmp_path / "round-000.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"round-000.safetensors is damaged .* Remove it to train that round"):
        model.fit(*data)
    if random_state is not None:
        path.unlink()
        assert_identical(model.fit(*data), expected, data[0])


def test_a_checkpoint_that_is_no_directory_is_refused_before_training(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(CrossEntropyLearner, "epoch", lambda *_: pytest.fail("trained"))
    with pytest.raises(CheckpointError, match="cannot be used as a checkpoint directory"):
        CrossEntropyClassifier(**QUICK, checkpoint=tmp_path / "file").fit(*data)


# --- The interface ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7], [-1.0, 1.0], [0, 1]])
def test_labels_of_any_type(labels):
    blobs = make_blobs(0, 120, 5.0)
    y = np.array(labels)[blobs.y]
    model = CrossEntropyClassifier(**QUICK).fit(blobs.X.tolist(), y.tolist())
    assert model.classes_.tolist() == sorted(labels)
    assert model.predict(blobs.X).dtype == y.dtype and model.score(blobs.X, y) > 0.9


def test_states_with_positions(data):
    several = np.repeat(data[0][:, None], 3, axis=1)
    model = CrossEntropyClassifier(**QUICK).fit(several, data[1])
    assert model.logits(several).shape == (150, 3) and model.score(several, data[1]) > 0.8


def test_it_is_a_logit_model_that_can_be_cloned_and_pickled(fitted, data):
    model, _ = fitted
    assert isinstance(model, LogitModel)
    copied = clone(model)
    assert copied.get_params() == model.get_params() and not hasattr(copied, "classes_")
    assert copied.set_params(n_filters=3).n_filters == 3
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).logits(data[0]), model.logits(data[0]))


def test_the_defaults_are_the_papers():
    assert CrossEntropyClassifier().get_params() == {
        "n_filters": 1000,
        "n_rounds": 10,
        "max_epochs": 200,
        "batch_size": 50,
        "learning_rate": 1e-5,
        "random_state": None,
        "device": None,
        "standardization": "scalar",
        "calibration_size": 0.5,
        "patience": None,
        "checkpoint": None,
        "backend": None,
        "verbose": False,
    }


# --- Failure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_filters": 0}, "'n_filters' of CrossEntropyClassifier.fit must be positive"),
        ({"n_rounds": 0}, "'n_rounds'"),
        ({"max_epochs": 1.5}, "'max_epochs' of CrossEntropyClassifier.fit must be an integer"),
        ({"batch_size": -1}, "'batch_size'"),
        ({"learning_rate": 0}, "'learning_rate'"),
        ({"patience": 0}, "'patience'"),
        ({"standardization": "none"}, "'standardization'"),
        ({"calibration_size": 1.0}, "'calibration_size' of CrossEntropyClassifier.fit must be in (0, 1). Got 1.0"),
        ({"device": "abacus"}, "'device'"),
        ({"random_state": "x"}, "'random_state' of CrossEntropyClassifier"),
        ({"checkpoint": 3}, "'checkpoint' of CrossEntropyClassifier.fit must be a path. Got 3"),
    ],
)
def test_bad_parameters_are_named(data, change, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=re.escape(message)):
        CrossEntropyClassifier(**{**QUICK, **change}).fit(*data)


def test_bad_data_is_refused(fitted, data):
    X, y = data
    new = CrossEntropyClassifier(**QUICK)
    for states, labels, message in (
        (X, None, "'y' of CrossEntropyClassifier.fit"),
        (X, y[:-1], "must have one value for each of 150 inputs"),
        (X, np.zeros(150), "at least two classes"),
        (np.where(X > 3, np.nan, X), y, "must be finite"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            new.fit(states, labels)
    with pytest.raises(NotFittedError, match="call fit before logits"):
        new.predict(X)
    with pytest.raises(NotFittedError, match="call fit before calibration_logits"):
        new.calibration_logits()
    with pytest.raises(InvalidInputError, match="expecting 5 features"):
        fitted[0].logits(X[:, :4])


def test_bad_calibration_sets_are_refused(data):
    model = CrossEntropyClassifier(**QUICK)
    with pytest.raises(InvalidTypeError, match=r"must be LabelledStates or \(X, y\)"):
        model.fit(*data, calibration=data[0])
    with pytest.raises(InvalidInputError, match="must contain only labels seen in fit"):
        model.fit(*data, calibration=(data[0], data[1] + 1))


@pytest.mark.parametrize("learning_rate", [1e20, 1e38])
def test_a_huge_learning_rate_says_so(data, learning_rate):
    with pytest.raises(TrainingError, match="Lower learning_rate"):
        CrossEntropyClassifier(**{**QUICK, "learning_rate": learning_rate}).fit(*data)


def test_a_calibration_loss_that_is_no_number_names_epoch_and_round(data, monkeypatch):
    monkeypatch.setattr(cross_entropy, "balanced_mean", lambda *_: float("nan"))
    with pytest.raises(TrainingError, match="calibration loss became nan in epoch 1 of round 1"):
        CrossEntropyClassifier(**QUICK).fit(*data)
