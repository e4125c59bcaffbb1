"""A small saved model of states, to be served."""

from __future__ import annotations

import numpy as np
import pytest

from torchsdm import SDMClassifier


def save_model(path, n=80, distance=2.0, seed=0):
    """Train a small model and save it."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = (rng.normal(size=(n, 4)) + distance * y[:, None]).astype(np.float32)
    settings = {"n_filters": 8, "n_rounds": 1, "training": "sdm", "max_epochs": 5, "learning_rate": 0.01}
    SDMClassifier(0.8, **settings, random_state=0).fit(X, y).save(path)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A saved model, to be copied before it is changed."""
    return save_model(tmp_path_factory.mktemp("service") / "model")


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """Another model of states of the same width."""
    return save_model(tmp_path_factory.mktemp("service") / "other", n=120, distance=3.0, seed=1)
