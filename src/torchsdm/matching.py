"""Exact matching of exemplars against a support (Eq. 4), without a sort and without a cap on q.

Support points are ordered by (Euclidean distance in float64, support index). A *match* for a query of predicted class c
is a support point whose prediction and label are both c. With (B, i_B) the first non-match in that order,

    q = #{matches s : (distance_s, s) < (B, i_B)}

so one sweep over the non-matches finds the boundary and one over the matches counts what lies before it; every support
column is touched once. Sweeps over shards of a support merge by minimum, then by sum.

Exactness. Blocks of float32 products bound each squared distance from below and above; pairs that the bounds leave
open are decided by ``pair_distances`` in float64. The answer therefore depends on nothing but
the two exemplars: not on block size, threads, device or the rest of the batch. ``match_plain`` and
``neighbors_plain`` say the same in a few lines, by sorting, and are what the sweeps are tested against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsdm.numerics import full_float32_products, pair_distances, product_error

DEFAULT_BLOCK_SIZE = 2048
NO_POINT = -1  #: the nearest index where there is no support point at all; its distance is infinite


@dataclass(frozen=True)
class Match:
    """What matching knows of each query; all tensors are (N,)."""

    similarity: Tensor
    """q, int64: consecutive nearest support points that are correct and predicted like the query."""
    nearest_distance: Tensor
    """Euclidean distance to the nearest support point, float64; infinite for an empty support."""
    nearest_index: Tensor
    """Its support index, int64; -1 for an empty support."""


@dataclass(frozen=True)
class CentredPoints:
    """Points with what the float32 bounds need: a common centre and each point's squared distance from it."""

    points: Tensor  # (S, M) float32 or float64
    centre: Tensor  # (M,) float64 holding float32 values, so that both arithmetics subtract the same
    squared_norms: Tensor  # (S,) float64

    @classmethod
    def of(cls, points: Tensor, centre: Tensor, block_size: int = DEFAULT_BLOCK_SIZE) -> CentredPoints:
        """Measure the points from a centre (rounded to float32), a block at a time."""
        centre = centre.float().double()
        norms = torch.empty(len(points), dtype=torch.float64, device=points.device)
        for start in range(0, len(points), block_size):
            block = slice(start, start + block_size)
            norms[block] = (points[block].double() - centre).square_().sum(dim=1)
        return cls(points, centre, norms)


@dataclass(frozen=True)
class _Frontier:
    """The first point found so far for each query, in the order (distance, index)."""

    distance: Tensor  # (n,) float64
    index: Tensor  # (n,) int64

    @classmethod
    def empty(cls, n: int, device: torch.device) -> _Frontier:
        nothing = torch.full((n,), torch.iinfo(torch.int64).max, dtype=torch.int64, device=device)
        return cls(torch.full((n,), torch.inf, dtype=torch.float64, device=device), nothing)

    def is_after(self, distance: Tensor, index: Tensor, rows: Tensor | slice) -> Tensor:
        """Whether this frontier's point of the given rows comes after (distance, index)."""
        bound = self.distance[rows]
        return (distance < bound) | ((distance == bound) & (index < self.index[rows]))

    def advance(self, rows: Tensor, distance: Tensor, index: Tensor) -> None:
        """Take over, in place, the first of the given points for each row where it comes before ours."""
        order = _lexicographic(rows, distance, index)
        rows, distance, index = rows[order], distance[order], index[order]
        first = torch.ones_like(rows, dtype=torch.bool)
        first[1:] = rows[1:] != rows[:-1]
        rows, distance, index = rows[first], distance[first], index[first]
        better = self.is_after(distance, index, rows)
        self.distance[rows[better]] = distance[better]
        self.index[rows[better]] = index[better]


