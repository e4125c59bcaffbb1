"""What a float32 product says about a distance: proven bounds, and the scaling that makes them hold everywhere.

With c a fixed centre, x' = x - c and sigma a power of two that brings typical |s - c| near 1,

    sigma^2 |x - s|^2  =  a + b - 2 sigma^2 x'.s      a = sigma^2 (|x'|^2 + 2 x'.c),   b = sigma^2 |s - c|^2

Only the query is centred, so the support is multiplied as it is in memory, without a copy. The product is
computed in float32 from x' rounded and divided by 2^k >= |x'|, so that it can neither overflow nor be lost. Norms and
a are float64. For any order of summation, the error of ``(b + a) - factor * product`` is at most

    gamma(M + 24) (2 sigma^2 |x'| S + a_0 + b) + underflow,     S = |s - c| + |c| >= |s|,   a_0 = sigma^2 |x'|^2

where the 24 generously covers the rounding of x', s, a, b and of the two sums. 2 |x'| S <= |x'|^2 / r + r S^2 for any
r > 0 splits it into a part of the row and a part of the column (r: a typical |x'| / S), so that lower and upper bounds
are one addition and one multiplication each. If |c| is so much larger than the points' spread that this bound says
little, blocks of the support are centred too before they are multiplied, and c is 0 in all of the above. A point too
far out for float32 gets the bounds -inf and inf: everything about it is decided in float64, which is slow but right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from torchsdm.arithmetic import blocks, call, empty_float32, has_loops, product_error, rounded_interval
from torchsdm.matching._coarse import CoarsePoints
from torchsdm.matching._tiles import LARGEST_QUERY, SMALLEST_QUERY, BoundTerms, RowBounds, points_in_c
from torchsdm.matching.rows import RowIndex

_BLOCK_ELEMENTS = 1 << 22  # float64 elements in memory at once while norms are computed (32 MB)
_CACHED_ELEMENTS = 1 << 18  # elements that stay in cache between one operation and the next
_QUERIES_WORTH_ROUNDING = 16
_LARGEST_EXPONENT = 60  # of typical norms; beyond it nothing is left to float32
_LARGEST_OFFSET = 64  # norms of the centre, in typical norms, up to which the support is multiplied as it is
_OUTLIER_EXPONENT = 40  # support points this far beyond the typical norm are decided in float64
_OVERFLOW_EXPONENT = 100  # ... and with points this far beyond it,
_LARGEST_PRODUCT = 120  # or of a norm of 2 to this power, products may overflow
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class CentredPoints:
    """Points with what the bounds need: a common centre and each point's squared distance from it."""

    points: Tensor  # (S, M) float32 or float64, contiguous
    centre: Tensor  # (M,) float64 with float32 values
    squared_norms: Tensor  # (S,) float64

    @classmethod
    def of(cls, points: Tensor, centre: Tensor) -> CentredPoints:
        """Measure the points from a centre (rounded to float32), a block at a time."""
        centre = centre.float().double()
        return cls(points, centre, centred_products(points, centre)[0])

    def __getstate__(self) -> dict[str, Tensor]:
        """What was computed from the points is computed again elsewhere, rather than sent there."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def _n_asked(self) -> list[int]:
        """How many queries there were so far, a number in a list."""
        return [0]

    @cached_property
    def index(self) -> Tensor:
        """0, 1, 2, ... (S,)."""
        return torch.arange(len(self.points), device=self.points.device)

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds for queries against these points."""
        return Bounds.of(self.squared_norms, float(self.centre.norm()), self.points.shape[1])

    def is_worth_rounding(self, n_queries: int) -> bool:
        """Whether so many queries more make it worth rounding the points, they are few, or it has been done.

        Rounding takes about as long as it saves for sixteen queries; a single query should not wait for it.
        """
        self._n_asked[0] += n_queries
        is_cheap = self.points.numel() <= _CACHED_ELEMENTS or "coarse" in vars(self)
        return is_cheap or self._n_asked[0] >= _QUERIES_WORTH_ROUNDING

    @cached_property
    def coarse(self) -> CoarsePoints:
        """The points in bfloat16, with wider bounds, for a first filter."""
        bounds = self.bounds
        return CoarsePoints.of(self.points, self.centre, self.squared_norms, bounds.terms, bounds.outliers)

    @cached_property
    def row_index(self) -> RowIndex:
        """An index that finds equal points."""
        return RowIndex(self.points)

    def multiplicands(self, start: int, stop: int) -> Tensor:
        """What queries are multiplied with, float32: the points themselves, or centred if needed."""
        points = self.points[start:stop]
        return points.float() if self.bounds.terms.cross else (points - self.centre.to(points.dtype)).float()

    def reordered(self, order: Tensor) -> tuple[Tensor, Bounds]:
        """In another order: centred and scaled points (S, M) float32 and the bounds for products among them."""
        bounds = Bounds.of(self.squared_norms[order], 0.0, self.points.shape[1])
        scaled = empty_float32(*self.points.shape, device=self.points.device)
        centre = self.centre.to(self.points.dtype)
        for block in blocks(len(order), self.points.shape[1], _CACHED_ELEMENTS):
            scaled[block] = self.points[order[block]].sub_(centre).mul_(bounds.scale)
        if bool(bounds.outliers.any()):
            scaled[bounds.outliers] = 0.0
        return scaled, bounds


