"""Algorithm 1 in one pass against Algorithm 1 as printed, and the selection rule."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import reference
from torchsdm import find_high_reliability_region
from torchsdm.core import HighReliabilityRegion
from torchsdm.core.region import (
    by_number,
    capped,
    check_alpha_setting,
    check_target,
    check_targets,
    largest,
    smallest,
    target_of,
)
from torchsdm.errors import InvalidInputError, InvalidTypeError, TorchSDMError
from torchsdm.validation import check_alphas

NAMES = np.array(["ham", "spam"])


def test_a_mapping_is_one_target_in_the_order_of_the_classes():
    assert check_targets({"spam": 0.99, "ham": 0.9}, NAMES, "fit") == ((0.9, 0.99),)
    assert check_targets({"spam": 0.9, "ham": 0.9}, NAMES, "fit") == (0.9,)
    assert check_targets((0.9, 0.95), NAMES, "fit") == (0.9, 0.95)
    assert check_targets(0.9, NAMES, "fit") == (0.9,)


def test_classes_may_be_named_by_their_text():
    assert check_targets({"0": 0.9, "1": 0.8}, np.array([0, 1]), "fit") == ((0.9, 0.8),)
    assert check_targets({0: 0.9, 1: 0.8}, np.array([0, 1]), "fit") == ((0.9, 0.8),)


@pytest.mark.parametrize(
    ("alpha", "words"),
    [
        ({"ham": 0.9, "spma": 0.99}, r"Got 'spma', which is not one. Did you mean 'spam'\?"),
        ({"ham": 0.9}, "must name every class. Nothing was given for 'spam'"),
        ({}, "must name every class"),
        ({"ham": 0.9, "spam": 0.3}, "must be in"),
        ({"ham": 0.9, "spam": "high"}, "must be a number"),
    ],
)
def test_a_mapping_names_every_class_and_no_other(alpha, words):
    with pytest.raises(TorchSDMError, match=words):
        check_targets(alpha, NAMES, "fit")


def test_several_alphas_and_a_mapping_do_not_mix():
    with pytest.raises(InvalidInputError, match="several numbers or one for each class, not both"):
        check_alpha_setting({"ham": (0.9, 0.95), "spam": 0.9}, "fit")
    with pytest.raises(InvalidTypeError, match="must be a number"):
        check_alpha_setting([{"ham": 0.9}, 0.95], "fit")
    with pytest.raises(InvalidTypeError, match="only SDMClassifier and SDMEnsemble take"):
        check_alphas({"ham": 0.9, "spam": 0.95}, "APS.fit")


def test_a_sequence_has_one_for_each_class():
    assert check_target([0.9, 0.8], 2, "f") == (0.9, 0.8)
    assert check_target(np.array([0.9, 0.9]), 2, "f") == 0.9
    with pytest.raises(InvalidInputError, match="one per class, 2"):
        check_target([0.9, 0.8, 0.7], 2, "f")


def test_what_stands_for_a_target():
    target = (0.9, 0.99)
    assert (smallest(target), largest(target), smallest(0.8), largest(0.8)) == (0.9, 0.99, 0.8, 0.8)
    assert (target_of(target, 1), target_of(target, None), target_of(0.8, 1)) == (0.99, 0.9, 0.8)
    assert by_number(target, 2).tolist() == [0.9, 0.99] and by_number(0.8, 3).tolist() == [0.8] * 3
    assert capped(target, 0.95) == (0.9, 0.95) and capped(0.8, 0.95) == 0.8


ALPHAS = [0.51, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0]


def draw(seed):
    """A small calibration set with ties; the larger q', the more often the true class is likely."""
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 7))
    n = int(rng.integers(1, 40))
    alpha = float(rng.choice(ALPHAS))
    values = int(rng.integers(2, 12))  # few distinct q'
    q = rng.integers(0, values, n).astype(np.float64) * rng.choice([1.0, 0.3])
    labels = rng.integers(0, n_classes, n)
    steps = np.array([0.0, 0.2, 0.5, 0.51, alpha - 1e-6, alpha, (1 + alpha) / 2, 1.0])
    good = rng.random(n) < 0.5 + 0.5 * q / max(q.max(), 1)
    truth = np.where(good, rng.choice(steps[5:], n), rng.choice(steps[:6], n))
    p = rng.random((n, n_classes))
    p[np.arange(n), labels] = truth
    min_class_count = int(rng.choice([0, 0, 0, 1, 2, 4]))
    return q, p, labels, alpha, min_class_count


