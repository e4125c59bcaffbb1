"""A support in parts: consecutive points, each part with bounds of its own, all around the same centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchsdm.matching._bounds import CentredPoints


@dataclass(frozen=True)
class Part:
    """Consecutive points of a support, with their labels and predictions. Never written to, so copies may share it."""

    points: CentredPoints
    labels: Tensor  # (S,)
    predictions: Tensor  # (S,)
    start: int = 0
    """The support index of the first point."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def groups(self) -> Tensor:
        """The class that each point can vouch for, -1 for none; (S,) int32."""
        return match_groups(self.labels, self.predictions).to(torch.int32)

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


def match_groups(labels: Tensor, predictions: Tensor) -> Tensor:
    """The class that a support point can vouch for: its label if correctly predicted, else -1."""
    return torch.where(labels == predictions, labels, -1)
