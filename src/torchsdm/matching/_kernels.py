"""Compiled loops over a tile of products: what matching does with each row while it is in cache (CPU).

A tile has float32 products of queries (rows) with support points (columns). ``_bounds`` turns a product p_ij into

    lower_j + low_i  - factor_i p_ij  <=  scaled squared distance  <=  upper_j + high_i - factor_i p_ij

Vector instructions scan the row with these bounds; only pairs they leave open are decided by the distance itself, in
float64 and in numpy's order of summation. ``_tensor_kernels`` does the same in torch operations, for other devices.

The functions release the interpreter lock and touch only rows ``begin`` to ``end``, so threads can share a tile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchsdm.compilation import compiled, compiled_in_any_order, helper
from torchsdm.matching._tiles import LARGEST_QUERY, SMALLEST_QUERY, BoundTerms, Columns, Found, Rows, Tile
from torchsdm.validation import Array

_INFINITE = np.int32(0x7F800000)  # the bits of a float32 infinity
_CACHED_CHUNKS = 8  # their bounds and the inputs of these stay in the first-level cache from row to row
_ZERO = np.float32(0)
_FAR = np.float32(np.inf)
_LARGEST = float(np.finfo(np.float32).max)
_NONE = np.float32(-1)  # never a bound
_ABOVE, _BELOW = 1 + 2**-22, 1 - 2**-22  # a float64 distance squared, moved outwards by more than its rounding


@compiled_in_any_order
def centred_products(points: Array, centre: Array, squared: Array, cross: Array, begin: int, end: int) -> None:
    """|x'|^2 and x'.c of each point, x' = x - c, in float64; any order of summation works."""
    for i in range(begin, end):
        point, a, b = points[i], 0.0, 0.0
        for k in range(len(centre)):
            difference = np.float64(point[k]) - centre[k]
            a += difference * difference
            b += difference * centre[k]
        squared[i], cross[i] = a, b


@compiled
def query_bounds(
    queries: Array,
    centre: Array,
    terms: BoundTerms,
    multiplier: Array,
    factor: Array,
    low: Array,
    high: Array,
    begin: int,
    end: int,
) -> None:
    """The rows' side of the bounds for each query; see ``_bounds.Bounds.queries``."""
    squared, cross = np.empty(end - begin, dtype=np.float64), np.empty(end - begin, dtype=np.float64)
    centred_products(queries[begin:end], centre, squared, cross, 0, end - begin)
    scale = math.ldexp(1.0, -2 * terms.exponent)  # sigma^2
    for i in range(begin, end):
        norm, product = squared[i - begin], cross[i - begin]
        exponent = max(math.frexp(math.sqrt(norm))[1], terms.exponent - SMALLEST_QUERY)
        if terms.decide_nothing or exponent > terms.exponent + LARGEST_QUERY:
            multiplier[i], factor[i], low[i], high[i] = 0.0, 1.0, -np.inf, np.inf
            continue
        down = math.ldexp(1.0, -exponent)
        for k in range(len(centre)):
            multiplier[i, k] = np.float32((np.float64(queries[i, k]) - centre[k]) * down)
        up = math.ldexp(1.0, exponent + 1 - 2 * terms.exponent)
        shift = (norm + terms.cross * product) * scale
        slack = norm * scale * terms.row_error + (up + 1) * terms.underflow
        factor[i], low[i], high[i] = up, _round_down(shift - slack), -_round_down(-shift - slack)


@compiled
def row_hashes(bits: Array, weights: Array, hashes: Array) -> None:
    """sum over k of w_k b_k mod 2^64 for each row of bits (n, K); see ``rows.RowIndex``."""
    for i in range(len(bits)):
        total = np.uint64(0)
        for k in range(len(weights)):
            total += np.uint64(bits[i, k]) * weights[k]
        hashes[i] = total


@helper
def _round_down(value: float) -> np.float32:
    """The largest float32 not above a float64."""
    rounded = np.float32(value)
    return np.nextafter(rounded, -_FAR) if np.float64(rounded) > value else rounded


