"""Properties that hold for every input, and equality with the loops of reference.py."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import reference
import torchsdm
from conftest import make_blobs

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=30)
REPEATABLE = settings.get_profile("repeatable")

N_CLASSES = 3
OUTSIDE = 7  # a label that is no class
BLOCK_SIZES = (1, 2, 3, 7, 1000)


# --- Inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A support and queries on a grid; every squared distance is exact in float64, so ties are ties."""

    exemplars: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    queries: np.ndarray
    query_predictions: np.ndarray

    def support(self, **options: Any) -> torchsdm.SupportSet:
        return torchsdm.SupportSet(self.exemplars, self.labels, self.predictions, **options)

    def reference(self, exclude: Any = None) -> reference.Matches:
        return reference.match(
            self.queries, self.query_predictions, self.exemplars, self.labels, self.predictions, exclude
        )


@st.composite
def problems(draw: st.DrawFn, max_support: int = 30, max_queries: int = 6) -> Problem:
    """Few values per coordinate, so ties and duplicates are everywhere.

    `step` and `offset` move the grid to where float32 products cannot tell its points apart: at 1 + k 2^-22 they
    agree in all their digits; `coarse` mixes both kinds of distance.
    """
    n, n_queries = draw(st.integers(2, max_support)), draw(st.integers(1, max_queries))
    fill = draw(st.sampled_from([None, st.nothing()]))  # None: most entries are equal, so long runs of matches
    n_dims = draw(st.integers(1, 3))
    step = draw(st.sampled_from([1.0, 0.125, 1024.0, 2.0**-22]))
    offset = draw(st.sampled_from([0.0, 1.0, -1.5])) if step < 1 else draw(st.sampled_from([0.0, 4096.0, -(2.0**20)]))
    coarse = draw(st.sampled_from([0.0, 0.25])) if step < 1 else 0.0

    def points(count: int) -> np.ndarray:
        grid = draw(arrays(np.int64, (count, n_dims), elements=st.integers(-2, 2), fill=fill))
        jump = draw(arrays(np.int64, (count, n_dims), elements=st.integers(0, 1), fill=fill)) if coarse else 0
        exact = grid * step + offset + jump * coarse
        rounded = exact.astype(np.float32)
        assert (rounded == exact).all()
        return rounded

    def classes(count: int, values: list[int]) -> np.ndarray:
        return draw(arrays(np.int64, count, elements=st.sampled_from(values), fill=fill))

    # A bias towards correct predictions keeps q from being 0 nearly always.
    labels = classes(n, [0, 0, 0, 1, 2, OUTSIDE])
    wrong = draw(arrays(np.bool_, n, elements=st.sampled_from([False, False, False, True])))
    predictions = np.where(wrong | (labels == OUTSIDE), classes(n, [0, 1, 2]), labels)
    return Problem(points(n), labels, predictions, points(n_queries), classes(n_queries, [0, 0, 1, 2]))


@dataclass(frozen=True)
class Rows:
    """Input of the activation, float64."""

    logits: np.ndarray
    similarity: np.ndarray
    distance_quantile: np.ndarray
    labels: np.ndarray


@st.composite
def rows(draw: st.DrawFn, largest_logit: float = 50.0, largest_q: int = 5000) -> Rows:
    n, n_classes = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    logit = st.floats(-largest_logit, largest_logit, allow_subnormal=False)
    return Rows(
        draw(arrays(np.float64, (n, n_classes), elements=logit)),
        draw(arrays(np.int64, n, elements=st.integers(0, largest_q))),
        draw(arrays(np.float64, n, elements=st.floats(0, 1, allow_subnormal=False))),
        draw(arrays(np.int64, n, elements=st.integers(0, n_classes - 1))),
    )