@dataclass(frozen=True)
class Bounds:
    """The columns' side of the bounds."""

    terms: BoundTerms  # what the rows' side depends on
    scale: float  # sigma: what a distance is multiplied by before it is compared with the bounds
    lower: Tensor  # (S,) float32
    upper: Tensor  # (S,) float32
    outliers: Tensor  # (S,) whether a column is left to float64

    @classmethod
    def of(cls, squared_norms: Tensor, centre_norm: float, n_filters: int) -> Bounds:
        """Bounds for support points at these squared distances from the centre."""
        typical = math.sqrt(float(squared_norms.median()))
        centres_support = centre_norm > _LARGEST_OFFSET * typical
        if centres_support:
            centre_norm = 0.0
        exponent = math.frexp(typical)[1]
        largest = math.sqrt(float(squared_norms.max())) + centre_norm
        is_wild = (
            abs(exponent) > _LARGEST_EXPONENT
            or not largest < 2.0**_LARGEST_PRODUCT
            or math.frexp(largest)[1] - exponent > _OVERFLOW_EXPONENT
        )
        if is_wild:
            exponent = 0
        error = product_error(n_filters + 24, torch.float32)  # gamma(M + 24)
        ratio = typical / (typical + centre_norm) if typical > 0 and not is_wild else 1.0  # r
        b = squared_norms * 4.0**-exponent  # (S,)
        reach = (squared_norms.sqrt() + centre_norm).square_() * 4.0**-exponent  # (S,): S^2
        slack = (reach.mul_(ratio).add_(b)).mul_(error)
        outliers = b > 4.0**_OUTLIER_EXPONENT
        if is_wild:
            outliers = torch.ones_like(outliers)
        cross, underflow = 0.0 if centres_support else 2.0, (4 * n_filters + 64) * _TINY
        terms = BoundTerms(exponent, cross, error * (1 / ratio + 1), underflow, bool(outliers.all()))
        return cls(terms, 2.0**-exponent, *rounded_interval(b, slack, outliers), outliers)

    def queries(self, queries: Tensor, centre: Tensor) -> RowBounds:
        """The rows' side for queries (n, M)."""
        if queries.device.type == "cpu" and has_loops():
            rows = torch.empty(3, len(queries), dtype=torch.float32)
            side = RowBounds(empty_float32(*queries.shape, device=queries.device), *rows)
            outputs = side.multiplier, side.factor, side.low, side.high
            call("query_bounds", points_in_c(queries), centre, self.terms, *outputs, 0, len(queries))
            return side
        squared, cross = centred_products(queries, centre)
        typical = self.terms.exponent
        exponents = torch.frexp(squared.sqrt()).exponent.clamp(min=typical - SMALLEST_QUERY)
        left_out = (exponents > typical + LARGEST_QUERY) | bool(self.terms.decide_nothing)
        down = _power_of_two(-exponents).masked_fill_(left_out, 0.0)  # 2^-k
        multiplier = ((queries.double() - centre) * down[:, None]).float()
        factor = _power_of_two(exponents + 1 - 2 * typical)
        shift = (squared + self.terms.cross * cross) * self.scale**2
        return self._rows(multiplier, factor, shift, squared * self.scale**2, left_out)

    def among(self, scaled: Tensor, squared_norms: Tensor) -> RowBounds:
        """The rows' side for the support points themselves, centred and scaled."""
        squared = squared_norms * self.scale**2
        return self._rows(scaled, torch.full_like(squared, 2.0), squared, squared, self.outliers)

    def _rows(self, multiplier: Tensor, factor: Tensor, shift: Tensor, squared: Tensor, left_out: Tensor) -> RowBounds:
        slack = squared * self.terms.row_error + (factor + 1) * self.terms.underflow
        factor = factor.masked_fill(left_out, 1.0).float()
        return RowBounds(multiplier, factor, *rounded_interval(shift, slack, left_out))


def centred_products(points: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """|x'|^2 and x'.c (n,) of points (n, M), with x' = x - c, in float64."""
    squared, cross = torch.empty(2, len(points), dtype=torch.float64, device=points.device)
    if points.device.type == "cpu" and has_loops():
        call("centred_products", points_in_c(points), centre, squared, cross, 0, len(points))
        return squared, cross
    for block in blocks(len(points), points.shape[1], _BLOCK_ELEMENTS):
        centred = points[block].double() - centre
        cross[block] = centred @ centre
        squared[block] = centred.square_().sum(dim=1)
    return squared, cross


def _power_of_two(exponents: Tensor) -> Tensor:
    """2^e in float64 for integers e from -1022 to 1023, from its bits."""
    return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64)


@dataclass(frozen=True)
class Part:
    """Consecutive points of a support, with their labels and predictions."""

    points: CentredPoints
    labels: Tensor  # (S,)
    predictions: Tensor  # (S,)
    start: int = 0  # the support index of the first point

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def groups(self) -> Tensor:
        """The class that each point can vouch for, -1 for none; (S,) int32."""
        return torch.where(self.labels == self.predictions, self.labels, -1).to(torch.int32)

    def where(self, keep: Tensor) -> Part:
        """The points that a mask (S,) keeps."""
        points = CentredPoints(self.points.points[keep], self.points.centre, self.points.squared_norms[keep])
        return Part(points, self.labels[keep], self.predictions[keep], self.start)


def joined(parts: Sequence[Part]) -> Part:
    """Parts that follow one another as one; a single part as it is, without a copy."""
    if len(parts) == 1:
        return parts[0]
    points = CentredPoints(
        torch.cat([part.points.points for part in parts]),
        parts[0].points.centre,
        torch.cat([part.points.squared_norms for part in parts]),
    )
    labels = torch.cat([part.labels for part in parts])
    return Part(points, labels, torch.cat([part.predictions for part in parts]), parts[0].start)
