"""The calibration set of a model: its signals, its eCDFs, and the regions found on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import (
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
from torchsdm.errors import InvalidInputError, RegionWarning, SDMWarning
from torchsdm.matching import Support
from torchsdm.model.examples import Examples
from torchsdm.trust import SignalSample
from torchsdm.validation import Array
from torchsdm.wording import described


@dataclass(frozen=True)
class EncodedPoints:
    """Labelled points as the adaptor sees them."""

    points: Encoded
    labels: Tensor  # (N,)
    examples: Examples
    places: Tensor | None = field(default=None, kw_only=True)
    """Of calibration points (N,): where each is in the support, too; -1 if it is not. None: none is."""

    def with_added(self, more: EncodedPoints) -> EncodedPoints:
        """These points and more."""
        nowhere = torch.full((len(more.labels),), -1)
        return replace(
            self,
            points=Encoded.concatenate([self.points, more.points]),
            labels=torch.cat([self.labels, more.labels]),
            examples=self.examples.with_added(more.examples),
            places=None if self.places is None else torch.cat([self.places, nowhere]),
        )

    def without(self, positions: Sequence[int]) -> EncodedPoints:
        """These points without some; at least one must be left."""
        gone = set(positions)
        kept = [p for p in range(len(self.labels)) if p not in gone]
        if not kept:
            raise InvalidInputError(f"At least one point must be left of the {len(self.labels)} that are there.")
        return replace(
            self,
            points=self.points[kept],
            labels=self.labels[kept],
            examples=self.examples.take(kept),
            places=None if self.places is None else self.places[kept],
        )


@dataclass(frozen=True)
class Calibration:
    """The calibration set, with its signals against the support at the time of calibration."""

    known: EncodedPoints
    similarity: Tensor  # (N,)
    nearest_distance: Tensor  # (N,)
    rescaled_similarity: Tensor  # (N,)
    ecdfs: ClassEcdfs
    regions: tuple[HighReliabilityRegion, ...]
    min_class_count: int

    @property
    def labels(self) -> Tensor:
        """Class numbers (N,)."""
        return self.known.labels

    @property
    def labels_apart(self) -> Tensor:
        """The labels of the points that are not in the support as well."""
        return self.labels if self.known.places is None else self.labels[self.known.places < 0]

    @property
    def logits(self) -> Tensor:
        """z' of the calibration points (N, C), float32."""
        return self.known.points.logits

    @property
    def predictions(self) -> Tensor:
        """Predicted class numbers (N,)."""
        return self.known.points.predictions

    @property
    def distance_quantile(self) -> Tensor:
        """d of the calibration points, ranked within their own eCDFs."""
        return self.ecdfs.distance_quantile(self.nearest_distance)

    @cached_property
    def familiarity(self) -> Familiarity:
        """What inputs are ranked among."""
        return Familiarity.fit(self.nearest_distance.cpu().numpy(), self.logits.cpu().numpy())

    @property
    def confidence(self) -> Tensor:
        """sdm(z') of the prediction of the calibration points (N,)."""
        return _probabilities(self.logits, self.similarity, self.distance_quantile).amax(dim=1)

    def sample(self, measured: bool = True) -> SignalSample:
        """The points for certificates and displays; familiarity is ``measured`` or, in earlier models, by d and q."""
        logits = self.logits.cpu().numpy()
        if measured:
            familiarity = self.familiarity.of(self.nearest_distance.cpu().numpy(), logits)
        else:
            quantile = self.ecdfs.class_distance_quantile(self.nearest_distance, self.predictions)
            familiarity = torch.where(self.similarity > 0, quantile, 0.0).cpu().numpy()
        return SignalSample(
            labels=self.labels.cpu().numpy(),
            logits=logits,
            similarity=self.similarity.cpu().numpy(),
            distance_quantile=self.distance_quantile.cpu().numpy(),
            familiarity=np.where(self.known.points.is_background.cpu().numpy(), 0.0, familiarity),
        )

    def admitted(self, region: HighReliabilityRegion) -> Array:
        """Which of the points a region admits (N,)."""
        return region.admits(self.rescaled_similarity, self.predictions, self.confidence).cpu().numpy()

    def groups(self, region: HighReliabilityRegion) -> tuple[GroupAccuracy, ...]:
        """Every true class and every prediction among the points that a region admits, on this calibration set."""
        labels, predictions = self.labels.cpu().numpy(), self.predictions.cpu().numpy()
        return GroupCounts.of(labels, predictions, self.admitted(region), self.ecdfs.n_classes).accuracies()

    def warnings(self, class_names: Sequence[Any] | None = None, *, certified: bool = False) -> list[SDMWarning]:
        """What a user should know before relying on the regions; ``certified`` if a certificate admits beside them."""
        found: list[SDMWarning | None] = [self.ecdfs.warning(class_names)]
        for region in self.regions:
            found += [region.warning(class_names, certified=certified), self._group_warning(region, class_names)]
        return [warning for warning in found if warning is not None]

    def _group_warning(self, region: HighReliabilityRegion, class_names: Sequence[Any] | None) -> RegionWarning | None:
        """Name groups below alpha and predictions with few points; a region is found by true classes alone.

        Predictions of a class that has few points itself are left to the region's own warning.
        """
        weak = []
        for group in self.groups(region) if region.found else ():
            alpha = target_of(region.target, group.class_number)
            needed = 0 if alpha == 1 else 1 / (1 - alpha) - 1e-9
            is_told = group.class_number in region.scarce_classes
            is_thin = group.kind == "prediction" and group.n_admitted < needed and not is_told
            if is_thin or (group.accuracy is not None and group.accuracy < alpha):
                weak.append(group.described(class_names))
        if not weak:
            return None
        asked = described(region.target, class_names)
        return RegionWarning(
            f"In the region at alpha={asked} some groups are below alpha or based on few points, on the "
            f"calibration set itself: {'; '.join(weak)}."
        )

    @classmethod
    def of(cls, known: EncodedPoints, support: Support, alphas: Sequence[Target], min_class_count: int) -> Calibration:
        """Match the calibration points against the support, each without itself, then fit eCDFs and regions."""
        points, labels = known.points, known.labels
        match = points.unvouched(support.match(points.exemplars, points.predictions, known.places))
        ecdfs = ClassEcdfs.fit(match.nearest_distance, match.similarity, labels, points.logits.shape[1], warn=False)
        p = _probabilities(points.logits, match.similarity, ecdfs.distance_quantile(match.nearest_distance))
        rescaled = rescaled_similarity(match.similarity, p.amax(dim=1))
        found = cls(known, match.similarity, match.nearest_distance, rescaled, ecdfs, (), min_class_count)
        return found.with_regions(alphas, min_class_count)

    def with_regions(self, alphas: Sequence[Target], min_class_count: int) -> Calibration:
        """The same calibration with regions for other alphas; nothing else changes."""
        p = _probabilities(self.logits, self.similarity, self.distance_quantile)
        points = self.rescaled_similarity, p, self.labels
        regions = tuple(find_high_reliability_region(*points, alpha, min_class_count) for alpha in alphas)
        return replace(self, regions=regions, min_class_count=min_class_count)


def _probabilities(logits: Tensor, similarity: Tensor, distance_quantile: Tensor) -> Tensor:
    return log_activation(logits.double(), similarity, distance_quantile).exp()
