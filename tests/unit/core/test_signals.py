"""Class-wise eCDFs, and the signals that rest on them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import reference
from torchsdm import ClassEcdfs
from torchsdm.core import Familiarity, dkw_epsilon, effective_sample_sizes, log_odds
from torchsdm.core.signals import rows_by_class, sorted_by_class
from torchsdm.errors import EmptyClassWarning, InvalidInputError


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


def test_sizes_by_hand():
    # class 0: 1 3 3, class 1: 2; counted are those strictly below
    sizes = effective_sample_sizes([3.0, 1.0, 2.0, 3.0], [0, 0, 1, 0], [0.0, 1.0, 2.5, 3.0, 4.0], 3)
    assert sizes.dtype == torch.int64
    assert sizes.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 0], [3, 1, 0]]


def test_sizes_equal_the_reference():
    rng = np.random.default_rng(0)
    calibration, labels = rng.integers(0, 20, 300) / 4, rng.integers(0, 4, 300)
    at = np.concatenate([calibration[:30], rng.random(30) * 5])
    expected = [reference.effective_sample_sizes(calibration, labels, value, 4) for value in at]
    assert effective_sample_sizes(calibration, labels, at, 4).tolist() == expected
    # a view with a stride
    assert effective_sample_sizes(calibration, labels, torch.from_numpy(at)[::2], 4).tolist() == expected[::2]


@pytest.mark.parametrize("alpha", [0.6, 0.9, 0.95, 0.999])
def test_epsilon_is_the_closed_form(alpha):
    sizes = [[5, 40], [1000, 3], [0, 9], [10**6, 10**6], [1, 1]]
    expected = [min(1.0, math.sqrt(math.log(2 / (1 - alpha)) / (2 * min(row)))) if min(row) else 1.0 for row in sizes]
    got = dkw_epsilon(sizes, alpha)
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-12)
    assert got.tolist() == pytest.approx([reference.dkw_epsilon(row, alpha) for row in sizes], rel=1e-12)


def test_epsilon_by_hand():
    # ln(2/0.05) = 3.688879; / (2 * 100) = 0.01844; root 0.135810
    assert dkw_epsilon([[100, 250]], 0.95).item() == pytest.approx(0.1358102, abs=1e-7)


def test_epsilon_is_one_where_nothing_is_known():
    assert dkw_epsilon([[0, 5], [1000, 1000]], 1.0).tolist() == [1.0, 1.0]
    assert dkw_epsilon([[0, 5]], 0.9).tolist() == [1.0]
    assert dkw_epsilon([[1, 5]], 0.99).tolist() == [1.0]  # 1.63 otherwise


def test_bad_sizes_are_refused():
    with pytest.raises(
        InvalidInputError, match=r"'calibration_labels' of effective_sample_sizes must have shape \(2,\)"
    ):
        effective_sample_sizes([1.0, 2.0], [0], [1.0], 2)
    with pytest.raises(
        InvalidInputError, match=r"'rescaled_similarity' of effective_sample_sizes must have shape \(any,\)"
    ):
        effective_sample_sizes([1.0], [0], [[1.0]], 2)
    with pytest.raises(
        InvalidInputError, match=r"'effective_sample_sizes' of dkw_epsilon must have shape \(any, any\)"
    ):
        dkw_epsilon([3, 4], 0.9)
    with pytest.raises(
        InvalidInputError, match=r"'alpha' of dkw_epsilon must be in \(0.5, 1\]. Got 0.05; .*miscoverage"
    ):
        dkw_epsilon([[3, 4]], 0.05)


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
