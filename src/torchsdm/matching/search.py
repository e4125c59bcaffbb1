"""Exact matching of exemplars against a support (Eq. 4), without a sort and without a cap on q.

Support points are ordered by (Euclidean distance in float64, support index). A *match* for a query of predicted class c
is a support point whose prediction and label are both c. With (B, i_B) the first non-match in that order,

    q = #{matches s : (distance_s, s) < (B, i_B)}

so one pass over the non-matches finds the boundary and one over the matches counts those before it. Both read the same
block of products, computed once: queries x support, in tiles that are read while they are in cache.

``match_self`` is the same for every support point against all the others, with half of the products: p_ij = p_ji.

Exactness. float32 products bound each squared distance from below and above (``_bounds``); whatever the bounds leave
open is decided by the distance in float64 (``_kernels``, ``_tensor_kernels``). The answer therefore depends only on
query and support: not on block size, threads, device or the rest of the batch. ``plain`` does the same in a few lines,
by sorting; the fast path is tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchsdm.matching._bounds import CentredPoints
from torchsdm.matching._engine import Engine
from torchsdm.matching._products import MutualProducts, Products, parts_of
from torchsdm.matching._tiles import Columns, Found, Rows

DEFAULT_BLOCK_SIZE = 2048
NO_POINT = -1  #: the nearest index if there is no support point; its distance is infinite


@dataclass(frozen=True)
class Match:
    """What matching finds for each query; all tensors are (N,), those of neighbours (N, k)."""

    similarity: Tensor
    """q, int64: consecutive nearest support points that are correct and predicted like the query."""
    nearest_distance: Tensor
    """Euclidean distance to the nearest support point, float64; infinite for an empty support."""
    nearest_index: Tensor
    """Its support index, int64; -1 for an empty support."""
    neighbor_distances: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.float64))
    """Distances to the k nearest support points, nearest first; empty unless asked for."""
    neighbor_indices: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    """Their support indices."""


def match(
    queries: Tensor,
    predictions: Tensor,
    support: CentredPoints,
    groups: Tensor,
    exclude: Tensor | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    *,
    k: int = 0,
    compiled: bool | None = None,
) -> Match:
    """Similarity, nearest distance and nearest index of each query, and its k nearest support points.

    Parameters
    ----------
    queries : (N, M), predictions : (N,)
    support : the S support points
    groups : (S,)
        The class of a correctly predicted support point, -1 for all others (see ``match_groups``).
    exclude : (N,), optional
        For each query the support index that is the query itself, or -1.
    block_size : int
        Memory is at most 128 block_size^2 bytes, for any S; results do not depend on it.
    k : int
        How many neighbours to return as well.
    compiled : bool, optional
        Whether to use the compiled kernels rather than torch operations; by default on the CPU.
    """
    found = _nothing(len(queries), k, queries.device)
    own = torch.full_like(predictions, NO_POINT) if exclude is None else exclude
    with Engine(_columns(support, groups), compiled) as engine:
        products = Products(support, len(queries), block_size)
        for part in products.row_blocks():
            multiplier, rows = _rows(support, queries[part], predictions[part], own[part])
            mask = None if exclude is None else rows.own
            state = _found_of(found, part)
            rows, native = engine.native(rows), engine.native(state)
            lows = []
            for span in products.spans():
                tile = products.tile(multiplier, mask, span)
                lows.append(engine.find_first(tile, rows, native))
                if k:
                    engine.find_neighbors(tile, rows, native)
            for span, match_lows in zip(products.spans(), lows, strict=True):
                if products.kept or _may_hold_matches(match_lows, state, support.bounds.scale):
                    engine.count_matches(products.tile(multiplier, mask, span, again=True), rows, native, match_lows)
    return _result(found)


def match_self(
    support: CentredPoints, predictions: Tensor, groups: Tensor, block_size: int = DEFAULT_BLOCK_SIZE
) -> Match:
    """Every support point against all the others.

    On the CPU each product serves both of its points. Points are sorted by group, so that matches and non-matches of a
    part of them are stretches of the points after it. A first pass over the stretches with non-matches finds the
    boundaries, a second over those with matches counts.
    """
    n = len(support.points)
    if support.points.device.type != "cpu":
        own = torch.arange(n, device=support.points.device)
        return match(support.points, predictions, support, groups, own, block_size)
    order = torch.argsort(groups, stable=True)
    scaled, bounds = support.reordered(order)
    columns = Columns(
        support.points, order, groups[order].to(torch.int32), bounds.lower, bounds.upper, support.summation
    )
    side = bounds.among(scaled, support.squared_norms[order])
    own = torch.arange(n)
    rows = Rows(support.points, order, own, predictions[order].to(torch.int32), side.factor, side.low, side.high)
    found = _nothing(n, 0, order.device)
    with Engine(columns, compiled=True) as engine:
        rows, native = engine.native(rows), engine.native(found)
        products = MutualProducts(scaled, bounds.scale, block_size)
        parts = parts_of(columns.groups, products.n_rows)
        for part in parts:
            start = part.stop_of_matches if part.is_one_class else part.start
            for some, tile in products.both_ways(part, start, n):
                mine, state = _rows_of(rows, some), _found_of(native, some)
                match_lows = engine.find_first(tile, mine, state)
                if part.is_unsure and not tile.transposed and products.fits(part.start, n):  # these rows are done
                    engine.count_matches(tile, mine, state, match_lows)
        for part in parts:
            start, stop = (part.stop, n) if part.is_unsure else (part.start, part.stop_of_matches)
            if part.is_unsure and products.fits(part.start, n):
                continue
            for some, tile in products.both_ways(part, start, stop):
                mine, state = _rows_of(rows, some), _found_of(native, some)
                engine.count_matches(tile, mine, state, engine.find_first(tile, mine, state))
    in_support_order = _nothing(n, 0, order.device)
    for values, by_group in zip(in_support_order, found, strict=True):
        values[order] = by_group
    return _result(in_support_order)


def neighbors(
    queries: Tensor,
    support: CentredPoints,
    k: int,
    block_size: int = DEFAULT_BLOCK_SIZE,
    *,
    compiled: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The k nearest support points of each query: distances (N, k) float64 and indices (N, k), nearest first."""
    nobody = torch.full((len(queries),), NO_POINT, device=queries.device)
    found = _nothing(len(queries), k, queries.device)
    groups = torch.full((len(support.points),), NO_POINT, device=queries.device)
    with Engine(_columns(support, groups), compiled) as engine:
        products = Products(support, len(queries), block_size)
        for part in products.row_blocks():
            multiplier, rows = _rows(support, queries[part], nobody[part], nobody[part])
            rows, native = engine.native(rows), engine.native(_found_of(found, part))
            for span in products.spans():
                engine.find_neighbors(products.tile(multiplier, None, span), rows, native)
    result = _result(found)
    return result.neighbor_distances, result.neighbor_indices