@dataclass(frozen=True)
class Calibration:
    """Input of Algorithm 1."""

    rescaled: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray
    alpha: float


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """Few distinct q' and probabilities, so ties are everywhere; the doubtful points lie below some q'."""
    n_classes = draw(st.integers(2, 3))
    n = draw(st.one_of(st.integers(1, 10), st.integers(15, 40), st.integers(30, 40)))
    rescaled = draw(
        arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.25, 5.0, 8.0]), fill=st.nothing())
    )
    sure = draw(arrays(np.float64, n, elements=st.sampled_from([0.8, 0.9, 0.95, 0.99, 1.0]), fill=st.nothing()))
    doubtful = draw(arrays(np.float64, n, elements=st.sampled_from([0.1, 0.5, 0.75, 0.9]), fill=st.nothing()))
    own = np.where(rescaled < draw(st.sampled_from([0.0, 1.0, 2.0, 5.0, 9.0])), doubtful, sure)
    labels = draw(arrays(np.int64, n, elements=st.integers(0, n_classes - 1), fill=st.nothing()))
    probabilities = np.repeat((1 - own)[:, None] / (n_classes - 1), n_classes, axis=1)
    probabilities[np.arange(n), labels] = own
    alpha = draw(st.sampled_from([0.55, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 1.0]))
    return Calibration(rescaled, probabilities, labels, alpha)


def find_region(c: Calibration, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small or missing regions are warned about, by intention
        return torchsdm.find_high_reliability_region(c.rescaled, c.probabilities, c.labels, c.alpha, **options)


def fit_ecdfs(distance: np.ndarray, similarity: np.ndarray, labels: np.ndarray, n_classes: int) -> torchsdm.ClassEcdfs:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class without points is warned about, by intention
        return torchsdm.ClassEcdfs.fit(distance, similarity, labels, n_classes)


def confidence_of(probabilities: torch.Tensor, logits: np.ndarray) -> torch.Tensor:
    return probabilities[torch.arange(len(logits)), torch.as_tensor(logits.argmax(1))]


def assert_matches(actual: Any, expected: reference.Matches) -> None:
    assert actual.similarity.dtype == torch.int64
    assert actual.similarity.tolist() == expected.similarity
    assert actual.nearest_index.tolist() == expected.nearest_index
    assert actual.nearest_distance.dtype == torch.float64
    assert actual.nearest_distance.tolist() == expected.nearest_distance


def assert_same_matches(a: Any, b: Any) -> None:
    assert torch.equal(a.similarity, b.similarity)
    assert torch.equal(a.nearest_index, b.nearest_index)
    assert torch.equal(a.nearest_distance, b.nearest_distance)


# --- Matching --------------------------------------------------------------------------------------------------------


@given(problems(), st.sampled_from(BLOCK_SIZES))
@settings(REPEATABLE, max_examples=100)
def test_match_equals_the_reference(problem: Problem, block_size: int) -> None:
    m = problem.support(block_size=block_size).match(problem.queries, problem.query_predictions)
    assert_matches(m, problem.reference())


@given(problems(), st.sampled_from(BLOCK_SIZES), st.data())
@settings(REPEATABLE)
def test_match_with_exclusion_equals_the_reference(problem: Problem, block_size: int, data: st.DataObject) -> None:
    own = st.integers(-1, len(problem.labels) - 1)
    exclude = data.draw(arrays(np.int64, len(problem.queries), elements=own))
    support = problem.support(block_size=block_size)
    m = support.match(problem.queries, problem.query_predictions, exclude=exclude)
    assert_matches(m, problem.reference(exclude))


@given(problems(max_support=14, max_queries=1), st.sampled_from(BLOCK_SIZES))
@settings(REPEATABLE)
def test_match_self_equals_the_reference(problem: Problem, block_size: int) -> None:
    own = np.arange(len(problem.labels))
    m = problem.support(block_size=block_size).match_self()
    expected = reference.match(
        problem.exemplars, problem.predictions, problem.exemplars, problem.labels, problem.predictions, own
    )
    assert_matches(m, expected)


@given(problems(), st.sampled_from(BLOCK_SIZES), st.data())
@settings(REPEATABLE)
def test_neighbors_equal_the_reference(problem: Problem, block_size: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(problem.labels)))
    distances, indices = problem.support(block_size=block_size).neighbors(problem.queries, k)
    expected = [reference.neighbors(query, problem.exemplars, k) for query in problem.queries]
    assert indices.tolist() == [index for _, index in expected]
    assert distances.tolist() == [distance for distance, _ in expected]


