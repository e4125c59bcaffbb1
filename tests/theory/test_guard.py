"""The drift guard over many simulated streams: false alarms, p-values and delay against what the theory says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom, kstest

from torchsdm.trust import DriftGuard
from torchsdm.trust.guard import _BETS, _bet

FALSE_ALARM = 0.1


def draw(rng, n, shift=0.0):
    """Decisions with ties whose three signals depend on each other; a share of q is 0."""
    distance = (rng.gamma(3, 1, n) + shift).round(2)
    confidence = (1 / (1 + np.exp(distance / 2 - 2 + rng.normal(size=n)))).round(2)
    similarity = rng.poisson(np.clip(6 - distance, 0.5, 6))
    return SimpleNamespace(nearest_distance=distance, confidence=confidence, similarity=similarity)


def scores_of(decisions):
    """The signals (3, N), large is strange."""
    return np.array([decisions.nearest_distance, -decisions.confidence, 1.0 * (decisions.similarity == 0)])


def guard_of(rng, n_calibration, false_alarm=FALSE_ALARM):
    known = draw(rng, n_calibration)
    seed = int(rng.integers(2**31))
    return DriftGuard(known.nearest_distance, known.confidence, known.similarity, false_alarm, seed)


def most_allowed(n_streams):
    """The largest number of false alarms that FALSE_ALARM explains, but for one time in 10,000."""
    return binom.ppf(1 - 1e-4, n_streams, FALSE_ALARM)


@pytest.mark.parametrize(("n_calibration", "n_inputs"), [(500, 1000), (20, 1000), (1, 500)])
def test_calm_streams_raise_few_alarms_for_every_size_of_calibration(n_calibration, n_inputs):
    n_streams = 400
    raised = 0
    for stream in range(n_streams):
        rng = np.random.default_rng([n_calibration, stream])
        guard = guard_of(rng, n_calibration)
        guard.update(draw(rng, n_inputs))
        raised += guard.raised
    assert 0 < raised <= most_allowed(n_streams)


def test_calibration_taken_for_infinite_raises_too_many():
    """The same bets on ranks among the calibration points alone: each p is uniform, but they share one calibration set.

    So it is the earlier inputs of the stream that keep the promise, and the test above would notice their absence.
    """
    n_streams, n_inputs, n_calibration = 200, 1000, 20
    raised = 0
    for stream in range(n_streams):
        rng = np.random.default_rng([n_calibration, stream])
        known, new = scores_of(draw(rng, n_calibration)), scores_of(draw(rng, n_inputs))
        stranger = (known[:, None, :] > new[:, :, None]).sum(axis=2)  # (3, n) and (3, N) -> (3, N)
        equal = (known[:, None, :] == new[:, :, None]).sum(axis=2) + 1
        p = (stranger + (1 - rng.random(new.shape)) * equal) / (n_calibration + 1)
        log_martingales = np.empty_like(p)
        _bet(p, 0, np.full((3, len(_BETS)), -np.inf), log_martingales)
        raised += log_martingales.max() >= math.log(3 / FALSE_ALARM)
    assert raised > most_allowed(n_streams)


def test_p_values_are_uniform_and_independent():
    n_streams, n_inputs = 400, 30
    p = np.empty((n_streams, 3, n_inputs))
    for stream in range(n_streams):
        rng = np.random.default_rng([1, stream])
        guard = guard_of(rng, 10)
        p[stream] = guard._p_values(scores_of(draw(rng, n_inputs)))
    for signal in range(3):
        mine = p[:, signal]
        assert kstest(mine.ravel(), "uniform").pvalue > 1e-3
        # The difference of two independent ones, modulo 1, is uniform again.
        for lag in (1, 7):
            assert kstest(((mine[:, lag:] - mine[:, :-lag]) % 1).ravel(), "uniform").pvalue > 1e-3
        # Ranks within one calibration set of 10 would give four times as much.
        assert n_inputs * mine.mean(axis=1).var() == pytest.approx(1 / 12, rel=0.25)


@pytest.mark.parametrize(("n_calm", "within"), [(0, 12), (1000, 25), (10_000, 30)])
def test_a_clear_turn_is_noticed_soon_however_late_it_comes(n_calm, within):
    delays = []
    for stream in range(20):
        rng = np.random.default_rng([2, stream])
        guard = guard_of(rng, 1000, false_alarm=0.01)
        guard.update(draw(rng, n_calm))
        assert not guard.raised
        guard.update(draw(rng, 200, shift=2.5))
        assert guard.raised_at is not None
        delays.append(guard.raised_at - n_calm)
    assert np.median(delays) <= within
