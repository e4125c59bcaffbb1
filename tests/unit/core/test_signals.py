"""Class-wise eCDFs, and the signals that rest on them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import reference
from torchsdm import ClassEcdfs
from torchsdm.core.signals import Signals, rows_by_class, sorted_by_class
from torchsdm.errors import EmptyClassWarning, InvalidInputError
from torchsdm.matching.search import Match


def test_quantiles_by_hand():
    # class 0: 1 2 2 5, class 1: 3 4; the point at 9 has q = 0 and is left out
    ecdfs = ClassEcdfs.fit([2, 5, 1, 3, 9, 2, 4], [1, 1, 4, 2, 0, 3, 1], [0, 0, 0, 1, 1, 0, 1], 2)
    assert [distances.tolist() for distances in ecdfs.sorted_distances] == [[1, 2, 2, 5], [3, 4]]
    at = [0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, math.inf]
    #     (1,1) (1,1) (3/4,1) (3/4,1) (1/4,1) (1/4,1) (1/4,1/2) (1/4,1/2) (1/4,0) ...
    expected = [1, 1, 0.75, 0.75, 0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0]
    quantile = ecdfs.distance_quantile(at)
    assert quantile.dtype == torch.float64 and quantile.tolist() == expected


def test_the_largest_observed_distance_has_one_rank_left():
    for n in (1, 3, 49):
        ecdfs = ClassEcdfs.fit(np.arange(n) + 1.0, np.ones(n), np.zeros(n, dtype=int), 1)
        assert ecdfs.distance_quantile([0.0, n, n + 1e-9]).tolist() == [1.0, 1 / n, 0.0]


@pytest.mark.parametrize("n_classes", [1, 2, 5])
def test_quantiles_equal_the_reference(n_classes):
    rng = np.random.default_rng(n_classes)
    distance = rng.integers(0, 12, 200) / 4  # ties
    q, y = rng.integers(0, 3, 200), rng.integers(0, n_classes, 200)
    lists = reference.class_distances(distance, q, y, n_classes)
    ecdfs = ClassEcdfs.fit(distance, q, y, n_classes)
    assert [values.tolist() for values in ecdfs.sorted_distances] == lists
    assert ecdfs.n_classes == n_classes and ecdfs.empty_classes == []
    at = np.concatenate([distance[:50], rng.random(50) * 4])
    expected = [reference.distance_quantile(x, lists) for x in at]
    assert ecdfs.distance_quantile(at).tolist() == expected
    assert ecdfs.distance_quantile(torch.from_numpy(at).repeat_interleave(2)[::2]).tolist() == expected  # strided


def test_float64_distances_are_not_rounded():
    ecdfs = ClassEcdfs.fit([1.0, 1.0 + 2.0**-50], [1, 1], [0, 0], 1)
    assert ecdfs.distance_quantile(np.array([1.0, 1.0 + 2.0**-51, 1.0 + 2.0**-50, 1.0 + 2.0**-49])).tolist() == [
        1.0,
        0.5,
        0.5,
        0.0,
    ]


def test_a_class_without_points_gives_zero_everywhere_and_is_named():
    with pytest.warns(EmptyClassWarning, match="No calibration point with q > 0 for class 'bee', 'dog'"):
        ecdfs = ClassEcdfs.fit([1.0, 2.0, 3.0], [1, 0, 2], [0, 1, 2], 4, class_names=["ant", "bee", "cat", "dog"])
    assert ecdfs.empty_classes == [1, 3]
    assert ecdfs.distance_quantile([0.0, 1.0, 99.0]).tolist() == [0.0, 0.0, 0.0]
    with pytest.warns(EmptyClassWarning, match="for class 1:"):
        ClassEcdfs.fit([1.0], [1], [0], 2)


def test_in_training_classes_with_fewer_points_than_classes_share_an_ecdf():
    # three classes: class 0 has three points, 1 and 2 have two and one, class 3 none; so four classes in all
    distance, labels = [1.0, 2.0, 3.0, 4.0, 5.0, 0.5, 7.0], [0, 0, 0, 0, 1, 1, 2]
    ecdfs = ClassEcdfs.fit(distance, np.ones(7), labels, 4, warn=False)
    at = [0.1, 0.7, 2.5, 4.5, 6.0, 8.0]
    own = [1, 1, 0.5, 0, 0, 0]  # class 0: 1 2 3 4
    together = [1, 2 / 3, 2 / 3, 2 / 3, 1 / 3, 0]  # classes 1 and 2: 0.5 5 7
    assert ecdfs.distance_quantile(at, pool_small=True).tolist() == np.minimum(own, together).tolist()
    assert ecdfs.distance_quantile(at).tolist() == [0] * 6  # the paper's: nothing is known of class 3


def test_in_training_classes_of_ordinary_size_are_ranked_as_ever():
    rng = np.random.default_rng(0)
    distance, labels = rng.random(60), np.arange(60) % 3
    ecdfs = ClassEcdfs.fit(distance, np.ones(60), labels, 3)
    at = rng.random(40)
    assert ecdfs.distance_quantile(at, pool_small=True).tolist() == ecdfs.distance_quantile(at).tolist()


def test_the_warning_can_be_left_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClassEcdfs.fit([1.0], [1], [0], 2, warn=False)
        ClassEcdfs.fit([1.0, 2.0], [1, 1], [0, 1], 2)  # nothing to warn of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [1], [0]), r"'nearest_distance' of ClassEcdfs.fit must have shape \(any,\). Got \(1, 1\)"),
        (([1.0], [1, 2], [0]), r"'similarity' of ClassEcdfs.fit must have shape \(1,\). Got \(2,\)"),
        (([1.0], [1], [0, 1]), r"'labels' of ClassEcdfs.fit must have shape \(1,\). Got \(2,\)"),
        (([math.nan], [1], [0]), "'nearest_distance' of ClassEcdfs.fit must be distances. Got NaN"),
        (([-1.0], [1], [0]), "'nearest_distance' of ClassEcdfs.fit must be distances. Got NaN or negative"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        ClassEcdfs.fit(*arguments, 1)


# --- Signals ---------------------------------------------------------------------------------------------------------


def test_signals_join_match_and_quantile():
    ecdfs = ClassEcdfs.fit([1.0, 2.0], [1, 1], [0, 0], 1)
    match = Match(
        torch.tensor([3, 0, 5, 0]),
        torch.tensor([1.5, 0.5, 2.5, 9.0], dtype=torch.float64),
        torch.tensor([7, 8, 9, 10]),
    )
    signals = Signals.of(match, ecdfs)
    assert signals.similarity is match.similarity and signals.nearest_distance is match.nearest_distance
    assert signals.nearest_index is match.nearest_index
    assert signals.distance_quantile.tolist() == [0.5, 1.0, 0.0, 0.0]
    # q = 0 or d = 0
    assert signals.out_of_distribution.tolist() == [False, True, True, True]


def test_rows_and_values_are_those_of_a_mask_for_each_class():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 7, (200,), generator=generator)  # -1, 5 and 6 are no classes
    labels[labels == 3] = 2  # and class 3 is empty
    values = torch.rand(200, generator=generator).round(decimals=1)
    for c, (rows, ascending) in enumerate(
        zip(rows_by_class(labels, 5), sorted_by_class(values, labels, 5), strict=True)
    ):
        assert torch.equal(rows, torch.nonzero(labels == c).squeeze(1))
        assert torch.equal(ascending, values[labels == c].sort().values)


def test_without_points_every_class_is_empty():
    assert [len(rows) for rows in rows_by_class(torch.empty(0, dtype=torch.int64), 3)] == [0, 0, 0]
