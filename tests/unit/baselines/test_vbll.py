"""Variational Bayesian last layers: network, layer, optimiser and predictive as specified; replays; bad input."""

from __future__ import annotations

import copy
import math
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from conftest import make_blobs
from torchsdm.baselines import vbll as baseline
from torchsdm.baselines.base import LogitModel
from torchsdm.baselines.cross_entropy import CrossEntropyClassifier
from torchsdm.baselines.softmax import NoReject
from torchsdm.baselines.vbll import VBLLClassifier, VBLLLearner, VBLLNetwork
from torchsdm.errors import (
    CheckpointError,
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    NotFittedError,
    TrainingError,
)
from torchsdm.training.data import TrainingData, TrainingSettings, Use, random_generator, split_of_round
from torchsdm.training.history import LossRecord

vbll = pytest.importorskip("vbll")

QUICK = {"n_hidden": 12, "n_rounds": 2, "max_epochs": 6, "batch_size": 16, "learning_rate": 3e-2, "random_state": 0}
KINDS = ["discriminative", "generative"]


def three_classes(n=150, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return (4 * np.eye(3, 5)[y] + rng.standard_normal((n, 5))).astype(np.float32), y


@pytest.fixture(scope="module")
def data():
    return three_classes()


@pytest.fixture(scope="module", params=KINDS)
def fitted(request, data):
    """A fitted model and a copy of the network after each epoch of each round."""
    networks = []
    original = VBLLLearner.epoch

    def recorded(learner, number):
        record = original(learner, number)
        networks.append((learner.number, number, copy.deepcopy(learner.network)))
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VBLLLearner, "epoch", recorded)
        model = VBLLClassifier(request.param, **QUICK).fit(*data)
    return model, networks


def make_learner(data, kind="discriminative", number=0, **settings):
    X, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    settings = TrainingSettings(n_classes=3, n_filters=12, batch_size=16, learning_rate=1e-2, **settings)
    parts = split_of_round(TrainingData(X, y), settings, 7, number)
    return VBLLLearner(*parts, settings, 7, number, kind=kind, regularization_factor=50)


def slow_probabilities(network, X):
    """The predictive of one point after the other, from the package's own distributions."""
    rows = []
    for x in torch.from_numpy(X):
        with torch.no_grad():
            features = network(x[None])
            if network.kind == "generative":
                rows.append(network.last.predictive(features)[0].double().numpy())
                continue
            logits = network.last.logit_predictive(features)
            mean, deviation = logits.mean[0].double().numpy(), logits.scale[0].double().numpy()
        samples = [np.exp(mean + deviation * draw) for draw in network.draws.numpy()]
        rows.append(np.mean([sample / sample.sum() for sample in samples], axis=0))
    return np.array(rows)


# --- As specified ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layer"), [("discriminative", "DiscClassification"), ("generative", "GenClassification")]
)
def test_the_layer_is_that_of_the_package(data, kind, layer):
    learner = make_learner(data, kind)
    last = learner.network.last
    assert type(last) is getattr(vbll, layer)
    assert last.regularization_weight == 50 / len(learner.train)
    assert not hasattr(last, "W_offdiag")  # diagonal
    model = VBLLClassifier(kind, regularization_factor=50, **QUICK).fit(*data)
    assert model.network_.last.regularization_weight == 50 / len(model.training_rows_)