@compiled
def find_first(tile: Tile, rows: Rows, columns: Columns, found: Found, match_lows: Array, begin: int, end: int) -> None:
    """Update the nearest point and the first non-match of each row with a tile.

    ``match_lows`` (n, chunks) receives the smallest lower bound of the matches in each chunk, for ``count_matches``.
    """
    n_chunks = match_lows.shape[1]
    other_lows = np.empty((end - begin, n_chunks), dtype=np.float32)
    if tile.transposed:
        _lows_down(tile, rows, columns, other_lows, match_lows, begin, end)
    else:
        _lows_across(tile, rows, columns, other_lows, match_lows, begin, end)
    squares = np.empty(columns.points.shape[1], dtype=np.float64)
    bounds = np.empty(tile.chunk, dtype=np.float32)
    for i in range(begin, end):
        others, matches = other_lows[i - begin], match_lows[i]
        to_boundary = _squared_above(found.boundary_distance[i], tile.scale)
        to_nearest = _squared_above(found.nearest_distance[i], tile.scale)
        best_other, best_match = _best_within(others, to_boundary), _best_within(matches, to_nearest)
        if best_other < 0 and best_match < 0:
            continue
        # The most promising points first: with their distances known, few chunks remain to look at.
        for step in range(n_chunks + 2):
            c, best = step - 2, _NONE
            if step == 0 and best_other >= 0:
                c, best = best_other, others[best_other]
            elif step == 1 and best_match >= 0:
                c, best = best_match, matches[best_match]
            elif c in (best_other, best_match):
                continue
            if c >= 0 and (others[c] <= to_boundary or matches[c] <= to_nearest):
                _look(tile, rows, columns, found, i, c, best, bounds, squares)
                to_boundary = _squared_above(found.boundary_distance[i], tile.scale)
                to_nearest = _squared_above(found.nearest_distance[i], tile.scale)


@compiled
def count_matches(
    tile: Tile, rows: Rows, columns: Columns, found: Found, match_lows: Array, begin: int, end: int
) -> None:
    """Add to each row's count the matches of a tile that come before the row's boundary, which must be final."""
    inside = np.empty(end - begin, dtype=np.float32)
    outside = np.empty(end - begin, dtype=np.float32)
    for i in range(begin, end):
        inside[i - begin] = _squared_below(found.boundary_distance[i], tile.scale)
        outside[i - begin] = _squared_above(found.boundary_distance[i], tile.scale)
    if tile.transposed:
        _count_down(tile, rows, columns, found, match_lows, inside, outside, begin)
    else:
        _count_across(tile, rows, columns, found, match_lows, inside, outside, begin)


@compiled
def find_neighbors(tile: Tile, rows: Rows, columns: Columns, found: Found, begin: int, end: int) -> None:
    """Update the k nearest points of each row with a tile.

    The k-th smallest upper bound limits which points may be among them, so hardly more than k are measured.
    """
    k = found.neighbor_distance.shape[1]
    squares = np.empty(columns.points.shape[1], dtype=np.float64)
    candidates = np.empty(tile.stop - tile.start, dtype=np.int64)
    smallest = np.empty(k, dtype=np.float32)
    for i in range(begin, end):
        distances, indices = found.neighbor_distance[i], found.neighbor_index[i]
        limit = _squared_above(distances[k - 1], tile.scale)
        factor, low, high = rows.factor[i], rows.low[i], rows.high[i]
        smallest[:] = np.inf
        n_candidates = 0
        for c in range(_n_chunks(tile)):
            first, last = _chunk(tile, c)
            p = tile.products[i, tile.offset + first - tile.start : tile.offset + last - tile.start]
            lower, upper = columns.lower[first:last], columns.upper[first:last]
            n_possible = np.int32(0)
            for j in range(last - first):
                n_possible += (lower[j] + low) - factor * p[j] <= limit
            if n_possible == 0:
                continue
            for j in range(last - first):
                if (lower[j] + low) - factor * p[j] <= limit and first + j != rows.own[i]:
                    candidates[n_candidates] = first + j
                    n_candidates += 1
                    _insert_bound(smallest, (upper[j] + high) - factor * p[j])
                    limit = min(limit, np.float32(min(smallest[k - 1] * _ABOVE, _LARGEST)))
        for candidate in candidates[:n_candidates]:
            if (columns.lower[candidate] + low) - factor * _product(tile, i, candidate) <= limit:
                at = columns.index[candidate]
                d = _distance(rows.points[rows.index[i]], columns.points[at], columns.summation, squares)
                _insert(distances, indices, d, columns.start + at)
                limit = min(limit, _squared_above(distances[k - 1], tile.scale))


