"""What the matching kernels work on: rows and columns of a search, tiles of products, and the results so far.

``arithmetic/tiles.c``, ``bounds.c`` and ``distance.h`` have structures with the same fields, which are mirrored below.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
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


class SupportColumns(NamedTuple):
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
    """What is known about each row so far; points are ordered by (distance, support index).

    Where no point was found, the distance is infinite and the index larger than any.
    """

    nearest_distance: Values  # (n,) float64
    nearest_index: Values  # (n,) int64
    boundary_distance: Values  # (n,) float64: the first non-match
    boundary_index: Values  # (n,) int64
    count: Values  # (n,) int64: matches before the boundary
    left: Values  # (n,) uint8: whether the row is left to tighter bounds, and the rest of it means nothing
    neighbor_distance: Values  # (n, k) float64, nearest first
    neighbor_index: Values  # (n, k) int64

    @classmethod
    def nothing(cls, n: int, k: int, device: torch.device) -> Found:
        """Nothing found yet for n rows."""

        def far(*shape: int) -> Tensor:
            return torch.full(shape, torch.inf, dtype=torch.float64, device=device)

        def last(*shape: int) -> Tensor:
            return torch.full(shape, torch.iinfo(torch.int64).max, device=device)

        count, left = torch.zeros(n, dtype=torch.int64, device=device), torch.zeros(n, dtype=torch.uint8, device=device)
        return cls(far(n), last(n), far(n), last(n), count, left, far(n, k), last(n, k))

    @classmethod
    def merged(cls, found: Sequence[Found]) -> Found:
        """What comes first among all that was found, each time among other points; nothing is counted yet."""
        merged = cls.nothing(len(found[0].left), 0, found[0].left.device)._asdict()
        for kind, join in (("nearest", torch.stack), ("boundary", torch.stack), ("neighbor", torch.cat)):
            names = f"{kind}_distance", f"{kind}_index"
            distances, indices = (join([getattr(one, name) for one in found], dim=1) for name in names)  # (n, .)
            order = torch.argsort(indices, dim=1, stable=True)
            order = order.gather(1, torch.argsort(distances.gather(1, order), dim=1, stable=True))
            for name, values in zip(names, (distances, indices), strict=True):
                shape = getattr(found[0], name).shape
                first = order[:, : shape[1] if len(shape) == 2 else 1]
                merged[name] = values.gather(1, first).reshape(shape)
        return cls(**merged)

    def of_rows(self, rows: slice) -> Found:
        """The same for some of the rows, to be updated in place."""
        return Found(*(values[rows] for values in self))


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


# --- The same in C ---------------------------------------------------------------------------------------------------


def _fields(of: Any, default: Any, **others: Any) -> list[tuple[str, Any]]:
    return [(name, others.get(name, default)) for name in of._fields]


class _Points(Structure):
    _fields_ = [("values", c_void_p), ("width", c_int64), ("is_double", c_int64)]

    @classmethod
    def of(cls, points: Tensor) -> _Points:
        return cls(points.data_ptr(), points.shape[1], points.dtype == torch.float64)


class _Tile(Structure):
    _fields_ = [
        ("products", c_void_p),
        *((name, c_int64) for name in ("stride", "offset", "start", "stop", "transposed", "chunk", "limit")),
        ("scale", c_double),
    ]


class _Rows(Structure):
    _fields_ = _fields(Rows, c_void_p, points=_Points)


class _Columns(Structure):
    _fields_ = _fields(SupportColumns, c_void_p, points=_Points, start=c_int64)


class _Found(Structure):
    _fields_ = [*_fields(Found, c_void_p), ("k", c_int64)]


class _BoundTerms(Structure):
    _fields_ = _fields(BoundTerms, c_double, exponent=c_int64, decide_nothing=c_int64)


class _CoarseTerms(Structure):
    _fields_ = _fields(CoarseTerms, c_double, terms=_BoundTerms)


def points_in_c(points: Tensor) -> Any:
    """Points (n, M) as the C takes them. Here and below, the tensors must outlive the call."""
    return byref(_Points.of(points))


def terms_in_c(terms: BoundTerms | CoarseTerms) -> Any:
    """The terms of the bounds as the C takes them."""
    if isinstance(terms, BoundTerms):
        return byref(_BoundTerms(*terms))
    return byref(_CoarseTerms(_BoundTerms(*terms.terms), *terms[1:]))


def work_in_c(tile: Tile, rows: Rows, columns: SupportColumns, found: Found) -> list[Any]:
    """What a kernel works on as the C takes it."""
    products = _Tile(tile.products.data_ptr(), tile.products.stride(0), *tile[1:])
    queries = _Rows(_Points.of(rows.points), *(one.data_ptr() for one in rows[1:]))
    points = _Columns(_Points.of(columns.points), columns.start, *(one.data_ptr() for one in columns[2:]))
    k = found.neighbor_index.shape[1]
    return [byref(one) for one in (products, queries, points, _Found(*map(Tensor.data_ptr, found), k))]