def test_the_network_is_that_of_the_appendix():
    """6,154,099 parameters for hidden states of 6144 entries and 2 classes; the SDM layer has 6,147,002."""
    network = VBLLNetwork(6144, 2, 795, "discriminative", 1e-4, np.zeros((20, 2)))
    linear = [(layer.in_features, layer.out_features) for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert sorted(linear) == [(795, 795), (795, 795), (6144, 795)]
    assert sum(parameter.numel() for parameter in network.parameters()) == 6_154_099


def test_the_forward_pass_is_linear_linear_elu_linear_elu(data):
    network = make_learner(data).network
    x = torch.from_numpy(data[0])
    h = network.input.filters((x - network.input.mean) / network.input.scale)
    for layer in (network.input.output, network.core):
        h = layer(h)
        h = torch.where(h > 0, h, torch.exp(h) - 1)
    torch.testing.assert_close(network(x), h, rtol=1e-5, atol=1e-5)
    encoded = network.encode_exactly(x)
    assert encoded.dtype == torch.float64
    torch.testing.assert_close(encoded.float(), h, rtol=1e-5, atol=1e-5)


def test_the_last_layer_is_spared_weight_decay(data):
    learner = make_learner(data)
    assert type(learner.optimizer) is torch.optim.AdamW
    trunk, last = learner.optimizer.param_groups
    assert (trunk["weight_decay"], last["weight_decay"]) == (1e-4, 0.0)
    assert {id(p) for p in last["params"]} == {id(p) for p in learner.network.last.parameters()}
    assert len(trunk["params"]) == 6 and {p.shape for p in trunk["params"]} == {(12, 5), (12,), (12, 12)}
    assert all(group["lr"] == 1e-2 for group in (trunk, last))


def test_gradients_are_clipped_to_norm_1(data, monkeypatch):
    learner, norms = make_learner(data), []
    original = learner.optimizer.step

    def step():
        gradients = [p.grad for p in learner.network.parameters() if p.grad is not None]
        norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in gradients)))
        original()

    monkeypatch.setattr(learner.optimizer, "step", step)
    learner.network.last.W_mean.data *= 20  # so that there is something to clip
    learner.epoch(1)
    assert max(norms) == pytest.approx(1, abs=1e-4) and len(norms) == math.ceil(len(learner.train) / 16)


