"""What the matching kernels work on, rows and columns of a search, tiles of products and results, and who runs them.

``arithmetic/tiles.c``, ``bounds.c`` and ``distance.h`` have structures with the same fields, which are mirrored below.
The kernels in ``tiles.c`` run on the CPU, with the rows split among threads. ``TORCH_KERNELS`` are the same in torch
operations, for other devices and for packages without compiled loops: the same functions over the same tiles with the
same bounds, so the answers are the same bit for bit. They leave the device only to learn how many pairs are open, and
measure as many as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import Structure, c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchsdm.arithmetic import call, full_float32_products, in_shares, pair_distances

Values = Any  # a tensor; 'index' and 'count' are also methods of every tuple
CHUNK = 256  #: columns of a tile that are scanned together
CHUNK_DOWN = 64  #: the same for transposed tiles, which are slower to scan
NO_LIMIT = 2**62  #: on the distances that may be measured for a row
SMALLEST_QUERY, LARGEST_QUERY = 60, 20  #: exponents below and above the typical norm that float32 is trusted with


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

    def of_rows(self, rows: slice) -> Rows:
        """Some of the rows."""
        return Rows(self.points, *(values[rows] for values in self[1:]))


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
        far, last = torch.inf, torch.iinfo(torch.int64).max
        nearest, boundary, neighbors = (
            (torch.full(shape, far, dtype=torch.float64, device=device), torch.full(shape, last, device=device))
            for shape in ((n,), (n,), (n, k))
        )
        count, left = torch.zeros(n, dtype=torch.int64, device=device), torch.zeros(n, dtype=torch.uint8, device=device)
        return cls(*nearest, *boundary, count, left, *neighbors)

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


class _Points(Structure):
    _fields_ = [("values", c_void_p), ("width", c_int64), ("is_double", c_int64)]


class _Tile(Structure):
    _fields_ = [
        ("products", c_void_p),
        *((name, c_int64) for name in ("stride", "offset", "start", "stop", "transposed", "chunk", "limit")),
        ("scale", c_double),
    ]


class _Rows(Structure):
    _fields_ = [("points", _Points), *((name, c_void_p) for name in Rows._fields[1:])]


class _Columns(Structure):
    _fields_ = [("points", _Points), ("start", c_int64), *((name, c_void_p) for name in SupportColumns._fields[2:])]


class _Found(Structure):
    _fields_ = [*((name, c_void_p) for name in Found._fields), ("k", c_int64)]


class BoundTerms(Structure):
    """The numbers that the rows' side of the bounds depends on; see ``_bounds``."""

    exponent: int  # sigma = 2^-exponent
    cross: float  # what x'.c is multiplied by: 2, or 0 if the support is centred too
    row_error: float
    underflow: float
    decide_nothing: int  # whether everything is left to float64, so that no product is needed
    _fields_ = [
        ("exponent", c_int64),
        *((name, c_double) for name in ("cross", "row_error", "underflow")),
        ("decide_nothing", c_int64),
    ]


class CoarseTerms(Structure):
    """The same for the coarse bounds; see ``_coarse``."""

    terms: BoundTerms
    ratio: float  # r
    rounding: float  # e
    product_error: float  # gamma
    sum_error: float  # eta
    _fields_ = [
        ("terms", BoundTerms),
        *((name, c_double) for name in ("ratio", "rounding", "product_error", "sum_error")),
    ]


def points_in_c(points: Tensor) -> _Points:
    """Points (n, M) as the C takes them. The tensor must outlive the call."""
    return _Points(points.data_ptr(), points.shape[1], points.dtype == torch.float64)


# --- The same in torch operations ------------------------------------------------------------------------------------


def find_first(tile: Tile, rows: Rows, columns: SupportColumns, found: Found, match_lows: Tensor) -> None:
    """Update the nearest point and the first non-match of each row with a tile."""
    lower, _, is_match = _bounds(tile, rows, columns)
    for c, chunk in enumerate(torch.where(is_match, lower, torch.inf).split(tile.chunk, dim=1)):
        match_lows[:, c] = chunk.amin(dim=1)
    for may_be, distance, index in (
        (~is_match, found.boundary_distance, found.boundary_index),
        (is_match, found.nearest_distance, found.nearest_index),
    ):
        candidates = torch.where(may_be, lower, torch.inf)
        low, position = candidates.min(dim=1)
        # The most promising point first: with its distance known, few others remain to be measured.
        known = torch.nonzero(low <= _squared_above(distance, tile.scale)).squeeze(1)
        _advance(rows, columns, distance, index, known, tile.start + position[known])
        near = candidates <= _squared_above(distance, tile.scale)[:, None]
        at_rows, at_columns = torch.nonzero(near & may_be, as_tuple=True)
        _advance(rows, columns, distance, index, at_rows, tile.start + at_columns)
    boundary_is_nearer = _is_before(
        found.boundary_distance, found.boundary_index, found.nearest_distance, found.nearest_index
    )
    found.nearest_distance[boundary_is_nearer] = found.boundary_distance[boundary_is_nearer]
    found.nearest_index[boundary_is_nearer] = found.boundary_index[boundary_is_nearer]


