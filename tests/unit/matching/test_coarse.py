"""bfloat16 as a first filter: its products, its bounds against exact arithmetic, and what it leaves to float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exact_bounds import both_bounds, draw, exact_squares
from plain_matching import match_plain, neighbors_plain
from torchsdm.arithmetic import has_coarse_products
from torchsdm.arithmetic.exact import product_error
from torchsdm.matching import CentredPoints, Found, Match, Part, _coarse, search
from torchsdm.matching.mutual import match_self

pytestmark = pytest.mark.skipif(not has_coarse_products(), reason="this processor has no instruction for bfloat16")

N_FILTERS = [1, 2, 3, 31, 33, 300, 1000]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("n", [1, 2, 4, 5, 12, 13, 30])
def test_products_are_those_of_the_rounded_numbers(n, n_filters):
    rows, columns = (torch.zeros(m, _coarse._padded(n_filters), dtype=torch.bfloat16) for m in (n, 77))
    rows[:, :n_filters], columns[:, :n_filters] = random(n, n_filters), random(77, n_filters, seed=1)
    block = torch.full((n + 1, 100), 3.0)
    _coarse.multiply_into(block[:n, 5:82], rows, columns, n_filters)
    a, b = rows.double(), columns.double()
    error = (block[:n, 5:82].double() - a @ b.T).abs()
    assert (error <= 2 * product_error(n_filters + 32, torch.float32) * (a.abs() @ b.abs().T) + 1e-30).all()
    block[:n, 5:82] = 3.0
    assert (block == 3.0).all()  # nothing else was written to


def test_products_do_not_depend_on_threads_or_shares():
    rows, columns = random(40, 64).bfloat16(), random(2000, 64, seed=1).bfloat16()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(torch.empty(40, 2000))
        _coarse.multiply_into(found[-1], rows, columns, 64)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


# --- Bounds ----------------------------------------------------------------------------------------------------------


def assert_coarse_bounds_hold(product, side, columns, exact):
    lower, upper = both_bounds(product.numpy(), side, columns)
    for row, values in enumerate(exact):
        for column, value in enumerate(values):
            assert float(lower[row, column]) <= value <= float(upper[row, column]), (row, column)
    return lower, upper


def products(side, multiplicands, n_filters):
    out = torch.empty(len(side.multiplier), len(multiplicands))
    _coarse.multiply_into(out, side.multiplier, multiplicands, n_filters)
    return out


@pytest.mark.parametrize("n_filters", N_FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_at_every_scale(n_filters, dtype):
    for seed in range(4 if n_filters == 1000 else 12):
        rng = np.random.default_rng([seed, n_filters])
        scale, offset = 10.0 ** rng.uniform(-16, 16), rng.choice([0, 1, 30, 1e4])
        points, queries = draw(n_filters, scale, offset, dtype, seed)
        coarse = points.coarse
        side, exact = coarse.queries(queries), exact_squares(queries, points.points, points.bounds.scale)
        product = products(side, coarse.rounded, n_filters)
        assert_coarse_bounds_hold(product, side, coarse, exact)


@pytest.mark.parametrize("n_filters", N_FILTERS)
def test_bounds_among_points_hold(n_filters):
    for seed in range(4):
        points, _ = draw(n_filters, 1.0, 1, torch.float32, seed)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(points.points)))
        side = points.coarse.among(order)
        columns = points.coarse
        reordered = type("Columns", (), {"lower": columns.lower[order], "upper": columns.upper[order]})
        exact = exact_squares(points.points[order], points.points[order], points.bounds.scale)
        assert_coarse_bounds_hold(products(side, side.multiplier, n_filters), side, reordered, exact)


def test_bounds_hold_where_every_number_is_rounded_alike():
    # Each number lies just below the middle between two bfloat16: all of them are rounded down, by nearly the most.
    number = 1 + 2.0**-8 - 2.0**-20
    points = torch.tensor([[number] * 50, [-number] * 50, [number] * 25 + [-number] * 25])
    support = CentredPoints.of(points, torch.zeros(50))
    side, exact = support.coarse.queries(points), exact_squares(points, points, support.bounds.scale)
    product = products(side, support.coarse.rounded, 50)
    lower, upper = assert_coarse_bounds_hold(product, side, support.coarse, exact)
    error = np.abs((lower.astype(float) + upper) / 2 - np.array(exact, dtype=float)).max()
    assert error > 0.9 * (upper.astype(float) - lower).max() / 2  # the bounds are no wider than they must be


def test_bounds_say_something_about_ordinary_points():
    points, queries = random(500, 100), random(20, 100, seed=1)
    support = CentredPoints.of(points, points.mean(dim=0))
    side = support.coarse.queries(queries)
    lower, upper = both_bounds(products(side, support.coarse.rounded, 100).numpy(), side, support.coarse)
    typical = float(support.squared_norms.median()) * support.bounds.scale**2
    assert ((upper - lower) < 0.04 * typical).all()


# --- What is left to float32 -----------------------------------------------------------------------------------------


def clouds(n, n_filters, spread, seed=0):
    """Points of two classes, close together far from the centre, some of them wrongly predicted."""
    labels = torch.arange(n) % 2
    points = (2 * labels[:, None] - 1) * torch.ones(n_filters) + spread * random(n, n_filters, seed=seed)
    predictions = torch.where(torch.arange(n) % 17 == 3, 1 - labels, labels)
    return points, labels, predictions


def support_of(points, labels, predictions):
    return [Part(CentredPoints.of(points, points.double().mean(dim=0)), labels, predictions)]


@pytest.fixture
def engines(monkeypatch):
    """Which kinds of kernels are used, in the order of their use."""
    used = []

    class Watched(search.Engine):
        def __enter__(self):
            used.append("coarse" if self.coarse else "compiled")
            return super().__enter__()

    monkeypatch.setattr(search, "Engine", Watched)
    return used


def assert_exact(queries, predictions, points, labels, predicted, k=0):
    got = search.match(queries, predictions, support_of(points, labels, predicted), k=k)
    groups = torch.where(labels == predicted, labels, -1)
    expected = match_plain(queries, predictions, points, groups)
    for name in ("similarity", "nearest_distance", "nearest_index"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    for row in range(len(queries) if k else 0):
        distances, indices = neighbors_plain(queries[row], points, k)
        assert torch.equal(got.neighbor_distances[row], distances) and torch.equal(got.neighbor_indices[row], indices)


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.1, 0.03, 0.003])
def test_answers_are_exact_however_much_is_left_open(spread, engines):
    points, labels, predicted = clouds(900, 64, spread)
    queries, predictions, _ = clouds(70, 64, spread, seed=1)
    assert_exact(queries, predictions, points, labels, predicted, k=3)
    assert engines[0] == "coarse" and ("compiled" in engines) == (spread < 1.0)


def test_coarse_bounds_are_given_up_where_they_say_nothing(engines, monkeypatch):
    points, labels, predicted = clouds(700, 64, 0.003)
    queries, predictions, _ = clouds(1200, 64, 0.003, seed=1)
    rows = []
    monkeypatch.setattr(search, "PartSearch", lambda engine, products, part, queries, *more, Made=search.PartSearch: (
        rows.append((engine.coarse, len(queries))), Made(engine, products, part, queries, *more))[1])  # fmt: skip
    assert_exact(queries, predictions, points, labels, predicted)
    assert rows == [(True, 128), (False, 1072), (False, 128)]  # a few first, the others without, and these again


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.003])
def test_the_training_pass_is_exact_however_much_is_left_open(spread):
    points, labels, predicted = clouds(700, 64, spread)
    support = support_of(points, labels, predicted)
    exact = match_self(support, kernels="compiled")
    for block_size in (100, 2048):
        got = match_self(support, block_size, kernels="coarse")
        for name in ("similarity", "nearest_distance", "nearest_index"):
            assert torch.equal(getattr(got, name), getattr(exact, name)), (name, block_size)


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.003])
def test_a_search_in_two_rounds_is_exact_however_much_is_left_open(spread):
    points, labels, predicted = clouds(700, 64, spread)
    queries, predictions, _ = clouds(90, 64, spread, seed=1)
    (whole,) = support_of(points, labels, predicted)
    first = Part(CentredPoints.of(points[:300], whole.points.centre), labels[:300], predicted[:300])
    second = Part(CentredPoints.of(points[300:], whole.points.centre), labels[300:], predicted[300:], start=300)
    searches = [search.Search(queries, predictions, [part], k=4, kernels="coarse") for part in (first, second)]
    firsts = Found.merged([one.find_first() for one in searches])
    boundary = firsts.boundary_distance, firsts.boundary_index
    got = Match.of(firsts._replace(count=sum(one.count_matches(*boundary) for one in searches)))
    expected = search.match(queries, predictions, [whole], k=4, kernels="compiled")
    for name, values in vars(expected).items():
        assert torch.equal(getattr(got, name), values), name


def test_points_that_are_left_to_float64_leave_the_others_to_bfloat16():
    points, labels, predicted = clouds(900, 64, 1.0)
    queries, predictions, _ = clouds(70, 64, 1.0, seed=1)
    points[5] = 1e14
    support = CentredPoints.of(points, torch.zeros(64))
    assert support.coarse.outliers.sum() == 1 and not support.coarse.rounded[5].any()
    assert_exact(queries, predictions, points, labels, predicted, k=3)


def test_a_large_support_is_rounded_once_enough_was_asked(engines, monkeypatch):
    points, labels, predicted = clouds(900, 64, 1.0)
    support = support_of(points, labels, predicted)
    for _ in range(2):
        search.match(points[:1], predicted[:1], support)
    assert engines == ["coarse", "coarse"]  # so few are rounded in no time
    monkeypatch.setattr("torchsdm.matching._bounds._CACHED_ELEMENTS", 0)
    engines.clear()
    support = support_of(points, labels, predicted)
    for n in (1, 10, 4, 1, 1):
        search.match(points[:n], predicted[:n], support)
    assert engines == ["compiled", "compiled", "compiled", "coarse", "coarse"]
    assert "coarse" in vars(support[0].points)


def test_large_supports_are_not_rounded(monkeypatch, engines):
    points, labels, predicted = clouds(900, 64, 1.0)
    monkeypatch.setattr(_coarse, "_LARGEST", 2 * 900 * 64 - 1)
    assert_exact(points[:70], predicted[:70], points, labels, predicted, k=3)
    assert engines == ["compiled"]
