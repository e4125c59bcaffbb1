"""Exact matching of exemplars against a support (Eq. 4), without a sort and without a cap on q.

Support points are ordered by (Euclidean distance in float64, support index). A *match* for a query of predicted class c
is a support point whose prediction and label are both c. With (B, i_B) the first non-match in that order,

    q = #{matches s : (distance_s, s) < (B, i_B)}

so one pass over the non-matches finds the boundary and one over the matches counts those before it. Both read the same
block of products, computed once: queries x support, in tiles that are read while they are in cache.

A support may consist of parts. Then the first pass goes over all of them, so that the boundary is final,
before the second does; ``PartSearch`` has the two.

Exactness. float32 products bound each squared distance from below and above (``_bounds``); whatever the bounds leave
open is decided by the distance in float64 (``_tiles``). The answer therefore depends only on
query and support: not on block size, threads, device or the rest of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchsdm.arithmetic import empty_float32, has_coarse_products, has_loops, whole_lines
from torchsdm.errors import InvalidInputError
from torchsdm.matching import _coarse as coarse
from torchsdm.matching._bounds import Part
from torchsdm.matching._tiles import CHUNK, NO_LIMIT, Engine, Found, KernelKind, Rows, SupportColumns, Tile

DEFAULT_BLOCK_SIZE = 2048
_KEPT_BLOCKS = 32  # blocks of products that may be kept at once: 512 MB for the default block size
_FIRST_ROWS = 128  # queries that are enough to see whether coarse bounds leave too much open
_OPEN_SHARE = 64  # coarse bounds may leave one column in so many open: to measure more takes longer than to multiply
_SMALLEST_LIMIT = 16
_FEWEST_ROWS = 64  # products of fewer rows are so slow that computing them twice for more rows is faster
_FEWEST_FILTERS = 32  # with fewer, products take no longer than what is done with them
LARGEST_SHARE_LEFT = 0.25  # rows that coarse bounds may leave to finer ones, before they are given up
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

    def overwrite(self, rows: Tensor, better: Match) -> None:
        """Put in what was found for some rows, which coarse bounds left open, without them."""
        for values, these in zip(vars(self).values(), vars(better).values(), strict=True):
            values[rows] = these


class Products:
    """Room for products of queries with parts of a support; those of a block of queries are kept if memory allows."""

    def __init__(self, parts: Sequence[Part], n_queries: int, block_size: int, *, coarse: bool = False) -> None:
        self.n_queries, n_support = n_queries, sum(map(len, parts))
        self.n_rows, self.kept = rows_of_products(n_support, n_queries, block_size, coarse=coarse)
        self.width = min(n_support, max(block_size, (4 if self.kept else 1) * block_size**2 // self.n_rows))
        *starts, width = itertools.accumulate((whole_lines(len(part)) for part in parts), initial=0)
        self.offsets = {part.start: start for part, start in zip(parts, starts, strict=True)}  # of kept products
        width = width if self.kept else whole_lines(self.width)
        self.buffer = empty_float32(self.n_rows, width, device=parts[0].points.points.device)

    def row_blocks(self, *, carefully: bool = False) -> Iterator[slice]:
        """The blocks of queries; ``carefully`` begins with a small one."""
        first = min(_FIRST_ROWS, self.n_rows) if carefully and self.n_queries > 8 * _FIRST_ROWS else 0
        if first:
            yield slice(0, first)
        yield from (slice(start, start + self.n_rows) for start in range(first, self.n_queries, self.n_rows))

    def spans(self, part: Part) -> list[tuple[int, int]]:
        """First and last column, within the part, of each of its tiles, which are about equally wide."""
        n_tiles = -(-len(part) // self.width)
        width = min(self.width, whole_lines(-(-len(part) // n_tiles)))
        return [(start, min(start + width, len(part))) for start in range(0, len(part), width)]


def rows_of_products(n_support: int, n_queries: int, block_size: int, *, coarse: bool = False) -> tuple[int, bool]:
    """How many queries are multiplied with a support at once, and whether all their products can be kept.

    Coarse ones take half of the memory: rounded points take some, too.
    """
    n_rows = max(1, min(n_queries, block_size))
    affordable = (_KEPT_BLOCKS // 2 if coarse else _KEPT_BLOCKS) * block_size**2 // n_support
    kept = affordable >= min(n_rows, _FEWEST_ROWS)
    return min(n_rows, affordable) if kept else n_rows, kept


def multiply_into(out: Tensor, rows: Tensor, columns: Tensor, n_filters: int) -> None:
    """``rows @ columns.T`` (n, m) into ``out``, in float32; the bounds hold for any order of summation.

    Rows and columns in bfloat16 are padded, and have ``n_filters`` numbers.
    """
    if rows.dtype == torch.bfloat16:
        coarse.multiply_into(out, rows, columns, n_filters)
    elif len(rows) == 1:
        torch.mv(columns, rows[0], out=out[0])
    else:
        torch.mm(rows, columns.T, out=out)


def open_limit(rows: Tensor, n_columns: int) -> int:
    """How many columns bounds may leave open in a row; only coarse ones have a limit."""
    return max(_SMALLEST_LIMIT, n_columns // _OPEN_SHARE) if rows.dtype == torch.bfloat16 else NO_LIMIT


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
        predictions: Tensor | None,
        exclude: Tensor | None = None,
    ) -> None:
        self.engine, self.products, self.part = engine, products, part
        self.counts, self.excludes = predictions is not None, exclude is not None
        points, queries = part.points, queries.contiguous()
        bounds = points.coarse if engine.coarse else points.bounds
        self.columns = SupportColumns(points.points, part.start, points.index, part.groups, bounds.lower, bounds.upper)
        side = points.coarse.queries(queries) if engine.coarse else points.bounds.queries(queries, points.centre)
        self.multiplier = side.multiplier
        index = torch.arange(len(queries), device=queries.device)
        nobody = torch.full_like(index, NO_POINT)
        own = nobody if exclude is None else exclude - part.start
        y_hat = (nobody if predictions is None else predictions).to(torch.int32).contiguous()
        self.rows = Rows(queries, index, own, y_hat, side.factor, side.low, side.high)
        self.tiles: list[tuple[Tile, Tensor]] = []

    def find_first(self, found: Found) -> None:
        """Round one: update nearest point and first non-match, and the nearest k points if k are wanted.

        Without predictions, the nearest k points alone.
        """
        for span in self.products.spans(self.part):
            tile = self._tile(*span)
            if self.counts:
                match_lows = self.engine.find_first(tile, self.rows, self.columns, found)
                self.tiles.append((tile, match_lows))
            if found.neighbor_index.shape[1]:
                self.engine.run("find_neighbors", tile, self.rows, self.columns, found)

    def count_matches(self, found: Found) -> None:
        """Round two: count the matches before the first non-match."""
        scale = self.part.points.bounds.scale
        for tile, match_lows in self.tiles:
            if not self.products.kept:
                limit = (found.boundary_distance * scale).square_() * (1 + 2**-22)
                if not bool((match_lows.double() <= limit[:, None]).any()):  # no matches before the boundary
                    continue
                tile = self._tile(tile.start, tile.stop)
            self.engine.run("count_matches", tile, self.rows, self.columns, found, match_lows)

    def _tile(self, start: int, stop: int) -> Tile:
        """The products of the queries with some columns; in bfloat16, with the coarse points."""
        points, rows = self.part.points, self.multiplier
        offset = self.products.offsets[self.part.start] + start if self.products.kept else 0
        block = self.products.buffer[: len(rows)]
        out, n_filters = block[:, offset : offset + stop - start], points.points.shape[1]
        if points.bounds.terms.decide_nothing:
            out.zero_()
        elif self.engine.coarse:
            multiply_into(out, rows, points.coarse.rounded[start:stop], n_filters)
        else:
            multiply_into(out, rows, points.multiplicands(start, stop), n_filters)
        if self.excludes:
            own = self.rows.own
            here = torch.nonzero((own >= start) & (own < stop)).squeeze(1)
            out[here, own[here] - start] = -torch.inf  # so that the bounds of the query itself are infinite
        return Tile(block, offset, start, stop, False, CHUNK, open_limit(rows, stop - start), points.bounds.scale)


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
        self.engine = engine_for(queries, parts, kernels)
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
    return _FEWEST_ROWS if not kept and rows_of_products(n_points, _FEWEST_ROWS, DEFAULT_BLOCK_SIZE)[1] else n_rows


def match(
    queries: Tensor,
    predictions: Tensor | None,
    parts: Sequence[Part],
    exclude: Tensor | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    *,
    k: int = 0,
    kernels: KernelKind | None = None,
) -> Match:
    """Similarity, nearest distance and nearest index of each query (N, M), and its k nearest support points.

    Without predictions (N,), the k nearest support points alone. ``exclude`` (N,) has for each query the support index
    that is the query itself, or -1. Memory is at most 128 block_size^2 bytes, for any number of points; results depend
    neither on it nor on the kernels, which are the fastest if none are named.
    """
    engine, found = engine_for(queries, parts, kernels), Found.nothing(len(queries), k, queries.device)
    products = Products(parts, len(queries), block_size, coarse=engine.coarse)
    with ExitStack() as context:
        context.enter_context(engine)
        for block in products.row_blocks(carefully=engine.coarse):
            batch, state = _some(block, queries, predictions, exclude), found.of_rows(block)
            searches = [PartSearch(engine, products, part, *batch) for part in parts]
            for one in searches:
                one.find_first(state)
            for one in searches:  # the boundaries are final
                one.count_matches(state)
            if engine.coarse and int(state.left.sum()) > LARGEST_SHARE_LEFT * len(state.left):
                engine = context.enter_context(Engine(engine.device, "compiled"))  # for the other blocks
    result, left = Match.of(found), torch.nonzero(found.left).squeeze(1)
    if len(left):
        some, y_hat, own = _some(left, queries, predictions, exclude)
        result.overwrite(left, match(some, y_hat, parts, own, block_size, k=k, kernels="compiled"))
    return result


def engine_for(queries: Tensor, parts: Sequence[Part], kernels: KernelKind | None) -> Engine:
    """The kernels for a search, as wanted or else as they are fastest."""
    points = [part.points for part in parts]
    if kernels is None and (queries.device.type != "cpu" or not has_loops()):
        kernels = "torch"
    elif kernels is None:
        pays = queries.shape[1] >= _FEWEST_FILTERS and has_coarse_products()
        pays = pays and all(coarse.fits(one.points.shape) and not one.bounds.terms.decide_nothing for one in points)
        pays = pays and all(one.is_worth_rounding(len(queries)) for one in points)
        kernels = "coarse" if pays else "compiled"
    return Engine(queries.device, kernels)


def _some(rows: slice | Tensor, *values: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if value is None else value[rows] for value in values)