@given(problems(max_support=10, max_queries=3))
@settings(REPEATABLE, max_examples=25)
def test_block_size_changes_nothing(problem: Problem) -> None:
    support = problem.support()
    whole = support.match(problem.queries, problem.query_predictions), support.match_self()
    nearest = support.neighbors(problem.queries, len(problem.labels))
    for block_size in BLOCK_SIZES:
        support.block_size = block_size
        assert_same_matches(support.match(problem.queries, problem.query_predictions), whole[0])
        assert_same_matches(support.match_self(), whole[1])
        for a, b in zip(support.neighbors(problem.queries, len(problem.labels)), nearest, strict=True):
            assert torch.equal(a, b)


@given(problems())
@settings(REPEATABLE)
def test_a_match_does_not_depend_on_its_batch(problem: Problem) -> None:
    support = problem.support()
    together = support.match(problem.queries, problem.query_predictions)
    for n in range(len(problem.queries)):
        alone = support.match(problem.queries[n : n + 1], problem.query_predictions[n : n + 1])
        assert alone.similarity.item() == together.similarity[n].item()
        assert alone.nearest_index.item() == together.nearest_index[n].item()
        assert alone.nearest_distance.item() == together.nearest_distance[n].item()


@given(problems())
@settings(REPEATABLE)
def test_the_first_neighbor_is_the_nearest(problem: Problem) -> None:
    support = problem.support()
    m = support.match(problem.queries, problem.query_predictions)
    distances, indices = support.neighbors(problem.queries, 1)
    assert torch.equal(indices[:, 0], m.nearest_index)
    assert torch.equal(distances[:, 0], m.nearest_distance)


@given(problems(), st.randoms(use_true_random=False))
@settings(REPEATABLE)
def test_permuting_the_support_changes_nothing_but_indices(problem: Problem, random: Any) -> None:
    # Where a match and a non-match are equally far the index decides, so a permutation may change q: this needs points
    # without ties, which a normal draw gives.
    n = len(problem.labels)
    order = list(range(n))
    random.shuffle(order)
    tie_free = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
    queries = np.random.default_rng(n + 1).standard_normal((len(problem.queries), 4)).astype(np.float32)
    a = torchsdm.SupportSet(tie_free, problem.labels, problem.predictions).match(queries, problem.query_predictions)
    b = torchsdm.SupportSet(tie_free[order], problem.labels[order], problem.predictions[order]).match(
        queries, problem.query_predictions
    )
    assert torch.equal(a.similarity, b.similarity)
    assert torch.equal(a.nearest_distance, b.nearest_distance)
    assert a.nearest_index.tolist() == [order[i] for i in b.nearest_index.tolist()]


@given(problems(), st.randoms(use_true_random=False))
@settings(REPEATABLE)
def test_permuting_a_support_with_ties_keeps_the_nearest_distance(problem: Problem, random: Any) -> None:
    order = list(range(len(problem.labels)))
    random.shuffle(order)
    shuffled = Problem(
        problem.exemplars[order],
        problem.labels[order],
        problem.predictions[order],
        problem.queries,
        problem.query_predictions,
    )
    a = problem.support().match(problem.queries, problem.query_predictions)
    b = shuffled.support().match(problem.queries, problem.query_predictions)
    assert torch.equal(a.nearest_distance, b.nearest_distance)


@given(problems(), problems(max_queries=1))
@settings(REPEATABLE)
def test_appending_a_non_match_never_raises_similarity(problem: Problem, extra: Problem) -> None:
    n_dims = problem.exemplars.shape[1]
    point = np.resize(extra.exemplars[0], (1, n_dims))
    support = problem.support()
    before = support.match(problem.queries, problem.query_predictions)
    support.add(point, np.array([OUTSIDE]), np.array([0]))
    after = support.match(problem.queries, problem.query_predictions)
    assert (after.similarity <= before.similarity).all()
    assert (after.nearest_distance <= before.nearest_distance).all()