def match(
    queries: Tensor,
    predictions: Tensor,
    support: CentredPoints,
    groups: Tensor,
    exclude: Tensor | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Match:
    """Similarity, nearest distance and nearest index of each query.

    Parameters
    ----------
    queries : (N, M), predictions : (N,)
    support : the S support points
    groups : (S,)
        The class of a correctly predicted support point, -1 for all others (see ``match_groups``).
    exclude : (N,), optional
        For each query the support index that is the query itself, or -1.
    block_size : int
        Rows of a block; memory grows with its square, never with S.
    """
    device = support.points.device
    n = len(queries)
    similarity = torch.zeros(n, dtype=torch.int64, device=device)
    nearest = _Frontier.empty(n, device)
    for label in torch.unique(predictions).tolist():
        columns_of_class = torch.nonzero(groups == label).squeeze(1)
        columns_of_others = torch.nonzero(groups != label).squeeze(1)
        for rows in torch.nonzero(predictions == label).squeeze(1).split(block_size):
            sweep = _Sweep(queries[rows], support, None if exclude is None else exclude[rows], block_size)
            boundary = sweep.first(columns_of_others)
            similarity[rows], first_match = sweep.count_before(boundary, columns_of_class)
            match_is_nearer = boundary.is_after(first_match.distance, first_match.index, slice(None))
            nearest.distance[rows] = torch.where(match_is_nearer, first_match.distance, boundary.distance)
            nearest.index[rows] = torch.where(match_is_nearer, first_match.index, boundary.index)
    nearest.index[torch.isinf(nearest.distance)] = NO_POINT
    return Match(similarity, nearest.distance, nearest.index)


def neighbors(
    queries: Tensor, support: CentredPoints, k: int, block_size: int = DEFAULT_BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """The k nearest support points of each query: distances (N, k) float64 and indices (N, k), nearest first."""
    device = support.points.device
    distances = torch.full((len(queries), k), torch.inf, dtype=torch.float64, device=device)
    indices = torch.full((len(queries), k), NO_POINT, dtype=torch.int64, device=device)
    columns = torch.arange(len(support.points), device=device)
    for rows in torch.arange(len(queries), device=device).split(block_size) if len(queries) else ():
        distances[rows], indices[rows] = _Sweep(queries[rows], support, None, block_size).nearest(k, columns)
    return distances, indices


def match_groups(labels: Tensor, predictions: Tensor) -> Tensor:
    """The class that a support point can vouch for: its label where correctly predicted, else -1."""
    return torch.where(labels == predictions, labels, -1)


class _Sweep:
    """A block of queries that passes over columns of the support, block by block."""

    def __init__(self, queries: Tensor, support: CentredPoints, exclude: Tensor | None, block_size: int) -> None:
        self.queries, self.support, self.exclude, self.block_size = queries, support, exclude, block_size
        norms = (queries.double() - support.centre).square_().sum(dim=1)  # (n,)
        # A power of two that brings every norm to at most 1: float32 products can then neither overflow nor lose more
        # than `underflow` to denormals, and scaling back is exact.
        self.scale = 2.0 ** -_exponent_of_root(max(norms.max().item(), support.squared_norms.max().item()))
        self.scaled_norms = (norms * self.scale**2).float()
        self.centred_queries = self._centred(queries)
        n_filters = queries.shape[1]
        # |computed - true squared distance| <= error * (|x|^2 + |s|^2) + underflow, with x, s centred. gamma bounds the
        # product; the constant 24 covers, generously, centring (9), rounding the norms (4), the sums (6), float64 (1).
        self.error = product_error(n_filters + 24, torch.float32)
        self.underflow = (4 * n_filters + 64) * torch.finfo(torch.float32).tiny

    def first(self, columns: Tensor) -> _Frontier:
        """The first of the columns for each query."""
        found = _Frontier.empty(len(self.queries), self.queries.device)
        for block, lower, upper in self._blocks(columns):
            self._advance(found, block, lower, torch.minimum(upper.amin(dim=1), self._squared_above(found.distance)))
        return found

    def count_before(self, boundary: _Frontier, columns: Tensor) -> tuple[Tensor, _Frontier]:
        """How many of the columns come before the boundary, and the first of them."""
        count = torch.zeros(len(self.queries), dtype=torch.int64, device=self.queries.device)
        found = _Frontier.empty(len(self.queries), self.queries.device)
        inside, outside = self._squared_below(boundary.distance), self._squared_above(boundary.distance)
        for block, lower, upper in self._blocks(columns):
            certain = upper < inside[:, None]
            count += certain.sum(dim=1)
            rows, positions = torch.nonzero((lower <= outside[:, None]) & ~certain, as_tuple=True)
            index = block[positions]
            distance = pair_distances(self.queries, self.support.points, rows, index)
            is_excluded = torch.isinf(lower[rows, positions])
            before = boundary.is_after(distance, index, rows) & ~is_excluded
            count.index_add_(0, rows, before.to(torch.int64))
            limit = torch.minimum(upper.amin(dim=1), self._squared_above(found.distance))
            self._advance(found, block, lower, torch.minimum(limit, outside))
        return count, found

    def nearest(self, k: int, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The first k of the columns for each query: distances and indices (n, k)."""
        n, device = len(self.queries), self.queries.device
        distances = torch.full((n, k), torch.inf, dtype=torch.float64, device=device)
        indices = torch.full((n, k), NO_POINT, dtype=torch.int64, device=device)
        own_rows = torch.arange(n, device=device).repeat_interleave(k)
        for block, lower, upper in self._blocks(columns):
            limit = self._squared_above(distances[:, -1])
            if len(block) >= k:
                limit = torch.minimum(limit, upper.kthvalue(k, dim=1).values)
            rows, index = self._candidates(block, lower, limit)
            all_rows = torch.cat([own_rows, rows])
            all_indices = torch.cat([indices.flatten(), index])
            all_distances = torch.cat(
                [distances.flatten(), pair_distances(self.queries, self.support.points, rows, index)]
            )
            order = _lexicographic(all_rows, all_distances, all_indices)
            start_of_row = torch.searchsorted(all_rows[order].contiguous(), torch.arange(n, device=device))
            chosen = order[start_of_row[:, None] + torch.arange(k, device=device)]  # each row has k of its own
            distances, indices = all_distances[chosen], all_indices[chosen]
        return distances, indices

    def _blocks(self, columns: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Column indices (b,) with float32 lower and upper bounds (n, b) of the scaled squared distances."""
        for block in columns.split(self.block_size) if len(columns) else ():
            squared_norms = self.support.squared_norms[block]
            n = self.scaled_norms[:, None] + (squared_norms * self.scale**2).float()  # (n, b): |x|^2 + |s|^2
            with full_float32_products(self.queries.device):
                squared = n - 2 * (self.centred_queries @ self._centred(self.support.points[block]).T)
            slack = self.error * n + self.underflow
            lower, upper = squared - slack, squared + slack
            if self.exclude is not None:
                position = torch.searchsorted(block, self.exclude).clamp_(max=len(block) - 1)
                rows = torch.nonzero(block[position] == self.exclude).squeeze(1)
                lower[rows, position[rows]] = torch.inf
                upper[rows, position[rows]] = torch.inf
            yield block, lower, upper

    def _candidates(self, block: Tensor, lower: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs (row, support index) that may be as near as the limit."""
        rows, positions = torch.nonzero((lower <= limit[:, None]) & ~torch.isinf(lower), as_tuple=True)
        return rows, block[positions]

    def _advance(self, found: _Frontier, block: Tensor, lower: Tensor, limit: Tensor) -> None:
        rows, index = self._candidates(block, lower, limit)
        found.advance(rows, pair_distances(self.queries, self.support.points, rows, index), index)

    def _centred(self, points: Tensor) -> Tensor:
        return (points * self.scale).sub_((self.support.centre * self.scale).to(points.dtype)).float()

    def _squared_above(self, distance: Tensor) -> Tensor:
        """A float32 not below the scaled square of a float64 distance."""
        return ((distance * self.scale).square() * (1 + 2**-22)).float()

    def _squared_below(self, distance: Tensor) -> Tensor:
        """A float32 not above the scaled square of a float64 distance."""
        return ((distance * self.scale).square() * (1 - 2**-22)).float()


def match_plain(
    queries: Tensor, predictions: Tensor, support: Tensor, groups: Tensor, exclude: Tensor | None = None
) -> Match:
    """The plain version of ``match``: sort everything, count until the first non-match."""
    similarity, nearest_distance, nearest_index = [], [], []
    for row in range(len(queries)):
        own = NO_POINT if exclude is None else int(exclude[row])
        distance, index = _sorted_plain(queries[row], support, own)
        is_match = groups[index] == predictions[row]
        similarity.append(int(is_match.to(torch.int64).cumprod(dim=0).sum()))
        nearest_distance.append(float(distance[0]) if len(index) else torch.inf)
        nearest_index.append(int(index[0]) if len(index) else NO_POINT)
    return Match(
        torch.tensor(similarity, dtype=torch.int64),
        torch.tensor(nearest_distance, dtype=torch.float64),
        torch.tensor(nearest_index, dtype=torch.int64),
    )


def neighbors_plain(query: Tensor, support: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The plain version of ``neighbors`` for one query (M,): sort, take k."""
    distance, index = _sorted_plain(query, support, NO_POINT)
    return distance[:k], index[:k]


def _sorted_plain(query: Tensor, support: Tensor, own: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(len(support))
    index = index[index != own]
    distance = pair_distances(query[None], support, torch.zeros_like(index), index)
    order = torch.sort(distance, stable=True).indices  # stable: ties stay in index order
    return distance[order], index[order]


def _lexicographic(rows: Tensor, distance: Tensor, index: Tensor) -> Tensor:
    """The order by (row, distance, index), by stable sorts from the last key to the first."""
    order = torch.argsort(index, stable=True)
    order = order[torch.argsort(distance[order], stable=True)]
    return order[torch.argsort(rows[order], stable=True)]


def _exponent_of_root(squared: float) -> int:
    """The smallest e with sqrt(squared) <= 2^e, kept where 2^-e is a float32."""
    return min(max(math.frexp(math.sqrt(squared))[1], -100), 140)
