"""Interrupted training goes on with identical results: a real kill -9, a real Ctrl-C."""

from __future__ import annotations

import signal
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from small import small_settings
from torchsdm import SDMClassifier
from torchsdm.errors import CheckpointError
from warm_process import WarmProcess

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

SETTINGS = small_settings(alpha=0.8, n_filters=16, n_rounds=2, max_epochs=12, random_state=3)

FITTING = """
    import sys, warnings
    import torch
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from sklearn.datasets import make_blobs
    from torchsdm import SDMClassifier
    X, y = make_blobs(300, n_features=6, centers=3, cluster_std=3.0, random_state=1)
    classifier = SDMClassifier(**{settings!r}, checkpoint=sys.argv[1])
    try:
        classifier.fit(X, y)
    except KeyboardInterrupt:
        print("interrupted", hasattr(classifier, "models_"), flush=True)
        sys.exit(130)
    classifier.save(sys.argv[2])
"""


FITTING_THE_BASELINE = """
    import sys
    import numpy as np
    import torch
    torch.set_num_threads(1)
    from sklearn.datasets import make_blobs
    from torchsdm.baselines import CrossEntropyClassifier
    X, y = make_blobs(300, n_features=6, centers=3, cluster_std=3.0, random_state=1)
    model = CrossEntropyClassifier(**{settings!r}, checkpoint=sys.argv[1]).fit(X, y)
    weights = {{f"weights.{{name}}": value.numpy() for name, value in model.network_.state_dict().items()}}
    best = [model.best_round_, model.best_epoch_]
    np.savez(sys.argv[2], logits=model.logits(X), losses=model.calibration_losses_, best=best, **weights)
"""


def run(checkpoint: Path, model: Path, settings: dict, code: str = FITTING) -> WarmProcess:
    return WarmProcess(textwrap.dedent(code).format(settings=settings), checkpoint, model)


def epochs_done(checkpoint: Path) -> tuple[int, int]:
    """How many files a run has left so far and when it last did, to see that it has moved on."""
    files = [path for path in checkpoint.glob("*.safetensors") if not path.name.startswith(".")]  # no file in writing
    return len(files), max((path.stat().st_mtime_ns for path in files), default=0)


def assert_identical(a: Path, b: Path) -> None:
    left, right = SDMClassifier.load(a), SDMClassifier.load(b)
    for name, tensor in left.model_.adaptor.state_dict().items():
        assert torch.equal(tensor, right.model_.adaptor.state_dict()[name]), name
    assert torch.equal(left.support_.exemplars, right.support_.exemplars)
    assert [replace(r, seconds=0) for r in left.history_] == [replace(r, seconds=0) for r in right.history_]
    assert left.region_.min_rescaled_similarity == right.region_.min_rescaled_similarity


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_resume_is_identical(blow, tmp_path):
    settings = {**SETTINGS, "max_epochs": 30}  # long enough that a busy machine interrupts it in time
    straight = run(tmp_path / "c0", tmp_path / "straight", settings)
    assert straight.wait() == 0
    checkpoint, interruptions = tmp_path / "c1", 0
    while interruptions < 4:
        process = run(checkpoint, tmp_path / "resumed", settings)
        before = epochs_done(checkpoint)
        while process.poll() is None and epochs_done(checkpoint) == before:
            time.sleep(0.005)
        process.send_signal(blow)
        code = process.wait()
        if code == 0:
            break
        assert code == (-9 if blow == signal.SIGKILL else 130)
        interruptions += 1
    assert interruptions >= 2
    assert run(checkpoint, tmp_path / "resumed", settings).wait() == 0
    assert_identical(tmp_path / "straight", tmp_path / "resumed")


def test_a_killed_baseline_resumes_with_the_same_bits(tmp_path):
    settings = {"n_filters": 16, "n_rounds": 3, "max_epochs": 60, "learning_rate": 1e-3, "random_state": 3}
    straight = run(tmp_path / "c0", tmp_path / "straight.npz", settings, FITTING_THE_BASELINE)
    assert straight.wait() == 0
    checkpoint = tmp_path / "c1"
    killed = run(checkpoint, tmp_path / "resumed.npz", settings, FITTING_THE_BASELINE)
    while killed.poll() is None and not any(checkpoint.glob("round-*")):
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -9
    times = {path: path.stat().st_mtime_ns for path in checkpoint.glob("round-*")}
    assert 0 < len(times) < 3
    assert run(checkpoint, tmp_path / "resumed.npz", settings, FITTING_THE_BASELINE).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times  # finished rounds are read, not trained again
    first, second = np.load(tmp_path / "straight.npz"), np.load(tmp_path / "resumed.npz")
    assert first.files == second.files and any(name.startswith("weights.") for name in first.files)
    for name in first.files:
        assert first[name].dtype == second[name].dtype and first[name].tobytes() == second[name].tobytes(), name


@pytest.fixture
def data():
    return make_blobs(120, n_features=4, centers=2, cluster_std=3.0, random_state=1)


def fast(**changes) -> SDMClassifier:
    return SDMClassifier(**{**SETTINGS, "max_epochs": 3, "n_rounds": 1, **changes})


def test_an_unseeded_fit_takes_up_the_interrupted_seed(data, tmp_path, monkeypatch):
    first = fast(random_state=None, checkpoint=tmp_path).fit(*data)
    second = fast(random_state=None, checkpoint=tmp_path).fit(*data)
    assert first.random_seed_ == second.random_seed_
    np.testing.assert_array_equal(first.decide(data[0]).confidence, second.decide(data[0]).confidence)


@pytest.mark.parametrize("change", [{"learning_rate": 0.5}, {"n_filters": 3}, {"random_state": 4}, {"max_epochs": 4}])
def test_another_fit_is_refused(data, tmp_path, change):
    fast(checkpoint=tmp_path).fit(*data)
    with pytest.raises(CheckpointError, match="other settings"):
        fast(checkpoint=tmp_path, **change).fit(*data)


def test_other_data_are_refused(data, tmp_path):
    X, y = data
    fast(checkpoint=tmp_path).fit(X, y)
    X = X.copy()
    X[7, 2] += 1e-3
    with pytest.raises(CheckpointError, match="other data"):
        fast(checkpoint=tmp_path).fit(X, y)


def test_more_rounds_may_follow(data, tmp_path):
    fast(checkpoint=tmp_path, n_rounds=1).fit(*data)
    more = fast(checkpoint=tmp_path, n_rounds=2).fit(*data)
    alone = fast(n_rounds=2).fit(*data)
    np.testing.assert_array_equal(more.decide(data[0]).confidence, alone.decide(data[0]).confidence)


def test_a_damaged_checkpoint_is_named(data, tmp_path):
    fast(checkpoint=tmp_path).fit(*data)
    path = tmp_path / "round-000.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"round-000\.safetensors is damaged"):
        fast(checkpoint=tmp_path).fit(*data)


def test_an_interrupted_refit_leaves_the_fitted_model(data, monkeypatch):
    X, y = data
    classifier = fast().fit(X, y)
    expected = classifier.decide(X).confidence

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchsdm.training.learner.SDMLearner._steps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(X[:, :3], y)
    np.testing.assert_array_equal(classifier.decide(X).confidence, expected)
