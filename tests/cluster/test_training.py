"""Rounds that are trained side by side on a cluster: the same model, whatever is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from victims import kill_worker, lose_node

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.baselines import CrossEntropyClassifier, VBLLClassifier
from torchsdm.cluster import RayBackend, ShardedSupport
from torchsdm.cluster.training import _RemoteRound
from torchsdm.errors import ClusterError, InvalidTypeError, TrainingError
from torchsdm.training import stored_epochs
from torchsdm.training.callbacks import Checkpointing, ProgressBar

SETTINGS = {
    "n_rounds": 3,
    "training": "sdm",
    "max_epochs": 30,
    "learning_rate": 1e-2,
    "patience": None,
    "random_state": 3,
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    labels = rng.integers(2, size=400)
    return (rng.normal(size=(400, 12)) + labels[:, None]).astype(np.float32), labels


@pytest.fixture(scope="module")
def alone(data):
    return SDMClassifier(0.8, n_filters=8, **SETTINGS).fit(*data, keep_rounds=True)


def assert_same(one, other):
    """Every epoch, every weight and every exemplar of two fits is the same, to the bit."""
    assert [untimed(record) for record in one.history_] == [untimed(record) for record in other.history_]
    for mine, theirs in zip(one.models_, other.models_, strict=True):
        for name, weights in mine.adaptor.state_dict().items():
            assert torch.equal(weights, theirs.adaptor.state_dict()[name]), name
        assert torch.equal(mine.support.exemplars, theirs.support.exemplars)


def untimed(record):
    return {name: value for name, value in vars(record).items() if name != "seconds"}


def test_the_same_classifier(ray, nodes, data, alone):
    backend = RayBackend(nodes.address)
    fitted = SDMClassifier(0.8, n_filters=8, backend=backend, **SETTINGS).fit(*data)
    assert_same(fitted, alone)
    assert fitted.certificate_.to_json() == alone.certificate_.to_json()
    assert clone(fitted).get_params()["backend"] == backend


def test_the_same_classifier_with_the_training_points_of_every_epoch_on_shards(ray, nodes, data, alone, monkeypatch):
    matched = []
    original = ShardedSupport.match_self
    monkeypatch.setattr(ShardedSupport, "match_self", lambda self: matched.append(len(self)) or original(self))
    backend = RayBackend(nodes.address, shards=2, spread_training=True)
    fitted = SDMClassifier(0.8, n_filters=8, backend=backend, **{**SETTINGS, "n_rounds": 1, "max_epochs": 5}).fit(*data)
    expected = SDMClassifier(0.8, n_filters=8, **{**SETTINGS, "n_rounds": 1, "max_epochs": 5}).fit(*data)
    assert_same(fitted, expected)
    assert matched == [150] * 5  # half of what is not held out to certify


def test_the_same_ensemble(ray, nodes, data):
    expected = SDMEnsemble(0.8, n_filters=8, **SETTINGS).fit(*data)
    assert_same(SDMEnsemble(0.8, n_filters=8, backend=nodes.address, **SETTINGS).fit(*data), expected)


@pytest.mark.parametrize("kind", [CrossEntropyClassifier, VBLLClassifier])
def test_the_same_baselines(ray, nodes, data, kind):
    width = {"n_hidden": 8} if kind is VBLLClassifier else {"n_filters": 8}
    settings = {name: value for name, value in SETTINGS.items() if name != "training"}
    expected = kind(**width, **settings).fit(*data)
    fitted = kind(**width, backend=nodes.address, **settings).fit(*data)
    np.testing.assert_array_equal(fitted.calibration_losses_, expected.calibration_losses_)
    np.testing.assert_array_equal(fitted.logits(data[0]), expected.logits(data[0]))


def test_patience_ends_a_round_where_it_would_alone(ray, nodes, data):
    settings = {**SETTINGS, "patience": 1, "training": "sdm", "max_epochs": 60}
    expected = SDMClassifier(0.8, n_filters=8, **settings).fit(*data)
    fitted = SDMClassifier(0.8, n_filters=8, backend=nodes.address, **settings).fit(*data)
    assert len(expected.history_) < 60 * SETTINGS["n_rounds"]
    assert_same(fitted, expected)


@pytest.mark.parametrize("kill", [kill_worker, lose_node])
def test_what_is_lost_is_trained_again(ray, nodes, data, monkeypatch, kill):
    """After the third epoch of a round, kill the process that trains it, or the node of that process."""
    settings = {**SETTINGS, "n_rounds": 1}
    expected = SDMClassifier(0.8, n_filters=8, **settings).fit(*data)
    original, begin, seen, starts = ProgressBar.after_epoch, _RemoteRound._begin, [], []

    def after_epoch(self, current, state):
        original(self, current, state)
        seen.append(current.epoch)
        if current.epoch == 3:
            kill(*((nodes,) if kill is lose_node else ()), "_epochs")

    def _begin(self):
        starts.append(self.round.current.epoch)
        begin(self)

    monkeypatch.setattr(ProgressBar, "after_epoch", after_epoch)
    monkeypatch.setattr(_RemoteRound, "_begin", _begin)
    fitted = SDMClassifier(0.8, n_filters=8, backend=nodes.address, verbose=True, **settings).fit(*data)
    assert starts[0] == 0 and starts[1] in (3, 4) and len(starts) == 2  # one epoch may have been on its way
    assert seen == list(range(1, SETTINGS["max_epochs"] + 1))
    assert_same(fitted, expected)


def test_an_interrupted_fit_goes_on_here_or_there(ray, nodes, data, alone, tmp_path, monkeypatch):
    """Interrupted on the cluster with all rounds begun; finished by this process alone, from the same files."""
    original = Checkpointing.after_epoch

    def after_epoch(self, current, state):
        original(self, current, state)
        if current.epoch == 4:
            raise KeyboardInterrupt

    estimator = SDMClassifier(0.8, n_filters=8, backend=nodes.address, checkpoint=tmp_path, **SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointing, "after_epoch", after_epoch)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(*data)
    n_kept = stored_epochs(tmp_path)
    assert 4 <= n_kept < SETTINGS["n_rounds"] * SETTINGS["max_epochs"]
    trained = []
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointing, "after_epoch", lambda self, *one: (trained.append(one), original(self, *one)))
        assert_same(clone(estimator).set_params(backend=None).fit(*data), alone)
    assert len(trained) == SETTINGS["n_rounds"] * SETTINGS["max_epochs"] - n_kept
    assert_same(estimator.fit(*data), alone)  # reads finished rounds, and asks nobody


def test_an_error_of_a_round_is_ours(ray, nodes, data):
    with pytest.raises(TrainingError, match=r"^The (weights|loss|calibration loss) .*Lower learning_rate"):
        SDMClassifier(0.8, n_filters=8, backend=nodes.address, **{**SETTINGS, "learning_rate": 1e30}).fit(*data)


def test_a_backend_is_an_address_or_a_cluster(data):
    with pytest.raises(InvalidTypeError, match=r"'backend' of SDMClassifier\.fit must be None, 'auto', HOST:PORT"):
        SDMClassifier(backend=6379).fit(*data)


def test_an_address_where_nobody_answers(data, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127.0.0.1:1 "):
        SDMClassifier(n_filters=8, backend="127.0.0.1:1", **SETTINGS).fit(*data)


def test_where_a_model_was_trained_is_not_saved(ray, nodes, alone, tmp_path):
    trained = clone(alone).set_params(backend=nodes.address)
    trained.__dict__.update({name: value for name, value in vars(alone).items() if name.endswith("_")})
    trained._codes = alone._codes
    trained.save(tmp_path / "model")
    assert nodes.address not in (tmp_path / "model" / "config.json").read_text(encoding="utf-8")
    assert SDMClassifier.load(tmp_path / "model").backend is None
