"""J rounds with checkpoints: interrupted anywhere, taken up again, identical; and refused where they do not belong."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clock import Clock, open_terminal, remaining
from torchsdm import SDMClassifier
from torchsdm.errors import CheckpointError
from torchsdm.training.callbacks import (
    Callback,
    Checkpointing,
    ProgressBar,
    remove_checkpoint,
    stored_epochs,
    stored_seed,
)
from torchsdm.training.data import TrainingData, TrainingSettings
from torchsdm.training.history import EpochRecord
from torchsdm.training.learner import SDMLearner
from torchsdm.training.rounds import Training, train_round, train_rounds

SETTINGS = TrainingSettings(n_classes=2, n_filters=4, max_epochs=3, batch_size=16, learning_rate=1e-2)
SEED, N_ROUNDS = 3, 2
N_EPOCHS = N_ROUNDS * SETTINGS.max_epochs


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % 2
    X = (rng.standard_normal((60, 3)) + 2 * labels[:, None]).astype(np.float32)
    return TrainingData(torch.from_numpy(X), torch.from_numpy(labels))


def train(checkpoint=None, settings=SETTINGS, data=None, seed=SEED, n_rounds=N_ROUNDS, fingerprint="data", **options):
    training = Training(SDMLearner, data or make_data(), settings, seed)
    return train_rounds(training, n_rounds, checkpoint=checkpoint, data_fingerprint=fingerprint, **options)


def one_round(number, *callbacks):
    return train_round(Training(SDMLearner, make_data(), SETTINGS, SEED), number, callbacks)


@pytest.fixture(scope="module")
def uninterrupted():
    torch.set_num_threads(1)
    return train()


def assert_same_results(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert (a.number, a.best_epoch, a.best_loss) == (b.number, b.best_epoch, b.best_loss)
        assert a.best_weights.keys() == b.best_weights.keys()
        assert all(torch.equal(a.best_weights[name], b.best_weights[name]) for name in a.best_weights)
        assert [dataclasses.replace(r, seconds=0.0) for r in a.records] == [
            dataclasses.replace(r, seconds=0.0) for r in b.records
        ]


class Killed(BaseException):
    """Stands for Ctrl-C."""


def interrupt(monkeypatch, after):
    """Die after the given number of epochs were stored."""
    original, stored = Checkpointing.after_epoch, []

    def after_epoch(self, current, state):
        original(self, current, state)
        stored.append(current.epoch)
        if len(stored) == after:
            raise Killed

    monkeypatch.setattr(Checkpointing, "after_epoch", after_epoch)


# --- Rounds ----------------------------------------------------------------------------------------------------------


def test_rounds_are_the_single_rounds(uninterrupted):
    assert_same_results(uninterrupted, [one_round(number) for number in range(N_ROUNDS)])
    first, second = (one.best_weights["filters.weight"] for one in uninterrupted)
    assert not torch.equal(first, second)


def test_progress_is_shown_on_request(monkeypatch):
    terminal = open_terminal(monkeypatch)
    train(verbose=True)
    shown = terminal.getvalue()
    assert "round 2/2" in shown and f"{N_EPOCHS}/{N_EPOCHS}" in shown and "loss=" in shown
    train()
    assert terminal.getvalue() == shown


def test_no_progress_in_a_pipe(capsys):
    train(verbose=True)
    assert capsys.readouterr().err == ""


def test_progress_ends_full_after_patience_and_after_resuming(monkeypatch, tmp_path):
    terminal = open_terminal(monkeypatch)
    settings = dataclasses.replace(SETTINGS, learning_rate=1.0, max_epochs=30, patience=1)
    results = train(tmp_path, settings, verbose=True)
    assert sum(len(result.records) for result in results) < 60
    shown = terminal.getvalue()
    assert "60/60" in shown
    train(tmp_path, settings, verbose=True)
    assert "60/60" in terminal.getvalue().removeprefix(shown)


@pytest.mark.parametrize("after", [4, 34, 45])
def test_the_remaining_time_is_that_of_epochs_trained_now(monkeypatch, tmp_path, after):
    settings = dataclasses.replace(SETTINGS, max_epochs=30)
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Killed):
            train(tmp_path, settings)
    clock, screen, original = Clock(monkeypatch), open_terminal(monkeypatch), SDMLearner.epoch

    def epoch(self, number):
        clock.now += 10
        return original(self, number)

    monkeypatch.setattr(SDMLearner, "epoch", epoch)
    train(tmp_path, settings, verbose=True)
    left = remaining(screen)
    for n in range(after + 1, 61):
        assert left[n] == pytest.approx((60 - n) * 10, abs=1)


def test_epochs_that_patience_spares_are_not_counted_as_trained(monkeypatch):
    clock, screen, original = Clock(monkeypatch), open_terminal(monkeypatch), SDMLearner.epoch

    def epoch(self, number):
        clock.now += 10
        return dataclasses.replace(
            original(self, number), calibration_balanced_loss=float(number)
        )  # never better than the first

    monkeypatch.setattr(SDMLearner, "epoch", epoch)
    train(settings=dataclasses.replace(SETTINGS, max_epochs=30, patience=2), verbose=True)
    assert remaining(screen)[31] == pytest.approx(290, abs=1)  # of the second round


# --- Interruption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(1, N_EPOCHS + 1))
def test_interrupted_after_any_epoch_the_results_are_identical(monkeypatch, tmp_path, uninterrupted, after):
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Killed):
            train(tmp_path)
    trained = []
    original = SDMLearner.epoch
    monkeypatch.setattr(SDMLearner, "epoch", lambda self, number: (trained.append(number), original(self, number))[1])
    assert_same_results(train(tmp_path), uninterrupted)
    assert len(trained) == N_EPOCHS - after  # nothing is done twice


def test_interrupted_again_and_again(monkeypatch, tmp_path, uninterrupted):
    for _ in range(N_EPOCHS):
        with monkeypatch.context() as patch:
            interrupt(patch, 1)
            with pytest.raises(Killed):
                train(tmp_path)
    assert_same_results(train(tmp_path), uninterrupted)


def test_killed_while_writing_leaves_the_epoch_before(monkeypatch, tmp_path, uninterrupted):
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(Killed):
            train(tmp_path)
    # What a kill in the middle of the third epoch's write leaves behind: part of a file under its passing name.
    whole = (tmp_path / "current-000.safetensors").read_bytes()
    (tmp_path / ".writing-current-000.safetensors").write_bytes(whole[: len(whole) // 2])
    assert stored_seed(tmp_path) == SEED
    assert_same_results(train(tmp_path), uninterrupted)


def test_a_running_round_of_an_earlier_version_is_resumed(monkeypatch, tmp_path, uninterrupted):
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        with pytest.raises(Killed):
            train(tmp_path)
    (tmp_path / "current-001.safetensors").rename(tmp_path / "current.safetensors")
    assert stored_seed(tmp_path) == SEED
    assert stored_epochs(tmp_path) == 4
    trained, original = [], SDMLearner.epoch
    monkeypatch.setattr(SDMLearner, "epoch", lambda self, n: (trained.append((self.number, n)), original(self, n))[1])
    assert_same_results(train(tmp_path), uninterrupted)
    assert trained[0] == (1, 2)
    remove_checkpoint(tmp_path)
    assert not tmp_path.exists()


def test_a_finished_fit_is_read_and_more_rounds_go_on(monkeypatch, tmp_path, uninterrupted):
    train(tmp_path)
    monkeypatch.setattr(SDMLearner, "epoch", lambda *_: pytest.fail("trained again"))
    assert_same_results(train(tmp_path), uninterrupted)
    monkeypatch.undo()
    three = train(tmp_path, n_rounds=3)
    assert_same_results(three[:2], uninterrupted)
    assert_same_results(three[2:], [one_round(2)])


class Recorder(Callback):
    """Keeps the round and its state after every epoch."""

    def __init__(self):
        self.seen = []

    def after_epoch(self, current, state):
        self.seen.append((current, state))


def same_tensors(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) and first[name].dtype == second[name].dtype for name in first
    )


def test_states_survive_the_file_bit_for_bit(tmp_path):
    recorder, store = Recorder(), Checkpointing(tmp_path, "f", SEED, EpochRecord)
    one_round(0, recorder, store)
    (tmp_path / "round-000.safetensors").unlink()
    learner = Training(SDMLearner, make_data(), SETTINGS, SEED).begin(0)
    for current, state in recorder.seen:
        learner.restore(state)
        assert same_tensors(learner.state(), state)
        store.after_epoch(current, state)
        back, stored = store.restore(0)
        assert same_tensors(stored, state) and back.records == current.records
        assert same_tensors(back.best_weights, current.best_weights) and back.best_epoch == current.best_epoch
    assert "signals:similarity" in state and "optimizer:0.exp_avg" in state
    assert store.restore(1) is None
    assert Checkpointing(tmp_path / "elsewhere", "f", SEED, EpochRecord).restore(0) is None
    store.after_round(current)
    back, stored = store.restore(0)
    assert stored == {} and same_tensors(back.best_weights, current.best_weights)


# --- Callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_are_called_at_their_moments(monkeypatch):
    calls = []

    class Witness(Callback):
        def restore(self, number):
            calls.append(("restore", number))

        def after_epoch(self, current, state):
            calls.append(("epoch", current.number, current.epoch))

        def after_round(self, finished):
            calls.append(("round", finished.number, finished.epoch))

    for number in (0, 1):
        one_round(number, Witness())
    assert calls[:5] == [("restore", 0), *(("epoch", 0, n) for n in (1, 2, 3)), ("round", 0, 3)]
    assert calls[5:] == [("restore", 1), *(("epoch", 1, n) for n in (1, 2, 3)), ("round", 1, 3)]


def test_the_bar_is_closed_when_training_fails(monkeypatch):
    ended = []
    monkeypatch.setattr(ProgressBar, "end", lambda self: ended.append(self))
    monkeypatch.setattr(SDMLearner, "epoch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(verbose=True)
    assert len(ended) == 1


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "other data"},
        {"seed": 4},
        {"settings": dataclasses.replace(SETTINGS, learning_rate=2e-2)},
        {"settings": dataclasses.replace(SETTINGS, n_filters=5)},
        {"settings": dataclasses.replace(SETTINGS, batch_size=8)},
        {"settings": dataclasses.replace(SETTINGS, max_epochs=4)},
        {"settings": dataclasses.replace(SETTINGS, standardization="per_dimension")},
        {"settings": dataclasses.replace(SETTINGS, patience=2)},
        {"settings": dataclasses.replace(SETTINGS, calibration_size=0.4)},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("after", [1, 4])
def test_other_data_or_settings_are_refused(monkeypatch, tmp_path, uninterrupted, change, after):
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Killed):
            train(tmp_path)
    name = "current-000" if after == 1 else "round-000"
    message = f"{name}.safetensors belongs to a fit on other data or with other settings. Use another checkpoint"
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path, **change)
    assert_same_results(train(tmp_path), uninterrupted)  # and nothing was lost


@pytest.mark.parametrize("name", ["current-000.safetensors", "round-000.safetensors"])
def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path, name):
    facts = {"fingerprint": "f", "seed": SEED, "number": 0, "best_epoch": 1, "best_loss": 0.5, "records": []}
    save_file({"adaptor:mean": torch.zeros(1)}, tmp_path / name, {"facts": json.dumps(facts)})
    with pytest.raises(CheckpointError, match=f"{name} was written by another version of torchsdm. Use another"):
        train(tmp_path)
    with pytest.raises(CheckpointError, match="another version"):
        stored_seed(tmp_path)


@pytest.mark.parametrize("name", ["current-000.safetensors", "round-000.safetensors"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"junk" * 100),
        lambda path: save_file({"x": torch.zeros(1)}, path),  # foreign
        lambda path: save_file({"x": torch.zeros(1)}, path, {"facts": "{"}),
        lambda path: save_file({"x": torch.zeros(1)}, path, {"facts": json.dumps({"epoch": 1})}),
    ],
    ids=["truncated", "empty", "junk", "foreign", "no JSON", "other facts"],
)
def test_damaged_files_are_named(monkeypatch, tmp_path, name, damage):
    with monkeypatch.context() as patch:
        interrupt(patch, 1 if name.startswith("current") else 4)
        with pytest.raises(Killed):
            train(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}.*"):
        train(tmp_path)
    (tmp_path / name).unlink()  # as the message says
    assert len(train(tmp_path)) == N_ROUNDS


# --- Through the estimator -------------------------------------------------------------------------------------------

SMALL = {
    "alpha": 0.6,
    "n_filters": 4,
    "n_rounds": 2,
    "training": "sdm",
    "max_epochs": 3,
    "batch_size": 16,
    "learning_rate": 1e-2,
}


def fit(data, **options):
    classifier = SDMClassifier(**SMALL, **options)
    return classifier.fit(data.hidden_states.numpy(), data.labels.numpy())


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize("random_state", [11, None])
def test_an_interrupted_fit_called_again_gives_the_same_model(monkeypatch, tmp_path, random_state):
    data, directory = make_data(), tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        with pytest.raises(Killed):
            fit(data, random_state=random_state, checkpoint=directory)
    resumed = fit(data, random_state=random_state, checkpoint=directory)
    expected = fit(data, random_state=np_seed(resumed, random_state))
    # the seed itself is drawn from random_state; without one, the checkpoint has kept it
    if random_state is not None:
        assert expected.random_seed_ == resumed.random_seed_
        first, again = resumed.decide(data.hidden_states), expected.decide(data.hidden_states)
        assert np.array_equal(first.logits, again.logits) and np.array_equal(first.admitted, again.admitted)
    assert resumed.random_seed_ == stored_seed(directory)
    assert len(resumed.history_) == 6


def np_seed(resumed, random_state):
    return resumed.random_seed_ if random_state is None else random_state


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_checkpoint_of_another_fit_is_refused_by_the_estimator(tmp_path):
    fit(make_data(), random_state=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="other data or with other settings"):
        fit(make_data(seed=1), random_state=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="other data or with other settings"):
        fit(make_data(seed=1), checkpoint=tmp_path)
    data = make_data()
    with pytest.raises(CheckpointError, match="other data or with other settings"):  # another calibration set
        SDMClassifier(**SMALL, random_state=1, checkpoint=tmp_path).fit(
            data.hidden_states.numpy(),
            data.labels.numpy(),
            calibration=(data.hidden_states.numpy()[:20] + 1, data.labels.numpy()[:20]),
        )
