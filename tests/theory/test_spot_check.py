"""Spot checks over many simulated streams: false alarms, coverage at all times, and delay, against what is promised."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from torchsdm.trust import SpotCheck
from torchsdm.trust.spot_check import _log_mean_tilted, _lower_bounds

TARGET, FALSE_ALARM = 0.9, 0.1
CLASSES = (0, 1, 2)
SHARES = (0.6, 0.3, 0.1)  # of the predictions


def most(n_streams, level):
    """More than this has a probability below 1 in 10,000 where each stream has at most ``level``."""
    return binom.ppf(1 - 1e-4, n_streams, level)


def at_the_target(rng, labels):
    return np.full(len(labels), TARGET)


def waves(rng, labels):
    """Long stretches at the target, then above it."""
    return TARGET + 0.08 * (np.arange(len(labels)) // 200 % 2)


def some_predictions_better(rng, labels):
    return np.choose(labels, [TARGET, 0.99, TARGET])


def rising(rng, labels):
    return np.linspace(TARGET, 1.0, len(labels))


WORLDS = {one.__name__: one for one in (at_the_target, waves, some_predictions_better, rising)}


def stream(rng, n, accuracy):
    labels = rng.choice(len(CLASSES), n, p=SHARES)
    return labels, rng.random(n) < accuracy(rng, labels)


def raised_by(seed, n, accuracy, **settings):
    rng = np.random.default_rng(seed)
    checks = SpotCheck(TARGET, CLASSES, **{"false_alarm": FALSE_ALARM} | settings)
    checks.update(*stream(rng, n, accuracy))
    return checks.raised_by


@pytest.mark.parametrize("world", WORLDS)
def test_while_the_promise_holds_few_streams_ever_raise_an_alarm(world):
    n_streams = 300
    raised = sum(bool(raised_by([1, seed], 2000, WORLDS[world])) for seed in range(n_streams))
    assert raised <= most(n_streams, FALSE_ALARM)


def test_the_level_is_used_by_each_group_and_not_wasted():
    """At the target exactly, alarms come from each group, in all about as often as permitted."""
    n_streams = 300
    found = [raised_by([2, seed], 1500, at_the_target, false_alarm=0.5) for seed in range(n_streams)]
    n_raised = sum(map(bool, found))
    assert 0.1 * n_streams < n_raised <= most(n_streams, 0.5)
    assert {label for one in found for label in one} == {*CLASSES, None}


def test_who_changes_answers_by_what_was_found_is_within_the_promise():
    """Whoever makes answers worse or better by what has been found so far gains nothing, down to the target."""
    n_streams, raised = 200, 0
    for seed in range(n_streams):
        rng = np.random.default_rng([3, seed])
        checks = SpotCheck(TARGET, [0], false_alarm=FALSE_ALARM)
        for _ in range(15):
            looks_bad = checks.n_wrong > (1 - TARGET) * checks.n_checked
            checks.update([0] * 20, rng.random(20) < (TARGET if looks_bad else 0.97))
        raised += checks.raised
    assert raised <= most(n_streams, FALSE_ALARM)


def test_an_accuracy_one_point_below_the_target_would_break_it():
    n_streams = 40
    below = sum(
        bool(raised_by([4, seed], 12_000, lambda rng, labels: np.full(len(labels), 0.89))) for seed in range(n_streams)
    )
    assert below > most(n_streams, FALSE_ALARM)


@pytest.mark.parametrize("settings", [{"rate": 0.2}, {"per_week": 30, "rate": 0.5}])
def test_drawing_by_a_rate_that_follows_the_traffic_keeps_the_promise(settings):
    """Traffic rises where answers are worst, which is still at the target, and the rate follows."""
    n_streams, raised, n_drawn = 100, 0, 0
    for seed in range(n_streams):
        rng = np.random.default_rng([5, seed])
        checks = SpotCheck(TARGET, CLASSES, false_alarm=FALSE_ALARM, seed=seed, **settings)
        for day in range(60):
            busy = day % 7 < 2
            labels, right = stream(rng, 120 if busy else 20, at_the_target if busy else rising)
            drawn = checks.draw(SimpleNamespace(admitted=np.ones(len(labels), dtype=bool)), 86_400.0 * day)
            checks.update(labels[drawn], right[drawn])
        raised, n_drawn = raised + checks.raised, n_drawn + checks.n_drawn
    assert raised <= most(n_streams, FALSE_ALARM)
    assert n_drawn / n_streams > 200


@pytest.mark.parametrize("accuracy", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("is_constant", [True, False])
def test_bounds_cover_the_average_at_all_times_together(accuracy, is_constant):
    """Of the average chance so far, which wanders if accuracy does. A bound misses it where log G_n refutes it."""
    n_streams, n, level = 300, 2000, 0.1
    counts, spread = np.arange(1, n + 1), 0 if is_constant else min(accuracy, 1 - accuracy)
    chance = accuracy + spread * np.sign(np.sin(counts / 100))
    average, missed, widths = np.cumsum(chance) / counts, 0, []
    for seed in range(n_streams):
        right = np.cumsum(np.random.default_rng([6, seed]).random(n) < chance)
        below, above = _log_mean_tilted(average, counts, right), _log_mean_tilted(1 - average, counts, counts - right)
        missed += max(below.max(), above.max()) >= -np.log(level / 2)
        last = counts[-1:], right[-1:]
        lower, upper = (
            _lower_bounds(last[0], hits, np.array([-np.log(level / 2)])) for hits in (last[1], last[0] - last[1])
        )
        widths.append(1 - upper[0] - lower[0])
    assert missed <= most(n_streams, level)
    # For one moment alone, a normal interval of this level would be 2 * 1.64 standard errors wide.
    assert np.median(widths) < 2 * 1.64 * 2.2 * np.sqrt(max(accuracy * (1 - accuracy), 0.01) / n)


def test_the_bounds_of_an_object_cover_all_groups_together():
    accuracies = np.array([0.95, 0.7, 0.85])
    truth = [*accuracies, float(accuracies @ np.array(SHARES))]
    n_streams, missed = 100, 0
    for seed in range(n_streams):
        rng = np.random.default_rng([7, seed])
        checks = SpotCheck(0.6, CLASSES, confidence=0.8)
        found = []
        for _ in range(10):
            checks.update(*stream(rng, 100, lambda rng, labels: accuracies[labels]))
            found += [
                group.lower_bound <= right <= group.upper_bound
                for group, right in zip(checks.groups, truth, strict=True)
            ]
        missed += not all(found)
    assert missed <= most(n_streams, 0.2)


@pytest.mark.parametrize(("drop", "within"), [(0.02, 5500), (0.05, 1100), (0.1, 350)])
@pytest.mark.parametrize(("before", "n_before"), [(TARGET, 200), (TARGET + 0.03, 200)])
def test_a_fall_of_accuracy_is_noticed(drop, within, before, n_before):
    delays = []
    for seed in range(30):
        rng = np.random.default_rng([8, seed])
        checks = SpotCheck(TARGET, CLASSES, false_alarm=0.01)
        labels = rng.choice(len(CLASSES), n_before + 3 * within, p=SHARES)
        chance = np.where(np.arange(len(labels)) < n_before, before, TARGET - drop)
        checks.update(labels, rng.random(len(labels)) < chance)
        assert checks.raised_at is not None
        delays.append(checks.raised_at - n_before)
    assert np.median(delays) <= within


def test_a_fall_is_noticed_as_soon_after_years_of_good_answers():
    delays = {}
    for n_before in (100, 10_000):
        found = []
        for seed in range(20):
            rng = np.random.default_rng([9, seed])
            checks = SpotCheck(TARGET, [0], false_alarm=0.01)
            chance = np.where(np.arange(n_before + 2000) < n_before, 0.97, 0.8)
            checks.update(np.zeros(n_before + 2000, dtype=int), rng.random(n_before + 2000) < chance)
            found.append(checks.raised_at - n_before)
        delays[n_before] = np.median(found)
    assert delays[10_000] < 2 * delays[100]
