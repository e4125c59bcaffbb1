"""Exact matching of exemplars against a support (Eq. 4), without a sort and without a cap on q.

Support points are ordered by (Euclidean distance in float64, support index). A *match* for a query of predicted class c
is a support point whose prediction and label are both c. With (B, i_B) the first non-match in that order,

    q = #{matches s : (distance_s, s) < (B, i_B)}

so one look over the non-matches finds the boundary and one over the matches counts what lies before it. Both look at
the same block of products, computed once: queries x support, in tiles that are read while they are in cache.

``match_self`` is the same for every support point against all the others, with half of the products: p_ij = p_ji.

Exactness. float32 products bound each squared distance from below and above (``bounds``); what the bounds leave open is
decided by the distance in float64 (``kernels``, ``tensor_kernels``). The answer therefore depends on nothing but the
two exemplars: not on block size, threads, device or the rest of the batch. ``match_plain`` and ``neighbors_plain`` say
the same in a few lines, by sorting, and are what the fast path is tested against.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchsdm.matching._bounds import CentredPoints
from torchsdm.matching._tiles import CHUNK, CHUNK_DOWN, Columns, Found, Rows, Tile
from torchsdm.numerics import empty_float32, full_float32_products

DEFAULT_BLOCK_SIZE = 2048
NO_POINT = -1  #: the nearest index where there is no support point at all; its distance is infinite
_KEPT_BLOCKS = 32  # blocks of products that may be kept at once: 512 MB for the default block size
_FEWEST_ROWS = 64  # products of fewer rows are so slow that computing them twice for more rows is faster
_SHARED_ENTRIES = 1 << 16  # tiles below this are not worth waking threads for


@dataclass(frozen=True)
class Match:
    """What matching knows of each query; all tensors are (N,), those of neighbours (N, k)."""

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
        Memory is at most 128 block_size^2 bytes, whatever S; no answer depends on it.
    k : int
        How many neighbours to give besides.
    compiled : bool, optional
        Whether to use the compiled kernels rather than torch operations; by default on the CPU.
    """
    found = _nothing(len(queries), k, queries.device)
    own = torch.full_like(predictions, NO_POINT) if exclude is None else exclude
    with _Engine(_columns(support, groups), compiled) as engine:
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
    part of them are stretches of what follows. A first pass over the stretches with non-matches finds the boundaries, a
    second over those with matches counts.
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
    with _Engine(columns, compiled=True) as engine:
        rows, native = engine.native(rows), engine.native(found)
        products = _MutualProducts(scaled, bounds.scale, block_size)
        parts = _parts(columns.groups, products.n_rows)
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
    with _Engine(_columns(support, groups), compiled) as engine:
        products = Products(support, len(queries), block_size)
        for part in products.row_blocks():
            multiplier, rows = _rows(support, queries[part], nobody[part], nobody[part])
            rows, native = engine.native(rows), engine.native(_found_of(found, part))
            for span in products.spans():
                engine.find_neighbors(products.tile(multiplier, None, span), rows, native)
    result = _result(found)
    return result.neighbor_distances, result.neighbor_indices


def match_groups(labels: Tensor, predictions: Tensor) -> Tensor:
    """The class that a support point can vouch for: its label where correctly predicted, else -1."""
    return torch.where(labels == predictions, labels, -1)


