"""The guard of a model that changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from small import small_settings
from torchsdm import DriftGuard, SDMClassifier
from torchsdm.application import guard_state, open_guard, reset_guard, successor
from torchsdm.errors import InvalidInputError, ModelFileError

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


@pytest.mark.parametrize("continued", [False, True])
def test_a_kept_guard_that_compared_with_calibration_points_goes_on_without_them(tmp_path, continued):
    file = tmp_path / "guard.json"
    classifier = SDMClassifier(0.8, **small_settings(certification_size=None)).fit(STATES, LABELS)
    known = classifier.model_.calibration
    old = DriftGuard(known.nearest_distance, known.confidence, known.similarity)
    classifier.decide(FAR, guard=old)
    old.save(file)
    new = open_guard(classifier, file, continued=continued)
    assert (new.n_known, new.n_seen, new.raised, new.raised_by) == (0, 0, True, old.raised_by)
    assert new.resets[0].reason.startswith("it compared with calibration points")
    new.save(file)
    assert open_guard(classifier, file).to_json() == new.to_json()


def test_a_file_keeps_one_stream_or_one_for_each_source(classifier, changed, tmp_path):
    for file, by_source in ((tmp_path / "one", False), (tmp_path / "each", True)):
        guard = open_guard(classifier, file, by_source=by_source)
        guard.watch(classifier.decide(FAR))
        guard.save(file)
        assert open_guard(classifier, file, by_source=by_source).to_json() == guard.to_json()
        with pytest.raises(InvalidInputError, match="Keep that in another file"):
            open_guard(classifier, file, by_source=not by_source)
        with pytest.raises(ModelFileError, match="other scores"):
            open_guard(changed, file, by_source=by_source)
        new = open_guard(changed, file, by_source=by_source, continued=True)
        assert new.raised and new.n_seen == 0 and len(new.resets) == 1


def test_the_status_of_guards_by_source_is_that_of_the_one_nearest_to_its_alarm(classifier):
    guards = open_guard(classifier, by_source=True)
    nobody = guard_state(guards)
    assert nobody["sources"] == [] and nobody["source"] is None and not nobody["raised"]
    assert nobody["log_threshold"] == pytest.approx(np.log(200)) and nobody["false_alarm"] == 0.01
    guards.watch(classifier.decide(CALM), ["mail"] * len(CALM))
    guards.watch(classifier.decide(FAR), ["forum"] * len(FAR))
    state = guard_state(guards)
    mail, forum = state["sources"]
    assert (mail["source"], mail["raised"], forum["raised"], state["n_raised"]) == ("mail", False, True, 1)
    assert {name: state[name] for name in forum if name not in ("n_seen", "false_alarm")}.items() <= forum.items()
    assert state["n_seen"] == len(CALM) + len(FAR) and state["false_alarm"] == 0.01
    assert forum["false_alarm"] == pytest.approx(0.01 / 6)
    with pytest.raises(InvalidInputError, match="keeps one stream for all inputs, so no source has one"):
        reset_guard(open_guard(classifier), "why", "mail")