@helper
def _n_chunks(tile: Tile) -> int:
    return (tile.stop - tile.start + tile.chunk - 1) // tile.chunk


@helper
def _chunk(tile: Tile, c: int) -> tuple[int, int]:
    """First and last column of a chunk."""
    first = tile.start + c * tile.chunk
    return first, min(first + tile.chunk, tile.stop)


@helper
def _product(tile: Tile, i: int, j: int) -> Any:
    """The product of row i with column j."""
    if tile.transposed:
        return tile.products[j - tile.start, tile.offset + i]
    return tile.products[i, tile.offset + j - tile.start]


@helper
def _lower_bounds(tile: Tile, rows: Rows, columns: Columns, i: int, first: int, last: int, bounds: Array) -> None:
    """The lower bounds of row i from column ``first`` to ``last``, clipped at 0."""
    lower, low, factor, at = columns.lower[first:last], rows.low[i], rows.factor[i], first - tile.start
    if tile.transposed:
        for j in range(last - first):
            bound = (lower[j] + low) - factor * tile.products[at + j, tile.offset + i]
            bounds[j] = bound if bound > _ZERO else _ZERO
    else:
        p = tile.products[i, tile.offset + at : tile.offset + at + last - first]
        for j in range(last - first):
            bound = (lower[j] + low) - factor * p[j]
            bounds[j] = bound if bound > _ZERO else _ZERO


@helper
def _lows_across(
    tile: Tile, rows: Rows, columns: Columns, other_lows: Array, match_lows: Array, begin: int, end: int
) -> None:
    """The smallest lower bound among non-matches and among matches in each chunk of each row.

    Bounds are clipped at 0 and compared as integers: the bits of floats that are not negative are in the same order,
    and compilers turn an integer minimum into vector instructions.
    """
    lows = np.empty(2, dtype=np.int32)
    values = lows.view(np.float32)
    bounds = np.empty(_CACHED_CHUNKS * tile.chunk, dtype=np.float32)
    bits = bounds.view(np.int32)
    for first_chunk in range(0, _n_chunks(tile), _CACHED_CHUNKS):
        first = tile.start + first_chunk * tile.chunk
        last = min(first + len(bounds), tile.stop)
        for i in range(begin, end):
            _lower_bounds(tile, rows, columns, i, first, last, bounds)
            prediction = rows.predictions[i]
            for start in range(0, last - first, tile.chunk):
                stop = min(start + tile.chunk, last - first)
                chunk, groups = bits[start:stop], columns.groups[first + start : first + stop]
                other, match = _INFINITE, _INFINITE
                for j in range(len(chunk)):
                    is_match = groups[j] == prediction
                    other = np.int32(min(other, _INFINITE if is_match else chunk[j]))
                    match = np.int32(min(match, chunk[j] if is_match else _INFINITE))
                lows[0], lows[1] = other, match
                c = first_chunk + start // tile.chunk
                other_lows[i - begin, c], match_lows[i, c] = values[0], values[1]


@helper
def _lows_down(
    tile: Tile, rows: Rows, columns: Columns, other_lows: Array, match_lows: Array, begin: int, end: int
) -> None:
    """The same for a transposed tile: all rows at once, one column after the other."""
    n = end - begin
    low, factor, predictions = rows.low[begin:end], rows.factor[begin:end], rows.predictions[begin:end]
    other, match = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for c in range(_n_chunks(tile)):
        first, last = _chunk(tile, c)
        for i in range(n):
            other[i], match[i] = _FAR, _FAR
        for j in range(first, last):
            p = tile.products[j - tile.start, tile.offset + begin : tile.offset + end]
            lower, group = columns.lower[j], columns.groups[j]
            for i in range(n):
                bound = (lower + low[i]) - factor[i] * p[i]
                bound = bound if bound > _ZERO else _ZERO
                is_match = predictions[i] == group
                other[i] = min(other[i], _FAR if is_match else bound)
                match[i] = min(match[i], bound if is_match else _FAR)
        for i in range(n):  # assigned as a slice, this alone would take two seconds to compile
            other_lows[i, c], match_lows[begin + i, c] = other[i], match[i]