def psi_and_counts(q, p, labels, alpha, candidate, n_classes):
    """Thresholds and counts that a candidate makes; -inf for a class without points."""
    thresholds, counts = [], []
    for c in range(n_classes):
        values = sorted(p[i][c] for i in range(len(q)) if labels[i] == c and q[i] >= candidate)
        counts.append(len(values))
        thresholds.append(values[reference.inverse_cdf_index(len(values), alpha)] if values else -math.inf)
    return thresholds, counts


@pytest.mark.parametrize("start", range(0, 2000, 200))
def test_equals_the_reference(start):
    n_found = 0
    for seed in range(start, start + 200):
        q, p, labels, alpha, min_class_count = draw(seed)
        expected = reference.find_high_reliability_region(q, p, labels, alpha, min_class_count)
        got = find_high_reliability_region(q, p, labels, alpha, min_class_count)
        assert got.found == expected.found, seed
        assert got.min_rescaled_similarity == expected.min_rescaled_similarity, seed
        assert got.thresholds.tolist() == expected.thresholds, seed
        assert got.class_counts.tolist() == expected.class_counts, seed
        assert got.alpha == alpha
        n_found += got.found
        if got.found:
            assert got.failed_classes == () and got.largest_alpha is None
            scarce = tuple(c for c, n in enumerate(expected.class_counts) if round(n * (1 - alpha), 9) < 1)
            assert got.scarce_classes == scarce, seed
        else:
            check_why_not(got, q, p, labels, alpha, min_class_count, seed)
    assert 20 < n_found < 180


def check_why_not(got, q, p, labels, alpha, min_class_count, seed):
    """The largest alpha has a region, a little more has none; the failed classes are those below alpha there."""

    def search(a):
        return reference.find_high_reliability_region(q, p, labels, a, min_class_count)

    n_classes = p.shape[1]
    assert got.scarce_classes == ()
    candidates = sorted({value for value in q if value > 0})
    if got.largest_alpha is None:
        assert not search(0.5 + 1e-4).found, seed
        if not candidates:
            assert got.failed_classes == tuple(range(n_classes)), seed
            return
        failing = [failing_classes(q, p, labels, alpha, t, n_classes, min_class_count) for t in candidates]
        assert got.failed_classes in [f for f in failing if len(f) == min(map(len, failing))], seed
        return
    assert 0.5 < got.largest_alpha < alpha, seed
    reached = search(got.largest_alpha)
    assert reached.found, seed
    if got.largest_alpha + 1e-4 <= 1:
        assert not search(got.largest_alpha + 1e-4).found, seed
    expected = failing_classes(q, p, labels, alpha, reached.min_rescaled_similarity, n_classes, min_class_count)
    assert got.failed_classes == expected, seed


def failing_classes(q, p, labels, alpha, candidate, n_classes, min_class_count):
    thresholds, counts = psi_and_counts(q, p, labels, alpha, candidate, n_classes)
    return tuple(
        c for c in range(n_classes) if thresholds[c] < alpha or counts[c] < max(1, min_class_count)
    )  # -inf for a class without points


@pytest.mark.parametrize("start", range(0, 600, 200))
def test_a_target_for_each_class_equals_the_reference(start):
    n_found = n_capped = 0
    for seed in range(start, start + 200):
        q, p, labels, alpha, min_class_count = draw(seed)
        rng = np.random.default_rng([seed, 1])
        alphas = tuple(float(a) for a in rng.choice([0.6, 0.7, alpha, 0.9], p.shape[1]))
        expected = reference.find_high_reliability_region(q, p, labels, alphas, min_class_count)
        got = find_high_reliability_region(q, p, labels, alphas, min_class_count)
        assert got.found == expected.found, seed
        assert got.min_rescaled_similarity == expected.min_rescaled_similarity, seed
        assert got.thresholds.tolist() == expected.thresholds, seed
        assert got.class_counts.tolist() == expected.class_counts, seed
        assert got.alpha == min(alphas) and got.target == (alphas if len(set(alphas)) > 1 else alphas[0])
        n_found += got.found
        if got.found:
            counted = zip(expected.class_counts, alphas, strict=True)
            assert got.scarce_classes == tuple(c for c, (n, a) in enumerate(counted) if round(n * (1 - a), 9) < 1), seed
        elif got.largest_alpha is not None:  # the largest number that the targets could be limited to
            n_capped += 1
            for limit, is_found in ((got.largest_alpha, True), (got.largest_alpha + 1e-4, False)):
                limited = [min(a, limit) for a in alphas]
                assert reference.find_high_reliability_region(q, p, labels, limited, min_class_count).found == is_found
    assert 20 < n_found < 180 and n_capped > 5


