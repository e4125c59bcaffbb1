"""The calibration set of a model: its signals, its eCDFs, and the regions found on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchsdm.core import (
    CalibrationScores,
    ClassEcdfs,
    HighReliabilityRegion,
    Signals,
    find_high_reliability_region,
    log_activation,
    rescaled_similarity,
)
from torchsdm.errors import RegionWarning, warn_user
from torchsdm.matching import SupportSet


@dataclass(frozen=True)
class Calibration:
    """The calibration set, with its signals against the support at the time of calibration."""

    exemplars: Tensor  # (N, M)
    logits: Tensor  # (N, C) float32
    labels: Tensor  # (N,)
    similarity: Tensor  # (N,)
    nearest_distance: Tensor  # (N,)
    rescaled_similarity: Tensor  # (N,)
    ecdfs: ClassEcdfs
    regions: tuple[HighReliabilityRegion, ...]
    min_class_count: int

    @property
    def predictions(self) -> Tensor:
        """Predicted class numbers (N,)."""
        return self.logits.argmax(dim=1)

    @property
    def distance_quantile(self) -> Tensor:
        """d of the calibration points, ranked within their own eCDFs."""
        return self.ecdfs.distance_quantile(self.nearest_distance)

    @property
    def confidence(self) -> Tensor:
        """sdm(z') of the prediction of the calibration points (N,)."""
        return _probabilities(self.logits, self.similarity, self.distance_quantile).amax(dim=1)

    @property
    def scores(self) -> CalibrationScores:
        """What decisions need from it."""
        return CalibrationScores(self.rescaled_similarity, self.labels)

    @classmethod
    def of(
        cls,
        exemplars: Tensor,
        logits: Tensor,
        labels: Tensor,
        support: SupportSet,
        alphas: Sequence[float],
        min_class_count: int,
        class_names: Sequence[Any],
    ) -> Calibration:
        """Match the calibration points against the support, then fit eCDFs and regions; warns if they are weak."""
        match = support.match(exemplars, logits.argmax(dim=1))
        ecdfs = ClassEcdfs.fit(
            match.nearest_distance, match.similarity, labels, logits.shape[1], class_names=class_names
        )
        signals = Signals.of(match, ecdfs)
        p = _probabilities(logits, signals.similarity, signals.distance_quantile)
        rescaled = rescaled_similarity(signals.similarity, p.amax(dim=1))
        return cls(
            exemplars,
            logits,
            labels,
            signals.similarity,
            signals.nearest_distance,
            rescaled,
            ecdfs,
            _find_regions(rescaled, p, labels, alphas, min_class_count, class_names),
            min_class_count,
        )

    def with_regions(self, alphas: Sequence[float], min_class_count: int, class_names: Sequence[Any]) -> Calibration:
        """The same calibration with regions for other alphas; nothing else changes."""
        p = _probabilities(self.logits, self.similarity, self.distance_quantile)
        regions = _find_regions(self.rescaled_similarity, p, self.labels, alphas, min_class_count, class_names)
        return replace(self, regions=regions, min_class_count=min_class_count)


def _find_regions(
    rescaled: Tensor,
    probabilities: Tensor,
    labels: Tensor,
    alphas: Sequence[float],
    min_class_count: int,
    class_names: Sequence[Any],
) -> tuple[HighReliabilityRegion, ...]:
    """One region per alpha; warns if one is weak."""
    regions = tuple(
        find_high_reliability_region(rescaled, probabilities, labels, alpha, min_class_count) for alpha in alphas
    )
    for region in regions:
        warning = region.warning(class_names)
        if warning is not None:
            warn_user(warning.what, RegionWarning, warning.remedy)
    return regions


def _probabilities(logits: Tensor, similarity: Tensor, distance_quantile: Tensor) -> Tensor:
    return log_activation(logits.double(), similarity, distance_quantile).exp()
