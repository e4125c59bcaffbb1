"""Every support point against all the others, the training pass, with half of the products: p_ij = p_ji.

The answers are those of ``search``, with the same bounds and kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsdm.arithmetic import empty_float32, whole_lines
from torchsdm.matching._bounds import Part, joined
from torchsdm.matching._tiles import CHUNK, CHUNK_DOWN, Found, KernelKind, Rows, SupportColumns, Tile
from torchsdm.matching.search import (
    DEFAULT_BLOCK_SIZE,
    LARGEST_SHARE_LEFT,
    Match,
    engine_for,
    match,
    multiply_into,
    open_limit,
)


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
    engine = engine_for(support.points, [whole], kernels)
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
                mine, state = rows.of_rows(some), found.of_rows(some)
                match_lows = engine.find_first(tile, mine, columns, state)
                if piece.is_unsure and not tile.transposed and products.fits(piece.start, n):  # these rows are done
                    engine.run("count_matches", tile, mine, columns, state, match_lows)
            if int(found.left.sum()) > LARGEST_SHARE_LEFT * n:
                return match_self(parts, block_size, kernels="compiled")
        for piece in pieces:
            start, stop = (piece.stop, n) if piece.is_unsure else (piece.start, piece.stop_of_matches)
            if piece.is_unsure and products.fits(piece.start, n):
                continue
            for some, tile in products.both_ways(piece, start, stop):
                mine, state = rows.of_rows(some), found.of_rows(some)
                match_lows = engine.find_first(tile, mine, columns, state)
                engine.run("count_matches", tile, mine, columns, state, match_lows)
    in_support_order = Found.nothing(n, 0, order.device)
    for values, by_group in zip(in_support_order, found, strict=True):
        values[order] = by_group
    result, left = Match.of(in_support_order), torch.nonzero(in_support_order.left).squeeze(1)
    if len(left):
        again = match(support.points[left], whole.predictions[left], [whole], left, block_size, kernels="compiled")
        result.overwrite(left, again)
    return result


class MutualProducts:
    """Products of support points, sorted by group, with later ones; the points are centred and scaled (S, .).

    Those in bfloat16 have ``n_filters`` numbers each and coarse bounds.
    """

    def __init__(self, scaled: Tensor, n_filters: int, scale: float, block_size: int) -> None:
        self.scaled, self.n_filters, self.scale = scaled, n_filters, scale
        self.n_rows = max(1, 2 * block_size // 3)
        self.width = max(self.n_rows, 4 * block_size**2 // self.n_rows)
        n = min(self.n_rows, len(scaled)) * whole_lines(min(self.width, len(scaled)))
        self.buffer = empty_float32(n, device=scaled.device)

    def fits(self, start: int, stop: int) -> bool:
        """Whether a stretch fits in one tile."""
        return stop - start <= self.width

    def both_ways(self, piece: Piece, start: int, stop: int) -> Iterator[tuple[slice, Tile]]:
        """Tiles of a piece with the points from ``start`` to ``stop``, none of them before the piece; with their rows.

        First with the piece as the rows, then with the later points as the rows.
        """
        for first in range(start, stop, self.width):
            last = min(first + self.width, stop)
            shape = piece.stop - piece.start, whole_lines(last - first)
            products = self.buffer[: shape[0] * shape[1]].view(shape)
            out = products[:, : last - first]
            rows, columns = self.scaled[piece.start : piece.stop], self.scaled[first:last]
            multiply_into(out, rows, columns, self.n_filters)
            if first == piece.start:
                out.fill_diagonal_(-torch.inf)  # so that the bounds of a point with itself are infinite
            limit = open_limit(rows, last - first)
            yield slice(piece.start, piece.stop), Tile(products, 0, first, last, False, CHUNK, limit, self.scale)
            later = max(first, piece.stop)
            if later < last:
                limit = open_limit(rows, piece.stop - piece.start)
                tile = Tile(products, later - first, piece.start, piece.stop, True, CHUNK_DOWN, limit, self.scale)
                yield slice(later, last), tile


@dataclass(frozen=True)
class Piece:
    """Consecutive points of a support that is sorted by group: a piece of one group, or several whole groups."""

    start: int
    stop: int
    is_one_class: bool
    is_unsure: bool  # whether these are the points that vouch for nothing; anything may be a match for one of them
    stop_of_matches: int  # where the following points can no longer be matches


def pieces_of(groups: Tensor, n_rows: int) -> list[Piece]:
    """Cut sorted groups (S,) into pieces of at most ``n_rows`` points."""
    pieces: list[Piece] = []
    start = 0
    for group, size in zip(*(t.tolist() for t in torch.unique_consecutive(groups, return_counts=True)), strict=True):
        stop = start + size
        last = pieces[-1] if pieces else None
        if last is not None and not last.is_unsure and stop - last.start <= n_rows:
            pieces[-1] = Piece(last.start, stop, False, False, stop)
        else:
            n_pieces = -(-size // n_rows)
            cuts = [start + size * piece // n_pieces for piece in range(n_pieces + 1)]
            pieces += [Piece(*cut, group >= 0, group < 0, stop) for cut in itertools.pairwise(cuts)]
        start = stop
    return pieces