@helper
def _count_across(
    tile: Tile,
    rows: Rows,
    columns: Columns,
    found: Found,
    match_lows: Array,
    inside: Array,
    outside: Array,
    begin: int,
) -> None:
    """Count the matches of each row that are certainly before the boundary, then those the bounds leave open."""
    squares = np.empty(columns.points.shape[1], dtype=np.float64)
    for row in range(len(inside)):
        i = begin + row
        factor, low, high, prediction = rows.factor[i], rows.low[i], rows.high[i], rows.predictions[i]
        for c in range(_n_chunks(tile)):
            if match_lows[i, c] > outside[row]:
                continue
            first, last = _chunk(tile, c)
            at = tile.offset + first - tile.start
            p, groups = tile.products[i, at : at + last - first], columns.groups[first:last]
            lower, upper = columns.lower[first:last], columns.upper[first:last]
            n_certain, n_possible = np.int32(0), np.int32(0)
            for j in range(last - first):
                is_match = groups[j] == prediction
                n_certain += ((upper[j] + high) - factor * p[j] < inside[row]) & is_match
                n_possible += ((lower[j] + low) - factor * p[j] <= outside[row]) & is_match
            found.count[i] += n_certain
            if n_possible > n_certain:
                _count_open(tile, rows, columns, found, i, c, inside[row], outside[row], squares)


@helper
def _count_down(
    tile: Tile,
    rows: Rows,
    columns: Columns,
    found: Found,
    match_lows: Array,
    inside: Array,
    outside: Array,
    begin: int,
) -> None:
    """The same for a transposed tile."""
    n = len(inside)
    here = slice(begin, begin + n)
    low, high, factor, predictions = rows.low[here], rows.high[here], rows.factor[here], rows.predictions[here]
    n_certain, n_open = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32)
    for j in range(tile.start, tile.stop):
        p = tile.products[j - tile.start, tile.offset + begin : tile.offset + begin + n]
        lower, upper, group = columns.lower[j], columns.upper[j], columns.groups[j]
        for i in range(n):
            is_match = predictions[i] == group
            is_certain = ((upper + high[i]) - factor[i] * p[i] < inside[i]) & is_match
            is_possible = ((lower + low[i]) - factor[i] * p[i] <= outside[i]) & is_match
            n_certain[i] += is_certain
            n_open[i] += is_possible & (not is_certain)
    squares = np.empty(columns.points.shape[1], dtype=np.float64)
    for i in range(n):
        found.count[begin + i] += n_certain[i]
        if n_open[i] == 0:
            continue
        for c in range(_n_chunks(tile)):
            if match_lows[begin + i, c] <= outside[i]:
                _count_open(tile, rows, columns, found, begin + i, c, inside[i], outside[i], squares)


@helper
def _best_within(lows: Array, limit: float) -> int:
    """The chunk with the smallest bound, if that is within the limit, else -1."""
    best = -1
    for c in range(len(lows)):
        if lows[c] <= limit:
            limit, best = lows[c], c
    return best


@helper
def _look(
    tile: Tile,
    rows: Rows,
    columns: Columns,
    found: Found,
    i: int,
    c: int,
    best: float,
    bounds: Array,
    squares: Array,
) -> None:
    """Measure the points of a chunk that may come first: those with the bound ``best``, then those still open."""
    first, last = _chunk(tile, c)
    _lower_bounds(tile, rows, columns, i, first, last, bounds)
    for pick_best in (True, False):
        for j in range(last - first):
            to_boundary = _squared_above(found.boundary_distance[i], tile.scale)
            if (bounds[j] == best) != pick_best or bounds[j] > to_boundary or first + j == rows.own[i]:
                continue
            is_match = columns.groups[first + j] == rows.predictions[i]
            if is_match and bounds[j] > _squared_above(found.nearest_distance[i], tile.scale):
                continue
            at = columns.index[first + j]
            index = columns.start + at
            d = _distance(rows.points[rows.index[i]], columns.points[at], columns.summation, squares)
            if d < found.nearest_distance[i] or (d == found.nearest_distance[i] and index < found.nearest_index[i]):
                found.nearest_distance[i], found.nearest_index[i] = d, index
            if not is_match and (
                d < found.boundary_distance[i] or (d == found.boundary_distance[i] and index < found.boundary_index[i])
            ):
                found.boundary_distance[i], found.boundary_index[i] = d, index


