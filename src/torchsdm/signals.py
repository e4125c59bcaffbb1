"""The signals of a point: similarity and distance, joined into what the activation needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsdm.ecdf import ClassEcdfs
from torchsdm.matching import Match


@dataclass(frozen=True)
class Signals:
    """Similarity q and distance quantile d of each point, with the nearest support point; all (N,)."""

    similarity: Tensor
    nearest_distance: Tensor
    nearest_index: Tensor
    distance_quantile: Tensor

    @classmethod
    def of(cls, match: Match, ecdfs: ClassEcdfs, *, skip_empty: bool = False) -> Signals:
        """Rank the nearest distances of a match within the class-wise eCDFs (of those with points: ``skip_empty``)."""
        return cls(
            match.similarity,
            match.nearest_distance,
            match.nearest_index,
            ecdfs.distance_quantile(match.nearest_distance, skip_empty=skip_empty),
        )

    @property
    def out_of_distribution(self) -> Tensor:
        """Points with q = 0 or d = 0: too unlike the support, or too far from it."""
        return (self.similarity == 0) | (self.distance_quantile == 0)