def test_an_epoch_equals_a_plain_loop(data):
    learner = make_learner(data, number=1)
    network = copy.deepcopy(learner.network)
    h, y = torch.from_numpy(data[0])[learner.train.rows], torch.from_numpy(data[1])[learner.train.rows]
    trunk = [*network.input.parameters(), *network.core.parameters()]
    groups = [{"params": trunk, "weight_decay": 1e-4}, {"params": network.last.parameters(), "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for epoch in (1, 2):
        learner.epoch(epoch)
        order = random_generator(7, 1, Use.VBLL_SHUFFLE, epoch).permutation(len(h))
        for batch in np.split(order, range(16, len(order), 16)):
            optimizer.zero_grad()
            network.last(network(h[batch])).train_loss_fn(y[batch]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
    for name, value in network.state_dict().items():
        assert torch.equal(learner.network.state_dict()[name], value), name


def test_states_are_standardised_by_the_training_part(fitted, data):
    part = data[0][fitted[0].training_rows_].astype(np.float64)
    assert float(fitted[0].network_.input.mean) == pytest.approx(part.mean(), rel=1e-6)
    assert float(fitted[0].network_.input.scale) == pytest.approx(part.std(ddof=1), rel=1e-6)


# --- The predictive --------------------------------------------------------------------------------------------------


def test_probabilities_are_the_layers_predictive(fitted, data):
    model, _ = fitted
    probabilities = model.predict_proba(data[0])
    np.testing.assert_allclose(probabilities, slow_probabilities(model.network_, data[0]), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(model.logits(data[0])), probabilities, rtol=1e-12)


def test_the_draws_stand_for_the_packages_own(data):
    """With many draws, the mean is that of the package's predictive with many samples."""
    network = make_learner(data).network
    network.draws = torch.from_numpy(np.random.default_rng(0).standard_normal((20_000, 3)))
    features = network(torch.from_numpy(data[0][:20])).detach()
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        expected = network.last.predictive(features, n_samples=20_000)
    np.testing.assert_allclose(network.probabilities(features), expected, atol=0.01)


def test_draws_are_standard_normal_and_of_the_round(data):
    first, second = (make_learner(data, number=number).network.draws for number in (0, 1))
    assert first.shape == (baseline.N_DRAWS, 3) and not torch.equal(first, second)
    np.testing.assert_allclose(first.mean(dim=0), 0, atol=0.01)
    np.testing.assert_allclose(first.std(dim=0), 1, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(first.T), np.eye(3), atol=0.05)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_shared_draws_shift_no_class(n_classes):
    """Against 200,000 independent draws: as near as 0.004, and a class's mean over inputs much nearer."""
    rng = np.random.default_rng(0)
    network = VBLLNetwork(4, n_classes, 6, "discriminative", 1e-4, np.zeros((1, n_classes)))
    network.last.W_logdiag.data += 2 * torch.rand(n_classes, 1)  # deviations of logits of about 0.5 to 5
    features = torch.from_numpy(2 * rng.standard_normal((30, 6)))

    def probabilities(draws):
        network.draws = torch.from_numpy(draws)
        return network.probabilities(features).numpy()

    expected = probabilities(rng.standard_normal((200_000, n_classes)))
    for seed in range(3):
        error = probabilities(baseline.normal_draws(n_classes, np.random.default_rng(seed))) - expected
        assert np.abs(error).mean() < 0.002 and np.abs(error.mean(axis=0)).max() < 0.004
    plain = probabilities(rng.standard_normal((20, n_classes))) - expected
    assert np.abs(plain.mean(axis=0)).max() > 0.008  # what 20 draws, shared by all inputs, would do


def test_blocks_change_nothing(fitted, data, monkeypatch):
    expected = fitted[0].logits(data[0])
    monkeypatch.setattr(baseline, "_BLOCK_ELEMENTS", 100)
    np.testing.assert_array_equal(fitted[0].logits(data[0]), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_decisions_do_not_depend_on_the_batch(kind, size):
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((130, 200)).astype(np.float32), rng.integers(0, 3, 130)
    model = VBLLClassifier(kind, 0.6, **{**QUICK, "n_hidden": 70, "n_rounds": 1, "max_epochs": 2}).fit(X, y)
    whole = model.decide(X)
    for start in range(0, 130, size):
        part = model.decide(X[start : start + size])
        np.testing.assert_array_equal(part.probabilities, whole.probabilities[start : start + size])
        np.testing.assert_array_equal(part.logits, whole.logits[start : start + size])


# --- The epoch that is kept ------------------------------------------------------------------------------------------


def test_the_kept_epoch_has_the_lowest_loss_of_all_rounds(fitted, data):
    model, networks = fitted
    X, y = data
    states, settings = TrainingData(torch.from_numpy(X), torch.from_numpy(y)), TrainingSettings(n_classes=3)
    slow = np.full((2, 6), np.nan)
    for number, epoch, network in networks:
        rows = split_of_round(states, settings, model.random_seed_, number)[1].rows.numpy()
        true = [p[label] for p, label in zip(slow_probabilities(network, X[rows]), y[rows], strict=True)]
        slow[number, epoch - 1] = -np.mean(np.log(true))
    np.testing.assert_allclose(model.calibration_losses_, slow, rtol=1e-3)
    best = np.unravel_index(slow.argmin(), slow.shape)
    assert (model.best_round_, model.best_epoch_ - 1) == best
    logits, labels = model.calibration_logits()
    assert -logits[np.arange(len(labels)), labels].mean() == pytest.approx(slow.min(), rel=1e-3)


def test_the_calibration_part_is_apart(fitted, data):
    model, _ = fitted
    assert sorted([*model.training_rows_, *model.calibration_rows_]) == list(range(150))
    logits, labels = model.calibration_logits()
    np.testing.assert_array_equal(logits, model.logits(data[0][model.calibration_rows_]))
    np.testing.assert_array_equal(labels, data[1][model.calibration_rows_])


# --- Learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_two_blobs(kind):
    train, test = make_blobs(0, 600, 3.0), make_blobs(1, 2000, 3.0)
    model = VBLLClassifier(kind, 0.9, **{**QUICK, "max_epochs": 15}).fit(train.X, train.y)
    best = np.mean((test.posterior > 0.5) == test.y)
    decisions = model.decide(test.X)
    right = decisions.predictions == test.y
    assert right.mean() > best - 0.03
    assert decisions.admitted.mean() > 0.3 and right[decisions.admitted].mean() > right.mean()


def test_it_learns_three_classes(fitted):
    X, y = three_classes(500, seed=1)
    assert fitted[0].score(X, y) > 0.9


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7]])
def test_labels_of_any_type(labels):
    blobs = make_blobs(0, 120, 5.0)
    y = np.array(labels)[blobs.y]
    model = VBLLClassifier(**QUICK).fit(blobs.X, y)
    assert model.classes_.tolist() == labels and model.score(blobs.X, y) > 0.9
    assert set(model.decide(blobs.X).predictions.tolist()) == set(labels)


# --- Replays ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_global_randomness_is_given_back(fitted, data):
    model, _ = fitted
    torch.manual_seed(31)
    before = torch.get_rng_state()
    again = VBLLClassifier(model.kind, **QUICK).fit(*data)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again.logits(data[0]), model.logits(data[0]))
    np.testing.assert_array_equal(again.calibration_losses_, model.calibration_losses_)
    other = VBLLClassifier(model.kind, **{**QUICK, "random_state": 1}).fit(*data)
    assert not np.array_equal(other.logits(data[0]), model.logits(data[0]))