class _Engine:
    """Runs the kernels over tiles: the compiled ones with the rows shared out to threads, or torch operations.

    Rows and found values are given to it as ``native`` makes them. Within its context products are full float32.
    """

    def __init__(self, columns: Columns, compiled: bool | None) -> None:
        self.device = columns.points.device
        self.compiled = self.device.type == "cpu" if compiled is None else compiled
        if self.compiled:
            from torchsdm.matching import _kernels as kernels
        else:
            from torchsdm.matching import _tensor_kernels as kernels  # type: ignore[no-redef]
        self.kernels: Any = kernels
        self.columns = self.native(columns)
        self.n_threads = torch.get_num_threads() if self.compiled else 1

    def __enter__(self) -> _Engine:
        self.context = ExitStack()
        self.context.enter_context(full_float32_products(self.device))
        self.pool: ThreadPoolExecutor | None = None
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def native(self, values: Any) -> Any:
        """A tuple of tensors with arrays as the kernels take them."""
        if not self.compiled:
            return values
        return type(values)(*(value.numpy() if isinstance(value, Tensor) else value for value in values))

    def find_first(self, tile: Tile, rows: Rows, found: Found) -> Tensor:
        """Update nearest point and first non-match; gives the smallest bounds of matches, for ``count_matches``."""
        n_chunks = -(-(tile.stop - tile.start) // tile.chunk)
        match_lows = torch.empty(len(rows.own), n_chunks, dtype=torch.float32, device=self.device)
        self._run(self.kernels.find_first, tile, rows, found, match_lows)
        return match_lows

    def count_matches(self, tile: Tile, rows: Rows, found: Found, match_lows: Tensor) -> None:
        """Count the matches before the boundaries, which must be final."""
        self._run(self.kernels.count_matches, tile, rows, found, match_lows)

    def find_neighbors(self, tile: Tile, rows: Rows, found: Found) -> None:
        """Update the nearest k points."""
        self._run(self.kernels.find_neighbors, tile, rows, found)

    def _run(self, kernel: Any, tile: Tile, rows: Rows, found: Found, *lows: Tensor) -> None:
        """Call the kernel for all rows, in one piece or shared out."""
        n = len(rows.own)
        more = (values.numpy() for values in lows) if self.compiled else lows
        arguments = self.native(tile), rows, self.columns, found, *more
        if self.n_threads == 1 or n * (tile.stop - tile.start) < _SHARED_ENTRIES:
            kernel(*arguments, 0, n)
            return
        share = -(-n // (4 * self.n_threads))  # smaller than a thread's part: whoever is free takes the next
        shares = iter(range(0, n, share))

        def work() -> None:
            for first in shares:
                kernel(*arguments, first, min(first + share, n))

        if self.pool is None:
            self.pool = self.context.enter_context(
                ThreadPoolExecutor(self.n_threads - 1, initializer=_quieten_idle_threads)
            )
        helpers = [self.pool.submit(work) for _ in range(self.n_threads - 1)]
        work()
        for helper in helpers:
            helper.result()


class Products:
    """Products of queries with the support, in tiles; the tiles of a block of rows are kept where memory allows."""

    def __init__(self, support: CentredPoints, n_queries: int, block_size: int) -> None:
        self.support, self.bounds, self.n_queries = support, support.bounds, n_queries
        n_support = len(support.points)
        self.n_rows = max(1, min(n_queries, block_size))
        affordable = _KEPT_BLOCKS * block_size**2 // n_support
        self.kept = affordable >= min(self.n_rows, _FEWEST_ROWS)
        if self.kept:
            self.n_rows = min(self.n_rows, affordable)
        self.width = min(n_support, max(block_size, (4 if self.kept else 1) * block_size**2 // self.n_rows))
        width = n_support if self.kept else self.width
        self.buffer = empty_float32(self.n_rows, width, device=support.points.device)

    def row_blocks(self) -> Iterator[slice]:
        """The blocks of queries."""
        return (slice(start, start + self.n_rows) for start in range(0, self.n_queries, self.n_rows))

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last column of each tile."""
        n = len(self.support.points)
        return ((start, min(start + self.width, n)) for start in range(0, n, self.width))

    def tile(self, multiplier: Tensor, own: Tensor | None, span: tuple[int, int], *, again: bool = False) -> Tile:
        """The products of a block of queries with a span of the support; ``again`` takes them from the last time."""
        start, stop = span
        offset = start if self.kept else 0
        block = self.buffer[: len(multiplier)]
        tile = Tile(block, offset, start, stop, False, CHUNK, self.bounds.scale)
        if again and self.kept:
            return tile
        out = block[:, offset : offset + stop - start]
        if self.bounds.decide_nothing:
            out.zero_()
        else:
            _multiply(multiplier, self.support.multiplicands(start, stop), out)
        if own is not None:
            here = torch.nonzero((own >= start) & (own < stop)).squeeze(1)
            out[here, own[here] - start] = -torch.inf  # so that the bounds of the query itself are infinite
        return tile


class _MutualProducts:
    """Products of support points, sorted by group, with later ones."""

    def __init__(self, scaled: Tensor, scale: float, block_size: int) -> None:
        self.scaled, self.scale = scaled, scale
        self.n_rows = max(1, 2 * block_size // 3)
        self.width = max(self.n_rows, 4 * block_size**2 // self.n_rows)
        n = min(self.n_rows, len(scaled)) * min(self.width, len(scaled))
        self.buffer = empty_float32(n, device=scaled.device)

    def fits(self, start: int, stop: int) -> bool:
        """Whether a stretch is one tile."""
        return stop - start <= self.width

    def both_ways(self, part: _Part, start: int, stop: int) -> Iterator[tuple[slice, Tile]]:
        """Tiles of a part with the points from ``start`` to ``stop``, none of them before the part; with their rows.

        First with the part as the rows, then with the later points as the rows.
        """
        for first in range(start, stop, self.width):
            last = min(first + self.width, stop)
            shape = part.stop - part.start, last - first
            products = self.buffer[: shape[0] * shape[1]].view(shape)
            _multiply(self.scaled[part.start : part.stop], self.scaled[first:last], products)
            if first == part.start:
                products.fill_diagonal_(-torch.inf)  # so that the bounds of a point with itself are infinite
            yield slice(part.start, part.stop), Tile(products, 0, first, last, False, CHUNK, self.scale)
            later = max(first, part.stop)
            if later < last:
                tile = Tile(products, later - first, part.start, part.stop, True, CHUNK_DOWN, self.scale)
                yield slice(later, last), tile


@dataclass(frozen=True)
class _Part:
    """Consecutive points of a support that is sorted by group: a piece of one group, or several whole groups."""

    start: int
    stop: int
    is_one_class: bool
    is_unsure: bool
    """Whether these are the points that vouch for nothing; anything may be a match for one of them."""
    stop_of_matches: int
    """Up to where points that follow can be matches."""


def _parts(groups: Tensor, n_rows: int) -> list[_Part]:
    """Cut sorted groups (S,) into parts of at most so many points."""
    parts: list[_Part] = []
    start = 0
    for group, size in zip(*(t.tolist() for t in torch.unique_consecutive(groups, return_counts=True)), strict=True):
        stop = start + size
        last = parts[-1] if parts else None
        if last is not None and not last.is_unsure and stop - last.start <= n_rows:
            parts[-1] = _Part(last.start, stop, False, False, stop)
        else:
            n_pieces = -(-size // n_rows)
            cuts = [start + size * piece // n_pieces for piece in range(n_pieces + 1)]
            parts += [_Part(*cut, group >= 0, group < 0, stop) for cut in itertools.pairwise(cuts)]
        start = stop
    return parts


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
    """What to multiply with the support, and the rest of what is known of a block of queries."""
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
    """Whether a tile with these bounds may hold matches before the boundary."""
    limit = (found.boundary_distance * scale).square_() * (1 + 2**-22)
    return bool((match_lows.double() <= limit[:, None]).any())


def _quieten_idle_threads() -> None:
    """Keep the threads of torch's last product from spinning on the cores that the kernels need.

    GNU OpenMP's idle threads spin for some 10 ms, but hardly at all while it manages more threads than there are cores
    (see GOMP_SPINCOUNT in its manual). A parallel operation in this thread gives it a team of its own, so there are.
    """
    torch.zeros(1 << 17).add_(1.0)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a @ b.T into out."""
    if len(a) == 1:
        torch.mv(b, a[0], out=out[0])
    else:
        torch.mm(a, b.T, out=out)
