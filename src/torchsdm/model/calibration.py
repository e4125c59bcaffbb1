"""The calibration set of a model: its signals, its eCDFs, and the regions found on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import (
    CalibrationScores,
    ClassEcdfs,
    Encoded,
    Familiarity,
    GroupAccuracy,
    GroupCounts,
    HighReliabilityRegion,
    Target,
    find_high_reliability_region,
    log_activation,
    rescaled_similarity,
    target_of,
)
from torchsdm.errors import RegionWarning, SDMWarning
from torchsdm.matching import Support
from torchsdm.validation import Array
from torchsdm.wording import described


@dataclass(frozen=True)
class Calibration:
    """The calibration set, with its signals against the support at the time of calibration."""

    points: Encoded
    labels: Tensor  # (N,)
    similarity: Tensor  # (N,)
    nearest_distance: Tensor  # (N,)
    rescaled_similarity: Tensor  # (N,)
    ecdfs: ClassEcdfs
    regions: tuple[HighReliabilityRegion, ...]
    min_class_count: int
    places: Tensor | None = None  # (N,), where each point is in the support, too; -1 if it is not. None: none is

    @property
    def labels_apart(self) -> Tensor:
        """The labels of the points that are not in the support as well."""
        return self.labels if self.places is None else self.labels[self.places < 0]

    @property
    def logits(self) -> Tensor:
        """z' of the calibration points (N, C), float32."""
        return self.points.logits

    @property
    def predictions(self) -> Tensor:
        """Predicted class numbers (N,)."""
        return self.points.predictions

    @property
    def distance_quantile(self) -> Tensor:
        """d of the calibration points, ranked within their own eCDFs."""
        return self.ecdfs.distance_quantile(self.nearest_distance)

    @property
    def class_distance_quantile(self) -> Tensor:
        """d of the calibration points within their predicted class."""
        return self.ecdfs.class_distance_quantile(self.nearest_distance, self.predictions)

    @cached_property
    def familiarity(self) -> Familiarity:
        """What inputs are ranked among."""
        return Familiarity.fit(self.nearest_distance.cpu().numpy(), self.logits.cpu().numpy())

    def familiarities(self, measured: bool = True) -> Array:
        """The familiarity of the calibration points (N,), measured or, as in earlier models, by d and q."""
        if measured:
            own = self.familiarity.of(self.nearest_distance.cpu().numpy(), self.logits.cpu().numpy())
        else:
            own = torch.where(self.similarity > 0, self.class_distance_quantile, 0.0).cpu().numpy()
        familiarities: Array = np.where(self.points.is_background.cpu().numpy(), 0.0, own)
        return familiarities

    @property
    def confidence(self) -> Tensor:
        """sdm(z') of the prediction of the calibration points (N,)."""
        return _probabilities(self.logits, self.similarity, self.distance_quantile).amax(dim=1)

    @property
    def scores(self) -> CalibrationScores:
        """What decisions need from it."""
        return CalibrationScores(self.rescaled_similarity, self.labels, self.ecdfs)

    def groups(self, region: HighReliabilityRegion) -> tuple[GroupAccuracy, ...]:
        """Every true class and every prediction among the points that a region admits, on this calibration set."""
        admitted = region.admits(self.rescaled_similarity, self.predictions, self.confidence)
        labels, predictions, chosen = (tensor.cpu().numpy() for tensor in (self.labels, self.predictions, admitted))
        return GroupCounts.of(labels, predictions, chosen, self.ecdfs.n_classes).accuracies()

    def warnings(self, class_names: Sequence[Any] | None = None, *, certified: bool = False) -> list[SDMWarning]:
        """What a user should know before relying on the regions; ``certified`` if a certificate admits beside them."""
        found: list[SDMWarning | None] = [self.ecdfs.warning(class_names)]
        for region in self.regions:
            found += [region.warning(class_names, certified=certified), self._group_warning(region, class_names)]
        return [warning for warning in found if warning is not None]

    def _group_warning(
        self, region: HighReliabilityRegion, class_names: Sequence[Any] | None = None
    ) -> RegionWarning | None:
        """Name groups below alpha and predictions with few points; a region is found by true classes alone.

        Predictions of a class that has few points itself are left to the region's own warning.
        """

        def is_weak(group: GroupAccuracy) -> bool:
            alpha = target_of(region.target, group.class_number)
            needed = 0 if alpha == 1 else 1 / (1 - alpha) - 1e-9
            is_told = group.class_number in region.scarce_classes
            is_thin = group.kind == "prediction" and group.n_admitted < needed and not is_told
            return is_thin or (group.accuracy is not None and group.accuracy < alpha)

        weak = [
            group.described(class_names) for group in (self.groups(region) if region.found else ()) if is_weak(group)
        ]
        if not weak:
            return None
        asked = described(region.target, class_names)
        return RegionWarning(
            f"In the region at alpha={asked} some groups are below alpha or based on few points, on the "
            f"calibration set itself: {'; '.join(weak)}."
        )

    @classmethod
    def of(
        cls,
        points: Encoded,
        labels: Tensor,
        support: Support,
        alphas: Sequence[Target],
        min_class_count: int,
        places: Tensor | None = None,
    ) -> Calibration:
        """Match the calibration points against the support, each without itself, then fit eCDFs and regions."""
        match = points.unvouched(support.match(points.exemplars, points.predictions, places))
        ecdfs = ClassEcdfs.fit(match.nearest_distance, match.similarity, labels, points.logits.shape[1], warn=False)
        p = _probabilities(points.logits, match.similarity, ecdfs.distance_quantile(match.nearest_distance))
        rescaled = rescaled_similarity(match.similarity, p.amax(dim=1))
        return cls(
            points,
            labels,
            match.similarity,
            match.nearest_distance,
            rescaled,
            ecdfs,
            _find_regions(rescaled, p, labels, alphas, min_class_count),
            min_class_count,
            places,
        )

    def with_regions(self, alphas: Sequence[Target], min_class_count: int) -> Calibration:
        """The same calibration with regions for other alphas; nothing else changes."""
        p = _probabilities(self.logits, self.similarity, self.distance_quantile)
        regions = _find_regions(self.rescaled_similarity, p, self.labels, alphas, min_class_count)
        return replace(self, regions=regions, min_class_count=min_class_count)


def _find_regions(
    rescaled: Tensor, probabilities: Tensor, labels: Tensor, alphas: Sequence[Target], min_class_count: int
) -> tuple[HighReliabilityRegion, ...]:
    """One region per alpha."""
    return tuple(
        find_high_reliability_region(rescaled, probabilities, labels, alpha, min_class_count) for alpha in alphas
    )


def _probabilities(logits: Tensor, similarity: Tensor, distance_quantile: Tensor) -> Tensor:
    return log_activation(logits.double(), similarity, distance_quantile).exp()
