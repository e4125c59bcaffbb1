"""Broken promises over many simulated fits with known truth: at most delta of them, whatever the data are like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from small import small_settings
from torchsdm import SDMClassifier
from torchsdm.core import find_high_reliability_region
from torchsdm.trust import UNLABELLED, Floor, ScoredSample, certify, choose_control
from torchsdm.trust._path import group_counts

N_FITS = 150
DELTA = 0.1


@dataclass(frozen=True)
class World:
    """Scores uniform on [0, 1]; a prediction c of score s is right with probability low_c + (high_c - low_c) s.

    Errors of prediction j are points of class c with probability ``errors[j, c]``, so the accuracy of every group that
    a rule admits is known in closed form.
    """

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, shares, low, high):
        n_classes = len(shares)
        errors = (1 - np.eye(n_classes)) / (n_classes - 1)
        return cls(np.array(shares), np.full(n_classes, low), np.full(n_classes, high), errors)

    def draw(self, n, rng):
        predictions = rng.choice(len(self.shares), size=n, p=self.shares)
        score = rng.random(n)
        right = rng.random(n) < self.low[predictions] + (self.high - self.low)[predictions] * score
        other = (rng.random(n)[:, None] > self.errors.cumsum(axis=1)[predictions]).sum(axis=1)
        return ScoredSample(np.where(right, predictions, other), predictions, score, np.ones(n, dtype=bool))

    def accuracies(self, thresholds, control):
        """The true accuracy of each group that a rule admits and a certificate speaks of."""
        admitted = self.shares * (1 - np.minimum(thresholds, 1.0))
        right = admitted * (self.low + (self.high - self.low) * (1 + np.minimum(thresholds, 1.0)) / 2)
        if control == "all":
            return np.array([right.sum() / admitted.sum()])
        by_prediction = right[admitted > 0] / admitted[admitted > 0]
        if control == "predictions":
            return by_prediction
        wrong = (admitted - right) @ self.errors  # by true class
        return np.concatenate([right / (right + wrong), by_prediction])


def fits(world, alpha, n, control="groups", n_fits=N_FITS, seed=0, delta=DELTA):
    """How many of the fits found a rule, and how many of these break their promise."""
    rng = np.random.default_rng(seed)
    n_found = n_broken = 0
    for _ in range(n_fits):
        samples = world.draw(n, rng), world.draw(n, rng)
        certificate = certify(*samples, len(world.shares), alpha=alpha, delta=delta, control=control, advice=False)
        if certificate.found:
            n_found += 1
            n_broken += bool((world.accuracies(certificate.thresholds, control) < alpha).any())
    return n_found, n_broken


def most(n_fits=N_FITS):
    """Broken promises that a rate of delta explains, three standard errors included."""
    return DELTA * n_fits + 3 * np.sqrt(DELTA * (1 - DELTA) * n_fits)


WORLDS = {
    "two classes": (World.of([0.5, 0.5], 0.6, 1.0), 0.9, 2000, "groups"),
    "imbalance": (World.of([0.9, 0.1], 0.8, 1.0), 0.9, 1000, "groups"),
    "tiny samples": (World.of([0.5, 0.5], 0.5, 1.0), 0.9, 60, "groups"),
    "label noise": (World.of([0.5, 0.5], 0.5, 0.88), 0.9, 500, "groups"),  # nothing can hold
    "0.90 at every score": (World.of([0.5, 0.5], 0.9, 0.9), 0.95, 1000, "groups"),  # nothing can hold
    "just below alpha": (World.of([0.5, 0.5], 0.89, 0.89), 0.9, 500, "all"),  # nothing can hold
    "five classes, predictions": (World.of([0.2] * 5, 0.7, 1.0), 0.9, 1500, "predictions"),
    "ten classes, all": (World.of([0.1] * 10, 0.7, 1.0), 0.9, 500, "all"),
}


@pytest.mark.parametrize("name", WORLDS)
def test_promises_are_broken_with_probability_at_most_delta(name):
    world, alpha, n, control = WORLDS[name]
    n_found, n_broken = fits(world, alpha, n, control)
    assert n_broken <= most(), f"{n_broken} of {n_found} certificates in {N_FITS} fits"
    if name in ("label noise", "0.90 at every score", "just below alpha"):
        assert n_found == n_broken  # whatever is certified here is wrong
    elif name in ("two classes", "five classes, predictions", "ten classes, all"):
        assert n_found > 0.7 * N_FITS  # the promise is not kept by certifying nothing


def test_a_laxer_test_would_break_the_promise():
    world, alpha, n, control = WORLDS["just below alpha"]
    _, n_broken = fits(world, alpha, n, control, delta=0.5)
    assert n_broken > most()  # so the tests above can fail


def test_the_papers_region_makes_no_such_promise():
    # Every class has P(sdm_y >= alpha) = 0.90 at every q', so that no region should be found at alpha = 0.95.
    rng = np.random.default_rng(0)
    n_found = 0
    for _ in range(50):
        n = 3000
        labels = rng.integers(0, 2, n)
        of_truth = np.where(rng.random(n) < 0.9, rng.uniform(0.95, 1.0, n), rng.uniform(0.5, 0.95, n))
        probabilities = np.where(np.arange(2) == labels[:, None], of_truth[:, None], 1 - of_truth[:, None])
        region = find_high_reliability_region(rng.exponential(10.0, n), probabilities, labels, 0.95)
        n_found += region.found
    assert n_found > 0.5 * 50


# --- Levels that are passed on ---------------------------------------------------------------------------------------

UNEVEN = World(  # two predictions are right nearly always, two just too seldom, at every score
    np.full(4, 0.25), np.array([0.995, 0.995, 0.899, 0.899]), np.array([0.995, 0.995, 0.899, 0.899]), np.eye(4)[::-1]
)


def uneven_fits(n_fits, seed=0):
    """How many fits certify all easy predictions, and how many any that is below alpha.

    Calibration, which may be of any kind, flatters the hard predictions: otherwise they would not be tried.
    """
    rng = np.random.default_rng(seed)
    flattering = World(UNEVEN.shares, UNEVEN.low + 0.05 * (UNEVEN.low < 0.9), UNEVEN.high, UNEVEN.errors)
    n_easy = n_broken = 0
    for _ in range(n_fits):
        samples = flattering.draw(1200, rng), UNEVEN.draw(600, rng)
        certificate = certify(*samples, 4, alpha=0.9, delta=DELTA, control="predictions", advice=False)
        n_easy += bool(np.isfinite(certificate.thresholds[:2]).all())
        n_broken += bool(np.isfinite(certificate.thresholds[2:]).any())
    return n_easy, n_broken


def test_levels_that_are_passed_on_break_the_promise_with_probability_at_most_delta():
    n_easy, n_broken = uneven_fits(200)
    assert n_easy > 0.95 * 200  # so that their levels are passed on
    assert DELTA / 2 * 200 < n_broken <= most(200)  # more than without passing on, and yet not too many


@pytest.mark.slow
def test_levels_that_are_passed_on_over_thousands_of_fits():
    assert uneven_fits(4000, seed=1)[1] <= most(4000)


# --- The chance of a certificate, by which the control is chosen -----------------------------------------------------


def chances_and_results(n_worlds, seed):
    """Estimated chances of at least 0.8 in worlds of all kinds, and whether anything was certified."""
    rng = np.random.default_rng(seed)
    chances, found = [], []
    for _ in range(n_worlds):
        n_classes, alpha = int(rng.choice([2, 3, 4])), float(rng.choice([0.8, 0.9, 0.95]))
        low, high = 1 - rng.uniform(0.5, 2) * (1 - alpha), 1 - rng.uniform(0, 0.7) * (1 - alpha)
        world = World.of(rng.dirichlet(np.full(n_classes, 5.0)), low, high)
        n_calibration, n_certification = int(rng.choice([150, 300, 600])), int(rng.choice([100, 200, 400]))
        samples = world.draw(n_calibration, rng), world.draw(n_certification, rng)
        choice = choose_control(samples[0], n_classes, n_certification, alpha=alpha, delta=DELTA)
        for control, chance in choice.chances.items():
            if chance >= 0.8:
                terms = {"alpha": alpha, "delta": DELTA, "control": control, "advice": False}
                chances.append(chance)
                found.append(certify(*samples, n_classes, **terms).found)
    return np.array(chances), np.array(found)


@pytest.mark.parametrize("n_worlds", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_as_often_as_estimated_nothing_is_certified(n_worlds):
    chances, found = chances_and_results(n_worlds, seed=n_worlds)
    about_nine_tenths = chances < 0.96
    for chosen in (about_nine_tenths, ~about_nine_tenths):
        expected, variance = (1 - chances[chosen]).sum(), (chances * (1 - chances))[chosen].sum()
        assert chosen.sum() > 10
        assert (~found[chosen]).sum() <= expected + 3 * np.sqrt(variance), (
            chosen.sum(),
            expected,
            (~found[chosen]).sum(),
        )


def broken_by_class(asked, promised, control, n_fits, seed=0):
    """Fits certified at ``asked``, and how many of them fall below ``promised``, both by class."""
    world = World(np.array([0.5, 0.5]), np.array([0.5, 0.7]), np.array([1.0, 1.0]), 1 - np.eye(2))
    rng = np.random.default_rng(seed)
    n_found = n_broken = 0
    for _ in range(n_fits):
        samples = world.draw(1600, rng), world.draw(1600, rng)
        certificate = certify(*samples, 2, alpha=asked, delta=DELTA, control=control, advice=False)
        admits = np.isfinite(certificate.thresholds)
        if certificate.found:
            by_prediction = np.array(promised)[admits & (certificate.thresholds < 1)]
            targets = np.concatenate([promised, by_prediction]) if control == "groups" else by_prediction
            n_found += 1
            n_broken += bool((world.accuracies(certificate.thresholds, control) < targets).any())
    return n_found, n_broken


@pytest.mark.parametrize("control", ["groups", "predictions"])
def test_promises_by_class_are_broken_with_probability_at_most_delta(control):
    n_found, n_broken = broken_by_class((0.8, 0.92), (0.8, 0.92), control, N_FITS)
    assert n_found > N_FITS / 2
    assert n_broken <= most()


def test_the_smaller_target_alone_would_break_the_larger_promise():
    _, n_broken = broken_by_class((0.8, 0.8), (0.8, 0.92), "predictions", 40)
    assert n_broken > 20


@pytest.mark.slow
@pytest.mark.parametrize("control", ["groups", "predictions"])
def test_promises_by_class_over_thousands_of_fits(control):
    n_found, n_broken = broken_by_class((0.8, 0.92), (0.8, 0.92), control, 2000, seed=1)
    assert n_found > 1000 and n_broken <= most(2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_promises_over_thousands_of_fits(name):
    world, alpha, n, control = WORLDS[name]
    n_fits = 4000
    _, n_broken = fits(world, alpha, n, control, n_fits=n_fits, seed=1)
    assert n_broken <= most(n_fits)


# --- SDMClassifier itself: hold out, train, score, certify -----------------------------------------------------------


def blobs(n, rng, distance):
    labels = rng.integers(0, 2, n)
    return (rng.standard_normal((n, 2)) + distance * (labels[:, None] - 0.5)).astype(np.float32), labels


def is_broken(decisions, admitted, labels, control, alpha):
    """Whether the truth, by a large sample, is below alpha in some group that a rule admits."""
    counts = group_counts(
        ScoredSample(labels, decisions.predictions, decisions.confidence, admitted), admitted, 2, control
    )
    kind = "prediction" if control == "predictions" else None
    return any(
        group.accuracy is not None and group.accuracy < alpha
        for group in counts.accuracies()
        if kind is None or group.kind == kind
    )


def classifier_fits(distance, control, n_fits, alpha=0.9):
    """How many fits have a certificate, and how many certificates and regions are broken."""
    rng = np.random.default_rng(0)
    X_new, y_new = blobs(20_000, rng, distance)
    n_found = n_broken = n_broken_regions = 0
    for seed in range(n_fits):
        clf = SDMClassifier(alpha, control=control, **small_settings(max_epochs=3, random_state=seed)).fit(
            *blobs(600, rng, distance)
        )
        decisions = clf.decide(X_new)
        n_found += clf.certificate_.found
        n_broken += is_broken(decisions, decisions.certified, y_new, control, alpha)
        n_broken_regions += is_broken(decisions, decisions.admitted_at[:, 0], y_new, control, alpha)
    return n_found, n_broken, n_broken_regions


# --- Pools of classes with few points --------------------------------------------------------------------------------

SHARES = np.array([0.3, 0.3, *[0.4 / 12] * 12])  # two large classes and twelve small ones
SMALL = World(  # of differing quality: two of the small ones are below alpha at every score
    SHARES,
    np.array([0.88, 0.88, *[0.8] * 2, *[0.9] * 10]),
    np.array([1.0, 1.0, *[0.88] * 2, *[1.0] * 10]),
    SHARES * (1 - np.eye(14)) / (1 - SHARES)[:, None],  # errors are of the other classes, as often as these are
)
HOPELESS = World.of([1 / 30] * 30, 0.89, 0.89)


def pool_accuracies(world, certificate):
    """The true accuracy of each group of a certificate, pools taken together."""
    admitted = world.shares * (1 - np.minimum(certificate.thresholds, 1.0))
    right = admitted * (world.low + (world.high - world.low) * (1 + np.minimum(certificate.thresholds, 1.0)) / 2)
    wrong = {"prediction": admitted - right, "class": (admitted - right) @ world.errors}
    found = []
    for group in certificate.groups:
        classes = list(group.classes) or [group.class_number]
        found.append(right[classes].sum() / (right[classes].sum() + wrong[group.kind][classes].sum()))
    return np.array(found)


def pooled_fits(world, n, n_fits, seed=0, families=None):
    rng = np.random.default_rng(seed)
    n_found = n_broken = n_pooled = 0
    for _ in range(n_fits):
        samples = world.draw(n, rng), world.draw(n, rng)
        terms = {"alpha": 0.9, "delta": DELTA, "control": "pooled", "families": families}
        certificate = certify(*samples, len(world.shares), **terms, advice=False)
        n_found += certificate.found
        n_pooled += bool(certificate.pools)
        n_broken += certificate.found and bool((pool_accuracies(world, certificate) < 0.9).any())
    return n_found, n_broken, n_pooled


@pytest.mark.parametrize("families", [None, np.arange(14) % 2])
def test_promises_to_pools_are_broken_with_probability_at_most_delta(families):
    n_found, n_broken, n_pooled = pooled_fits(SMALL, 1500, 60, families=families)
    assert n_pooled == 60 and n_found > 0.3 * 60  # the promise is not kept by certifying nothing
    assert n_broken <= most(60), f"{n_broken} of {n_found}"


def test_a_hopeless_pool_is_certified_with_probability_at_most_delta():
    n_found, n_broken, _ = pooled_fits(HOPELESS, 600, N_FITS)
    assert n_found == n_broken <= most()


@pytest.mark.slow
def test_promises_to_pools_over_thousands_of_fits():
    assert pooled_fits(SMALL, 1500, 3000, seed=1)[1] <= most(3000)
    assert pooled_fits(HOPELESS, 600, 3000, seed=1)[1] <= most(3000)


def test_pools_chosen_by_the_errors_of_the_certification_sample_would_break_the_promise():
    # Every class is right 0.89 of the time. The classes without much luck are left out of the pool that is tested.
    rng = np.random.default_rng(0)
    n_passed = 0
    for _ in range(N_FITS):
        sample = HOPELESS.draw(600, rng)
        wrong = sample.labels != sample.predictions
        rates = np.array([wrong[sample.predictions == c].mean() for c in range(30)])
        lucky = np.isin(sample.predictions, np.argsort(rates)[:20])
        n_passed += stats.binom.cdf((wrong & lucky).sum(), lucky.sum(), 1 - 0.9) <= DELTA
    assert n_passed > most()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize(("distance", "control"), [(2.0, "groups"), (1.7, "predictions"), (1.6, "all")])
def test_the_classifier_keeps_its_promise(distance, control):
    n_found, n_broken, _ = classifier_fits(distance, control, 100)
    assert n_broken <= most(100)
    assert n_found > 0.25 * 100  # the promise is not kept by certifying nothing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_the_papers_region_fails_where_the_certificate_does_not():
    n_found, n_broken, n_broken_regions = classifier_fits(1.2, "groups", 100)  # hardly anything can hold
    assert n_found >= n_broken and n_broken <= most(100) < n_broken_regions


@pytest.mark.parametrize(
    ("control", "low", "high", "alpha"),
    [("groups", 0.55, 0.99, 0.85), ("predictions", 0.6, 0.96, 0.88), ("all", 0.5, 0.97, 0.85)],
)
def test_the_promise_holds_where_only_what_may_be_admitted_is_labelled(control, low, high, alpha):
    """And it is the one that all labels would have given, in all but a few samples."""
    world, rng = World.of([0.5, 0.3, 0.2], low, high), np.random.default_rng(5)
    asked_for = {"alpha": alpha, "delta": DELTA, "control": control}
    n_found = n_broken = n_same = n_labels = 0
    for _ in range(N_FITS):
        calibration = world.draw(1500, rng)
        floor, full = Floor.of(calibration, 3, 900, **asked_for), world.draw(900, rng)
        reaches = floor.reached_by(full)
        asked = replace(full, labels=np.where(reaches, full.labels, UNLABELLED))
        mine, plain = (certify(calibration, one, 3, **asked_for, advice=False) for one in (asked, full))
        n_same += bool((mine.thresholds == plain.thresholds).all())
        n_labels += reaches.sum()
        if mine.found:
            n_found += 1
            n_broken += bool((world.accuracies(mine.thresholds, control) < alpha).any())
    assert n_broken <= stats.binom.ppf(0.999, N_FITS, DELTA) and n_found > N_FITS / 3
    assert n_same >= 0.95 * N_FITS and n_labels < 0.9 * 900 * N_FITS


def test_the_promise_holds_whichever_labels_are_missing():
    """Also where somebody left out wrong answers, and where the rule is at the edge of what may be certified."""
    alpha, rng = 0.8, np.random.default_rng(6)
    world = World.of([0.5, 0.5], 0.7, 0.88)  # 0.79 on average
    n_broken = n_found = 0
    for _ in range(N_FITS):
        calibration, full = world.draw(800, rng), world.draw(800, rng)
        wrong = full.labels != full.predictions
        missing = (wrong & (rng.random(800) < 0.3)) | (full.score < 0.1)
        asked = replace(full, labels=np.where(missing, UNLABELLED, full.labels))
        found = certify(calibration, asked, 2, alpha=alpha, delta=DELTA, advice=False)
        n_found += found.found
        n_broken += found.found and bool((world.accuracies(found.thresholds, "groups") < alpha).any())
    assert n_found > 0 and n_broken <= stats.binom.ppf(0.999, N_FITS, DELTA)
