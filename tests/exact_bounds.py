"""Exact distances as fractions, and points at which bounds are hard to keep."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from torchsdm.matching import CentredPoints


def integers(values, unit):
    """float64 numbers as multiples of 2^-unit, exactly."""

    def integer(value):
        numerator, denominator = value.as_integer_ratio()
        return numerator * (2**unit // denominator)

    return np.array([integer(value) for value in values.flatten().tolist()], dtype=object).reshape(values.shape)


def exact_squares(a, b, scale):
    """(scale |a_i - b_j|)^2 as fractions, a list of rows."""
    a, b = a.double().numpy(), b.double().numpy()
    unit = 53 - int(min(np.frexp(values[values != 0])[1].min(initial=0) for values in (a, b)))  # divides them all
    a, b, factor = integers(a, unit), integers(b, unit), Fraction(scale) ** 2 / 4**unit
    return [[int(((x - y) ** 2).sum()) * factor for y in b] for x in a]


def both_bounds(product, side, columns):
    """Lower and upper bounds (n, S) as the kernels compute them, in float32."""
    factor, low, high = (values.numpy()[:, None] for values in (side.factor, side.low, side.high))
    assert factor.dtype == low.dtype == high.dtype == product.dtype == np.float32
    lower, upper = columns.lower.numpy(), columns.upper.numpy()
    return (lower + low) - factor * product, (upper + high) - factor * product


def draw(n_filters, scale, offset, dtype, seed):
    """A support with a far and a near point, and queries near and far, one at a support point, one at the centre."""
    rng = np.random.default_rng([seed, n_filters])
    sizes = 10.0 ** rng.integers(-2, 1, n_filters)  # filters of several sizes
    middle = offset * rng.standard_normal(n_filters)
    support = rng.standard_normal((9, n_filters)) * sizes
    support[:2] *= [[1e3], [1e-3]]
    support = torch.from_numpy((support + middle) * scale).to(dtype)
    points = CentredPoints.of(support, support.double().mean(dim=0))
    queries = rng.standard_normal((7, n_filters)) * sizes
    queries[:3] *= [[1e4], [1e-4], [1e-9]]
    queries = torch.from_numpy((queries + middle) * scale).to(dtype)
    queries[3] = support[4]
    queries[4] = points.centre.to(dtype)
    return points, queries