def test_global_randomness_is_given_back_after_an_error_too(data, monkeypatch):
    torch.manual_seed(31)
    before = torch.get_rng_state()
    monkeypatch.setattr(VBLLLearner, "epoch", lambda *_: LossRecord(0, 1, math.nan, 0.0))
    with pytest.raises(TrainingError):
        VBLLClassifier(**QUICK).fit(*data)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_fit_called_again_goes_on_with_the_same_bits(fitted, data, tmp_path, monkeypatch):
    model, trained, original = fitted[0], [], VBLLLearner.epoch

    def train_epoch(learner, number):
        if (learner.number, number) == (1, 4) and not trained:
            raise KeyboardInterrupt
        return original(learner, number)

    monkeypatch.setattr(VBLLLearner, "epoch", train_epoch)
    with pytest.raises(KeyboardInterrupt):
        VBLLClassifier(model.kind, **QUICK, checkpoint=tmp_path).fit(*data)
    assert {path.name for path in tmp_path.iterdir()} == {"current-001.safetensors", "round-000.safetensors"}
    monkeypatch.setattr(VBLLLearner, "epoch", lambda self, n: (trained.append((self.number, n)), original(self, n))[1])
    resumed = VBLLClassifier(model.kind, **QUICK, checkpoint=tmp_path).fit(*data)
    read = VBLLClassifier(model.kind, 0.7, **QUICK, checkpoint=tmp_path).fit(*data)  # alpha changes no weights
    assert trained == [(1, 4), (1, 5), (1, 6)] and read.alphas_.tolist() == [0.7]
    for again in (resumed, read):
        for name, value in model.network_.state_dict().items():
            assert torch.equal(again.network_.state_dict()[name], value), name
        assert (again.best_round_, again.best_epoch_) == (model.best_round_, model.best_epoch_)
        np.testing.assert_array_equal(again.calibration_losses_, model.calibration_losses_)
        np.testing.assert_array_equal(again.logits(data[0]), model.logits(data[0]))
        assert again.network_.last.regularization_weight == model.network_.last.regularization_weight


@pytest.mark.parametrize("change", [{"kind": "generative"}, {"regularization_factor": 50}, {"n_hidden": 11}])
def test_a_checkpoint_of_another_fit_is_refused(data, tmp_path, change):
    quick = {**QUICK, "n_rounds": 1, "max_epochs": 1, "checkpoint": tmp_path}
    VBLLClassifier(**quick).fit(*data)
    with pytest.raises(CheckpointError, match="other data or with other settings"):
        VBLLClassifier(**{**quick, **change}).fit(*data)
    with pytest.raises(CheckpointError, match="other data or with other settings"):
        CrossEntropyClassifier(quick.pop("n_hidden"), **quick).fit(*data)


