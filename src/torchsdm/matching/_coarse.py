"""Bounds from products of bfloat16, which some processors compute twice as fast: a first filter.

Points are rounded to 8 bits, so these bounds are a thousand times wider than those of float32 (``_bounds``), but mostly
still leave only a few points of a row open. A row that has more of them open is searched again with float32.

With X = sigma |x - c| and S = sigma |s - c|, and delta_x, delta_s the norms of what rounding to bfloat16 changed, which
are measured, the error of a product p that stands for sigma^2 (x - c).(s - c) is at most

    delta_x S + (X + delta_x) delta_s + gamma (X + delta_x) (S + delta_s)

by Cauchy-Schwarz, with gamma for M sums in float32, which may even be truncated (``arithmetic/coarse_products.c``).
Twice that, split into a part of the row and a part of the column by 2 u v <= u^2 / t + t v^2, is

    delta_x^2 / (e r) + (e + gamma) (X + delta_x)^2 / r        for the row,
    e r S^2 + r delta_s^2 / e + gamma r (S + delta_s)^2        for the column

for any e, r > 0. It is least where e is the relative rounding, delta_x / X or delta_s / S, and r is X / S. On top comes
eta of all terms, for the sums of the bounds themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsdm.arithmetic import call, empty_float32, in_shares, product_error, rounded_interval
from torchsdm.matching._tiles import BoundTerms, CoarseTerms, RowBounds, points_in_c

_LANES = 32  # numbers that are read at once: rows are padded to a multiple of them
_LARGEST = 1 << 29  # bytes that rounded points may take, which are kept from one search to the next
_LEAST_ROUNDING = 2.0**-12  # e where points happen to be bfloat16 numbers
_SHARE = 512  # points that a thread rounds at once
_RATIO = 1.0  # r: queries are about as far from the centre as support points


@dataclass(frozen=True)
class CoarsePoints:
    """The columns' side for support points, around the same centre and with the same sigma as their finer bounds."""

    rounded: Tensor  # (S, .) bfloat16, padded
    centre: Tensor  # (M,) float64
    terms: CoarseTerms
    lower: Tensor  # (S,) float32
    upper: Tensor  # (S,) float32
    norms: Tensor  # (S,) float64: S
    changed: Tensor  # (S,) float64: delta_s
    outliers: Tensor  # (S,) whether a column is left to float64

    @classmethod
    def of(
        cls, points: Tensor, centre: Tensor, squared_norms: Tensor, terms: BoundTerms, outliers: Tensor
    ) -> CoarsePoints:
        """Round the points; ``squared_norms`` are their squared distances from the centre."""
        n, sigma = len(points), 2.0**-terms.exponent
        rounded, changed = _room_for(points), torch.empty(n, dtype=torch.float64)
        given = points_in_c(points), centre, sigma, rounded, rounded.shape[1], changed
        in_shares(lambda begin, end: call("coarse_points", *given, begin, end), n, _SHARE)
        rounded[outliers] = 0
        norms = squared_norms.sqrt() * sigma
        typical = torch.where(norms > 0, changed / norms, 0.0).median()
        numbers = CoarseTerms(
            terms,
            _RATIO,
            max(float(typical), _LEAST_ROUNDING),
            product_error(2 * (points.shape[1] + _LANES), torch.float32),  # twice as many: u is 2^-23
            product_error(24, torch.float32),
        )
        r, e, gamma, eta = numbers.ratio, numbers.rounding, numbers.product_error, numbers.sum_error
        b = norms.square()
        slack = e * r * b + r / e * changed.square() + gamma * r * (norms + changed).square() + eta * (1 + r) * b
        slack *= 1 + 1e-9  # these sums are rounded, too
        return cls(rounded, centre, numbers, *rounded_interval(b, slack, outliers), norms, changed, outliers)

    def queries(self, queries: Tensor) -> RowBounds:
        """The rows' side for queries (n, M)."""
        side = RowBounds(_room_for(queries), *torch.empty(3, len(queries), dtype=torch.float32))
        halves, outputs = side.multiplier, (side.factor, side.low, side.high)
        given = points_in_c(queries), self.centre, self.terms, halves, halves.shape[1]
        call("coarse_queries", *given, *outputs, 0, len(queries))
        return side

    def among(self, order: Tensor) -> RowBounds:
        """The rows' side for the points themselves, in another order."""
        of = self.terms
        r, e, gamma, eta = of.ratio, of.rounding, of.product_error, of.sum_error
        b, changed = self.norms.square(), self.changed
        slack = changed.square() / (e * r) + (e + gamma) / r * (self.norms + changed).square() + eta * (1 + 1 / r) * b
        slack = slack * (1 + 1e-9) + 3 * of.terms.underflow
        low, high = rounded_interval(b, slack, self.outliers)
        return RowBounds(self.rounded[order], torch.full_like(low, 2.0), low[order], high[order])


def fits(shape: tuple[int, ...]) -> bool:
    """Whether there is memory for rounded points of a shape (S, M)."""
    return 2 * shape[0] * _padded(shape[1]) <= _LARGEST


def _room_for(points: Tensor) -> Tensor:
    """Room for points in bfloat16, padded; rows begin at cache lines."""
    return empty_float32(len(points), _padded(points.shape[1]) // 2, device=points.device).view(torch.bfloat16)


def multiply_into(out: Tensor, rows: Tensor, columns: Tensor, width: int) -> None:
    """Products (n, m) of rows (n, .) and columns (m, .) in bfloat16, of ``width`` numbers, summed in float32."""
    given = rows, len(rows), columns, width, rows.shape[1], out, out.stride(0)
    in_shares(lambda begin, end: call("coarse_products", *given, begin, end), len(columns), 256)


def _padded(width: int) -> int:
    return -(-width // _LANES) * _LANES