def count_matches(tile: Tile, rows: Rows, columns: SupportColumns, found: Found, match_lows: Tensor) -> None:
    """Add to each row's count the matches of a tile that come before the row's boundary, which must be final."""
    lower, upper, is_match = _bounds(tile, rows, columns)
    boundary = found.boundary_distance
    is_certain = (upper < _squared_below(boundary, tile.scale)[:, None]) & is_match
    is_possible = (lower <= _squared_above(boundary, tile.scale)[:, None]) & is_match
    found.count.add_(is_certain.sum(dim=1))
    at_rows, at_columns = torch.nonzero(is_possible & ~is_certain, as_tuple=True)
    at_rows, distance, index = _measure(rows, columns, at_rows, tile.start + at_columns)
    before = _is_before(distance, index, boundary[at_rows], found.boundary_index[at_rows])
    found.count.index_add_(0, at_rows, before.to(torch.int64))


def find_neighbors(tile: Tile, rows: Rows, columns: SupportColumns, found: Found) -> None:
    """Update the k nearest points of each row with a tile."""
    n, k = found.neighbor_distance.shape
    lower, upper, _ = _bounds(tile, rows, columns)
    limit = _squared_above(found.neighbor_distance[:, -1], tile.scale)
    if upper.shape[1] > k:  # one more than k: the query itself may be among them
        limit = torch.minimum(limit, upper.kthvalue(k + 1, dim=1).values)
    at_rows, at_columns = torch.nonzero(lower <= limit[:, None], as_tuple=True)
    at_rows, distance, index = _measure(rows, columns, at_rows, tile.start + at_columns)
    own_rows = torch.arange(n, device=limit.device)
    all_rows = torch.cat([own_rows.repeat_interleave(k), at_rows])
    all_distances = torch.cat([found.neighbor_distance.flatten(), distance])
    all_indices = torch.cat([found.neighbor_index.flatten(), index])
    order = _lexicographic(all_rows, all_distances, all_indices)
    first_of_row = torch.searchsorted(all_rows[order].contiguous(), own_rows)
    chosen = order[first_of_row[:, None] + torch.arange(k, device=limit.device)]  # each row has at least k
    found.neighbor_distance[:] = all_distances[chosen]
    found.neighbor_index[:] = all_indices[chosen]


def _bounds(tile: Tile, rows: Rows, columns: SupportColumns) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper bounds (n, b), the lower clipped at 0, and whether a column is a match for the row."""
    part = slice(tile.start, tile.stop)
    product = rows.factor[:, None] * tile.products[:, tile.offset : tile.offset + tile.stop - tile.start]
    lower = (columns.lower[part] + rows.low[:, None]) - product
    upper = (columns.upper[part] + rows.high[:, None]) - product
    is_match = columns.groups[part] == rows.predictions[:, None]
    return torch.where(lower > 0, lower, 0.0), upper, is_match


def _measure(rows: Rows, columns: SupportColumns, at_rows: Tensor, at_columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, distances and support indices of pairs, without the query itself."""
    other = at_columns != rows.own[at_rows]
    at_rows, at = at_rows[other], columns.index[at_columns[other]]
    return at_rows, pair_distances(rows.points, columns.points, rows.index[at_rows], at), columns.start + at


def _advance(
    rows: Rows, columns: SupportColumns, distance: Tensor, index: Tensor, at_rows: Tensor, at_columns: Tensor
) -> None:
    """Replace each row's point, in place, by the first of the given points if that comes before it."""
    at_rows, new_distance, new_index = _measure(rows, columns, at_rows, at_columns)
    order = _lexicographic(at_rows, new_distance, new_index)
    at_rows, new_distance, new_index = at_rows[order], new_distance[order], new_index[order]
    is_first = torch.ones_like(at_rows, dtype=torch.bool)
    is_first[1:] = at_rows[1:] != at_rows[:-1]
    better = is_first & _is_before(new_distance, new_index, distance[at_rows], index[at_rows])
    distance[at_rows[better]] = new_distance[better]
    index[at_rows[better]] = new_index[better]


