"""The bounds against exact arithmetic, at every scale and for the worst order of summation."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from exact_bounds import both_bounds, draw, exact_squares
from torchsdm.arithmetic.exact import pairwise_sum, product_error, rounded_interval
from torchsdm.matching import _bounds as bounds
from torchsdm.matching._bounds import Bounds, CentredPoints, _power_of_two, centred_products
from torchsdm.matching._tiles import LARGEST_QUERY, SMALLEST_QUERY

N_FILTERS = [1, 2, 3, 8, 50, 300, 2000]


class Elsewhere(torch.Tensor):
    """A tensor that claims not to be on the CPU, so that it goes the way of other devices."""

    @property
    def device(self):
        return SimpleNamespace(type="elsewhere")


@pytest.fixture(params=["compiled", "torch"])
def place(request, monkeypatch):
    """What puts a tensor where the compiled functions work on it, or where torch operations must do."""
    if request.param == "compiled":
        return lambda tensor: tensor
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device=None, **options: empty(*shape, **options))
    return lambda tensor: tensor.as_subclass(Elsewhere)


def query_bounds(support, queries, place):
    side = support.bounds.queries(place(queries), support.centre)
    return bounds.RowBounds(*(getattr(side, name).as_subclass(torch.Tensor) for name in vars(side)))


def multiplicands(support):
    """What the queries' side is multiplied with, all of it."""
    return support.multiplicands(0, len(support.points))


def products(multiplier, points):
    """The same products in several orders of summation, as float32 arrays (n, S)."""
    x, s = multiplier.numpy(), points.numpy()
    yield x @ s.T
    yield (multiplier @ points.T).numpy()
    yield torch.stack([torch.mv(points, row) for row in multiplier]).numpy()
    terms = x[:, None] * s  # (n, S, M)
    yield terms.cumsum(axis=-1, dtype=np.float32)[..., -1]  # one after the other
    yield terms[..., ::-1].cumsum(axis=-1, dtype=np.float32)[..., -1]


def assert_bounds_hold(multiplier, points, side, columns, exact):
    lower, upper = zip(*(both_bounds(product, side, columns) for product in products(multiplier, points)), strict=True)
    lower, upper = np.max(lower, axis=0), np.min(upper, axis=0)  # of any order of summation; NaN stays and fails
    for row, values in enumerate(exact):
        for column, value in enumerate(values):  # Python compares a float with a fraction exactly
            assert float(lower[row, column]) <= value <= float(upper[row, column]), (row, column)


# --- The bounds hold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_at_every_scale(n_filters, dtype, place):
    for seed in range(2 if n_filters == 2000 else 12):
        rng = np.random.default_rng([seed, n_filters])
        scale, offset = 10.0 ** rng.uniform(-30, 30), rng.choice([0, 1, 30, 1e4])
        points, queries = draw(n_filters, scale, offset, dtype, seed)
        side = query_bounds(points, queries, place)
        exact = exact_squares(queries, points.points, points.bounds.scale)
        assert_bounds_hold(side.multiplier, multiplicands(points), side, points.bounds, exact)


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_where_they_say_something(n_filters, dtype, place):
    # The same where everything is left to float32.
    for seed in range(2 if n_filters == 2000 else 12):
        rng = np.random.default_rng([seed, n_filters])
        scale, offset = 10.0 ** rng.uniform(-14, 14), rng.choice([0, 1, 10])
        points, queries = draw(n_filters, scale, offset, dtype, seed)
        side = query_bounds(points, queries, place)
        exact = exact_squares(queries, points.points, points.bounds.scale)
        assert_bounds_hold(side.multiplier, multiplicands(points), side, points.bounds, exact)
        has_norm = torch.arange(7) != 4  # the one at the centre may be left out
        assert torch.isfinite(side.low[has_norm]).all() and torch.isfinite(points.bounds.lower).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_for_many_pairs_of_few_filters(dtype, place):
    # Nothing but roundings: with one filter the error of the sum is none and the rest of the bound is all there is.
    rng = np.random.default_rng(0)
    for n_filters in (1, 2):
        support = torch.from_numpy(1 + rng.random((60, n_filters))).to(dtype)
        queries = torch.from_numpy(1 + rng.random((60, n_filters))).to(dtype)
        for centre in (torch.zeros(n_filters), support.double().mean(dim=0)):
            points = CentredPoints.of(support, centre)
            side = query_bounds(points, queries, place)
            exact = exact_squares(queries, support, points.bounds.scale)
            assert_bounds_hold(side.multiplier, multiplicands(points), side, points.bounds, exact)