def match_groups(labels: Tensor, predictions: Tensor) -> Tensor:
    """The class that a support point can vouch for: its label if correctly predicted, else -1."""
    return torch.where(labels == predictions, labels, -1)


def _columns(support: CentredPoints, groups: Tensor) -> Columns:
    return Columns(
        support.points,
        support.index,
        groups.to(torch.int32),
        support.bounds.lower,
        support.bounds.upper,
        support.summation,
    )


def _rows(support: CentredPoints, queries: Tensor, predictions: Tensor, own: Tensor) -> tuple[Tensor, Rows]:
    """What to multiply with the support, and everything else about a block of queries."""
    side = support.bounds.queries(queries, support.centre)
    index = torch.arange(len(queries), device=queries.device)
    rows = Rows(queries, index, own, predictions.to(torch.int32), side.factor, side.low, side.high)
    return side.multiplier, rows


def _rows_of(rows: Rows, part: slice) -> Rows:
    return Rows(rows.points, *(values[part] for values in rows[1:]))


def _found_of(found: Found, part: slice) -> Found:
    return Found(*(values[part] for values in found))


def _nothing(n: int, k: int, device: torch.device) -> Found:
    """Nothing found yet: beyond every point in the order (distance, index)."""

    def far(*shape: int) -> Tensor:
        return torch.full(shape, torch.inf, dtype=torch.float64, device=device)

    def last(*shape: int) -> Tensor:
        return torch.full(shape, torch.iinfo(torch.int64).max, device=device)

    count = torch.zeros(n, dtype=torch.int64, device=device)
    return Found(far(n), last(n), far(n), last(n), count, far(n, k), last(n, k))


def _result(found: Found) -> Match:
    for distance, index in (
        (found.nearest_distance, found.nearest_index),
        (found.neighbor_distance, found.neighbor_index),
    ):
        index.masked_fill_(torch.isinf(distance), NO_POINT)
    return Match(
        found.count, found.nearest_distance, found.nearest_index, found.neighbor_distance, found.neighbor_index
    )


def _may_hold_matches(match_lows: Tensor, found: Found, scale: float) -> bool:
    """Whether a tile with these bounds may have matches before the boundary."""
    limit = (found.boundary_distance * scale).square_() * (1 + 2**-22)
    return bool((match_lows.double() <= limit[:, None]).any())
