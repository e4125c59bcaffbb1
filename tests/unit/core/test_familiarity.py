"""Familiarity, against loops and in distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from torchsdm.core import Familiarity, log_odds


def calibration(n, seed, n_classes=3, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.gamma(4, size=n) + shift, rng.normal(size=(n, n_classes)) * 2


def naive(distance, logits, known_distances, known_logits, fewest=20):
    """One point at a time, as the docstring says it."""
    predictions, known = logits.argmax(1), known_logits.argmax(1)
    found = []
    for x, z, c in zip(distance, logits, predictions, strict=True):
        rows = np.flatnonzero(known == c) if (known == c).sum() >= fewest else np.arange(len(known))

        def f(a, odds, rows=rows):
            d = sum(known_distances[i] >= a for i in rows) / len(rows)
            o = (1 + sum(odd(known_logits[i]) <= odds for i in rows)) / (1 + len(rows))
            return d**2 * o

        own = f(x, odd(z))
        no_larger = sum(f(known_distances[i], odd(known_logits[i])) <= own for i in rows)
        found.append(0.0 if own == 0 else (1 + no_larger) / (1 + len(rows)))
    return found


def odd(z):
    return z.max() - logsumexp(np.delete(z, z.argmax()))


@pytest.mark.parametrize("n", [30, 90])  # of thirty, no prediction has twenty
def test_it_is_the_loop(n):
    known, points = calibration(n, 0), calibration(25, 1, shift=0.5)
    measure = Familiarity.fit(*known)
    np.testing.assert_allclose(measure.of(*points), naive(*points, *known), rtol=1e-12)
    np.testing.assert_allclose(measure.of(*known), naive(*known, *known), rtol=1e-12)


def test_inputs_like_the_calibration_points_are_spread_evenly_for_every_prediction():
    measure, (distance, logits) = Familiarity.fit(*calibration(30_000, 0)), calibration(20_000, 1)
    found = measure.of(distance, logits)
    for c in range(3):
        own = found[logits.argmax(1) == c]
        for bound in (0.05, 0.3, 0.8):
            assert abs((own < bound).mean() - bound) < 0.02


def test_farther_than_all_is_never_familiar_however_sure():
    distance, logits = calibration(60, 0)
    measure = Familiarity.fit(distance, logits)
    far = measure.of(np.full(3, distance.max() + 1e-9), np.eye(3) * 1e6)
    assert (far == 0).all()
    assert (measure.of(distance, logits) > 0).all()


def test_nearer_and_surer_is_never_less_familiar():
    distance, logits = calibration(500, 0)
    measure, rng = Familiarity.fit(distance, logits), np.random.default_rng(1)
    points, z = calibration(200, 2)
    nearer = measure.of(points * rng.uniform(0, 1, 200), z)
    surer = measure.of(points, z + 2 * np.eye(3)[z.argmax(1)])
    before = measure.of(points, z)
    assert (nearer >= before).all() and (surer >= before).all()


def test_odds_are_not_rounded_away():
    z = np.array([[1000.0, 0.0, -3.0], [0.5, 0.5, 0.5], [-1e5, 1e5, 0.0]])
    assert log_odds(z)[0] == pytest.approx(1000 - np.log1p(np.exp(-3.0)))
    assert log_odds(z)[1] == pytest.approx(-np.log(2)) and log_odds(z)[2] == 1e5