@pytest.mark.parametrize("n_filters", [100, 2000])
def test_bounds_hold_where_every_rounding_goes_the_same_way(n_filters, place):
    # All points on a line through 0 with one large filter: summed from the first to the last, every other term is lost,
    # for it is less than half a unit of the sum. Off the centre the bound is then hardly larger than the error.
    direction = np.full(n_filters, np.sqrt(2.0**-24 / 1.07))
    direction[0] = 1.0
    steps = np.array([-16, -12, -8, -5, 5, 8, 12, 16]) / 256
    support = torch.from_numpy(((1 + steps)[:, None] * direction).astype(np.float32))
    queries = torch.from_numpy(((1 + np.array([-16, -8, 8, 16]) / 256)[:, None] * direction).astype(np.float32))
    points = CentredPoints.of(support, torch.from_numpy(direction))
    side = query_bounds(points, queries, place)
    exact = exact_squares(queries, support, points.bounds.scale)
    assert_bounds_hold(side.multiplier, multiplicands(points), side, points.bounds, exact)
    errors, slacks = [], []
    for product in products(side.multiplier, multiplicands(points)):
        lower, upper = both_bounds(product, side, points.bounds)
        errors.append(np.abs((lower.astype(float) + upper) / 2 - np.array(exact, dtype=float)).max())
        slacks.append((upper.astype(float) - lower).max() / 2)
    assert max(errors) > 0.5 * n_filters / (n_filters + 24) * max(slacks)  # else this would not be the worst


def test_bounds_hold_where_products_overflow(place):
    # Support points differ in one filter only. Queries differ in the others too, where float32 cannot hold the norm.
    rng = np.random.default_rng(0)
    constant = np.full((9, 60), np.float32(3e38), dtype=np.float64)
    support = torch.from_numpy(np.concatenate([np.linspace(-1, 1, 9)[:, None] * 2.0**60, constant], axis=1))
    queries = support + 2.0**76 * torch.from_numpy(rng.choice([-1, 1], (9, 1)))
    points = CentredPoints.of(support, support.mean(dim=0))
    side = query_bounds(points, queries, place)
    exact = exact_squares(queries, support, points.bounds.scale)
    assert_bounds_hold(side.multiplier, multiplicands(points), side, points.bounds, exact)


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_among_support_points_hold(n_filters, dtype):
    for seed in range(2 if n_filters == 2000 else 8):
        rng = np.random.default_rng([seed, n_filters])
        scale, offset = 10.0 ** rng.uniform(-25, 25), rng.choice([0, 1, 30, 1e4])
        points, _ = draw(n_filters, scale, offset, dtype, seed)
        order = torch.from_numpy(rng.permutation(len(points.points)))
        scaled, columns = points.reordered(order)
        side = columns.among(scaled, points.squared_norms[order])
        exact = exact_squares(points.points[order], points.points[order], columns.scale)
        assert_bounds_hold(scaled, scaled, side, columns, exact)


# --- The bounds say something ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_bounds_are_narrow_for_ordinary_data(n_filters, scale, place):
    rng = np.random.default_rng(n_filters)
    for offset in (0, 10, 1000):  # from the last the support is centred
        data = torch.from_numpy((rng.standard_normal((40, n_filters)) + offset) * scale).float()
        points, queries = CentredPoints.of(data[:30], data[:30].double().mean(dim=0)), data[30:]
        side = query_bounds(points, queries, place)
        lower, upper = both_bounds((side.multiplier @ multiplicands(points).T).numpy(), side, points.bounds)
        assert np.isfinite(lower).all() and np.isfinite(upper).all()
        typical = float(points.squared_norms.median()) * points.bounds.scale**2
        assert 1 / 4 <= typical < 1
        assert ((upper - lower) < 1e-2 * typical).all()
        scaled, columns = points.reordered(points.index)
        side = columns.among(scaled, points.squared_norms)
        lower, upper = both_bounds((scaled @ scaled.T).numpy(), side, columns)
        assert ((upper - lower) < 1e-2 * np.maximum(typical, lower)).all()


