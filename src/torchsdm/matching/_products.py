"""Products of queries with the support, in tiles that the kernels work on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsdm.arithmetic import empty_float32, whole_lines
from torchsdm.matching import _coarse as coarse
from torchsdm.matching._bounds import Part
from torchsdm.matching._tiles import CHUNK, CHUNK_DOWN, NO_LIMIT, Tile

_KEPT_BLOCKS = 32  # blocks of products that may be kept at once: 512 MB for the default block size
_FIRST_ROWS = 128  # queries that are enough to see whether coarse bounds leave too much open
_OPEN_SHARE = 64  # coarse bounds may leave one column in so many open: to measure more takes longer than to multiply
_SMALLEST_LIMIT = 16
FEWEST_ROWS = 64  #: products of fewer rows are so slow that computing them twice for more rows is faster


class Products:
    """Products of queries with parts of a support, in tiles; the tiles of a block of rows are kept if memory allows."""

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

    def spans(self, part: Part) -> Iterator[tuple[int, int]]:
        """First and last column, within the part, of each of its tiles, which are about equally wide."""
        n_tiles = -(-len(part) // self.width)
        width = min(self.width, whole_lines(-(-len(part) // n_tiles)))
        return ((start, min(start + width, len(part))) for start in range(0, len(part), width))

    def tile(
        self, part: Part, multiplier: Tensor, own: Tensor | None, span: tuple[int, int], *, again: bool = False
    ) -> Tile:
        """The products of a block of queries with a span of a part; ``again`` reuses them if they were kept.

        Multipliers in bfloat16 are multiplied with the coarse points of the part.
        """
        start, stop = span
        offset = self.offsets[part.start] + start if self.kept else 0
        block, bounds = self.buffer[: len(multiplier)], part.points.bounds
        tile = Tile(block, offset, start, stop, False, CHUNK, _limit(multiplier, stop - start), bounds.scale)
        if again and self.kept:
            return tile
        out = block[:, offset : offset + stop - start]
        if bounds.decide_nothing:
            out.zero_()
        elif multiplier.dtype == torch.bfloat16:
            _multiply_into(out, multiplier, part.points.coarse.rounded[start:stop], bounds.n_filters)
        else:
            _multiply_into(out, multiplier, part.points.multiplicands(start, stop), bounds.n_filters)
        if own is not None:
            here = torch.nonzero((own >= start) & (own < stop)).squeeze(1)
            out[here, own[here] - start] = -torch.inf  # so that the bounds of the query itself are infinite
        return tile


def _multiply_into(out: Tensor, rows: Tensor, columns: Tensor, n_filters: int) -> None:
    """``rows @ columns.T`` (n, m) into ``out``, in float32; the bounds hold for any order of summation.

    Rows and columns in bfloat16 are padded, and have ``n_filters`` numbers.
    """
    if rows.dtype == torch.bfloat16:
        coarse.multiply_into(out, rows, columns, n_filters)
    elif len(rows) == 1:
        torch.mv(columns, rows[0], out=out[0])
    else:
        torch.mm(rows, columns.T, out=out)


def _limit(rows: Tensor, n_columns: int) -> int:
    """How many columns bounds may leave open in a row; only coarse ones have a limit."""
    return max(_SMALLEST_LIMIT, n_columns // _OPEN_SHARE) if rows.dtype == torch.bfloat16 else NO_LIMIT


def rows_of_products(n_support: int, n_queries: int, block_size: int, *, coarse: bool = False) -> tuple[int, bool]:
    """How many queries are multiplied with a support at once, and whether all their products can be kept.

    Coarse ones take half of the memory: rounded points take some, too.
    """
    n_rows = max(1, min(n_queries, block_size))
    affordable = (_KEPT_BLOCKS // 2 if coarse else _KEPT_BLOCKS) * block_size**2 // n_support
    kept = affordable >= min(n_rows, FEWEST_ROWS)
    return min(n_rows, affordable) if kept else n_rows, kept


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
            _multiply_into(out, rows, columns, self.n_filters)
            if first == piece.start:
                out.fill_diagonal_(-torch.inf)  # so that the bounds of a point with itself are infinite
            limit = _limit(rows, last - first)
            yield slice(piece.start, piece.stop), Tile(products, 0, first, last, False, CHUNK, limit, self.scale)
            later = max(first, piece.stop)
            if later < last:
                limit = _limit(rows, piece.stop - piece.start)
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