def test_equal_targets_are_one_alpha():
    q, p, labels, _, _ = draw(3)
    one, several = (find_high_reliability_region(q, p, labels, alpha) for alpha in (0.7, [0.7] * p.shape[1]))
    assert several.target == one.target == 0.7 and several.class_alphas == ()
    assert several.thresholds.tolist() == one.thresholds.tolist()
    with pytest.raises(InvalidInputError, match="one number or one per class"):
        find_high_reliability_region(q, p, labels, [0.7] * (p.shape[1] + 1))


def test_a_target_that_only_one_class_misses():
    q, p, labels = two_classes([0.9] * 20, [0.7] * 20)
    assert find_high_reliability_region(q, p, labels, (0.9, 0.7)).found
    region = find_high_reliability_region(q, p, labels, (0.7, 0.9))
    assert not region.found and region.failed_classes == (1,) and region.largest_alpha == 0.7
    words = region.explain(["ant", "bee"])
    assert "at alpha=0.7 for 'ant', 0.9 for 'bee'" in words and "With no target above 0.7 there would be one" in words


# --- By hand ---------------------------------------------------------------------------------------------------------


def two_classes(truth0, truth1, q=None):
    """Points of class 0, then of class 1, with the given probabilities of their true class."""
    truth = np.array([*truth0, *truth1])
    labels = np.repeat([0, 1], [len(truth0), len(truth1)])
    p = np.where(labels[:, None] == [0, 1], truth[:, None], 1 - truth[:, None])
    return np.ones(len(truth)) if q is None else np.asarray(q, dtype=np.float64), p, labels


def test_the_first_candidate_that_holds():
    # q'        1     1     2     2     3     3      true class
    q, p, y = two_classes([0.5, 0.95, 0.97], [0.96, 0.91, 0.99], [1, 2, 3, 1, 2, 3])
    region = find_high_reliability_region(q, p, y, 0.9)
    assert region.found and region.min_rescaled_similarity == 2.0  # at 1, psi_0 is 0.5
    assert region.thresholds.tolist() == [0.95, 0.91] and region.class_counts.tolist() == [2, 2]
    region = find_high_reliability_region(q, p, y, 0.92)
    assert region.min_rescaled_similarity == 3.0 and region.thresholds.tolist() == [0.97, 0.99]


def test_similarity_zero_is_no_candidate():
    region = find_high_reliability_region(*two_classes([1.0], [1.0], [0.0, 0.0]), 0.9)
    assert not region.found and region.failed_classes == (0, 1)
    assert region.min_rescaled_similarity == math.inf and region.thresholds.tolist() == [math.inf, math.inf]


def test_a_class_without_points_has_no_region():
    region = find_high_reliability_region([1.0, 2.0], [[0.99, 0.01], [0.99, 0.01]], [0, 0], 0.9)
    assert not region.found and region.failed_classes == (1,) and region.largest_alpha is None


def test_no_points_no_region():
    region = find_high_reliability_region([], np.zeros((0, 3)), [], 0.9)
    assert not region.found and region.failed_classes == (0, 1, 2) and region.class_counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("alpha", "n", "n_low"),
    # (1 - 0.9) * 10 is 0.9999999999999998 in floating point, (1 - 0.9) * 40 is 3.999999999999999
    [(0.9, 10, 1), (0.9, 40, 4), (0.8, 5, 1), (0.7, 10, 3), (0.95, 20, 1), (0.95, 60, 3), (0.99, 300, 3), (0.9, 9, 0)],
)
def test_threshold_index_at_the_boundary(alpha, n, n_low):
    enough = [0.1] * n_low + [0.999] * (n - n_low)
    region = find_high_reliability_region(*two_classes(enough, enough), alpha)
    assert region.found and region.thresholds.tolist() == [0.999, 0.999]
    too_many = [0.1] * (n_low + 1) + [0.999] * (n - n_low - 1)
    region = find_high_reliability_region(*two_classes(enough, too_many), alpha)
    assert not region.found and region.failed_classes == (1,)