def test_far_points_are_left_to_float64_and_the_others_are_not():
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    points[17], points[20] = 1e20, 1e8
    support = CentredPoints.of(points, torch.zeros(3))
    for columns, at in ((support.bounds, 17), (support.reordered(support.index.flip(0))[1], 50 - 1 - 17)):
        assert not columns.terms.decide_nothing
        assert torch.nonzero(columns.outliers).flatten().tolist() == [at]
        assert torch.nonzero(torch.isinf(columns.lower)).flatten().tolist() == [at]
        assert (columns.lower[at].item(), columns.upper[at].item()) == (-math.inf, math.inf)
    order = support.index.flip(0)
    scaled, columns = support.reordered(order)
    side = columns.among(scaled, support.squared_norms[order])
    at = 50 - 1 - 17
    assert not scaled[at].any()  # a product with it can be nothing but 0
    assert (side.factor[at].item(), side.low[at].item(), side.high[at].item()) == (1.0, -math.inf, math.inf)
    assert torch.nonzero(torch.isinf(side.low)).flatten().tolist() == [at]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_nothing_is_decided_at_scales_that_float32_cannot_square(scale, place):
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) * scale
    support = CentredPoints.of(points, torch.zeros(3))
    assert support.bounds.terms.decide_nothing and support.bounds.outliers.all() and support.bounds.scale == 1.0
    assert (support.bounds.lower == -torch.inf).all() and (support.bounds.upper == torch.inf).all()
    side = query_bounds(support, points, place)
    assert not side.multiplier.any() and (side.factor == 1).all()
    assert (side.low == -torch.inf).all() and (side.high == torch.inf).all()
    scaled, columns = support.reordered(support.index)
    assert columns.terms.decide_nothing and not scaled.any()


def three_points(middle):
    """Points at 1, 3 and 5 from a centre: 3 lies between 2 and 4, so sigma is 1/4."""
    middle = torch.tensor(middle)
    return CentredPoints.of(torch.tensor([[1.0, 0.0], [0.0, 3.0], [-3.0, 4.0]]) + middle, middle)


@pytest.mark.parametrize(("middle", "norm"), [([3.0, -4.0], 5.0), ([300.0, -400.0], 0.0)], ids=["near", "far"])
def test_columns_by_hand(middle, norm):
    support = three_points(middle)
    columns = support.bounds
    assert support.squared_norms.tolist() == [1.0, 9.0, 25.0]
    assert (columns.terms.exponent, columns.scale) == (2, 0.25)
    # Far from 0 (64 times the typical norm) the support is centred too, and the centre's norm is no more in the bound.
    assert columns.terms.cross == (0 if norm == 0 else 2)
    assert torch.equal(support.multiplicands(1, 3), support.points[1:] - (torch.tensor(middle) if norm == 0 else 0))
    ratio = 3 / (3 + norm)  # typical |x'| over typical |s - c| + |c|
    gamma = product_error(2 + 24, torch.float32)
    assert columns.terms.row_error == gamma * (1 / ratio + 1)
    for i, distance in enumerate((1, 3, 5)):
        slack = gamma * (distance**2 + (distance + norm) ** 2 * ratio) / 16
        assert_rounded_outwards(columns.lower[i], columns.upper[i], distance**2 / 16, slack)


def assert_rounded_outwards(low, high, middle, slack):
    """From float64: by less than the spacing of float32, and not inwards but for float64's own rounding."""
    for got, expected, sign in ((low.item(), middle - slack, -1), (high.item(), middle + slack, 1)):
        assert got == pytest.approx(expected, rel=2**-23, abs=0)
        assert (got - expected) * sign >= -(2**-50) * abs(expected)


