"""Groups: counts by true class and by prediction against loops, and intervals against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from torchsdm.core import GroupAccuracy, GroupCounts, wilson_interval
from torchsdm.errors import InvalidInputError


def test_counts_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    labels, predictions, admitted = rng.integers(0, 3, 200), rng.integers(0, 3, 200), rng.random(200) < 0.6
    groups = GroupCounts.of(labels, predictions, admitted, 3).accuracies()
    expected = []
    for kind, values in (("class", labels), ("prediction", predictions)):
        for c in range(3):
            rows = [i for i in range(200) if admitted[i] and values[i] == c]
            expected.append(GroupAccuracy(kind, c, len(rows), sum(labels[i] != predictions[i] for i in rows)))
    assert list(groups) == expected
    together = GroupCounts.of_all(labels, predictions, admitted).accuracies()
    assert together == (
        GroupAccuracy("all", None, int(admitted.sum()), int((admitted & (labels != predictions)).sum())),
    )


def test_counts_are_subtracted():
    labels, predictions = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    everyone, some = np.ones(4, dtype=bool), np.array([True, False, False, True])
    rest = GroupCounts.of(labels, predictions, everyone, 2) - GroupCounts.of(labels, predictions, some, 2)
    expected = GroupCounts.of(labels, predictions, ~some, 2)
    assert (rest.n.tolist(), rest.k.tolist()) == (expected.n.tolist(), expected.k.tolist())


def test_a_group_is_described_with_its_name_count_and_interval():
    group = GroupAccuracy("prediction", 1, 100, 82)
    low, high = group.interval
    assert (low, high) == pytest.approx(wilson_interval(18, 100))
    assert group.described(["ant", "bee"]) == (
        f"prediction 'bee': 18 of 100 right (0.180, 95 % interval {low:.3f} to {high:.3f})"
    )
    empty = GroupAccuracy("class", 0, 0, 0)
    assert empty.accuracy is None and empty.interval is None
    assert empty.described() == "class 0: none admitted"
    assert GroupAccuracy("all", None, 10, 1).name(["ant", "bee"]) == "all together"


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (3, 7), (95, 100), (1, 1), (999, 1000)])
def test_wilson_is_scipys(k, n):
    for level in (0.8, 0.95, 0.99):
        expected = binomtest(k, n).proportion_ci(level, method="wilson")
        np.testing.assert_allclose(wilson_interval(k, n, level), (expected.low, expected.high), atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_needs_a_share(k, n):
    with pytest.raises(InvalidInputError, match=r"must be in 0\.\.n"):
        wilson_interval(k, n)


def test_wilson_needs_a_level():
    with pytest.raises(InvalidInputError, match="'level' of wilson_interval"):
        wilson_interval(5, 10, 95)