def _is_before(distance: Tensor, index: Tensor, other_distance: Tensor, other_index: Tensor) -> Tensor:
    return (distance < other_distance) | ((distance == other_distance) & (index < other_index))


def _lexicographic(rows: Tensor, distance: Tensor, index: Tensor) -> Tensor:
    """The order by (row, distance, index), by stable sorts from the last key to the first."""
    order = torch.argsort(index, stable=True)
    order = order[torch.argsort(distance[order], stable=True)]
    return order[torch.argsort(rows[order], stable=True)]


def _squared_above(distance: Tensor, scale: float) -> Tensor:
    """A float32 not below the scaled square of a distance; the largest if that is infinite, as bounds are finite."""
    return ((distance * scale).square() * (1 + 2**-22)).clamp(max=torch.finfo(torch.float32).max).float()


def _squared_below(distance: Tensor, scale: float) -> Tensor:
    """A float32 not above the scaled square of a float64 distance."""
    return ((distance * scale).square() * (1 - 2**-22)).float()


KernelKind = Literal["coarse", "compiled", "torch"]
"""The compiled kernels, with a first filter in bfloat16 or without it, or the same in torch operations."""

TORCH_KERNELS: dict[str, Callable[..., None]] = {
    kernel.__name__: kernel for kernel in (find_first, count_matches, find_neighbors)
}
_SHARED_ENTRIES = 1 << 16  # tiles below this are not worth waking threads for


class Engine(ExitStack):
    """Runs one kind of kernels. Within its context, products are full float32."""

    def __init__(self, device: torch.device, kind: KernelKind) -> None:
        super().__init__()
        self.device, self.compiled, self.coarse = device, kind != "torch", kind == "coarse"

    def __enter__(self) -> Engine:
        self.enter_context(full_float32_products(self.device))
        self.pool: ThreadPoolExecutor | None = None
        return self

    def find_first(self, tile: Tile, rows: Rows, columns: SupportColumns, found: Found) -> Tensor:
        """Update nearest point and first non-match; returns the smallest bounds of matches, for ``count_matches``."""
        n_chunks = -(-(tile.stop - tile.start) // tile.chunk)
        match_lows = torch.empty(len(rows.own), n_chunks, dtype=torch.float32, device=self.device)
        self.run("find_first", tile, rows, columns, found, match_lows)
        return match_lows

    def run(self, kernel: str, tile: Tile, rows: Rows, columns: SupportColumns, found: Found, *lows: Tensor) -> None:
        """Call a kernel for all rows, at once or split among threads.

        ``count_matches`` takes the bounds that ``find_first`` gave; the boundaries must be final.
        """
        if not self.compiled:
            TORCH_KERNELS[kernel](tile, rows, columns, found, *lows)
            return
        n, n_threads = len(rows.own), torch.get_num_threads()
        work = (  # as the C takes it
            _Tile(tile.products.data_ptr(), tile.products.stride(0), *tile[1:]),
            _Rows(points_in_c(rows.points), *(one.data_ptr() for one in rows[1:])),
            _Columns(points_in_c(columns.points), columns.start, *(one.data_ptr() for one in columns[2:])),
            _Found(*map(Tensor.data_ptr, found), found.neighbor_index.shape[1]),
        )
        if n_threads == 1 or n * (tile.stop - tile.start) < _SHARED_ENTRIES:
            call(kernel, *work, *lows, 0, n)
            return
        if self.pool is None and not self.coarse:  # torch multiplies
            self.pool = self.enter_context(ThreadPoolExecutor(n_threads - 1, initializer=_quieten_idle_threads))
        share = -(-n // (4 * n_threads))
        in_shares(lambda begin, end: call(kernel, *work, *lows, begin, end), n, share, self.pool)


def _quieten_idle_threads() -> None:
    """Keep the threads of torch's last product from spinning on the cores that the kernels need.

    GNU OpenMP's idle threads spin for about 10 ms, but hardly at all while it manages more threads than there are cores
    (see GOMP_SPINCOUNT in its manual). A parallel operation in this thread gives it its own team, so there are.
    """
    torch.zeros(1 << 17).add_(1.0)
