"""Exact matching of exemplars against a support (Eq. 4), without a sort and without a cap on q.

Support points are ordered by (Euclidean distance in float64, support index). A *match* for a query of predicted class c
is a support point whose prediction and label are both c. With (B, i_B) the first non-match in that order,

    q = #{matches s : (distance_s, s) < (B, i_B)}

so one pass over the non-matches finds the boundary and one over the matches counts those before it. Both read the same
block of products, computed once: queries x support, in tiles that are read while they are in cache.

A support may consist of parts (``parts``). Then the first pass goes over all of them, so that the boundary is final,
before the second does; ``PartSearch`` has the two.

``match_self`` is the same for every support point against all the others, with half of the products: p_ij = p_ji.

Exactness. float32 products bound each squared distance from below and above (``_bounds``); whatever the bounds leave
open is decided by the distance in float64 (``_tiles``). The answer therefore depends only on
query and support: not on block size, threads, device or the rest of the batch. ``plain`` does the same in a few lines,
by sorting; the fast path is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchsdm.arithmetic import has_loops
from torchsdm.errors import InvalidInputError
from torchsdm.matching._bounds import Part, joined
from torchsdm.matching._coarse import fits, has_coarse_products
from torchsdm.matching._products import FEWEST_ROWS, MutualProducts, Products, pieces_of, rows_of_products
from torchsdm.matching._tiles import Engine, Found, KernelKind, Rows, SupportColumns, Tile

DEFAULT_BLOCK_SIZE = 2048
_FEWEST_FILTERS = 32  # with fewer, products take no longer than what is done with them
_LARGEST_SHARE_LEFT = 0.25  # rows that coarse bounds may leave to finer ones, before they are given up
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

    @classmethod
    def of(cls, found: Found) -> Match:
        """The result of a search; where nothing was found, the index becomes -1, in place."""
        nearest, neighbors = found.nearest_distance, found.neighbor_distance
        for distance, index in ((nearest, found.nearest_index), (neighbors, found.neighbor_index)):
            index.masked_fill_(torch.isinf(distance), NO_POINT)
        return cls(found.count, nearest, found.nearest_index, neighbors, found.neighbor_index)


class PartSearch:
    """A block of queries against one part of a support, in two rounds.

    The first finds the nearest point and the first non-match, the second counts the matches before it. In between,
    ``found`` must have seen the first round of every part. Nothing else passes from part to part: of two findings the
    one that comes first in the order (distance, index) stands, and counts are added up. So parts may also be searched
    apart, each with a ``found`` of its own that is merged after each round.
    """

    def __init__(
        self,
        engine: Engine,
        products: Products,
        part: Part,
        queries: Tensor,
        predictions: Tensor,
        exclude: Tensor | None = None,
    ) -> None:
        self.engine, self.products, self.part = engine, products, part
        self.own = None if exclude is None else exclude - part.start
        points, queries = part.points, queries.contiguous()
        bounds = points.coarse if engine.coarse else points.bounds
        self.columns = SupportColumns(points.points, part.start, points.index, part.groups, bounds.lower, bounds.upper)
        side = points.coarse.queries(queries) if engine.coarse else points.bounds.queries(queries, points.centre)
        self.multiplier = side.multiplier
        index = torch.arange(len(queries), device=queries.device)
        own = torch.full_like(index, NO_POINT) if self.own is None else self.own
        y_hat = predictions.to(torch.int32).contiguous()
        self.rows = Rows(queries, index, own, y_hat, side.factor, side.low, side.high)
        self.match_lows: list[Tensor] = []

    def find_first(self, found: Found) -> None:
        """Round one: update nearest point and first non-match, and the nearest k points if k are wanted."""
        for span in self.products.spans(self.part):
            tile = self._tile(span)
            self.match_lows.append(self.engine.find_first(tile, self.rows, self.columns, found))
            if found.neighbor_index.shape[1]:
                self.engine.find_neighbors(tile, self.rows, self.columns, found)

    def count_matches(self, found: Found) -> None:
        """Round two: count the matches before the first non-match."""
        for span, match_lows in zip(self.products.spans(self.part), self.match_lows, strict=True):
            if self.products.kept or _may_hold_matches(match_lows, found, self.part.points.bounds.scale):
                tile = self._tile(span, again=True)
                self.engine.count_matches(tile, self.rows, self.columns, found, match_lows)

    def find_neighbors(self, found: Found) -> None:
        """Update the nearest k points alone."""
        for span in self.products.spans(self.part):
            self.engine.find_neighbors(self._tile(span), self.rows, self.columns, found)

    def _tile(self, span: tuple[int, int], *, again: bool = False) -> Tile:
        return self.products.tile(self.part, self.multiplier, self.own, span, again=again)


class Search:
    """A batch of queries against some parts of a support, while its other parts are searched elsewhere.

    1. ``find_first`` gives what comes first among these parts; ``Found.merged`` puts together what all parts gave.
    2. ``count_matches`` takes the first non-match among all parts and gives the number of matches here before it. The
       sum over all parts is q.

    The parts need not follow one another. Products are kept for the second round if they fit in 128 block_size^2 bytes;
    a batch has at most ``rows_at_once`` queries.
    """

    def __init__(
        self,
        queries: Tensor,
        predictions: Tensor,
        parts: Sequence[Part],
        exclude: Tensor | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        *,
        k: int = 0,
        kernels: KernelKind | None = None,
    ) -> None:
        self.batch, self.parts, self.block_size = (queries, predictions, exclude), parts, block_size
        self.engine = _engine(queries, parts, kernels)
        products = Products(parts, len(queries), block_size, coarse=self.engine.coarse)
        if len(queries) > products.n_rows:
            raise InvalidInputError(f"'queries' of Search must be at most {products.n_rows}. Got {len(queries)}.")
        self.searches = [PartSearch(self.engine, products, part, queries, predictions, exclude) for part in parts]
        self.found = Found.nothing(len(queries), k, queries.device)

    def find_first(self) -> Found:
        """Round one; at most once."""
        with self.engine:
            for search in self.searches:
                search.find_first(self.found)
        left = torch.nonzero(self.found.left).squeeze(1)
        if len(left):
            finer = self._finer(left, self.found.neighbor_index.shape[1]).find_first()
            for name, better in finer._asdict().items():
                if name != "left":  # the second round leaves these rows to finer bounds, too
                    getattr(self.found, name)[left] = better
        return self.found

    def count_matches(self, boundary_distance: Tensor, boundary_index: Tensor) -> Tensor:
        """Round two: the matches (N,) before the first non-matches."""
        n = torch.zeros_like(self.found.count)
        found = self.found._replace(boundary_distance=boundary_distance, boundary_index=boundary_index, count=n)
        with self.engine:
            for search in self.searches:
                search.count_matches(found)
        left = torch.nonzero(found.left).squeeze(1)
        if len(left):
            finer = self._finer(left)
            finer.find_first()
            n[left] = finer.count_matches(boundary_distance[left], boundary_index[left])
        return n

    def _finer(self, rows: Tensor, k: int = 0) -> Search:
        """The same for some of the queries, without coarse bounds."""
        queries, predictions, exclude = _some(rows, *self.batch)
        return Search(queries, predictions, self.parts, exclude, self.block_size, k=k, kernels="compiled")


def rows_at_once(n_points: int) -> int:
    """How many queries a batch should have if several are under way at once, each searching so many points.

    Their products take a quarter of what one alone may take, but all of it rather than be computed twice.
    """
    small = DEFAULT_BLOCK_SIZE // 2
    n_rows, kept = rows_of_products(n_points, small, small)
    return FEWEST_ROWS if not kept and rows_of_products(n_points, FEWEST_ROWS, DEFAULT_BLOCK_SIZE)[1] else n_rows


def match(
    queries: Tensor,
    predictions: Tensor,
    parts: Sequence[Part],
    exclude: Tensor | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    *,
    k: int = 0,
    kernels: KernelKind | None = None,
) -> Match:
    """Similarity, nearest distance and nearest index of each query, and its k nearest support points.

    Parameters
    ----------
    queries : (N, M), predictions : (N,)
    parts : the S support points, in parts that follow one another
    exclude : (N,), optional
        For each query the support index that is the query itself, or -1.
    block_size : int
        Memory is at most 128 block_size^2 bytes, for any S; results do not depend on it.
    k : int
        How many neighbours to return as well.
    kernels : {"coarse", "compiled", "torch"}, optional
        The compiled kernels, with or without a first filter in bfloat16, or torch operations; by default the fastest.
    """

    def both_rounds(searches: list[PartSearch], found: Found) -> None:
        for one in searches:
            one.find_first(found)
        for one in searches:  # the boundaries are final
            one.count_matches(found)

    return _search_in_blocks(both_rounds, parts, block_size, k, kernels, queries, predictions, exclude)


def match_self(
    parts: Sequence[Part], block_size: int = DEFAULT_BLOCK_SIZE, *, kernels: KernelKind | None = None
) -> Match:
    """Every support point against all the others.

    Where the kernels are compiled, each product serves both of its points. Points are sorted by group, for which parts
    are joined, so that matches and non-matches of a piece of them are stretches of the points after it. A first pass
    over the stretches with non-matches finds the boundaries, a second over those with matches counts.
    """
    whole = joined(parts)
    support, n = whole.points, len(whole)
    own = torch.arange(n, device=support.points.device)
    engine = _engine(support.points, [whole], kernels)
    if not engine.compiled:
        return match(support.points, whole.predictions, [whole], own, block_size, kernels="torch")
    order = torch.argsort(whole.groups, stable=True)
    groups, y_hat = whole.groups[order], whole.predictions[order].to(torch.int32)
    with engine:
        if engine.coarse:
            bounds, side = support.coarse, support.coarse.among(order)
            lower, upper, scaled = bounds.lower[order], bounds.upper[order], side.multiplier
        else:
            scaled, finer = support.reordered(order)
            side, lower, upper = finer.among(scaled, support.squared_norms[order]), finer.lower, finer.upper
        columns = SupportColumns(support.points, 0, order, groups, lower, upper)
        rows = Rows(support.points, order, own, y_hat, side.factor, side.low, side.high)
        found = Found.nothing(n, 0, order.device)
        products = MutualProducts(scaled, support.points.shape[1], support.bounds.scale, block_size)
        pieces = pieces_of(columns.groups, products.n_rows)
        for piece in pieces:
            start = piece.stop_of_matches if piece.is_one_class else piece.start
            for some, tile in products.both_ways(piece, start, n):
                mine, state = _rows_of(rows, some), found.of_rows(some)
                match_lows = engine.find_first(tile, mine, columns, state)
                if piece.is_unsure and not tile.transposed and products.fits(piece.start, n):  # these rows are done
                    engine.count_matches(tile, mine, columns, state, match_lows)
            if int(found.left.sum()) > _LARGEST_SHARE_LEFT * n:
                return match_self(parts, block_size, kernels="compiled")
        for piece in pieces:
            start, stop = (piece.stop, n) if piece.is_unsure else (piece.start, piece.stop_of_matches)
            if piece.is_unsure and products.fits(piece.start, n):
                continue
            for some, tile in products.both_ways(piece, start, stop):
                mine, state = _rows_of(rows, some), found.of_rows(some)
                engine.count_matches(tile, mine, columns, state, engine.find_first(tile, mine, columns, state))
    in_support_order = Found.nothing(n, 0, order.device)
    for values, by_group in zip(in_support_order, found, strict=True):
        values[order] = by_group
    result, left = Match.of(in_support_order), torch.nonzero(in_support_order.left).squeeze(1)
    if len(left):
        again = match(support.points[left], whole.predictions[left], [whole], left, block_size, kernels="compiled")
        _overwrite(result, left, again)
    return result


def neighbors(
    queries: Tensor,
    parts: Sequence[Part],
    k: int,
    block_size: int = DEFAULT_BLOCK_SIZE,
    *,
    kernels: KernelKind | None = None,
) -> tuple[Tensor, Tensor]:
    """The k nearest support points of each query: distances (N, k) float64 and indices (N, k), nearest first."""
    nobody = torch.full((len(queries),), NO_POINT, device=queries.device)

    def neighbors_alone(searches: list[PartSearch], found: Found) -> None:
        for one in searches:
            one.find_neighbors(found)

    found = _search_in_blocks(neighbors_alone, parts, block_size, k, kernels, queries, nobody)
    return found.neighbor_distances, found.neighbor_indices


def _search_in_blocks(
    rounds: Callable[[list[PartSearch], Found], None],
    parts: Sequence[Part],
    block_size: int,
    k: int,
    kernels: KernelKind | None,
    queries: Tensor,
    predictions: Tensor,
    exclude: Tensor | None = None,
) -> Match:
    """Search in blocks of queries; rows that coarse bounds left open are searched again without them.

    If they leave too many open, so are the other blocks.
    """
    engine, found = _engine(queries, parts, kernels), Found.nothing(len(queries), k, queries.device)
    products = Products(parts, len(queries), block_size, coarse=engine.coarse)
    with ExitStack() as context:
        context.enter_context(engine)
        for block in products.row_blocks(carefully=engine.coarse):
            batch, state = _some(block, queries, predictions, exclude), found.of_rows(block)
            rounds([PartSearch(engine, products, part, *batch) for part in parts], state)
            if engine.coarse and int(state.left.sum()) > _LARGEST_SHARE_LEFT * len(state.left):
                engine = context.enter_context(Engine(engine.device, "compiled"))
    result, left = Match.of(found), torch.nonzero(found.left).squeeze(1)
    if len(left):
        batch = _some(left, queries, predictions, exclude)
        _overwrite(result, left, _search_in_blocks(rounds, parts, block_size, k, "compiled", *batch))
    return result


def _engine(queries: Tensor, parts: Sequence[Part], kernels: KernelKind | None) -> Engine:
    """The kernels for a search, as wanted or else as they are fastest."""
    return Engine(queries.device, kernels or _fastest_kernels(queries, parts))


def _fastest_kernels(queries: Tensor, parts: Sequence[Part]) -> KernelKind:
    points = [part.points for part in parts]
    if queries.device.type != "cpu" or not has_loops():
        return "torch"
    if not has_coarse_products() or queries.shape[1] < _FEWEST_FILTERS:
        return "compiled"
    if not all(fits(one.points.shape) and not one.bounds.decide_nothing for one in points):
        return "compiled"
    return "coarse" if all(one.is_worth_rounding(len(queries)) for one in points) else "compiled"


def _some(rows: slice | Tensor, *values: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if value is None else value[rows] for value in values)


def _overwrite(result: Match, rows: Tensor, better: Match) -> None:
    for values, these in zip(vars(result).values(), vars(better).values(), strict=True):
        values[rows] = these


def _rows_of(rows: Rows, part: slice) -> Rows:
    return Rows(rows.points, *(values[part] for values in rows[1:]))


def _may_hold_matches(match_lows: Tensor, found: Found, scale: float) -> bool:
    """Whether a tile with these bounds may have matches before the boundary."""
    limit = (found.boundary_distance * scale).square_() * (1 + 2**-22)
    return bool((match_lows.double() <= limit[:, None]).any())