@pytest.mark.parametrize(("middle", "norm"), [([3.0, -4.0], 5.0), ([300.0, -400.0], 0.0)], ids=["near", "far"])
def test_rows_by_hand(middle, norm, place):
    # Queries at 6 from the centre, at it, at the last norm that is left to float32, and beyond.
    support = three_points(middle)
    far, too_far = 2.0 ** (2 + LARGEST_QUERY) - 8, 2.0 ** (2 + LARGEST_QUERY)
    queries = torch.tensor([[6.0, 0.0], [0.0, 0.0], [far, 0.0], [too_far, 0.0]]) + torch.tensor(middle)
    side = query_bounds(support, queries, place)
    assert side.multiplier.tolist() == [[6 / 8, 0], [0, 0], [far / too_far, 0], [0, 0]]
    assert [side.factor[i].item() for i in (0, 2, 3)] == [1.0, 2.0 ** (LARGEST_QUERY - 1), 1.0]
    assert (side.low[3].item(), side.high[3].item()) == (-math.inf, math.inf)
    gamma, tiny = product_error(26, torch.float32), 2.0**-126
    for i, distance in ((0, 6.0), (1, 0.0), (2, far)):
        shift = (distance**2 + 2 * distance * (middle[0] if norm else 0)) / 16
        slack = distance**2 / 16 * gamma * ((3 + norm) / 3 + 1)
        slack += (side.factor[i].item() + 1) * (4 * 2 + 64) * tiny
        assert_rounded_outwards(side.low[i], side.high[i], shift, slack)


def test_a_tiny_query_is_not_scaled_up_without_end(place):
    points = torch.tensor([[1.0], [-1.0], [1.5]])
    support = CentredPoints.of(points, torch.zeros(1))
    queries = torch.tensor([2.0**-50, 2.0**-58, 2.0**-62, 2.0**-100, 1e-45])[:, None]
    side = query_bounds(support, queries, place)
    exponents = [max(math.frexp(value)[1], 1 - SMALLEST_QUERY) for value in queries.flatten().tolist()]
    assert exponents[-3:] == [1 - SMALLEST_QUERY] * 3 and exponents[0] > exponents[1] > 1 - SMALLEST_QUERY
    assert side.factor.tolist() == [2.0 ** (exponent - 1) for exponent in exponents]
    assert side.multiplier.flatten().tolist() == [
        value * 2.0**-exponent for value, exponent in zip(queries.flatten().tolist(), exponents, strict=True)
    ]


# --- Compiled and not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_rows_equal_those_of_torch(n_filters, dtype, monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device=None, **options: empty(*shape, **options))
    for seed in range(5):
        scale = 10.0 ** np.random.default_rng(seed).uniform(-20, 20)
        points, queries = draw(n_filters, scale, 1.0, dtype, seed)
        compiled = query_bounds(points, queries, lambda tensor: tensor)
        other = query_bounds(points, queries, lambda tensor: tensor.as_subclass(Elsewhere))
        assert torch.equal(compiled.multiplier, other.multiplier) and torch.equal(compiled.factor, other.factor)
        # In float64 the two differ by the order of two sums; after rounding that is at most one float32 more.
        sigma, squared = points.bounds.scale, exact_norms(queries, points.centre)
        terms = [sigma**2 * (s + 2 * math.sqrt(s) * float(points.centre.norm())) for s in squared]
        for name in ("low", "high"):
            a, b = getattr(compiled, name).double(), getattr(other, name).double()
            step = np.spacing(getattr(compiled, name).abs().numpy()).astype(float)
            for i in range(len(queries)):
                most = 2 * product_error(n_filters + 8, torch.float64) * terms[i] + step[i]
                assert a[i] == b[i] or abs(a[i] - b[i]).item() <= most


def exact_norms(points, centre):
    """|x - c|^2 rounded once."""
    return [float(row[0]) for row in exact_squares(points, centre[None], 1.0)]


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_centred_products_are_float64_sums(n_filters, dtype, place, monkeypatch):
    monkeypatch.setattr(bounds, "_BLOCK_ELEMENTS", 3 * n_filters)  # three rows at a time
    rng = np.random.default_rng(n_filters)
    points = torch.from_numpy(rng.standard_normal((7, n_filters)) + 3).to(dtype)
    centre = torch.from_numpy(rng.standard_normal(n_filters)).float().double()
    squared, cross = (got.tolist() for got in centred_products(place(points), centre))
    assert len(squared) == len(cross) == 7
    gamma = product_error(n_filters + 2, torch.float64)
    for i, row in enumerate(points.tolist()):
        pairs = [(Fraction(x) - Fraction(c), Fraction(c)) for x, c in zip(row, centre.tolist(), strict=True)]
        exact = sum(x * x for x, _ in pairs)
        assert abs(Fraction(squared[i]) - exact) <= gamma * exact
        exact, largest = sum(x * c for x, c in pairs), sum(abs(x * c) for x, c in pairs)
        assert abs(Fraction(cross[i]) - exact) <= gamma * largest


