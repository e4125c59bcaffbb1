"""Effective sample sizes and DKW bands."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import reference
from torchsdm.core import dkw_epsilon, effective_sample_sizes
from torchsdm.core.sample_size import distance_quantile_band
from torchsdm.errors import InvalidInputError


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


def test_the_band_stays_between_zero_and_one():
    d = torch.tensor([0.5, 0.1, 0.95, 0.0, 1.0], dtype=torch.float64)
    epsilon = torch.tensor([0.2, 0.2, 0.2, 1.0, 1.0], dtype=torch.float64)
    lower, upper = distance_quantile_band(d, epsilon)
    assert lower.tolist() == pytest.approx([0.3, 0.0, 0.75, 0.0, 0.0])
    assert upper.tolist() == pytest.approx([0.7, 0.3, 1.0, 1.0, 1.0])


def test_bad_input_is_refused():
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
