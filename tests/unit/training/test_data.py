"""What a round is trained on: stratified splits, and fingerprints of the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchsdm.training import data
from torchsdm.training.data import fingerprint, stratified_split

# --- Splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.3, 0.01, 0.99])
def test_a_split_divides_every_class_alike(share):
    labels = np.repeat([0, 1, 2, 3], [100, 7, 2, 3])
    labels = np.random.default_rng(1).permutation(labels)
    train, calibration = stratified_split(labels, share, np.random.default_rng(0))
    assert sorted([*train, *calibration]) == list(range(len(labels)))
    assert (np.diff(train) > 0).all() and (np.diff(calibration) > 0).all()
    for c in range(4):
        n, chosen = (labels == c).sum(), (labels[calibration] == c).sum()
        assert 1 <= chosen <= n - 1
        # its share within one point, but for the point that each part must have and that the next class makes up for
        assert abs(chosen - share * n) <= 1.5
    if share == 0.5:
        assert len(calibration) == 56


def test_a_split_carries_what_rounding_leaves_over():
    # three of each class, one half: 1.5 each. 2 of the first, then 1, then 2, ...
    labels = np.repeat(np.arange(6), 3)
    _, calibration = stratified_split(labels, 0.5, np.random.default_rng(0))
    assert np.bincount(labels[calibration]).tolist() == [2, 1, 2, 1, 2, 1]


def test_a_split_follows_its_generator():
    labels = np.repeat([0, 1], 50)
    first, again, other = (stratified_split(labels, 0.5, np.random.default_rng(seed))[1] for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    counts = np.zeros(100)
    for seed in range(400):
        counts[stratified_split(labels, 0.5, np.random.default_rng(seed))[1]] += 1
    assert abs(counts / 400 - 0.5).max() < 0.12  # every row is chosen half of the time: five standard deviations


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_knows_states_labels_and_shape():
    states, labels = torch.arange(24, dtype=torch.float32).reshape(6, 4), np.array(list("ababab"))
    own = fingerprint(states, labels)
    assert len(own) == 64 and own == fingerprint(states.clone(), labels.copy())
    assert own == fingerprint(states.double(), labels)  # states are used as float32
    changed = states.clone()
    changed[5, 3] = 23 + 2.0**-19  # one unit in the last place
    others = [
        fingerprint(changed, labels),
        fingerprint(states, np.array(list("ababaa"))),
        fingerprint(states.reshape(6, 2, 2), labels),
        fingerprint(states.flip(0), labels),
        fingerprint(states.T.contiguous().reshape(6, 4), labels),
        fingerprint(states, np.array(["ab", "a", "b", "a", "b", ""])),
    ]
    assert len({own, *others}) == 7


def test_a_fingerprint_of_many_rows_sees_the_last(monkeypatch):
    states, labels = torch.randn(50, 2), np.arange(50) % 2
    own = fingerprint(states, labels)
    monkeypatch.setattr(data, "DEFAULT_BLOCK_SIZE", 7)
    assert fingerprint(states, labels) == own
    assert fingerprint(states.T.contiguous().T, labels) == own  # another layout in memory
    states[49, 1] += 1
    assert fingerprint(states, labels) != own