@helper
def _count_open(
    tile: Tile,
    rows: Rows,
    columns: Columns,
    found: Found,
    i: int,
    c: int,
    inside: float,
    outside: float,
    squares: Array,
) -> None:
    """Add the matches of a chunk before the boundary that the bounds leave open."""
    first, last = _chunk(tile, c)
    distance, index = found.boundary_distance[i], found.boundary_index[i]
    for j in range(first, last):
        if columns.groups[j] != rows.predictions[i] or j == rows.own[i]:
            continue
        product = rows.factor[i] * _product(tile, i, j)
        is_certain = (columns.upper[j] + rows.high[i]) - product < inside
        if not is_certain and (columns.lower[j] + rows.low[i]) - product <= outside:
            at = columns.index[j]
            d = _distance(rows.points[rows.index[i]], columns.points[at], columns.summation, squares)
            found.count[i] += d < distance or (d == distance and columns.start + at < index)


@helper
def _insert(distances: Array, indices: Array, distance: float, index: int) -> None:
    """Put a point into a row that is sorted by (distance, index); the last one drops out."""
    k = len(distances)
    if distance > distances[k - 1] or (distance == distances[k - 1] and index > indices[k - 1]):
        return
    at = k - 1
    while at > 0 and (distance < distances[at - 1] or (distance == distances[at - 1] and index < indices[at - 1])):
        distances[at], indices[at] = distances[at - 1], indices[at - 1]
        at -= 1
    distances[at], indices[at] = distance, index


@helper
def _insert_bound(bounds: Array, bound: float) -> None:
    """Put a bound into a sorted row; the largest one drops out."""
    at = len(bounds) - 1
    if not bound < bounds[at]:
        return
    while at > 0 and bound < bounds[at - 1]:
        bounds[at] = bounds[at - 1]
        at -= 1
    bounds[at] = bound


@helper
def _squared_above(distance: float, scale: float) -> np.float32:
    """A float32 not below the scaled square of a distance; the largest if that is infinite, as bounds are finite."""
    square = (distance * scale) * (distance * scale) * _ABOVE
    return np.float32(min(square, _LARGEST))


@helper
def _squared_below(distance: float, scale: float) -> np.float32:
    """A float32 not above the scaled square of a distance."""
    square = (distance * scale) * (distance * scale) * _BELOW
    return np.float32(square)


@helper
def _distance(a: Array, b: Array, summation: Array, squares: Array) -> Any:
    """The canonical distance: bit for bit what ``numpy.sqrt(((a - b) ** 2).sum())`` gives in float64."""
    for k in range(len(squares)):
        difference = np.float64(a[k]) - np.float64(b[k])
        squares[k] = difference * difference
    return np.sqrt(_sum_in_order(squares, summation))


@helper
def _sum_in_order(terms: Array, summation: Array) -> Any:
    """The sum in the order of ``numerics.summation_order``; the terms are overwritten with partial sums."""
    n_partial = 0
    eights = terms[: len(terms) // 8 * 8].reshape(-1, 8)  # every run starts at a multiple of 8
    for leaf in range(len(summation)):
        start, n, n_joins = summation[leaf]
        if n < 8:
            total = -0.0
        else:
            r = eights[start // 8 : (start + n) // 8]
            a, b, c, d, e, f, g, h = r[0, 0], r[0, 1], r[0, 2], r[0, 3], r[0, 4], r[0, 5], r[0, 6], r[0, 7]
            for i in range(1, len(r)):
                a, b, c, d = a + r[i, 0], b + r[i, 1], c + r[i, 2], d + r[i, 3]
                e, f, g, h = e + r[i, 4], f + r[i, 5], g + r[i, 6], h + r[i, 7]
            total = ((a + b) + (c + d)) + ((e + f) + (g + h))
        for i in range(start + n - n % 8, start + n):
            total += terms[i]
        terms[n_partial] = total  # never beyond the terms already summed
        n_partial += 1
        for _ in range(n_joins):
            n_partial -= 1
            terms[n_partial - 1] += terms[n_partial]
    return terms[0]
