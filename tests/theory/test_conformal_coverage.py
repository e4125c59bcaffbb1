"""Coverage of APS and RAPS over many seeds against the exact law, and how large their sets are.

With n calibration points and no two scores equal, coverage given the calibration set is Beta(k, n + 1 - k) with
k = ceil((n + 1) alpha), so that of m further points a BetaBinomial(m, k, n + 1 - k) number is covered.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import betabinom, kstest

from torchsdm.baselines.conformal import APS, RAPS, conformity_scores, prediction_sets, uniforms_of
from torchsdm.baselines.softmax import softmax

SEEDS, N_TEST, N_CLASSES = 150, 400, 5
PENALTY = {"k_reg": 2, "lam": 0.05}


class GivenLogits:
    """X is logits; the calibration set is as given, with no need for every class to be in it."""

    def __init__(self, logits, labels):
        self.classes_, self.calibration = np.arange(logits.shape[1]), (logits, labels)

    def logits(self, X):
        return X

    def calibration_logits(self):
        return self.calibration


def draw(rng, n, n_classes=N_CLASSES, temperature=2.0):
    """Overconfident logits: the labels are of softmax(logits / temperature)."""
    logits = rng.normal(size=(n, n_classes)) * 2
    return logits, (softmax(logits / temperature).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)


def sets_of(rule, logits):
    """The sets behind the decisions, at the only alpha."""
    u = uniforms_of(logits, rule.random_seed_) if rule.randomized else 0.0
    scores = conformity_scores(logits, u, *rule.penalties_[0], rule.temperature_)
    sets = prediction_sets(scores, rule.thresholds_[0], None if rule.allow_empty_sets else logits.argmax(axis=1))
    np.testing.assert_array_equal(rule.decide(logits).set_sizes, sets.sum(axis=1))
    return sets


def covered_counts(rule, n, **settings):
    """How many of N_TEST fresh points are covered, for each seed."""
    counts = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        fitted = rule(model=GivenLogits(*draw(rng, n)), random_state=seed, **settings).fit(None)
        logits, labels = draw(rng, N_TEST)
        counts.append(int(sets_of(fitted, logits)[np.arange(N_TEST), labels].sum()))
    return np.array(counts)


def law(n, alpha):
    k = math.ceil(round((n + 1) * alpha, 9))
    return betabinom(N_TEST, k, n + 1 - k)


@pytest.mark.parametrize(
    ("rule", "settings", "n", "n_for_threshold"),
    [(APS, {}, 99, 99), (APS, {}, 50, 50), (RAPS, PENALTY, 99, 99), (RAPS, {}, 140, 98), (RAPS, {"lam": 0.1}, 140, 98)],
)
@pytest.mark.parametrize("alpha", [0.8, 0.93])
def test_coverage_has_its_exact_law(rule, settings, n, n_for_threshold, alpha):
    counts = covered_counts(rule, n, alpha=alpha, allow_empty_sets=True, **settings)
    exact = law(n_for_threshold, alpha)
    assert alpha <= exact.mean() / N_TEST <= alpha + 1 / (n_for_threshold + 1)
    assert abs(counts.mean() - exact.mean()) < 4 * exact.std() / math.sqrt(SEEDS)
    low, high = exact.ppf([1e-6, 1 - 1e-6])
    assert low <= counts.min() and counts.max() <= high
    rng = np.random.default_rng(0)  # the distribution function at a count, spread over its step: uniform if exact
    position = exact.cdf(counts - 1) + rng.random(SEEDS) * exact.pmf(counts)
    assert kstest(position, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (APS, {}),
        (APS, {"randomized": False}),
        (APS, {"randomized": False, "allow_empty_sets": True}),
        (RAPS, PENALTY),
        (RAPS, {**PENALTY, "randomized": False}),
        (RAPS, {}),
        (APS, {"reference": True}),
        (RAPS, {"reference": True}),
    ],
)
def test_coverage_is_at_least_alpha(rule, settings):
    counts = covered_counts(rule, 140, alpha=0.8, **settings)
    exact = law(98 if rule is RAPS and "lam" not in settings else 140, 0.8)
    assert counts.mean() > N_TEST * 0.8 - 4 * exact.std() / math.sqrt(SEEDS)


def test_sets_that_are_never_empty_cover_more_than_those_that_may_be():
    """At an alpha below the accuracy of the model there is nothing else to do than to cover too much."""
    settings = {"model": None, "alpha": 0.6, "random_state": 0}
    rng = np.random.default_rng(0)
    calibration, (logits, labels) = draw(rng, 1000, temperature=0.7), draw(rng, 4000, temperature=0.7)
    settings["model"] = GivenLogits(*calibration)
    with_empty = sets_of(APS(allow_empty_sets=True, **settings).fit(None), logits)
    without = sets_of(APS(**settings).fit(None), logits)
    accuracy = (logits.argmax(axis=1) == labels).mean()
    rows = np.arange(len(labels))
    assert accuracy > 0.7 and with_empty[rows, labels].mean() == pytest.approx(0.6, abs=0.05)
    assert without[rows, labels].mean() >= accuracy
    assert (with_empty.sum(axis=1) == 0).any() and (with_empty <= without).all()


def test_coverage_holds_for_every_seed_of_the_random_numbers():
    """The random numbers are a function of the logits; one calibration set and many seeds must not matter."""
    rng = np.random.default_rng(1)
    calibration, (logits, labels) = draw(rng, 2000), draw(rng, 4000)
    shares = []
    for seed in range(30):
        fitted = APS(0.8, GivenLogits(*calibration), allow_empty_sets=True, random_state=seed).fit(None)
        shares.append(sets_of(fitted, logits)[np.arange(4000), labels].mean())
    error = math.sqrt(0.8 * 0.2 * (1 / 2000 + 1 / 4000))
    assert np.abs(np.array(shares) - 0.8).max() < 4 * error
    assert np.std(shares) > 0


@pytest.mark.parametrize("settings", [{"k_reg": 3, "lam": 0.02}, {"k_reg": 3, "lam": 0.2}, {"lam": 0.1}])
@pytest.mark.parametrize("alpha", [0.8, 0.9])
def test_raps_has_smaller_sets_than_aps_where_the_tail_is_noise(settings, alpha):
    """100 classes, three of which are possible; a tenth to a half of the model's mass is anywhere.

    APS counts that mass as if it meant something, and lets many labels in to reach its threshold. Where small
    probabilities do mean something and k_reg is too small, RAPS has no such advantage.
    """
    sizes, coverage = {APS: [], RAPS: []}, {APS: [], RAPS: []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        possible = rng.random((1000, 100)).argsort(axis=1)[:, :3]
        chances = rng.dirichlet(np.ones(3), size=1000)
        labels = possible[np.arange(1000), (chances.cumsum(axis=1) < rng.random((1000, 1))).sum(axis=1)]
        lost = rng.uniform(0.1, 0.5, size=(1000, 1))
        p = lost * rng.dirichlet(np.ones(100), size=1000)
        p[np.arange(1000)[:, None], possible] += (1 - lost) * chances
        model = GivenLogits(np.log(p[:500]), labels[:500])
        for rule, own in ((APS, {}), (RAPS, settings)):
            fitted = rule(alpha, model, allow_empty_sets=True, random_state=seed, **own).fit(None)
            sets = sets_of(fitted, np.log(p[500:]))
            sizes[rule].append(sets.sum(axis=1).mean())
            coverage[rule].append(sets[np.arange(500), labels[500:]].mean())
    assert all(few < many for few, many in zip(sizes[RAPS], sizes[APS], strict=True))
    for counted in coverage.values():
        assert np.mean(counted) > alpha - 4 * math.sqrt(alpha * (1 - alpha) * (2 / 500) / 10)