def test_a_threshold_equal_to_alpha_is_enough():
    assert find_high_reliability_region(*two_classes([0.9], [0.9]), 0.9).found
    assert not find_high_reliability_region(*two_classes([0.9], [math.nextafter(0.9, 0)]), 0.9).found


def test_alpha_one_takes_the_minimum():
    region = find_high_reliability_region(*two_classes([1.0] * 50, [1.0] * 50), 1.0)
    assert region.found and region.thresholds.tolist() == [1.0, 1.0]
    assert region.scarce_classes == (0, 1)  # no count is enough for a quantile
    assert not find_high_reliability_region(*two_classes([1.0] * 50, [1.0] * 49 + [0.9999]), 1.0).found


def test_scarce_classes_at_the_boundary():
    region = find_high_reliability_region(*two_classes([0.99] * 10, [0.99] * 9), 0.9)
    assert region.class_counts.tolist() == [10, 9] and region.scarce_classes == (1,)  # 1/(1 - 0.9) is 10
    region = find_high_reliability_region(*two_classes([0.99] * 20, [0.99] * 19), 0.95)
    assert region.scarce_classes == (1,)


def test_min_class_count_makes_candidates_fail():
    q, p, y = two_classes([0.5, 0.95, 0.95, 0.95], [0.95] * 5, [1, 2, 3, 4, 1, 2, 3, 4, 5])
    assert find_high_reliability_region(q, p, y, 0.9, min_class_count=3).min_rescaled_similarity == 2.0
    region = find_high_reliability_region(q, p, y, 0.9, min_class_count=4)  # from 2 on class 0 has only 3
    assert not region.found and region.failed_classes == (0,)
    assert region.largest_alpha is None or region.largest_alpha <= 0.75  # with 4 points one may be low if alpha <= 0.75


def test_largest_alpha_by_hand():
    region = find_high_reliability_region(*two_classes([0.83], [0.99]), 0.9)
    assert region.failed_classes == (0,)
    assert region.largest_alpha == pytest.approx(0.83, abs=1e-6) and region.largest_alpha <= 0.83


def test_float32_probabilities_are_taken_as_they_are():
    q, p, y = two_classes([0.9], [0.95])
    assert not find_high_reliability_region(q, p.astype(np.float32), y, 0.9).found  # float32(0.9) is below 0.9
    assert find_high_reliability_region(torch.from_numpy(q), torch.from_numpy(p), torch.from_numpy(y), 0.9).found


def test_order_of_the_points_is_of_no_importance():
    q, p, labels, alpha, _ = draw(13)
    shuffled = np.random.default_rng(0).permutation(len(q))
    first, again = (
        find_high_reliability_region(q[order], p[order], labels[order], alpha) for order in (slice(None), shuffled)
    )
    assert first.min_rescaled_similarity == again.min_rescaled_similarity
    assert torch.equal(first.thresholds, again.thresholds)


def test_a_large_calibration_set_takes_one_pass():
    rng = np.random.default_rng(0)
    n = 200_000
    q, labels = rng.random(n), rng.integers(0, 4, n)
    truth = np.where(rng.random(n) < q, 0.99, 0.3)  # the share of low ones is 1 - q
    p = np.full((n, 4), 0.1)
    p[np.arange(n), labels] = truth
    region = find_high_reliability_region(q, p, labels, 0.95)
    assert region.found
    assert region.min_rescaled_similarity == pytest.approx(0.9, abs=0.01)  # above t the mean of 1 - q is (1 - t)/2
    below = np.sort(q)[np.searchsorted(np.sort(q), region.min_rescaled_similarity) - 1]
    thresholds, _ = psi_and_counts(q, p, labels, 0.95, below, 4)
    assert min(thresholds) < 0.95  # the candidate before fails


# --- The selection rule (Eq. 9) --------------------------------------------------------------------------------------


def test_admission_at_and_around_the_boundary():
    region = HighReliabilityRegion(0.9, 3.0, torch.tensor([0.95, 0.91], dtype=torch.float64), torch.tensor([5, 5]))
    below = math.nextafter
    q = [3.0, below(3.0, 0), 9.0, 9.0, 9.0, 9.0, 0.0]
    y_hat = [0, 0, 0, 0, 1, 1, 1]
    p = [0.95, 1.0, 0.95, below(0.95, 0), 0.91, below(0.91, 0), 1.0]
    assert region.admits(q, y_hat, p).tolist() == [True, False, True, False, True, False, False]


