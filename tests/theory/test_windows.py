"""Broken promises of windows over many simulated certificates with known truth: at most delta of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from torchsdm.trust import ScoredSample
from torchsdm.trust._windows import certified_windows

ALPHA, DELTA = 0.9, 0.1


@dataclass(frozen=True)
class World:
    """Scores uniform on [0, 1]; a prediction c of score s is right with a probability that is linear between knots."""

    knots: np.ndarray  # (K,), rising
    accuracy: np.ndarray  # (C, K)

    def right(self, c, score):
        return np.interp(score, self.knots, self.accuracy[c])

    def draw(self, n, rng):
        n_classes = len(self.accuracy)
        predictions, score = rng.integers(n_classes, size=n), rng.random(n)
        chance = np.where(predictions == 0, self.right(0, score), self.right(1, score))
        labels = np.where(rng.random(n) < chance, predictions, (predictions + 1) % n_classes)
        return ScoredSample(labels, predictions, score, np.ones(n, dtype=bool))

    def true_accuracy(self, c, lower, upper):
        """Of the answers c with a score from lower to upper: the trapezoids between all knots in between."""
        inside = self.knots[(self.knots > lower) & (self.knots < upper)]
        s = np.concatenate([[lower], inside, [upper]])
        return float(np.trapezoid(self.right(c, s), s) / (upper - lower))


def world(*points, other=None):
    """A world by its knots, (score, accuracy); the other prediction has its own."""
    knots = np.unique([s for s, _ in (*points, *(other or points))])
    lines = [np.interp(knots, *np.transpose(one)) for one in (points, other or points)]
    return World(knots, np.array(lines))


STEP = 1e-9
WORLDS = {
    "monotone": world((0, 0.6), (1, 1.0)),
    "flat, just below": world((0, 0.895), (1, 0.895)),
    "flat, just above": world((0, 0.91), (1, 0.91)),
    "dipping": world((0, 0.97), (0.5, 0.97), (0.6, 0.85), (0.7, 0.85), (0.8, 0.99), (1, 0.99)),
    "stepped": world((0, 0.7), (0.4, 0.7), (0.4 + STEP, 0.89), (0.7, 0.89), (0.7 + STEP, 0.98), (1, 0.98)),
    "surest is wrong": world((0, 0.98), (0.85, 0.98), (0.85 + STEP, 0.86), (1, 0.86)),
    "one good, one bad": world((0, 0.95), (1, 1.0), other=((0, 0.88), (1, 0.895))),
}


def outcomes(name, n_fits, n=1600, seed=0):
    """Of each fit, whether a window that was certified is below alpha, and the share of points that are trusted."""
    rng, one = np.random.default_rng(seed), WORLDS[name]
    broken, share = np.zeros(n_fits, dtype=bool), np.zeros(n_fits)
    for fit in range(n_fits):
        calibration, certification = one.draw(2 * n, rng), one.draw(n, rng)
        terms = {"alpha": ALPHA, "delta": DELTA, "n_errors": 0, "u": certification.u}
        ends = [
            (window.class_number, window.lower, 1.0 if window.upper is None else window.upper)
            for window in certified_windows(calibration, certification, 2, **terms)
        ]
        broken[fit] = any(one.true_accuracy(*window) < ALPHA for window in ends)
        share[fit] = sum(upper - lower for _, lower, upper in ends) / 2
    return broken, share


def most(n_fits):
    """More broken promises than this have a probability below 1 in 1,000 where each has at most delta."""
    return stats.binom.ppf(0.999, n_fits, DELTA)


@pytest.mark.parametrize("name", WORLDS)
def test_a_window_is_below_alpha_with_probability_at_most_delta(name):
    broken, _ = outcomes(name, 1000)
    assert broken.sum() <= most(1000)


def test_a_test_at_twice_the_level_would_break_the_promise(monkeypatch):
    monkeypatch.setitem(globals(), "DELTA", 0.4)
    broken, _ = outcomes("flat, just below", 1000)
    monkeypatch.undo()
    assert broken.sum() > most(1000)


def test_where_windows_are_good_they_are_certified():
    assert outcomes("monotone", 40)[1].mean() > 0.1  # of the quarter where answers are right 0.9 of the time
    assert outcomes("dipping", 40)[1].mean() == pytest.approx(0.25, abs=0.05)  # down to the dip, and no further
