"""What the unit tests share: one thread, and one small fitted classifier."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from small import quiet
from torchsdm import SDMClassifier

NAMES = np.array(["ant", "bee", "cat"])
SMALL = {"n_filters": 8, "batch_size": 20, "learning_rate": 1e-2, "random_state": 5}
SMALL |= {"standardization": "scalar", "patience": None}


@pytest.fixture(autouse=True)
def one_thread():
    """At these sizes a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Insects:
    """Three classes with string labels, ids and texts, and some fresh inputs, a few of them far away."""

    X: np.ndarray
    y: np.ndarray
    ids: list
    texts: list
    fresh: np.ndarray


@pytest.fixture(scope="session")
def insects():
    rng = np.random.default_rng(11)
    centres = 3.5 * np.eye(3, 4)
    numbers = rng.permutation(np.repeat([0, 1, 2], 80))
    X = (centres[numbers] + rng.standard_normal((240, 4))).astype(np.float32)
    y = NAMES[np.where(rng.random(240) < 0.03, (numbers + 1) % 3, numbers)]  # a few wrong labels
    fresh = (centres[rng.integers(0, 3, 40)] + rng.standard_normal((40, 4))).astype(np.float32)
    fresh[-3:] += 100
    return Insects(X, y, [f"row-{i}" for i in range(240)], [f"text {i}" for i in range(240)], fresh)


@pytest.fixture(scope="session")
def _fitted_once(insects):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet():
        classifier = SDMClassifier(alpha=(0.9, 0.8), n_rounds=2, training="sdm", max_epochs=8, **SMALL)
        classifier.fit(insects.X, insects.y, ids=insects.ids, texts=insects.texts, keep_rounds=True)
    torch.set_num_threads(threads)
    assert all(region.found for region in classifier.regions_)
    return classifier


@pytest.fixture
def fitted(_fitted_once):
    """A classifier of two rounds with regions at 0.9 and 0.8; each test has its own copy."""
    return copy.deepcopy(_fitted_once)
