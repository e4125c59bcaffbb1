"""Choosing alpha in simulated worlds: how often "will be certified with a chance of at least 0.8" comes true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from torchsdm.trust import AlphaCurve, Prices, ScoredSample, certify
from torchsdm.trust._path import POWER, ThresholdPath

ALPHAS = (0.8, 0.84, 0.87, 0.89, 0.91, 0.93, 0.95, 0.97)
PRICES = Prices.of(100.0, 1, 2, "a test")  # the largest alpha that looks likely costs least
ACCURACY = {
    "steep": lambda score: 0.5 + 0.5 / (1 + np.exp(-12 * (score - 0.3))),
    "rising": lambda score: 0.8 + 0.2 * score,
    "flat": lambda score: np.full_like(score, 0.93),
}


def draw(rng, n, accuracy):
    """Points of two classes that are right as often as their score says."""
    predictions, score = rng.integers(0, 2, n), rng.random(n)
    is_right = rng.random(n) < accuracy(score)
    return ScoredSample(np.where(is_right, predictions, 1 - predictions), predictions, score, np.ones(n, dtype=bool))


def flattering_chance(calibration, alpha):
    """By the points that chose the path, as ``ThresholdPath.ends`` has it: what the chance must not be."""
    path = ThresholdPath.of(calibration, 2, len(calibration), alpha=alpha, delta=0.1, control="all")
    return float(path.ends().sum())


@pytest.fixture(scope="module")
def chosen():
    """Whether an alpha was chosen, certified, and the share that was admitted, by either chance, in 180 worlds."""
    found = {"honest": [], "flattering": []}
    for world, accuracy in enumerate(ACCURACY.values()):
        for repeat in range(60):
            rng = np.random.default_rng([17, world, repeat])
            n = (150, 300)[repeat % 2]
            calibration, certification = draw(rng, n, accuracy), draw(rng, n, accuracy)
            curve = AlphaCurve.of(calibration, 2, n, control="all", alphas=ALPHAS)
            flattered = [replace(one, chance=flattering_chance(calibration, one.alpha)) for one in curve.points]
            for kind, offered in (("honest", curve), ("flattering", replace(curve, points=tuple(flattered)))):
                alpha = offered.choose(PRICES).alpha
                rule = None
                if alpha is not None:
                    rule = certify(calibration, certification, 2, alpha=alpha, control="all", advice=False)
                found[kind].append(
                    (alpha is not None, rule is not None and rule.found, 0 if rule is None else rule.n_admitted / n)
                )
    return {kind: np.array(rows, dtype=float) for kind, rows in found.items()}


def test_what_is_said_to_be_certified_with_a_chance_of_four_in_five_is(chosen):
    n, n_true = chosen["honest"][:, :2].sum(axis=0)
    assert n_true >= binom.ppf(0.05, n, POWER)
    assert n_true / n > POWER


def test_a_chance_by_the_points_that_chose_the_path_would_not_come_true(chosen):
    """So the worlds above are hard enough to tell."""
    n, n_true = chosen["flattering"][:, :2].sum(axis=0)
    assert n_true < binom.ppf(0.01, n, POWER)


def test_the_caution_costs_no_answers(chosen):
    (n, _, admitted), (n_flattered, _, admitted_flattered) = (chosen[kind].sum(axis=0) for kind in chosen)
    assert n > 0.85 * n_flattered and admitted > admitted_flattered
