"""The compiled kernels in torch operations, for other devices and for packages without compiled loops.

The same functions over the same tiles with the same bounds, so the answers are the same bit for bit. They leave the
device only to learn how many pairs are open, and measure as many as there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsdm.arithmetic import pair_distances
from torchsdm.matching._tiles import Found, Rows, SupportColumns, Tile


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
