"""The drift guard over many simulated streams: false alarms, p-values and delay against what the theory says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom, kstest

from torchsdm import SDMClassifier
from torchsdm.trust import DriftGuard, SourceGuards
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


def drawn_classes(rng, n):
    """Two classes that overlap, in three dimensions."""
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 3))
    X[:, 0] += 0.3 * (2 * y - 1)
    return X, y


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_without_certification_points_calm_streams_raise_few_alarms():
    """Of 80 rounds the one that looks best on its 30 calibration points is kept: they look better than new inputs.

    A guard that compared with them would raise too many alarms, as is counted here, too.
    """
    n_fits, n_streams = 50, 4  # of each fit; without calibration points they have nothing in common
    settings = {"n_filters": 4, "n_rounds": 80, "max_epochs": 1, "learning_rate": 0.1, "patience": None}
    raised = {"the guard": 0, "with calibration points": 0}
    for fit in range(n_fits):
        rng = np.random.default_rng([9, fit])
        X, y = drawn_classes(rng, 60)
        clf = SDMClassifier(alpha=0.6, training="sdm", certification_size=None, random_state=fit, **settings).fit(X, y)
        known = clf.model_.calibration
        signals = known.nearest_distance, known.confidence, known.similarity
        for seed in range(fit * n_streams, (fit + 1) * n_streams):
            decisions = clf.decide(drawn_classes(rng, 500)[0])
            guards = DriftGuard.from_classifier(clf, FALSE_ALARM, seed), DriftGuard(*signals, FALSE_ALARM, seed)
            for name, guard in zip(raised, guards, strict=True):
                guard.update(decisions)
                raised[name] += guard.raised
    assert raised["the guard"] <= most_allowed(n_fits * n_streams)
    assert raised["with calibration points"] > binom.ppf(0.95, n_fits * n_streams, FALSE_ALARM)


@pytest.mark.parametrize(("n_sources", "n_inputs"), [(3, 200), (40, 40)])
def test_sources_together_raise_few_alarms_however_many_turn_up(n_sources, n_inputs):
    """A guard of each with the whole of the promise would not do, as is counted, too."""
    n_runs, raised, raised_alone = 120, 0, 0
    for run in range(n_runs):
        rng = np.random.default_rng([5, n_sources, run])
        points = guard_of(rng, 20)
        guards = SourceGuards(points, n_kept=10, seed=run)
        decisions = draw(rng, n_sources * n_inputs)
        guards.update(decisions, rng.permutation(np.arange(n_sources * n_inputs) % n_sources))
        raised += guards.raised
        alone = [points.beside(FALSE_ALARM, 1000 * run + source) for source in range(n_sources)]
        for source, guard in enumerate(alone):
            rows = slice(source * n_inputs, (source + 1) * n_inputs)
            guard.update(SimpleNamespace(**{name: values[rows] for name, values in vars(decisions).items()}))
        raised_alone += any(guard.raised for guard in alone)
    assert raised <= binom.ppf(1 - 1e-4, n_runs, FALSE_ALARM)
    assert n_sources < 10 or raised_alone > binom.ppf(1 - 1e-4, n_runs, FALSE_ALARM)


def test_a_source_that_turns_is_noticed_soon_and_the_others_go_on():
    """30 forum posts from elsewhere among the usual comments used to stop all of it."""
    delays = []
    for run in range(20):
        rng = np.random.default_rng([6, run])
        guards = SourceGuards(guard_of(rng, 500, false_alarm=0.01), seed=run)
        one_stream = guard_of(rng, 500, false_alarm=0.01)
        comments, posts = draw(rng, 200), draw(rng, 30, shift=2.5)
        for decisions, source in ((comments, "comments"), (posts, "forum"), (draw(rng, 200), "comments")):
            guards.update(decisions, [source] * len(decisions.similarity))
            one_stream.update(decisions)
        assert guards.raised_sources == ("forum",) and one_stream.raised
        delays.append(guards.streams["forum"].raised_at)
    assert np.median(delays) <= 15