# --- Points ----------------------------------------------------------------------------------------------------------


def test_the_centre_is_a_float32_that_norms_are_taken_from():
    points = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    support = CentredPoints.of(points, torch.tensor([0.1], dtype=torch.float64))
    centre = float(np.float32(0.1))
    assert support.centre.dtype == support.squared_norms.dtype == torch.float64
    assert support.centre.tolist() == [centre] and support.points is points
    assert support.squared_norms.tolist() == [(0.1 - centre) ** 2, (0.3 - centre) ** 2]
    assert support.index.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reordered_points_are_centred_and_scaled(dtype, monkeypatch):
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.standard_normal((23, 5)) * 40 + 7).to(dtype)
    support, order = CentredPoints.of(points, points.double().mean(dim=0)), torch.from_numpy(rng.permutation(23))
    before = points.clone()
    scaled, columns = support.reordered(order)
    assert scaled.dtype == torch.float32 and columns.scale == 1 / 128  # the typical norm is about 85
    assert torch.equal(points, before)
    assert torch.equal(scaled, ((points[order].double() - support.centre) / 128).float())
    expected = Bounds.of(support.squared_norms[order], 0.0, 5)
    assert torch.equal(columns.lower, expected.lower) and torch.equal(columns.upper, expected.upper)
    monkeypatch.setattr(bounds, "_CACHED_ELEMENTS", 12)  # two rows at a time
    again, _ = support.reordered(order)
    assert torch.equal(again, scaled)


# --- Roundings and powers --------------------------------------------------------------------------------------------


def awkward_values():
    """float64 numbers of all sizes; float32 numbers, their neighbours in float64, and the middles between them."""
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1, 10, 2000) * 10.0 ** rng.uniform(-50, 37, 2000)
    tiny = 2.0**-149
    edges = np.array([0.0, -0.0, tiny, 2.0**-126, 2.0**-126 - tiny, 1.0, 3.0, 1e30])
    singles = np.concatenate([sizes.astype(np.float32).astype(float), edges])
    middles = singles + np.spacing(singles.astype(np.float32)).astype(float) / 2
    values = np.concatenate([sizes, singles, np.nextafter(singles, np.inf), np.nextafter(singles, -np.inf), middles])
    return np.concatenate([values, -values])


def test_rounding_down_and_up():
    values = awkward_values()
    rounded = rounded_interval(torch.from_numpy(values), 0.0, torch.zeros(len(values), dtype=torch.bool))
    down, up = (bounds.numpy() for bounds in rounded)
    assert down.dtype == up.dtype == np.float32
    infinity = np.float32(np.inf)
    assert (down <= values).all() and (np.nextafter(down, infinity) > values).all()  # exact: numpy widens to float64
    assert (up >= values).all() and (np.nextafter(up, -infinity) < values).all()
    is_single = values == values.astype(np.float32)
    assert (down[is_single] == up[is_single]).all() and (down[~is_single] < up[~is_single]).all()
    assert is_single.any() and not is_single.all()


def test_rounding_beyond_float32():
    most = float(np.finfo(np.float32).max)
    values = torch.tensor([math.inf, -math.inf, most, -most, 1e39, -1e39], dtype=torch.float64)
    down, up = rounded_interval(values, 0.0, torch.zeros(6, dtype=torch.bool))
    assert down.tolist() == [math.inf, -math.inf, most, -most, most, -math.inf]
    assert up.tolist() == [math.inf, -math.inf, most, -most, math.inf, -most]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_powers_of_two(dtype):
    exponents = torch.arange(-1022, 1024, dtype=dtype)
    got = _power_of_two(exponents)
    assert got.dtype == torch.float64
    assert got.tolist() == [2.0**e for e in range(-1022, 1024)]


# --- The order of summation ------------------------------------------------------------------------------------------


def test_the_order_of_summation_is_numpys():
    rng = np.random.default_rng(0)
    terms = rng.standard_normal(3000) * 10.0 ** rng.standard_normal(3000)  # of different sizes, so that order matters
    for n in (*range(1, 300), *range(300, 3001, 7)):
        assert pairwise_sum(torch.from_numpy(terms[:n])).item() == float(np.sum(terms[:n]))
