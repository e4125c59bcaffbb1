"""Pools of classes with few points: which classes share a group, and what is promised of them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from torchsdm.core import GroupAccuracy
from torchsdm.errors import InvalidInputError
from torchsdm.trust import Certificate, ScoredSample, certify
from torchsdm.trust._path import ENOUGH, ThresholdPath, group_counts, points_needed, pooled, pools_of

ALPHA, DELTA = 0.9, 0.1
TERMS = {"alpha": ALPHA, "delta": DELTA, "control": "pooled"}
NEEDED = ENOUGH * points_needed(ALPHA, DELTA)  # 88


def draw(n, seed, shares, low=0.8, high=1.0):
    """Points of classes with given shares, right the more often, the higher their score."""
    rng = np.random.default_rng(seed)
    n_classes = len(shares)
    predictions, score = rng.choice(n_classes, n, p=shares), rng.random(n)
    right = rng.random(n) < low + (high - low) * score
    labels = np.where(right, predictions, (predictions + 1 + rng.integers(0, n_classes - 1, n)) % n_classes)
    return ScoredSample(labels, predictions, score, np.ones(n, dtype=bool))


SHARES = np.array([0.4, 0.36, *[0.03] * 8])  # two large classes, eight small ones


def test_the_fewest_points_of_a_group_are_those_that_can_pass():
    for alpha, delta in ((0.9, 0.1), (0.95, 0.1), (0.8, 0.01)):
        n = points_needed(alpha, delta)
        assert stats.binom.cdf(0, n, 1 - alpha) <= delta < stats.binom.cdf(0, n - 1, 1 - alpha)


@pytest.mark.parametrize(
    ("expected", "families", "pools"),
    [
        ([NEEDED, NEEDED], None, [0, 1]),  # enough
        ([NEEDED, NEEDED - 1], None, [0, 0]),  # one too few, and nobody else to pool it with
        ([500, 60, 400, 30], None, [0, 1, 2, 1]),  # 90 together
        ([500, 50, 400, 30], None, [0, 1, 1, 1]),  # 80 are too few: the smallest other group takes them in
        ([5, 5, 5], None, [0, 0, 0]),
        ([50, 50, 50, 50], [0, 1, 0, 1], [0, 1, 0, 1]),
        ([50, 50, 50, 50, 40, 60], [0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 2]),  # two small families make one
        ([500, 50, 50, 5], [0, 1, 1, 2], [0, 1, 1, 1]),
    ],
)
def test_pools_by_size(expected, families, pools):
    families = None if families is None else np.array(families)
    assert pooled(np.array(expected), alpha=ALPHA, delta=DELTA, families=families).tolist() == pools


def test_pools_do_not_depend_on_who_is_right_nor_on_the_certification_sample():
    calibration = draw(2000, 0, SHARES)
    certificate = certify(calibration, draw(2000, 1, SHARES), 10, **TERMS)
    assert certificate.found and certificate.pools == (tuple(range(2, 10)),)
    assert certify(calibration, draw(2000, 2, SHARES[::-1]), 10, **TERMS).pools == certificate.pools
    rng = np.random.default_rng(3)
    blamed = dataclasses.replace(calibration, labels=rng.permutation(calibration.labels))  # as many of each class
    assert pools_of(blamed, 10, 2000, **TERMS).tolist() == pools_of(calibration, 10, 2000, **TERMS).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_walk_over_pools_is_that_of_plain_loops(seed):
    calibration, certification = draw(1200, seed, SHARES), draw(1200, 100 + seed, SHARES)
    pools = pools_of(calibration, 10, 1200, **TERMS)
    path = ThresholdPath.of(calibration, 10, 1200, **TERMS, pools=pools)
    groups = [[c for c in range(10) if pools[c] == pool] for pool in range(pools.max() + 1)]
    best = None
    for thresholds in path:
        assert all(len({thresholds[c] for c in group}) == 1 for group in groups)  # a pool has one threshold
        admitted = certification.score >= thresholds[certification.predictions]
        wrong = certification.labels != certification.predictions
        p_values = []
        for group in groups:
            for values in (certification.labels, certification.predictions):
                rows = admitted & np.isin(values, group)
                p_values.append(stats.binom.cdf((wrong & rows).sum(), rows.sum(), 1 - ALPHA))
        if max(p_values) > DELTA:
            break
        best = thresholds
    certificate = certify(calibration, certification, 10, **TERMS)
    assert certificate.found == (best is not None) and len(groups) == 3
    if best is not None:
        assert certificate.thresholds.tolist() == best.tolist()


def test_with_enough_points_pooled_is_groups():
    calibration, certification = draw(2000, 0, [0.5, 0.5]), draw(2000, 1, [0.5, 0.5])
    pools, groups = (certify(calibration, certification, 2, **(TERMS | {"control": c})) for c in ("pooled", "groups"))
    assert pools.groups == groups.groups and pools.thresholds.tolist() == groups.thresholds.tolist()
    assert pools.pools == () and pools.holds_for() == groups.holds_for()


def test_many_small_classes_are_certified_where_groups_cannot_be():
    shares = np.full(60, 1 / 60)
    calibration, certification = draw(1500, 0, shares, low=0.95), draw(1500, 1, shares, low=0.95)
    assert not certify(calibration, certification, 60, **(TERMS | {"control": "groups"}), advice=False).found
    families = np.arange(60) % 5
    certificate = certify(calibration, certification, 60, **TERMS, families=families)
    assert certificate.found and [len(pool) for pool in certificate.pools] == [12] * 5
    assert all(group.p_value <= DELTA for group in certificate.groups) and len(certificate.groups) == 10


def test_the_promise_names_what_is_pooled():
    certificate = certify(draw(2000, 0, SHARES), draw(2000, 1, SHARES), 10, **TERMS)
    sentence = certificate.holds_for([f"c{number}" for number in range(10)])
    assert "for every true class and every predicted class, those with few points only pooled" in sentence
    assert "Of the 10 classes, 8 have too few points for a promise of their own and are taken together" in sentence
    assert "in one pool: any of 8 ('c2', 'c3', 'c4', ...). One of them alone may be right less often." in sentence
    shares = np.full(60, 1 / 60)
    everyone = certify(draw(1500, 0, shares), draw(1500, 1, shares), 60, **TERMS)
    assert "for every pool of true classes and of predicted classes" in everyone.holds_for()
    assert "every true class" not in everyone.holds_for()
    refused = certify(*(draw(300, seed, shares, low=0.5, high=0.6) for seed in (0, 1)), 60, **TERMS)
    assert not refused.found and "any of 60 (0, 1, 2, ...))" in refused.holds_for()


def test_pools_are_kept_with_the_certificate_and_are_part_of_its_identity():
    certificate = certify(draw(2000, 0, SHARES), draw(2000, 1, SHARES), 10, **TERMS)
    restored = Certificate.from_json(json.loads(json.dumps(certificate.to_json())))
    assert restored.groups == certificate.groups and restored.pools == certificate.pools
    assert restored.identity == certificate.identity
    smaller = tuple(dataclasses.replace(g, classes=g.classes[:-1]) for g in certificate.groups)
    assert dataclasses.replace(certificate, groups=smaller).identity != certificate.identity
    plain = certify(draw(2000, 0, [0.5, 0.5]), draw(2000, 1, [0.5, 0.5]), 2, alpha=ALPHA, delta=DELTA).to_json()
    assert all("classes" not in group for group in plain["groups"])  # as in models that were saved before
    assert Certificate.from_json(json.loads(json.dumps(plain))).pools == ()


def test_counts_of_pools():
    y, y_hat = np.array([0, 0, 1, 2, 2, 3]), np.array([0, 1, 1, 2, 3, 0])
    sample = ScoredSample(y, y_hat, np.arange(6.0), np.ones(6, dtype=bool))
    counts = group_counts(sample, sample.eligible, 4, "pooled", np.array([0, 1, 0, 1]))
    assert counts.n.tolist() == [4, 2, 3, 3] and counts.k.tolist() == [2, 1, 1, 2]  # errors within a pool are errors


def test_a_pool_is_named_by_its_first_classes():
    group = GroupAccuracy("class", None, 5, 1, classes=(0, 2))
    assert group.name(["a", "b", "c"]) == "class any of 2 ('a', 'c')"


def test_a_label_that_is_no_class_is_refused_in_pools_too():
    calibration, certification = draw(500, 0, SHARES), draw(500, 1, SHARES)
    unknown = dataclasses.replace(certification, labels=np.where(np.arange(500) < 200, -1, certification.labels))
    with pytest.raises(ValueError, match="negative"):
        certify(calibration, unknown, 10, **TERMS)


def test_pools_take_one_alpha():
    sample = draw(500, 0, SHARES)
    with pytest.raises(InvalidInputError, match="classes with few points together"):
        certify(sample, sample, 10, **(TERMS | {"alpha": np.linspace(0.8, 0.9, 10)}))
