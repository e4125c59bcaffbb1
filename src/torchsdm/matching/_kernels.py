"""The compiled kernels of matching (CPU): ``tiles.c``, ``bounds.c`` and ``coarse_products.c`` of ``arithmetic``.

The functions release the interpreter lock and touch only rows ``begin`` to ``end``, so threads can share a tile.
``_tensor_kernels`` does the same in torch operations, for other devices and packages without compiled loops.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_double, c_int64, c_void_p

import torch
from torch import Tensor

from torchsdm.arithmetic import call, library
from torchsdm.matching._tiles import BoundTerms, CoarseTerms, Columns, Found, Rows, Tile


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
    _fields_ = [
        ("points", _Points),
        *((name, c_void_p) for name in ("index", "own", "predictions", "factor", "low", "high")),
    ]


class _Columns(Structure):
    _fields_ = [
        ("points", _Points),
        ("start", c_int64),
        *((name, c_void_p) for name in ("index", "groups", "lower", "upper")),
    ]


class _Found(Structure):
    _fields_ = [*((name, c_void_p) for name in Found._fields), ("k", c_int64)]


class _BoundTerms(Structure):
    _fields_ = [
        ("exponent", c_int64),
        *((name, c_double) for name in ("cross", "row_error", "underflow")),
        ("decide_nothing", c_int64),
    ]


class _CoarseTerms(Structure):
    _fields_ = [
        ("terms", _BoundTerms),
        *((name, c_double) for name in ("ratio", "rounding", "product_error", "sum_error")),
    ]


def has_coarse_products() -> bool:
    """Whether they include products of bfloat16, which the processor must have."""
    loaded = library()
    return loaded is not None and bool(loaded.has_coarse_products())


class Arguments:
    """Tile, rows, columns and found values as the kernels take them. The tensors are kept as long as it is."""

    def __init__(self, tile: Tile, rows: Rows, columns: Columns, found: Found) -> None:
        self.kept = tile, rows, columns, found
        products = _Tile(
            tile.products.data_ptr(),
            tile.products.stride(0),
            *(tile.offset, tile.start, tile.stop, tile.transposed, tile.chunk, tile.limit, tile.scale),
        )
        queries = _Rows(_Points.of(rows.points), *(one.data_ptr() for one in rows[1:]))
        points = _Columns(_Points.of(columns.points), columns.start, *(one.data_ptr() for one in columns[2:]))
        k = found.neighbor_index.shape[1]
        self.structures = [byref(one) for one in (products, queries, points, _Found(*map(Tensor.data_ptr, found), k))]


def find_first(arguments: Arguments, match_lows: Tensor, begin: int, end: int) -> None:
    """Update the nearest point and the first non-match of each row with a tile."""
    call("find_first", *arguments.structures, match_lows, begin, end)


def count_matches(arguments: Arguments, match_lows: Tensor, begin: int, end: int) -> None:
    """Add to each row's count the matches of a tile before the row's boundary, which must be final."""
    call("count_matches", *arguments.structures, match_lows, begin, end)


def find_neighbors(arguments: Arguments, begin: int, end: int) -> None:
    """Update the k nearest points of each row with a tile."""
    call("find_neighbors", *arguments.structures, begin, end)


def centred_products(points: Tensor, centre: Tensor, squared: Tensor, cross: Tensor, begin: int, end: int) -> None:
    """|x'|^2 and x'.c of each point, x' = x - c, in float64; any order of summation works."""
    call("centred_products", byref(_Points.of(points)), centre, squared, cross, begin, end)


def query_bounds(
    queries: Tensor, centre: Tensor, terms: BoundTerms, outputs: tuple[Tensor, ...], begin: int, end: int
) -> None:
    """The rows' side of the bounds for each query; see ``_bounds.Bounds.queries``."""
    call("query_bounds", byref(_Points.of(queries)), centre, byref(_BoundTerms(*terms)), *outputs, begin, end)


def coarse_points(
    points: Tensor, centre: Tensor, scale: float, halves: Tensor, changed: Tensor, begin: int, end: int
) -> None:
    """Scaled points in bfloat16, and the norm of what rounding changed."""
    stride = halves.shape[1]
    call("coarse_points", byref(_Points.of(points)), centre, scale, halves, stride, changed, begin, end)


def coarse_queries(
    queries: Tensor, centre: Tensor, terms: CoarseTerms, halves: Tensor, outputs: tuple[Tensor, ...]
) -> None:
    """The rows' side of the coarse bounds for each query; see ``_coarse.CoarseBounds.queries``."""
    numbers = _CoarseTerms(_BoundTerms(*terms[0]), *terms[1:])
    points = byref(_Points.of(queries))
    call("coarse_queries", points, centre, byref(numbers), halves, halves.shape[1], *outputs, 0, len(queries))


def coarse_products(rows: Tensor, columns: Tensor, width: int, out: Tensor, begin: int, end: int) -> None:
    """Products of rows (n, .) in bfloat16 with the columns ``begin`` to ``end``, of ``width`` numbers each."""
    stride = rows.shape[1]
    call("coarse_products", rows, len(rows), columns, width, stride, out, out.stride(0), begin, end)
