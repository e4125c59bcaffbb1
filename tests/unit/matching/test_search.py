"""The sweeps against the plain sort and the loops, where float32 products cannot tell points apart."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from functools import cached_property
from itertools import product

import numpy as np
import pytest
import torch

import reference
from plain_matching import match_plain, neighbors_plain
from torchsdm.arithmetic import exact, has_coarse_products, loops
from torchsdm.arithmetic.loops import has_loops
from torchsdm.errors import InvalidInputError
from torchsdm.matching import _tiles, mutual, search
from torchsdm.matching._bounds import CentredPoints, Part
from torchsdm.matching._tiles import CHUNK, CHUNK_DOWN, Found
from torchsdm.matching.mutual import match_self
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, Products, match

N_SUPPORT, N_QUERIES = 60, 16


def match_groups(labels, predictions):
    return torch.where(labels == predictions, labels, -1)


KERNELS = (*(["coarse"] if has_coarse_products() else []), *(["compiled"] if has_loops() else []), "torch")
needs_loops = pytest.mark.skipif(not has_loops(), reason="this package was built without a compiler")
every_kernel = pytest.mark.parametrize("how", KERNELS)


def neighbors(queries, parts, k, block_size=DEFAULT_BLOCK_SIZE, kernels=None):
    """The k nearest points of queries without predictions."""
    found = match(queries, None, parts, None, block_size, k=k, kernels=kernels)
    return found.neighbor_distances, found.neighbor_indices


def points_of(kind, n, rng):
    """n points of one of the regimes that matching must not be fooled by."""
    normal = rng.standard_normal((n, 2))
    match kind:
        case "gaussian":
            return normal.astype(np.float32)
        case "one filter":
            return normal[:, :1].astype(np.float32)
        case "many filters":
            return rng.standard_normal((n, 300)).astype(np.float32)
        case "grid":  # ties everywhere
            return rng.integers(-1, 2, (n, 3)).astype(np.float32)
        case "duplicates":
            return normal[rng.integers(0, max(1, n // 6), n)].astype(np.float32)
        case "all alike":
            return np.full((n, 4), 0.1, dtype=np.float32)
        case "offset of 50 spreads":
            return (normal + 50).astype(np.float32)
        case "offset of 10 000":
            return (normal + 1e4).astype(np.float32)
        case "denormal":
            return (normal * 1e-40).astype(np.float32)
        case "huge":
            return (normal * 1e37).astype(np.float32)
        case "huge and tiny":
            return (normal * 10.0 ** rng.uniform(-40, 37, (n, 1))).astype(np.float32)
        case "last bits":  # distances differ in what float32 cannot see of 1
            return (1 + rng.integers(0, 4, (n, 3)) * 2.0**-23).astype(np.float32)
        case "float64":
            return normal
        case "float64 last bits":
            return 1 + rng.integers(-40, 40, (n, 3)) * 2.0**-50
        case "float64 beyond float32":
            return normal * 1e50
        case "one far query":
            normal[-2] *= 1e20
            return normal.astype(np.float32)
        case "far points":
            normal[5:8] *= 1e20
            return normal.astype(np.float32)
        case "far points of a tiny crowd":  # their products are finite, but not once they are scaled
            normal[5:8] *= 1e35
            normal[-N_QUERIES // 2 :] *= 3e5
            return (normal * 1e-15).astype(np.float32)
        case "points beyond float32":  # which are infinite in the products, among others that are not
            normal[5:8] *= 1e25
            return normal * 1e15
        case "far points beyond float32":  # every number is a float32, but not the norm of these points
            normal = np.concatenate([normal, normal[::-1]], axis=1) * 1e10
            normal[5:8] = [[3e38], [-3e38], [3.1e38]]
            return normal.astype(np.float32)
        case "products beyond float32":  # support points differ in one filter only, some queries in the others too
            far = np.full((n, 60), np.float32(3e38), dtype=np.float64)
            far[-N_QUERIES // 2 :] += 2.0**76 * rng.choice([-1, 1], (N_QUERIES // 2, 1))
            return np.concatenate([normal[:, :1] * 2.0**59, far], axis=1)
    raise ValueError(kind)


KINDS = [
    "gaussian",
    "one filter",
    "many filters",
    "grid",
    "duplicates",
    "all alike",
    "offset of 50 spreads",
    "offset of 10 000",
    "denormal",
    "huge",
    "huge and tiny",
    "last bits",
    "float64",
    "float64 last bits",
    "float64 beyond float32",
    "one far query",
    "far points",
    "points beyond float32",
    "far points beyond float32",
    "products beyond float32",
    "far points of a tiny crowd",
]


class Problem:
    """A support whose labels mostly follow the place, so that q is often large; some wrong, some are no class."""

    def __init__(self, kind, seed=0, n_support=N_SUPPORT, n_queries=N_QUERIES):
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        both = points_of(kind, n_support + n_queries, rng)
        self.points, self.queries = torch.from_numpy(both[:n_support]), torch.from_numpy(both[n_support:])
        self.queries[: n_queries // 4] = self.points[: n_queries // 4]  # at distance 0
        truth = (both[:, 0] > np.median(both[:, 0])).astype(np.int64)
        truth[rng.random(len(truth)) < 0.03] = 2
        self.labels = torch.from_numpy(truth[:n_support].copy())
        self.labels[torch.from_numpy(rng.random(n_support) < 0.02)] = 9  # outside the classes
        wrong = torch.from_numpy(rng.random(n_support) < 0.02)
        self.predictions = torch.where(wrong | (self.labels == 9), (self.labels + 1) % 3, self.labels)
        self.groups = match_groups(self.labels, self.predictions)
        self.query_predictions = torch.from_numpy(truth[n_support:].copy())

    def whole(self, centre=None):
        """The support in one part."""
        typical = self.points.double().median(dim=0).values  # far points leave it where it is
        points = CentredPoints.of(self.points, typical if centre is None else centre)
        return [Part(points, self.labels, self.predictions)]

    def plain(self, exclude=None):
        return match_plain(self.queries, self.query_predictions, self.points, self.groups, exclude)

    def plain_self(self):
        own = torch.arange(len(self.points))
        return match_plain(self.points, self.predictions, self.points, self.groups, own)

    @cached_property
    def ordered(self):
        return [neighbors_plain(query, self.points, len(self.points)) for query in self.queries]

    def plain_neighbors(self, k, exclude=None):
        """Distances and indices (N, k) as lists; beyond the last point infinity and -1."""
        distances, indices = [], []
        for row, (distance, index) in enumerate(self.ordered):
            kept = index != (-1 if exclude is None else int(exclude[row]))
            missing = max(0, k - int(kept.sum()))
            distances.append(distance[kept][:k].tolist() + [float("inf")] * missing)
            indices.append(index[kept][:k].tolist() + [-1] * missing)
        return distances, indices


def one_part(points, labels, predictions=None, centre=None):
    """A support in one part; without predictions, labels are the classes that points vouch for, -1 for none."""
    centred = CentredPoints.of(points, torch.zeros(points.shape[1]) if centre is None else centre)
    return [Part(centred, labels, labels if predictions is None else predictions)]


def assert_same(got, expected, how=""):
    """Equal to the last bit."""
    assert got.similarity.dtype == got.nearest_index.dtype == torch.int64
    assert got.nearest_distance.dtype == torch.float64
    assert got.similarity.tolist() == expected.similarity.tolist(), how
    assert got.nearest_index.tolist() == expected.nearest_index.tolist(), how
    assert got.nearest_distance.tolist() == expected.nearest_distance.tolist(), how


# --- The plain version is the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["gaussian", "grid", "duplicates", "offset of 50 spreads", "float64 last bits", "huge"]
)
@pytest.mark.parametrize("excluding", [False, True])
def test_plain_matching_equals_the_loops(kind, excluding):
    problem = Problem(kind)
    exclude = torch.arange(N_QUERIES) - 4 if excluding else None
    exclude = exclude.clamp(min=-1) if excluding else None
    got = problem.plain(exclude)
    expected = reference.match(
        problem.queries.tolist(),
        problem.query_predictions.tolist(),
        problem.points.tolist(),
        problem.labels.tolist(),
        problem.predictions.tolist(),
        None if exclude is None else exclude.tolist(),
    )
    assert got.similarity.tolist() == expected.similarity
    assert got.nearest_index.tolist() == expected.nearest_index
    assert got.nearest_distance.tolist() == pytest.approx(expected.nearest_distance, rel=1e-14)


def test_some_similarities_are_large_and_some_are_zero():
    q = Problem("gaussian").plain().similarity
    assert q.max() >= 10 and (q == 0).any() and len(q.unique()) >= 4  # else the tests here would say little


# --- The sweeps equal the plain version ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_match_equals_the_plain_version_for_every_block_size(kind):
    problem = Problem(kind)
    exclude = torch.where(torch.arange(N_QUERIES) % 2 == 0, torch.arange(N_QUERIES), -1)
    expected, expected_excluding = problem.plain(), problem.plain(exclude)
    arguments = problem.queries, problem.query_predictions, problem.whole()
    for how in KERNELS:
        every_size = kind == "grid" or (
            how != "torch" and kind == "gaussian"
        )  # tiny blocks are slow in torch operations
        for block_size in (1, 2, 3, 7, 32, 1000) if every_size else (5, 1000):
            assert_same(match(*arguments, block_size=block_size, kernels=how), expected, how)
            assert_same(match(*arguments, exclude, block_size, kernels=how), expected_excluding, how)


@pytest.mark.parametrize("kind", KINDS)
def test_every_support_point_against_the_others(kind):
    problem = Problem(kind, seed=1, n_support=40)
    own, support, expected = torch.arange(40), problem.whole(), problem.plain_self()
    for how, block_size in product(KERNELS, (7, 1000)):
        arguments = problem.points, problem.predictions, support, own, block_size
        assert_same(match(*arguments, kernels=how), expected, how)
    assert (expected.nearest_index != own).all()
    if kind in ("duplicates", "all alike", "grid"):
        assert (expected.nearest_distance == 0).any()  # a duplicate of oneself stays


@pytest.mark.parametrize("kind", KINDS)
def test_neighbors_equal_the_plain_version(kind):
    problem = Problem(kind, seed=2)
    support = problem.whole()
    for k in (1, 5, N_SUPPORT):
        expected = problem.plain_neighbors(k)
        for how, block_size in product(KERNELS, (4, 1000)):
            distances, indices = neighbors(problem.queries, support, k, block_size=block_size, kernels=how)
            assert distances.dtype == torch.float64 and indices.dtype == torch.int64
            assert (distances.tolist(), indices.tolist()) == expected, how


@pytest.mark.parametrize("kind", KINDS)
def test_neighbors_that_come_with_a_match_equal_the_plain_version(kind):
    problem = Problem(kind, seed=3)
    nobody = torch.full((N_QUERIES,), -1)
    some = torch.where(torch.arange(N_QUERIES) % 3 == 2, -1, torch.arange(N_QUERIES))
    support = problem.whole()
    for exclude in (nobody, some):
        expected = problem.plain(exclude)
        own = None if exclude is nobody else exclude
        for k, block_size in ((1, 1000), (5, 4), (N_SUPPORT - 1, 1000), (N_SUPPORT, 50)):
            arguments = problem.queries, problem.query_predictions, support, own, block_size
            for how in KERNELS:
                got = match(*arguments, k=k, kernels=how)
                assert_same(got, expected, how)
                assert not ((got.neighbor_indices == exclude[:, None]) & (exclude[:, None] >= 0)).any()
                neighbors_too = got.neighbor_distances.tolist(), got.neighbor_indices.tolist()
                assert neighbors_too == problem.plain_neighbors(k, exclude), how


@pytest.mark.parametrize("kind", KINDS)
def test_any_centre_gives_the_same_answers(kind):
    problem = Problem(kind)
    expected, expected_self, expected_neighbors = problem.plain(), problem.plain_self(), problem.plain_neighbors(5)
    points = problem.points.double()
    for centre in (torch.zeros(points.shape[1]), points.mean(dim=0), points[3] * 7 + 1e3, points[3] + 1e15):
        support = problem.whole(centre)
        arguments = problem.queries, problem.query_predictions, support
        for how in KERNELS:
            got = match(*arguments, k=5, kernels=how)
            assert_same(got, expected, how)
            assert (got.neighbor_distances.tolist(), got.neighbor_indices.tolist()) == expected_neighbors
        assert_same(match_self(support), expected_self)


@pytest.mark.parametrize("kind", KINDS)
def test_without_non_matches_the_farthest_point_counts(kind):
    problem = Problem(kind)
    nought = torch.zeros(N_SUPPORT, dtype=torch.int64)
    support = [Part(problem.whole()[0].points, nought, nought)]
    exclude = torch.where(torch.arange(N_QUERIES) % 2 == 0, torch.arange(N_QUERIES), -1)
    for how, block_size in product(KERNELS, (5, 1000)):
        arguments = problem.queries, torch.zeros_like(exclude), support, exclude, block_size
        got = match(*arguments, kernels=how)
        assert got.similarity.tolist() == [N_SUPPORT - 1, N_SUPPORT] * (N_QUERIES // 2), how
    assert (match_self(support).similarity == N_SUPPORT - 1).all()


@every_kernel
@pytest.mark.parametrize("kind", ["gaussian", "duplicates", "offset of 10 000", "denormal", "huge", "float64"])
def test_queries_at_the_centre(kind, how):
    problem = Problem(kind)
    support = problem.whole()
    problem.queries[::3] = support[0].points.centre.to(problem.queries.dtype)
    got = match(problem.queries, problem.query_predictions, support, k=3, kernels=how)
    assert_same(got, problem.plain())
    assert (got.neighbor_distances.tolist(), got.neighbor_indices.tolist()) == problem.plain_neighbors(3)


@every_kernel
@pytest.mark.parametrize("kind", ["gaussian", "duplicates", "offset of 10 000", "huge and tiny"])
def test_a_query_does_not_depend_on_its_batch_or_on_threads(kind, how):
    problem = Problem(kind)
    support, whole = problem.whole(), problem.plain()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in (1, 5):
            for start in range(0, N_QUERIES, 7):
                rows = slice(start, start + size)
                arguments = problem.queries[rows], problem.query_predictions[rows], support
                got = match(*arguments, kernels=how)
                assert got.similarity.tolist() == whole.similarity[rows].tolist()
                assert got.nearest_distance.tolist() == whole.nearest_distance[rows].tolist()
                assert got.nearest_index.tolist() == whole.nearest_index[rows].tolist()


@every_kernel
def test_reduced_precision_of_products_changes_nothing(how):
    problem = Problem("offset of 50 spreads")
    matmul, before = torch.backends.mkldnn.matmul, torch.backends.mkldnn.matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            support = problem.whole()
            got = match(problem.queries, problem.query_predictions, support, kernels=how)
            got_self = match_self(support)
    finally:
        matmul.fp32_precision = before
    assert_same(got, problem.plain())
    assert_same(got_self, problem.plain_self())


@every_kernel
def test_float64_queries_against_float32_points(how):
    problem = Problem("last bits")
    queries = problem.queries.double() + 2.0**-27  # between float32 numbers
    expected = match_plain(queries, problem.query_predictions, problem.points, problem.groups)
    arguments = queries, problem.query_predictions, problem.whole()
    assert_same(match(*arguments, block_size=5, kernels=how), expected)


@every_kernel
def test_distances_are_numpys_to_the_bit_for_every_number_of_filters(how):
    rng = np.random.default_rng(0)
    for n_filters in (*range(1, 300), *range(300, 3000, 97)):
        points = rng.standard_normal((3, n_filters)) * 10.0 ** rng.uniform(-3, 3, n_filters)  # so that order matters
        points = torch.from_numpy(points.astype(np.float32))
        query, support = points[:1], one_part(points[1:], torch.zeros(2, dtype=torch.int64))
        distances, indices = neighbors(query, support, 2, kernels=how)
        expected = np.sqrt(((points[:1].double() - points[1:].double()).numpy() ** 2).sum(axis=-1))
        assert dict(zip(indices[0].tolist(), distances[0].tolist(), strict=True)) == dict(enumerate(expected.tolist()))


# --- In parts --------------------------------------------------------------------------------------------------------


def in_parts(whole, cuts):
    """The same support cut into parts."""
    (part,) = whole
    starts = [0, *cuts]
    stops = [*cuts, len(part)]
    return [
        Part(
            CentredPoints.of(part.points.points[start:stop], part.points.centre),
            part.labels[start:stop],
            part.predictions[start:stop],
            start,
        )
        for start, stop in zip(starts, stops, strict=True)
    ]


def cuts_of(kind, n, n_divisions):
    """Some ways to cut n points; the last leaves parts of a point each at both ends."""
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(n_divisions - 1):
        yield sorted(rng.choice(np.arange(1, n), rng.integers(1, 6), replace=False).tolist())
    yield [1, 2, n // 2, n - 2, n - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_change_nothing(kind, monkeypatch):
    problem = Problem(kind, seed=5)
    exclude = torch.from_numpy(np.random.default_rng(1).integers(-1, N_SUPPORT, N_QUERIES))
    plain, plain_excluding, plain_self = problem.plain(), problem.plain(exclude), problem.plain_self()
    neighbors_too, neighbors_excluding = problem.plain_neighbors(5), problem.plain_neighbors(5, exclude)
    for cuts in cuts_of(kind, N_SUPPORT, 3):
        parts = in_parts(problem.whole(), cuts)
        for how, block_size, n_kept in (
            *((one, *size) for one in KERNELS[:-1] for size in ((7, 0), (7, 32), (1000, 32))),
            ("torch", 1000, 32),
        ):
            monkeypatch.setattr(search, "_KEPT_BLOCKS", n_kept)
            assert Products(parts, N_QUERIES, block_size).kept == (n_kept > 0)
            got = match(problem.queries, problem.query_predictions, parts, None, block_size, k=5, kernels=how)
            assert_same(got, plain, how)
            assert (got.neighbor_distances.tolist(), got.neighbor_indices.tolist()) == neighbors_too
            got = match(problem.queries, problem.query_predictions, parts, exclude, block_size, k=5, kernels=how)
            assert_same(got, plain_excluding, how)
            assert (got.neighbor_distances.tolist(), got.neighbor_indices.tolist()) == neighbors_excluding
            distances, indices = neighbors(problem.queries, parts, 5, block_size, kernels=how)
            assert (distances.tolist(), indices.tolist()) == neighbors_too
        assert_same(match_self(parts), plain_self)


def test_parts_far_apart_have_bounds_of_their_own():
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.standard_normal((60, 3)).astype(np.float32))
    points[20:40] = points[20:40] * 1e12 + 1e15
    points[40:] *= 1e-12
    labels = torch.from_numpy(rng.integers(0, 2, 60))
    parts = in_parts(one_part(points, labels, centre=points[:20].double().mean(dim=0)), [20, 40])
    assert len({part.points.bounds.scale for part in parts}) == 3
    for queries in (points * 1.0001, points + 1, points):
        expected = match_plain(queries, labels, points, labels)
        for how in KERNELS:
            assert_same(match(queries, labels, parts, kernels=how), expected, how)


@every_kernel
def test_a_boundary_in_the_last_part_counts_for_the_first(how):
    values = [float(value) for value in range(1, 11)]
    parts = in_parts(line([*values, 3.5], [0] * 10 + [1], [0] * 10 + [1]), [4, 10])
    assert one(parts, 0.0, 0, kernels=how) == (3, 1.0, 0)
    assert one(parts, 0.0, 0, exclude=10, kernels=how) == (10, 1.0, 0)
    assert one(parts, 0.0, 0, exclude=0, kernels=how) == (2, 2.0, 1)
    assert one(parts, 3.5, 1, kernels=how) == (1, 0.0, 10)


@every_kernel
@pytest.mark.parametrize("first_other", [0, 255, 256, 257, 599])
def test_ties_across_parts(first_other, how):
    points = torch.where(torch.arange(600) % 3 == 0, -1.0, 1.0)[:, None]
    groups = torch.zeros(600, dtype=torch.int64)
    groups[first_other] = -1
    queries, predictions = torch.zeros(3, 1), torch.tensor([0, 0, 1])
    for cuts in ([256], [257], [1, 599], [100, 101, 300]):
        parts = in_parts(one_part(points, groups), cuts)
        got = match(queries, predictions, parts, k=2, kernels=how)
        assert got.similarity.tolist() == [first_other, first_other, 0]
        assert got.nearest_index.tolist() == [0, 0, 0] and got.neighbor_indices.tolist() == [[0, 1]] * 3


@needs_loops
def test_parts_may_be_searched_apart(large):
    """Each with findings of its own, merged after each round: what parts on several machines would do."""
    from torchsdm.matching._tiles import Engine
    from torchsdm.matching.search import PartSearch

    points, queries, predictions, groups, exclude = map(torch.from_numpy, large[:-1])
    parts = in_parts(one_part(points, groups, centre=points.double().mean(dim=0)), [700, 701, 2500])
    with Engine(points.device, None) as engine:
        searches = [
            PartSearch(engine, Products([part], len(queries), 2048), part, queries, predictions, exclude)
            for part in parts
        ]
        found = [Found.nothing(len(queries), 0, points.device) for _ in parts]
        for one, own in zip(searches, found, strict=True):
            one.find_first(own)
        firsts = zip(*(zip(own.boundary_distance.tolist(), own.boundary_index.tolist(), strict=True) for own in found),
                     strict=True)  # fmt: skip
        boundary = [min(first) for first in firsts]
        for one, own in zip(searches, found, strict=True):
            own.boundary_distance[:] = torch.tensor([distance for distance, _ in boundary], dtype=torch.float64)
            own.boundary_index[:] = torch.tensor([index for _, index in boundary])
            one.count_matches(own)
    assert sum(own.count for own in found).tolist() == large[-1][0].tolist()


# --- Every point against the others, each product for two ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_match_self_equals_the_plain_version_for_every_block_size(kind):
    problem = Problem(kind, seed=4)
    support, expected = problem.whole(), problem.plain_self()
    for block_size in (1, 2, 3, 7, 32, 1000):
        assert_same(match_self(support, block_size), expected)


class Crowd:
    """Points in classes side by side, a third of them twice, so with ties; some are no class."""

    def __init__(self, n, n_classes, part_wrong, seed=0):
        rng = np.random.default_rng([seed, n, n_classes])
        points = rng.standard_normal((n, 3)).astype(np.float32)
        again = rng.permutation(n)[: n // 3]
        points[again] = points[(again + n // 2) % n]
        self.points = torch.from_numpy(points)
        self.predictions = torch.from_numpy(points[:, 0].argsort().argsort() * n_classes // n)
        wrong = torch.from_numpy(rng.permutation(n) < part_wrong * n)
        self.labels = torch.where(wrong, 99, self.predictions)
        self.groups = match_groups(self.labels, self.predictions)

    def whole(self):
        return [Part(CentredPoints.of(self.points, self.points.double().mean(dim=0)), self.labels, self.predictions)]

    def plain_self(self):
        return match_plain(self.points, self.predictions, self.points, self.groups, torch.arange(len(self.points)))


@pytest.mark.parametrize("part_wrong", [0, 0.1, 0.7, 1])
@pytest.mark.parametrize("n_classes", [1, 2, 40])
def test_match_self_for_few_and_many_classes(n_classes, part_wrong):
    few, many = (1, 2, 3, 7, 32, 1000), (40, 300, 1000)
    for n, block_sizes in ((1, few), (2, few), (50, few), (650, many)):
        crowd = Crowd(n, n_classes, part_wrong)
        support, expected = crowd.whole(), crowd.plain_self()
        for block_size in block_sizes:
            assert_same(match_self(support, block_size), expected)


def test_crowds_are_a_test():
    crowd = Crowd(650, 2, 0.1)
    expected = crowd.plain_self()
    assert (crowd.groups == -1).sum() > CHUNK_DOWN and (crowd.groups == 0).sum() > CHUNK  # more than one chunk of each
    assert expected.similarity.max() > 20 and len(expected.similarity.unique()) > 10
    assert (expected.nearest_distance == 0).sum() > 100
    assert Crowd(650, 1, 0).plain_self().similarity.unique().tolist() == [649]
    assert Crowd(650, 2, 1).plain_self().similarity.unique().tolist() == [0]


# --- Tiles, chunks and threads ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """3,000 points x 40 filters, some of them twice, against 300 queries; with what brute force says of them."""
    rng = np.random.default_rng(0)
    points = (rng.standard_normal((3000, 40)) + 1).astype(np.float32)
    points[rng.integers(0, 3000, 300)] = points[rng.integers(0, 3000, 300)]
    queries = (rng.standard_normal((300, 40)) + 1).astype(np.float32)
    queries[:100] = points[:100]
    exclude = np.where(np.arange(300) < 60, np.arange(300), -1)
    predictions = (queries[:, 0] > 1).astype(np.int64)
    groups = np.where(rng.random(3000) < 0.01, -1, points[:, 0] > 1)
    return points, queries, predictions, groups, exclude, brute_force(points, queries, predictions, groups, exclude)


def brute_force(points, queries, predictions, groups, exclude):
    """Similarity (N,), and all distances and indices in order (N, S); an excluded point comes last, at infinity."""
    similarity, distances, indices = [], [], []
    for row, query in enumerate(queries.astype(np.float64)):
        distance = np.sqrt(((query - points) ** 2).sum(-1))
        if exclude[row] >= 0:
            distance[exclude[row]] = np.inf
        order = np.lexsort((np.arange(len(points)), distance))
        is_end = (groups[order] != predictions[row]) | np.isinf(distance[order])
        similarity.append(int(is_end.argmax()))
        distances.append(distance[order])
        indices.append(order)
    return np.array(similarity), np.array(distances), np.array(indices)


def assert_same_as_brute_force(large, block_size, how, threads=1):
    *arrays, (similarity, distances, indices) = large
    points, queries, predictions, groups, exclude = map(torch.from_numpy, arrays)
    support = one_part(points, groups, centre=points.double().mean(dim=0))
    torch.set_num_threads(threads)
    got = match(queries, predictions, support, exclude, block_size, k=9, kernels=how)
    assert got.similarity.tolist() == similarity.tolist()
    assert got.nearest_distance.tolist() == distances[:, 0].tolist()
    assert got.nearest_index.tolist() == indices[:, 0].tolist()
    assert got.neighbor_distances.tolist() == distances[:, :9].tolist()
    assert got.neighbor_indices.tolist() == indices[:, :9].tolist()
    nearest = neighbors(queries[100:], support, 9, block_size, kernels=how)  # of which none is excluded
    assert nearest[0].tolist() == distances[100:, :9].tolist()
    assert nearest[1].tolist() == indices[100:, :9].tolist()


@every_kernel
@pytest.mark.parametrize(
    ("block_size", "kept", "n_rows", "n_tiles"),
    [(48, False, 48, 63), (80, True, 68, 8), (2048, True, 300, 1)],
    ids=["products twice", "products kept in tiles", "products in one tile"],
)
def test_match_equals_brute_force(large, block_size, kept, n_rows, n_tiles, how):
    support = one_part(torch.from_numpy(large[0]), torch.from_numpy(large[3]))
    products = Products(support, 300, block_size)
    assert (products.kept, products.n_rows, len(list(products.spans(*support)))) == (kept, n_rows, n_tiles)
    assert_same_as_brute_force(large, block_size, how)
    assert large[-1][0].max() >= 5 and len(np.unique(large[-1][0])) > 5


@needs_loops
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(large, threads):
    for block_size in (100, 2048):
        assert_same_as_brute_force(large, block_size, True, threads)


@needs_loops
def test_the_order_of_summation_changes_nothing(large, monkeypatch):
    calls = []

    multiply = search.multiply_into

    def multiply_into(out, rows, columns, n_filters):  # sums of the halves, the second one first
        if rows.dtype == torch.bfloat16:
            multiply(out, rows, columns, n_filters)
            return
        calls.append(len(rows))
        half = rows.shape[1] // 2
        out.copy_(rows[:, half:] @ columns[:, half:].T + rows[:, :half] @ columns[:, :half].T)

    monkeypatch.setattr(search, "multiply_into", multiply_into)
    monkeypatch.setattr(mutual, "multiply_into", multiply_into)
    for block_size in (48, 80, 2048):
        assert_same_as_brute_force(large, block_size, True)
    crowd = Crowd(650, 2, 0.1)
    assert_same(match_self(crowd.whole(), 300), crowd.plain_self())
    assert sum(calls) > 300


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing_of_match_self(threads):
    crowd = Crowd(650, 2, 0.1)
    torch.set_num_threads(threads)
    for block_size in (500, 1000):
        got = match_self(crowd.whole(), block_size)
        assert_same(got, crowd.plain_self())


@pytest.mark.parametrize("first_other", [0, 1, 63, 64, 255, 256, 257, 511, 512, 599])
def test_ties_across_tiles_and_chunks(first_other):
    # 600 points at distance 1, on both sides; one of them is no match: what comes before it in the support counts.
    points = torch.where(torch.arange(600) % 3 == 0, -1.0, 1.0)[:, None]
    groups = torch.zeros(600, dtype=torch.int64)
    groups[first_other] = -1
    support, queries, predictions = one_part(points, groups), torch.zeros(3, 1), torch.tensor([0, 0, 1])
    for how, block_size in product(KERNELS, (13, 40, 1000)):
        got = match(queries, predictions, support, None, block_size, k=2, kernels=how)
        assert got.similarity.tolist() == [first_other, first_other, 0]
        assert got.nearest_index.tolist() == [0, 0, 0] and got.nearest_distance.tolist() == [1.0] * 3
        assert got.neighbor_indices.tolist() == [[0, 1]] * 3
        got = match(queries, predictions, support, torch.tensor([0, 599, 1]), block_size, kernels=how)
        assert got.similarity.tolist() == [599 if first_other == 0 else first_other - 1, first_other, 0]
        assert got.nearest_index.tolist() == [1, 0, 0]


@pytest.mark.parametrize("first_other", [0, 1, 64, 255, 256, 599])
def test_ties_of_every_point_with_the_others(first_other):
    points, predictions = torch.ones(600, 2), torch.zeros(600, dtype=torch.int64)
    groups = torch.zeros(600, dtype=torch.int64)
    groups[first_other] = -1
    index = torch.arange(600)
    expected = torch.where(index < first_other, first_other - 1, first_other)
    expected[first_other] = 599  # all others are matches for the one that vouches for nothing
    for block_size in (60, 1000):
        got = match_self(one_part(points, groups, predictions), block_size)
        assert got.similarity.tolist() == expected.tolist()
        assert got.nearest_index.tolist() == [1] + [0] * 599
        assert got.nearest_distance.tolist() == [0.0] * 600


@needs_loops
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_rows_out(monkeypatch, threads):
    # 301 rows and 700 columns in one tile: every kernel must be called for each row once, whoever calls it.
    calls = {name: [] for name in ("find_first", "find_neighbors", "count_matches")}

    def spy(name, *arguments):
        calls[name].append(arguments[-2:])
        loops.call(name, *arguments)

    monkeypatch.setattr(_tiles, "call", spy)
    problem = Problem("gaussian", n_support=700, n_queries=301)
    torch.set_num_threads(threads)
    match(problem.queries, problem.query_predictions, problem.whole(), k=1, kernels="compiled")
    for seen in calls.values():
        assert [row for begin, end in sorted(seen) for row in range(begin, end)] == list(range(301))
        assert (len(seen) > threads) == (threads > 1)


@needs_loops
@pytest.mark.parametrize("name", ["find_first", "find_neighbors", "count_matches"])
@pytest.mark.parametrize("who", ["a helper", "the caller"])
def test_exceptions_in_a_thread_reach_the_caller(monkeypatch, name, who):
    caller, failed = threading.current_thread(), threading.Event()

    def failing(called, *arguments):
        if called != name:
            loops.call(called, *arguments)
        elif (threading.current_thread() is caller) == (who == "the caller"):
            failed.set()
            raise ZeroDivisionError("here")
        else:
            failed.wait(60)  # until it has its share
            loops.call(called, *arguments)

    monkeypatch.setattr(_tiles, "call", failing)
    problem = Problem("gaussian", n_support=300, n_queries=300)
    n_threads = threading.active_count()
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError, match="here"):
        match(problem.queries, problem.query_predictions, problem.whole(), k=1, kernels="compiled")
    assert threading.active_count() == n_threads
    assert not exact._precisions


@every_kernel
def test_exceptions_in_one_thread_reach_the_caller(monkeypatch, how):
    def failing(*arguments):
        if how == "torch" or arguments[0] == "count_matches":
            raise ZeroDivisionError("here")
        loops.call(*arguments)

    if how == "torch":
        monkeypatch.setitem(_tiles.TORCH_KERNELS, "count_matches", failing)
    else:
        monkeypatch.setattr(_tiles, "call", failing)
    problem = Problem("gaussian")
    with pytest.raises(ZeroDivisionError, match="here"):
        match(problem.queries, problem.query_predictions, problem.whole(), kernels=how)
    assert not exact._precisions


# --- By hand ---------------------------------------------------------------------------------------------------------


def line(values, labels, predictions):
    points = torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    return one_part(points, torch.tensor(labels), torch.tensor(predictions))


def one(support, at, prediction, exclude=None, *, kernels):
    own = None if exclude is None else torch.tensor([exclude])
    got = match(torch.tensor([[at]]), torch.tensor([prediction]), support, own, kernels=kernels)
    return got.similarity.item(), got.nearest_distance.item(), got.nearest_index.item()


def test_groups():
    groups = match_groups(torch.tensor([0, 1, 2, 9]), torch.tensor([0, 0, 2, 1]))
    assert groups.tolist() == [0, -1, 2, -1]


@every_kernel
def test_ties_go_to_the_smaller_index(how):
    support = line([1.0, -1.0, 1.0, -1.0], [0, 0, 1, 0], [0, 0, 1, 0])
    # All are at 1: 0 and 1 come before the non-match 2, 3 after it.
    assert one(support, 0.0, 0, kernels=how) == (2, 1.0, 0)
    assert one(support, 0.0, 1, kernels=how) == (0, 1.0, 0)
    assert one(support, 0.0, 0, exclude=0, kernels=how) == (1, 1.0, 1)
    assert one(support, 0.0, 0, exclude=2, kernels=how) == (3, 1.0, 0)


@every_kernel
def test_a_wrong_prediction_or_a_label_outside_the_classes_ends_the_count(how):
    for label, prediction in ((1, 0), (0, 1), (9, 0)):
        support = line([1.0, 2.0, 3.0], [0, label, 0], [0, prediction, 0])
        assert one(support, 0.0, 0, kernels=how) == (1, 1.0, 0)


@every_kernel
def test_without_non_matches_everything_counts(how):
    support = line([1.0, 2.0, 3.0], [0, 0, 0], [0, 0, 0])
    assert one(support, 0.0, 0, kernels=how) == (3, 1.0, 0)
    assert one(support, 0.0, 0, exclude=0, kernels=how) == (2, 2.0, 1)
    assert one(support, 0.0, 5, kernels=how) == (0, 1.0, 0)  # a class that the support does not have


@every_kernel
def test_nothing_left_after_exclusion(how):
    support = line([1.0], [0], [0])
    assert one(support, 0.0, 0, exclude=0, kernels=how) == (0, float("inf"), -1)


@every_kernel
def test_no_queries(how):
    support = line([1.0], [0], [0])
    got = match(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), support, kernels=how)
    assert got.similarity.shape == got.nearest_distance.shape == got.nearest_index.shape == (0,)
    distances, indices = neighbors(torch.empty(0, 1), support, 1, kernels=how)
    assert distances.shape == indices.shape == (0, 1)


# --- Memory ----------------------------------------------------------------------------------------------------------

_MEASURE = """
    import resource
    import torch
    from torchsdm import SupportSet

    torch.set_num_threads(1)
    n_support, n_queries, block_size = 200_000, 256, 256
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(n_support, 8, generator=generator)
    labels = (points[:, 0] > 0).long()
    support = SupportSet(points, labels, labels, block_size=block_size)
    queries = torch.randn(n_queries, 8, generator=generator)
    support.match(queries[:2], torch.tensor([0, 1]))  # libraries are loaded

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux

    before = peak()
    m = support.match(queries, (queries[:, 0] > 0).long())
    support.neighbors(queries, 5)
    print(peak() - before, n_support * n_queries * 4, int(m.similarity.max()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_memory_is_bounded_by_the_block_size():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_MEASURE)], capture_output=True, text=True, check=True, timeout=300
    )
    grown, whole_matrix, largest = map(int, done.stdout.split())
    assert largest > 100
    assert grown < whole_matrix / 5  # 205 MB for the float32 matrix alone


# --- Batches that are under way together -----------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_in_memory_is_refused():
    from torchsdm.matching import Search

    whole = line(range(100), [0] * 100, [0] * 100)
    with pytest.raises(InvalidInputError, match=r"'queries' of Search must be at most 8. Got 9"):
        Search(torch.zeros(9, 1), torch.zeros(9, dtype=torch.int64), whole, block_size=8)


@pytest.mark.parametrize(
    ("n_points", "n_rows", "kept"),
    [(1, 1024, True), (100_000, 335, True), (524_288, 64, True), (2_000_000, 64, True), (3_000_000, 1024, False)],
)
def test_batches_that_are_under_way_together_keep_their_products_if_they_can(n_points, n_rows, kept):
    from torchsdm.matching import rows_at_once
    from torchsdm.matching.search import rows_of_products

    assert rows_at_once(n_points) == n_rows
    assert rows_of_products(n_points, n_rows, 2048) == (n_rows, kept)  # it fits in a search
