"""The guard of a model that changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from small import small_settings
from torchsdm import DriftGuard, SDMClassifier
from torchsdm.application import guard_state, open_guard, successor

RNG = np.random.default_rng(0)
LABELS = np.arange(200) % 2
STATES = (RNG.normal(size=(200, 4)) + 2.0 * LABELS[:, None]).astype(np.float32)
CALM, FAR = STATES[:20], STATES[:40] + 9


@pytest.fixture(scope="module")
def classifier():
    return SDMClassifier(0.8, **small_settings()).fit(STATES, LABELS)


@pytest.fixture(scope="module")
def changed(classifier):
    return copy.deepcopy(classifier).add_exemplars(STATES[:50] + 0.1, LABELS[:50])


def test_a_guard_goes_on_if_the_scores_are_the_same(classifier):
    old = DriftGuard.from_classifier(classifier)
    classifier.decide(CALM, guard=old)
    assert successor(old, DriftGuard.from_classifier(classifier), "no reason") is old


def test_a_calm_stream_ends_with_a_change_and_is_remembered(classifier, changed):
    old = DriftGuard.from_classifier(classifier)
    classifier.decide(CALM, guard=old)
    new = successor(old, DriftGuard.from_classifier(changed), "version 1 took its place")
    assert new is not old and not new.raised and new.n_seen == 0
    assert guard_state(new)["resets"] == [{"reason": "version 1 took its place", "n_seen": 20, "raised_at": None}]


def test_an_alarm_outlives_a_change_until_it_is_reset(classifier, changed):
    old = DriftGuard.from_classifier(classifier)
    classifier.decide(FAR, guard=old)
    assert old.raised
    new = successor(old, DriftGuard.from_classifier(changed), "a change")
    assert new.raised and (new.raised_at, new.raised_by) == (0, old.raised_by)
    assert guard_state(new)["resets"][0]["raised_at"] == old.raised_at
    alone = changed.decide(CALM)
    watched = changed.decide(CALM, guard=new)
    assert np.array_equal(watched.admitted, alone.lane == "trusted")  # from the first input on
    again = DriftGuard.from_json(new.to_json())
    assert again.raised_at == 0 and again.to_json() == new.to_json()
    new.reset("looked at")
    assert not new.raised


def test_a_kept_guard_of_an_earlier_version_is_succeeded(classifier, changed, tmp_path):
    file = tmp_path / "guard.json"
    assert open_guard(classifier, file, continued=True).n_seen == 0  # there is none yet
    old = DriftGuard.from_classifier(classifier)
    classifier.decide(FAR, guard=old)
    old.save(file)
    assert open_guard(classifier, file, continued=True).to_json() == old.to_json()
    new = open_guard(changed, file, continued=True)
    assert new.raised and new.n_seen == 0 and new.fingerprint != old.fingerprint