# --- Decisions -------------------------------------------------------------------------------------------------------


def test_decisions_threshold_the_confidence(fitted, data):
    model = copy.copy(fitted[0])
    model.alphas_ = np.array([0.7, 0.9])
    decisions = model.decide(data[0])
    probabilities = model.predict_proba(data[0])
    np.testing.assert_array_equal(decisions.confidence, probabilities.max(axis=1))
    np.testing.assert_array_equal(decisions.admitted_at, probabilities.max(axis=1)[:, None] >= [0.7, 0.9])
    np.testing.assert_array_equal(decisions.admitted, probabilities.max(axis=1) >= 0.7)
    np.testing.assert_array_equal(decisions.predictions, model.predict(data[0]))
    assert 0 < decisions.admitted_at[:, 1].sum() < len(decisions)
    assert decisions.score is None and decisions.alphas.tolist() == [0.7, 0.9]


def test_several_alphas_are_sorted(data):
    assert VBLLClassifier(alpha=[0.95, 0.8], **QUICK).fit(*data).alphas_.tolist() == [0.8, 0.95]


def test_impossible_points_keep_finite_logits(fitted):
    logits = fitted[0].logits(1e6 * np.eye(3, 5, dtype=np.float32))
    assert np.isfinite(logits).all()


def test_other_rules_can_stand_on_it(fitted, data):
    model, _ = fitted
    assert isinstance(model, LogitModel)
    rule = NoReject(model=model).fit(*data)
    np.testing.assert_array_equal(rule.predict(data[0]), model.predict(data[0]))
    np.testing.assert_allclose(rule.predict_proba(data[0]), model.predict_proba(data[0]), rtol=1e-9)


def test_clone_and_pickle(fitted, data):
    model, _ = fitted
    copied = clone(model)
    assert copied.get_params() == model.get_params() and not hasattr(copied, "classes_")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).logits(data[0]), model.logits(data[0]))


def test_the_defaults_are_the_papers():
    expected = {"kind": "discriminative", "alpha": 0.95, "regularization_factor": 1.0, "n_hidden": 795}
    expected |= {"n_rounds": 10, "max_epochs": 200, "batch_size": 50, "learning_rate": 1e-5}
    assert expected.items() <= VBLLClassifier().get_params().items()


# --- Failure ---------------------------------------------------------------------------------------------------------


def test_without_the_package_the_message_gives_the_pip_line(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "vbll", None)
    with pytest.raises(MissingExtraError, match=re.escape("VBLLClassifier needs vbll")) as caught:
        VBLLClassifier(**QUICK).fit(*data)
    assert "pip install 'torchsdm[baselines]'" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bayesian"}, "'kind' of VBLLClassifier.fit must be one of 'discriminative', 'generative'"),
        ({"alpha": 0.05}, "'alpha' of VBLLClassifier.fit must be in (0.5, 1]"),
        ({"regularization_factor": 0}, "'regularization_factor'"),
        ({"n_hidden": 1.5}, "'n_hidden' of VBLLClassifier.fit must be an integer"),
        ({"device": "abacus"}, "'device'"),
        ({"n_rounds": 0}, "'n_rounds'"),
    ],
)
def test_bad_parameters_are_named(data, change, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=re.escape(message)):
        VBLLClassifier(**{**QUICK, **change}).fit(*data)


def test_an_unfitted_model_says_so(data):
    for method in ("decide", "predict_proba", "logits"):
        with pytest.raises(NotFittedError, match="This VBLLClassifier is not fitted yet"):
            getattr(VBLLClassifier(), method)(data[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_huge_learning_rate_says_so(data, kind):
    with pytest.raises(TrainingError, match="Lower learning_rate"):
        VBLLClassifier(kind, **{**QUICK, "learning_rate": 1e30}).fit(*data)
