"""The sweeps against the plain sort and the loops, where float32 products cannot tell points apart."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import reference
from torchsdm.bounds import CentredPoints
from torchsdm.matching import (
    match,
    match_groups,
    match_plain,
    neighbors,
    neighbors_plain,
)

N_SUPPORT, N_QUERIES = 60, 16


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

    def centred(self, centre=None):
        return CentredPoints.of(self.points, self.points.double().mean(dim=0) if centre is None else centre)

    def plain(self, exclude=None):
        return match_plain(self.queries, self.query_predictions, self.points, self.groups, exclude)


def assert_same(got, expected):
    """Equal to the last bit."""
    assert got.similarity.dtype == got.nearest_index.dtype == torch.int64
    assert got.nearest_distance.dtype == torch.float64
    assert got.similarity.tolist() == expected.similarity.tolist()
    assert got.nearest_index.tolist() == expected.nearest_index.tolist()
    assert got.nearest_distance.tolist() == expected.nearest_distance.tolist()


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
    support = problem.centred()
    for block_size in (1, 2, 3, 7, 32, 1000) if kind in ("gaussian", "grid") else (5, 1000):
        arguments = problem.queries, problem.query_predictions, support, problem.groups
        assert_same(match(*arguments, block_size=block_size), expected)
        assert_same(match(*arguments, exclude, block_size), expected_excluding)


@pytest.mark.parametrize("kind", KINDS)
def test_every_support_point_against_the_others(kind):
    problem = Problem(kind, seed=1, n_support=40)
    own = torch.arange(40)
    expected = match_plain(problem.points, problem.predictions, problem.points, problem.groups, own)
    for block_size in (7, 1000):
        got = match(problem.points, problem.predictions, problem.centred(), problem.groups, own, block_size)
        assert_same(got, expected)
    assert (expected.nearest_index != own).all()
    if kind in ("duplicates", "all alike", "grid"):
        assert (expected.nearest_distance == 0).any()  # a duplicate of oneself stays


@pytest.mark.parametrize("kind", KINDS)
def test_neighbors_equal_the_plain_version(kind):
    problem = Problem(kind, seed=2)
    for k in (1, 5, N_SUPPORT):
        expected = [neighbors_plain(query, problem.points, k) for query in problem.queries]
        for block_size in (4, 1000):
            distances, indices = neighbors(problem.queries, problem.centred(), k, block_size=block_size)
            assert distances.tolist() == [distance.tolist() for distance, _ in expected]
            assert indices.tolist() == [index.tolist() for _, index in expected]


@pytest.mark.parametrize("kind", ["gaussian", "offset of 50 spreads", "huge", "last bits"])
def test_any_centre_gives_the_same_answers(kind):
    problem = Problem(kind)
    for centre in (torch.zeros(problem.points.shape[1]), problem.points[3] * 7 + 1e3):
        got = match(problem.queries, problem.query_predictions, problem.centred(centre.double()), problem.groups)
        assert_same(got, problem.plain())


@pytest.mark.parametrize("kind", ["gaussian", "duplicates", "offset of 10 000", "huge and tiny"])
def test_a_query_does_not_depend_on_its_batch_or_on_threads(kind):
    problem = Problem(kind)
    support, whole = problem.centred(), problem.plain()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in (1, 5):
            for start in range(0, N_QUERIES, 7):
                rows = slice(start, start + size)
                got = match(problem.queries[rows], problem.query_predictions[rows], support, problem.groups)
                assert got.similarity.tolist() == whole.similarity[rows].tolist()
                assert got.nearest_distance.tolist() == whole.nearest_distance[rows].tolist()


def test_reduced_precision_of_products_changes_nothing():
    problem = Problem("offset of 50 spreads")
    matmul, before = torch.backends.mkldnn.matmul, torch.backends.mkldnn.matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = match(problem.queries, problem.query_predictions, problem.centred(), problem.groups)
    finally:
        matmul.fp32_precision = before
    assert_same(got, problem.plain())


def test_float64_queries_against_float32_points():
    problem = Problem("last bits")
    queries = problem.queries.double() + 2.0**-27  # between float32 numbers
    expected = match_plain(queries, problem.query_predictions, problem.points, problem.groups)
    assert_same(match(queries, problem.query_predictions, problem.centred(), problem.groups, block_size=5), expected)


# --- By hand ---------------------------------------------------------------------------------------------------------


def line(values, labels, predictions):
    points = torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    groups = match_groups(torch.tensor(labels), torch.tensor(predictions))
    return CentredPoints.of(points, torch.zeros(1)), groups


def one(support, groups, at, prediction, exclude=None):
    own = None if exclude is None else torch.tensor([exclude])
    got = match(torch.tensor([[at]]), torch.tensor([prediction]), support, groups, own)
    return got.similarity.item(), got.nearest_distance.item(), got.nearest_index.item()


def test_groups():
    groups = match_groups(torch.tensor([0, 1, 2, 9]), torch.tensor([0, 0, 2, 1]))
    assert groups.tolist() == [0, -1, 2, -1]


def test_ties_go_to_the_smaller_index():
    support, groups = line([1.0, -1.0, 1.0, -1.0], [0, 0, 1, 0], [0, 0, 1, 0])
    assert one(support, groups, 0.0, 0) == (2, 1.0, 0)  # all at 1: 0 and 1 come before the non-match 2, 3 after it
    assert one(support, groups, 0.0, 1) == (0, 1.0, 0)
    assert one(support, groups, 0.0, 0, exclude=0) == (1, 1.0, 1)
    assert one(support, groups, 0.0, 0, exclude=2) == (3, 1.0, 0)


def test_a_wrong_prediction_or_a_label_outside_the_classes_ends_the_count():
    for label, prediction in ((1, 0), (0, 1), (9, 0)):
        support, groups = line([1.0, 2.0, 3.0], [0, label, 0], [0, prediction, 0])
        assert one(support, groups, 0.0, 0) == (1, 1.0, 0)


def test_without_non_matches_everything_counts():
    support, groups = line([1.0, 2.0, 3.0], [0, 0, 0], [0, 0, 0])
    assert one(support, groups, 0.0, 0) == (3, 1.0, 0)
    assert one(support, groups, 0.0, 0, exclude=0) == (2, 2.0, 1)
    assert one(support, groups, 0.0, 5) == (0, 1.0, 0)  # a class that the support does not have


def test_nothing_left_after_exclusion():
    support, groups = line([1.0], [0], [0])
    assert one(support, groups, 0.0, 0, exclude=0) == (0, float("inf"), -1)


def test_no_queries():
    support, groups = line([1.0], [0], [0])
    got = match(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), support, groups)
    assert got.similarity.shape == got.nearest_distance.shape == got.nearest_index.shape == (0,)
    distances, indices = neighbors(torch.empty(0, 1), support, 1)
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