@given(problems(), st.data())
@settings(REPEATABLE)
def test_adding_is_building_at_once(problem: Problem, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(problem.labels) - 1))
    grown = torchsdm.SupportSet(problem.exemplars[:first], problem.labels[:first], problem.predictions[:first])
    grown.add(problem.exemplars[first:], problem.labels[first:], problem.predictions[first:])
    assert_matches(grown.match(problem.queries, problem.query_predictions), problem.reference())
    assert_same_matches(grown.match_self(), problem.support().match_self())


@given(problems(), st.sampled_from(BLOCK_SIZES), st.data())
@settings(REPEATABLE)
def test_updates_in_any_order_are_building_at_once(problem: Problem, block_size: int, data: st.DataObject) -> None:
    """Points added a few at a time, relabelled and removed in between: what is left, built at once."""
    now = torchsdm.SupportSet(problem.exemplars[:1], problem.labels[:1], problem.predictions[:1], block_size=block_size)
    rows, labels, n_added = [0], problem.labels[:1].tolist(), 1
    while n_added < len(problem.labels):
        some = slice(n_added, n_added + data.draw(st.integers(1, len(problem.labels) - n_added)))
        now.add(problem.exemplars[some], problem.labels[some], problem.predictions[some])
        rows += range(*some.indices(len(problem.labels)))
        labels += problem.labels[some].tolist()
        n_added = some.stop
        at = data.draw(st.integers(0, len(rows) - 1))
        change = data.draw(st.sampled_from(["nothing", "remove", "relabel"]))
        if change == "remove" and len(rows) > 1:
            now.remove([at])
            del rows[at], labels[at]
        elif change == "relabel":
            labels[at] = data.draw(st.sampled_from([0, 1, OUTSIDE]))
            now.relabel([at], [labels[at]])
    left = replace(
        problem, exemplars=problem.exemplars[rows], labels=np.array(labels), predictions=problem.predictions[rows]
    )
    exclude = data.draw(arrays(np.int64, len(problem.queries), elements=st.integers(-1, len(rows) - 1)))
    matched = now.match(problem.queries, problem.query_predictions, exclude=exclude)
    assert_matches(matched, left.reference(exclude))
    assert_same_matches(now.match_self(), left.support().match_self())
    nearest = left.support().neighbors(problem.queries, len(rows))
    for a, b in zip(now.neighbors(problem.queries, len(rows)), nearest, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("offset", [0.0, 50.0, 1000.0])
@pytest.mark.parametrize("n_dims", [3, 64])
def test_gaussian_data_with_a_common_offset(offset: float, n_dims: int) -> None:
    """Without ties: the nearest distances are those of a float64 brute force, whatever the offset does to products."""
    rng = np.random.default_rng(n_dims)
    blobs = make_blobs(seed=1, n=300, distance=6.0, n_inputs=n_dims)
    exemplars = (blobs.X + offset).astype(np.float32)
    labels, predictions = blobs.y, np.where(rng.random(300) < 0.03, 1 - blobs.y, blobs.y)
    queries = make_blobs(seed=2, n=60, distance=6.0, n_inputs=n_dims)
    h = (queries.X + offset).astype(np.float32)

    distance = np.sqrt(((h[:, None, :].astype(np.float64) - exemplars[None].astype(np.float64)) ** 2).sum(2))
    order = np.argsort(distance, axis=1, kind="stable")
    match = (labels == predictions)[order] & (labels[order] == queries.y[:, None])
    q = np.where(match.all(1), match.shape[1], match.argmin(1))
    assert q.max() > 20  # long runs, so that there is something to get wrong

    support = torchsdm.SupportSet(exemplars, labels, predictions)
    m = support.match(h, queries.y)
    np.testing.assert_array_equal(m.similarity.numpy(), q)
    np.testing.assert_array_equal(m.nearest_index.numpy(), order[:, 0])
    np.testing.assert_allclose(m.nearest_distance.numpy(), distance.min(1), rtol=1e-14)
    distances, indices = support.neighbors(h, 25)
    np.testing.assert_array_equal(indices.numpy(), order[:, :25])
    np.testing.assert_allclose(distances.numpy(), np.take_along_axis(distance, order[:, :25], axis=1), rtol=1e-14)


# --- Distance quantile -----------------------------------------------------------------------------------------------

distances_on_a_grid = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.5])