def test_admission_equals_the_reference():
    rng = np.random.default_rng(4)
    region = HighReliabilityRegion(0.9, 3.0, torch.tensor([0.95, 0.91, 0.99], dtype=torch.float64), torch.ones(3))
    q, y_hat, p = rng.integers(0, 6, 300), rng.integers(0, 3, 300), rng.choice([0.9, 0.91, 0.95, 0.97, 0.99, 1.0], 300)
    expected = [reference.admits(3.0, region.thresholds.tolist(), *row) for row in zip(q, y_hat, p, strict=True)]
    assert region.admits(q, y_hat, p).tolist() == expected
    assert 0 < sum(expected) < 300


def test_without_a_region_nothing_is_admitted():
    region = find_high_reliability_region(*two_classes([0.1], [0.1]), 0.9)
    assert region.admits([1e9, math.inf], [0, 1], [1.0, 1.0]).tolist() == [False, False]


# --- What the user is told -------------------------------------------------------------------------------------------


def test_a_sound_region_has_nothing_to_say():
    assert find_high_reliability_region(*two_classes([0.99] * 10, [0.99] * 10), 0.9).explain() is None


def test_scarcity_is_explained():
    text = find_high_reliability_region(*two_classes([0.99] * 10, [0.99] * 3), 0.9).explain(["ant", "bee"])
    assert "alpha=0.9 is based on few calibration points of class 'bee' (3, fewer than 10)" in text
    assert "min_class_count" in text
    text = find_high_reliability_region(*two_classes([1.0] * 99, [1.0] * 99), 1.0).explain()
    assert "At alpha=1 every threshold is just the minimum" in text


def test_failure_is_explained_with_the_class_and_a_remedy():
    text = find_high_reliability_region(*two_classes([0.83219], [0.99]), 0.9).explain(["ant", "bee"])
    assert "No high-reliability region at alpha=0.9; everything is rejected" in text
    assert "'ant'" in text and "'bee'" not in text and "is 0.8321, based on 1, 1 points" in text
    assert text.endswith(" To accept it: recalibrate(alpha=...).")
    assert "Class 0 stays below" in find_high_reliability_region(*two_classes([0.8], [0.99]), 0.9).explain()


@pytest.mark.parametrize("truth", [0.87654321, 0.8, 0.8001, 0.87655, 0.5002, 0.50004, 0.5000446, 0.3])
def test_the_alpha_that_is_recommended_has_a_region(truth):
    calibration = two_classes([truth], [0.99])
    text = find_high_reliability_region(*calibration, 0.9).explain()
    recommended = re.search(r"The largest alpha that has one is ([0-9.]+),", text)
    if recommended is None:
        assert truth < 0.5001 and "No alpha above 0.5" in text
    else:
        assert find_high_reliability_region(*calibration, float(recommended[1])).found


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.0, -1.0, 1.0001, math.nan, math.inf])
def test_alpha_outside_its_range_is_refused(alpha):
    message = r"'alpha' of find_high_reliability_region must be in \(0.5, 1\]. Got .*; alpha is target accuracy"
    with pytest.raises(InvalidInputError, match=message):
        find_high_reliability_region(*two_classes([0.9], [0.9]), alpha)


def test_alpha_must_be_a_number():
    with pytest.raises(InvalidTypeError, match="'alpha' of find_high_reliability_region must be a number"):
        find_high_reliability_region(*two_classes([0.9], [0.9]), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 2]}, "'labels' of find_high_reliability_region must be in 0..1. Got 0..2"),
        ({"labels": [-1, 0]}, "'labels' of find_high_reliability_region must be in 0..1. Got -1..0"),
        ({"labels": [0]}, r"'labels' of find_high_reliability_region must have shape \(2,\). Got \(1,\)"),
        ({"rescaled_similarity": [1.0]}, r"'rescaled_similarity' of .* must have shape \(2,\). Got \(1,\)"),
        ({"rescaled_similarity": [1.0, math.nan]}, "must not contain NaN"),
        ({"probabilities": [[0.9, math.nan], [0.1, 0.9]]}, "must not contain NaN"),
        ({"probabilities": [0.9, 0.1]}, r"'probabilities' of .* must have shape \(any, any\). Got \(2,\)"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = {"rescaled_similarity": [1.0, 1.0], "probabilities": [[0.9, 0.1], [0.1, 0.9]], "labels": [0, 1]}
    with pytest.raises(InvalidInputError, match=message):
        find_high_reliability_region(**{**good, **change}, alpha=0.9)
