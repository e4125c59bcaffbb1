"""What grows is kept in parts, so that adding costs what is added and does not copy what is there.

A support consists of parts: consecutive points, each part with bounds of its own, all around the same centre. Parts are
never written to: whoever holds an older state keeps seeing it, also from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from torchsdm.matching._bounds import CentredPoints

PartType = TypeVar("PartType", bound=Sized)


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


def with_part(
    parts: Sequence[PartType], new: PartType, join: Callable[[Sequence[PartType]], PartType]
) -> tuple[PartType, ...]:
    """The parts and a new one, with which the last of them are joined while they are at most twice as large.

    So each part is more than twice as large as the next, and n elements have at most log2(n) + 1 parts. Joining makes
    an element's part half as large again or more, so an element is copied log(n) / log(1.5) times at most.

    Examples
    --------
    >>> with_part(["ninety-nine ", "red "], "balloons ", "".join)
    ('ninety-nine red balloons ',)
    >>> with_part(["ninety-nine red balloons ", "go "], "by", "".join)
    ('ninety-nine red balloons ', 'go by')
    """
    first, n = len(parts), len(new)
    while first > 0 and len(parts[first - 1]) <= 2 * n:
        first -= 1
        n += len(parts[first])
    return (*parts[:first], new if first == len(parts) else join([*parts[first:], new]))