@given(st.data())
@settings(REPEATABLE)
def test_distance_quantile_equals_the_reference(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30))
    distance = data.draw(arrays(np.float64, n, elements=distances_on_a_grid))
    q = data.draw(arrays(np.int64, n, elements=st.integers(0, 3)))
    labels = data.draw(arrays(np.int64, n, elements=st.integers(0, N_CLASSES - 1)))
    x = np.array([0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 3.5, 4.0, 1e9])
    by_class = reference.class_distances(distance, q, labels, N_CLASSES)
    d = fit_ecdfs(distance, q, labels, N_CLASSES).distance_quantile(x)
    np.testing.assert_allclose(d.numpy(), [reference.distance_quantile(v, by_class) for v in x], rtol=0, atol=1e-12)
    # d starts at 1 (0 if a class has no points), never rises with the distance and ends at exactly 0.
    assert float(d[0]) == (1.0 if all(by_class) else 0.0)
    assert (d.diff() <= 0).all()
    assert float(d[-1]) == 0.0


@given(st.integers(1, 60))
@settings(REPEATABLE, max_examples=30)
def test_the_largest_observed_distance_has_one_rank_left(n: int) -> None:
    distance = np.concatenate([np.arange(n), np.arange(n)]).astype(np.float64)
    ecdfs = torchsdm.ClassEcdfs.fit(distance, np.ones(2 * n, dtype=np.int64), np.repeat([0, 1], n), 2)
    d = ecdfs.distance_quantile(np.array([n - 1.0, np.nextafter(n - 1.0, np.inf)]))
    assert float(d[0]) == pytest.approx(1 / n, abs=1e-12)
    assert float(d[1]) == 0.0


def test_a_class_without_points_is_named() -> None:
    with pytest.warns(match="2"):
        torchsdm.ClassEcdfs.fit(np.ones(4), np.array([1, 1, 1, 0]), np.array([0, 0, 1, 2]), 3)


# --- Activation and loss ---------------------------------------------------------------------------------------------


