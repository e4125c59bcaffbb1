"""What the matching kernels work on: rows and columns of a search, tiles of products, and the results so far.

``arithmetic/tiles.c`` has structures with the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

Values = Any  # a tensor; 'index' and 'count' are also methods of every tuple
CHUNK = 256  #: columns of a tile that are scanned together
CHUNK_DOWN = 64  #: the same for transposed tiles, which are slower to scan
NO_LIMIT = 2**62  #: on the distances that may be measured for a row
SMALLEST_QUERY, LARGEST_QUERY = 60, 20  #: exponents below and above the typical norm that float32 is trusted with


class BoundTerms(NamedTuple):
    """The numbers that the rows' side of the bounds depends on; see ``_bounds``."""

    exponent: int  # sigma = 2^-exponent
    cross: float  # what x'.c is multiplied by: 2, or 0 if the support is centred too
    row_error: float
    underflow: float
    decide_nothing: bool


class CoarseTerms(NamedTuple):
    """The same for the coarse bounds; see ``_coarse``."""

    terms: BoundTerms
    ratio: float  # r
    rounding: float  # e
    product_error: float  # gamma
    sum_error: float  # eta


@dataclass(frozen=True)
class RowBounds:
    """The rows' side of bounds: what to multiply with the columns, and the terms of the bounds, in float32."""

    multiplier: Tensor  # (n, M) float32, or (n, .) bfloat16, padded
    factor: Tensor  # (n,)
    low: Tensor  # (n,)
    high: Tensor  # (n,)


class Columns(NamedTuple):
    """The points of a part of the support, in the order of the columns."""

    points: Values  # (S, M), in support order
    start: int  # the support index of the first of the points
    index: Values  # (S,) int64: the position of each column's point in points
    groups: Values  # (S,) int32: the class that the point can vouch for, or -1
    lower: Values  # (S,) float32
    upper: Values  # (S,) float32


class Rows(NamedTuple):
    """The queries of a tile, in the order of its rows."""

    points: Values  # (., M)
    index: Values  # (n,) int64: the position of each row's query in points
    own: Values  # (n,) int64: the column that is the query itself; none of them if there is no such column
    predictions: Values  # (n,) int32
    factor: Values  # (n,) float32
    low: Values  # (n,) float32
    high: Values  # (n,) float32


class Found(NamedTuple):
    """What is known about each row so far; points are ordered by (distance, support index)."""

    nearest_distance: Values  # (n,) float64
    nearest_index: Values  # (n,) int64
    boundary_distance: Values  # (n,) float64: the first non-match
    boundary_index: Values  # (n,) int64
    count: Values  # (n,) int64: matches before the boundary
    left: Values  # (n,) uint8: whether the row is left to tighter bounds, and the rest of it means nothing
    neighbor_distance: Values  # (n, k) float64, nearest first
    neighbor_index: Values  # (n, k) int64


class Tile(NamedTuple):
    """Products of all rows with the columns ``start`` to ``stop``.

    They start at ``offset`` in the rows of ``products``; if ``transposed``, the rows of the tile are the columns of
    ``products``, starting at ``offset``.
    """

    products: Values  # (n, .) float32, or (stop - start, n)
    offset: int
    start: int
    stop: int
    transposed: bool
    chunk: int  # columns that are scanned together
    limit: int  # distances that may be measured for a row; one that needs more is left to tighter bounds
    scale: float  # multiplies a distance before it is compared with the bounds


class Kernels(Protocol):
    """What matching does with a tile; ``_kernels`` and ``_tensor_kernels`` give the same answers bit for bit.

    Each function touches only the rows ``begin`` to ``end`` or, in torch operations, all of them. The first argument is
    what ``Arguments`` makes of tile, rows, columns and found values.
    """

    Arguments: Any

    def find_first(self, arguments: Any, match_lows: Tensor, begin: int, end: int) -> None:
        """Update the nearest point and the first non-match of each row with a tile."""

    def count_matches(self, arguments: Any, match_lows: Tensor, begin: int, end: int) -> None:
        """Add to each row's count the matches of a tile before the row's boundary, which must be final."""

    def find_neighbors(self, arguments: Any, begin: int, end: int) -> None:
        """Update the k nearest points of each row with a tile."""