@given(rows())
@settings(REPEATABLE)
def test_activation_equals_the_reference(r: Rows) -> None:
    p = torchsdm.sdm_activation(r.logits, r.similarity, r.distance_quantile)
    log_p = torchsdm.sdm_log_activation(r.logits, r.similarity, r.distance_quantile)
    cases = list(zip(r.logits, r.similarity, r.distance_quantile, strict=True))
    np.testing.assert_allclose(p.numpy(), [reference.sdm_activation(*case) for case in cases], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(
        log_p.numpy(), [reference.sdm_log_activation(*case) for case in cases], rtol=1e-12, atol=1e-12
    )
    loss = torchsdm.sdm_loss(r.logits, r.labels, r.similarity, r.distance_quantile)
    expected = reference.sdm_loss(r.logits, r.labels, r.similarity, r.distance_quantile)
    assert float(loss) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(rows())
@settings(REPEATABLE)
def test_float32_stays_near_the_reference(r: Rows) -> None:
    z = torch.tensor(r.logits, dtype=torch.float32)
    p = torchsdm.sdm_activation(z, r.similarity, r.distance_quantile)
    assert p.dtype == torch.float32
    for n, row in enumerate(p):
        q, d = r.similarity[n], r.distance_quantile[n]
        # The exponents ln(2 + q) d z round relative to their size, three times each.
        bound = 2.0**-24 * (8 + 6 * math.log(2 + q) * d * np.abs(r.logits[n]).max())
        np.testing.assert_allclose(row.numpy(), reference.sdm_activation(z[n].numpy(), q, d), rtol=0, atol=bound)


@given(rows())
@settings(REPEATABLE)
def test_softmax_is_recovered(r: Rows) -> None:
    n = len(r.logits)
    z = torch.tensor(r.logits)
    similarity, quantile = torch.full((n,), math.e - 2, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    torch.testing.assert_close(torchsdm.sdm_activation(z, similarity, quantile), z.softmax(1))
    torch.testing.assert_close(torchsdm.sdm_log_activation(z, similarity, quantile), z.log_softmax(1))
    y = torch.tensor(r.labels)
    torch.testing.assert_close(torchsdm.sdm_loss(z, y, similarity, quantile), torch.nn.functional.cross_entropy(z, y))


@given(rows())
@settings(REPEATABLE)
def test_zero_quantile_is_uniform(r: Rows) -> None:
    p = torchsdm.sdm_activation(r.logits, r.similarity, np.zeros(len(r.logits)))
    np.testing.assert_allclose(p.numpy(), 1 / r.logits.shape[1], rtol=1e-15)


@given(rows())
@settings(REPEATABLE)
def test_the_predicted_class_has_the_largest_probability(r: Rows) -> None:
    p = torchsdm.sdm_activation(r.logits, r.similarity, r.distance_quantile)
    assert torch.equal(confidence_of(p, r.logits), p.max(1).values)
    np.testing.assert_allclose(p.sum(1).numpy(), 1.0, rtol=1e-14)


@given(rows(), st.data())
@settings(REPEATABLE)
def test_confidence_never_falls_in_similarity_or_quantile(r: Rows, data: st.DataObject) -> None:
    def confidence(similarity: np.ndarray, quantile: np.ndarray) -> np.ndarray:
        return confidence_of(torchsdm.sdm_activation(r.logits, similarity, quantile), r.logits).numpy()

    more = data.draw(st.integers(1, 1000))
    larger = np.minimum(1.0, r.distance_quantile + data.draw(st.floats(0, 1, allow_subnormal=False)))
    base = confidence(r.similarity, r.distance_quantile)
    rounding = 1e-13  # of exponents up to ln(6002)·50
    assert (confidence(r.similarity + more, r.distance_quantile) >= base - rounding).all()
    assert (confidence(r.similarity, larger) >= base - rounding).all()


@given(rows(largest_logit=1e4, largest_q=10**7), st.sampled_from([torch.float32, torch.float64]))
@settings(REPEATABLE)
def test_extreme_input_stays_finite(r: Rows, dtype: torch.dtype) -> None:
    z = torch.tensor(r.logits, dtype=dtype, requires_grad=True)
    p = torchsdm.sdm_activation(z, r.similarity, r.distance_quantile)
    log_p = torchsdm.sdm_log_activation(z, r.similarity, r.distance_quantile)
    loss = torchsdm.sdm_loss(z, r.labels, r.similarity, r.distance_quantile)
    (gradient,) = torch.autograd.grad(loss, z)
    for values in (p, log_p, loss, gradient):
        assert values.dtype == dtype
        assert values.isfinite().all()
    assert ((p >= 0) & (p <= 1)).all()
    assert (log_p <= 0).all()
    # The gradient is d (sdm - one-hot) / N: no entry is larger than 1/N, and each row sums to 0.
    assert float(gradient.abs().max()) <= (1 + 1e-6) / len(z)
    torch.testing.assert_close(gradient.sum(1), torch.zeros(len(z), dtype=dtype), rtol=0, atol=1e-6)


@given(rows(largest_logit=5.0, largest_q=50))
@settings(REPEATABLE, max_examples=20)
def test_gradient_of_the_loss(r: Rows) -> None:
    z = torch.tensor(r.logits, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda logits: torchsdm.sdm_loss(logits, r.labels, r.similarity, r.distance_quantile), (z,)
    )


@given(rows())
@settings(REPEATABLE)
def test_rescaled_similarity(r: Rows) -> None:
    confidence = confidence_of(torchsdm.sdm_activation(r.logits, r.similarity, r.distance_quantile), r.logits)
    rescaled = torchsdm.rescaled_similarity(r.similarity, confidence)
    expected = [reference.rescaled_similarity(*case) for case in zip(r.similarity, confidence.tolist(), strict=True)]
    np.testing.assert_allclose(rescaled.numpy(), expected, rtol=1e-12)
    assert (rescaled.numpy() <= r.similarity).all()
    assert (torchsdm.rescaled_similarity(np.zeros(len(confidence), dtype=np.int64), confidence) == 0).all()


# --- The region ------------------------------------------------------------------------------------------------------


@given(calibrations(), st.sampled_from([0, 0, 1, 3]))
@settings(REPEATABLE, max_examples=60)
def test_region_equals_the_reference(c: Calibration, min_class_count: int) -> None:
    region = find_region(c, min_class_count=min_class_count)
    expected = reference.find_high_reliability_region(c.rescaled, c.probabilities, c.labels, c.alpha, min_class_count)
    assert bool(region.found) == expected.found
    assert float(region.min_rescaled_similarity) == expected.min_rescaled_similarity
    assert np.asarray(region.thresholds).tolist() == expected.thresholds
    assert region.alpha == c.alpha


@given(calibrations())
@settings(REPEATABLE)
def test_thresholds_reach_alpha_and_no_smaller_candidate_qualifies(c: Calibration) -> None:
    region = find_region(c)
    if not region.found:
        return
    smallest = float(region.min_rescaled_similarity)
    assert smallest in c.rescaled
    assert smallest > 0
    assert (np.asarray(region.thresholds) >= c.alpha).all()
    own = c.probabilities[np.arange(len(c.labels)), c.labels]
    for candidate in {value for value in c.rescaled if 0 < value < smallest}:
        inside = c.rescaled >= candidate
        psi = []
        for y in range(c.probabilities.shape[1]):
            values = np.sort(own[inside & (c.labels == y)])
            psi.append(values[reference.inverse_cdf_index(len(values), c.alpha)] if len(values) else -np.inf)
        assert min(psi) < c.alpha


@given(calibrations())
@settings(REPEATABLE)
def test_admission_equals_the_reference(c: Calibration) -> None:
    region = find_region(c)
    predictions = c.probabilities.argmax(1)
    confidence = c.probabilities.max(1)
    admitted = region.admits(c.rescaled, predictions, confidence)
    assert admitted.dtype == torch.bool
    expected = [
        reference.admits(float(region.min_rescaled_similarity), np.asarray(region.thresholds), *case)
        for case in zip(c.rescaled, predictions, confidence, strict=True)
    ]
    assert admitted.tolist() == expected
    if not region.found:
        assert not admitted.any()
    # q' = 0 is out of the distribution, whatever the confidence.
    assert not region.admits(np.zeros(len(predictions)), predictions, np.ones(len(predictions))).any()


@pytest.mark.parametrize(
    ("n", "alpha", "position"),
    # (1 - α) n, in order: 1, 4, 8, 1, 10, 1, 2 (each just below or above in binary), then 1.4, 0.3, 0.4 and 4.5.
    [
        *[(10, 0.9, 1), (40, 0.9, 4), (40, 0.8, 8), (20, 0.95, 1), (1000, 0.99, 10), (100, 0.99, 1), (5, 0.6, 2)],
        *[(7, 0.8, 1), (3, 0.9, 0), (1, 0.6, 0), (10, 0.55, 4)],
    ],
)
def test_the_threshold_is_the_element_above_one_minus_alpha(n: int, alpha: float, position: int) -> None:
    assert reference.inverse_cdf_index(n, alpha) == position
    own = np.linspace(alpha, 1, n + 1)[1:]  # n different values for each class, all above alpha
    labels = np.repeat([0, 1], n)
    first = np.concatenate([own, 1 - own])
    region = find_region(Calibration(np.ones(2 * n), np.stack([first, 1 - first], axis=1), labels, alpha))
    np.testing.assert_allclose(np.asarray(region.thresholds), own[position], rtol=1e-12)


def test_a_class_without_points_fails_the_candidate() -> None:
    # Class 1 has no point at q' = 2, and one that is not good enough at q' = 1; class 2 has no point at all.
    rescaled, labels = np.array([1.0, 2.0, 2.0, 1.0]), np.array([0, 0, 0, 1])
    good, bad = [0.99, 0.01], [0.9, 0.1]
    two = Calibration(rescaled, np.array([good, good, good, bad]), labels, 0.9)
    assert not find_region(two).found
    sure = np.array([good, good, good, good[::-1]])
    assert find_region(Calibration(rescaled, sure, labels, 0.9)).min_rescaled_similarity == 1.0
    three = np.column_stack([sure, np.zeros(4)])
    assert not find_region(Calibration(rescaled, three, labels, 0.9)).found


def test_nothing_found_nothing_admitted() -> None:
    c = Calibration(np.ones(4), np.full((4, 2), 0.5), np.array([0, 0, 1, 1]), 0.9)
    region = find_region(c)
    assert not region.found
    assert math.isinf(float(region.min_rescaled_similarity))
    assert np.isinf(np.asarray(region.thresholds)).all()
    everything = region.admits(np.array([1e9, np.inf]), np.array([0, 1]), np.ones(2))
    # Even the largest values a caller could pass: 1 >= inf is false.
    assert not everything.any()


@given(calibrations(), rows(largest_logit=1000.0))
@settings(REPEATABLE)
def test_beyond_the_largest_calibration_distance_everything_is_rejected(c: Calibration, r: Rows) -> None:
    ecdfs = fit_ecdfs(np.arange(10.0), np.ones(10, dtype=np.int64), np.arange(10) % 2, 2)
    d = ecdfs.distance_quantile(np.full(len(r.logits), np.nextafter(9.0, 10.0)))
    assert (d == 0).all()
    n_classes = c.probabilities.shape[1]
    logits = r.logits[:, [0, 1] if n_classes == 2 else [0, 1, 0]]
    p = torchsdm.sdm_activation(logits, r.similarity, d)
    confidence = confidence_of(p, logits)
    rescaled = torchsdm.rescaled_similarity(r.similarity, confidence)
    assert not find_region(c).admits(rescaled, logits.argmax(1), confidence).any()


# --- Effective sample size -------------------------------------------------------------------------------------------


@given(calibrations(), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5, 3.25, 8.0, 9.0]), min_size=1, max_size=8))
@settings(REPEATABLE)
def test_effective_sample_sizes_and_band_equal_the_reference(c: Calibration, queries: list[float]) -> None:
    n_classes = c.probabilities.shape[1]
    sizes = torchsdm.core.effective_sample_sizes(c.rescaled, c.labels, np.array(queries), n_classes)
    assert sizes.dtype == torch.int64
    assert sizes.tolist() == [
        reference.effective_sample_sizes(c.rescaled, c.labels, value, n_classes) for value in queries
    ]
    epsilon = torchsdm.core.dkw_epsilon(sizes, c.alpha)
    assert epsilon.dtype == torch.float64
    expected = [reference.dkw_epsilon(n, c.alpha) for n in sizes.tolist()]
    np.testing.assert_allclose(epsilon.numpy(), expected, rtol=1e-12)
    # Sizes grow with q', to all of the class and no further; the band only narrows with them.
    beyond = torchsdm.core.effective_sample_sizes(c.rescaled, c.labels, np.array([0.0, 1e9]), n_classes)
    assert beyond.tolist() == [[0] * n_classes, np.bincount(c.labels, minlength=n_classes).tolist()]
    by_size = epsilon[sizes.min(1).values.argsort()]
    assert (by_size.diff() <= 0).all()
    assert ((epsilon > 0) & (epsilon <= 1)).all()
