"""One fitted model: adaptor, support, calibration set and region, and what follows from them.

This is the whole of the method for class numbers and tensors; ``SDMClassifier`` adds labels and
scikit-learn's contract, ``SDMEnsemble`` holds several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchsdm.activation import log_activation, rescaled_similarity
from torchsdm.adaptor import Adaptor
from torchsdm.decision import CalibrationScores, Decisions, decide
from torchsdm.ecdf import ClassEcdfs
from torchsdm.errors import RegionWarning, warn_user
from torchsdm.matching import Match
from torchsdm.persistence import StoredExamples
from torchsdm.region import HighReliabilityRegion, find_high_reliability_region
from torchsdm.signals import Signals
from torchsdm.support import SupportSet
from torchsdm.validation import Array, as_list, check_finite

_ROWS_AT_ONCE = 8192  # inputs whose exemplars are held at once while deciding


class Examples:
    """Ids and texts of points, in memory or still in the file they were saved to."""

    def __init__(self, ids: Sequence[Any] | Array, texts: Sequence[str | None] | Array | None = None) -> None:
        self._ids: list[Any] = as_list(ids, "ids", "Examples")
        self._texts: list[str | None] = (
            [None] * len(self._ids) if texts is None else as_list(texts, "texts", "Examples")
        )
        self._stored: StoredExamples | None = None

    @classmethod
    def stored(cls, stored: StoredExamples) -> Examples:
        """Examples that stay on disk until all of them are needed."""
        examples = cls([])
        examples._stored = stored
        return examples

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at positions."""
        if self._stored is not None:
            return self._stored.rows(positions)
        return [(self._ids[p], self._texts[p]) for p in positions]

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        return self._stored.all() if self._stored is not None else (self._ids, self._texts)

    def positions(self, ids: Iterable[Any]) -> list[int | None]:
        """Where the ids stand, None where they are unknown."""
        wanted = list(ids)
        if self._stored is not None:
            return self._stored.positions(wanted)
        place = {name: position for position, name in enumerate(self._ids)}
        return [place.get(name) for name in wanted]

    def take(self, positions: Sequence[int]) -> Examples:
        """Some of the examples, in the order of the positions."""
        rows = self.rows(positions)
        return Examples([name for name, _ in rows], [text for _, text in rows])

    def with_added(self, more: Examples) -> Examples:
        """These examples and more."""
        (ids, texts), (new_ids, new_texts) = self.all(), more.all()
        return Examples([*ids, *new_ids], [*texts, *new_texts])

    def without(self, positions: set[int]) -> Examples:
        """These examples but for some."""
        return self.take([p for p in range(len(self.all()[0])) if p not in positions])


@dataclass(frozen=True)
class Calibration:
    """The calibration set and its standing against the support at the time of calibration."""

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
        """What decisions need of it."""
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
        """Match the calibration points against the support, then fit eCDFs and regions; warns where they are weak."""
        match = support.match(exemplars, logits.argmax(dim=1))
        ecdfs = ClassEcdfs.fit(
            match.nearest_distance, match.similarity, labels, logits.shape[1], class_names=class_names
        )
        signals = Signals.of(match, ecdfs)
        calibration = cls(
            exemplars,
            logits,
            labels,
            signals.similarity,
            signals.nearest_distance,
            rescaled_similarity(
                signals.similarity,
                _probabilities(logits, signals.similarity, signals.distance_quantile).amax(dim=1),
            ),
            ecdfs,
            (),
            min_class_count,
        )
        return calibration.with_regions(alphas, min_class_count, class_names)

    def with_regions(self, alphas: Sequence[float], min_class_count: int, class_names: Sequence[Any]) -> Calibration:
        """The same calibration with regions for other alphas; nothing else changes."""
        p = _probabilities(self.logits, self.similarity, self.distance_quantile)
        regions = tuple(
            find_high_reliability_region(self.rescaled_similarity, p, self.labels, alpha, min_class_count)
            for alpha in alphas
        )
        for region in regions:
            message = region.explain(class_names)
            if message is not None:
                warn_user(message, RegionWarning)
        return replace(self, regions=regions, min_class_count=min_class_count)


@dataclass
class SDMModel:
    """A model that can decide, be updated and be calibrated anew."""

    adaptor: Adaptor
    support: SupportSet
    examples: Examples
    calibration: Calibration
    calibration_examples: Examples
    classes: Array
    support_changed: bool = False
    """Whether the support was updated since the calibration."""

    def known_ids(self) -> list[Any]:
        """The ids of support and calibration set."""
        return [*self.examples.all()[0], *self.calibration_examples.all()[0]]

    def decide(self, hidden_states: Tensor) -> Decisions:
        """Decide on hidden states (N, D) or (N, positions, D)."""
        return Decisions.concatenate([decisions for decisions, _ in self._decide_blocks(hidden_states)])

    def decide_with_neighbors(self, hidden_states: Tensor, k: int) -> tuple[Decisions, Tensor, Tensor]:
        """Decisions, and the distances and indices (N, k) of the nearest support points."""
        decisions, matches = zip(*self._decide_blocks(hidden_states, k), strict=True)
        distances = torch.cat([match.neighbor_distances for match in matches])
        return Decisions.concatenate(decisions), distances, torch.cat([match.neighbor_indices for match in matches])

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Logits (N, C)."""
        return torch.cat([self._encode(block)[1] for block in hidden_states.split(_ROWS_AT_ONCE)]).cpu()

    def predict(self, hidden_states: Tensor) -> Tensor:
        """Predicted class numbers (N,), from the logits alone."""
        return self.logits(hidden_states).argmax(dim=1)

    def recalibrate(self, alphas: Sequence[float], min_class_count: int) -> None:
        """New regions, and if the support has changed also new signals and eCDFs."""
        names = self.classes.tolist()
        if self.support_changed:
            known = self.calibration
            self.calibration = Calibration.of(
                known.exemplars, known.logits, known.labels, self.support, alphas, min_class_count, names
            )
            self.support_changed = False
        else:
            self.calibration = self.calibration.with_regions(alphas, min_class_count, names)

    def add(self, hidden_states: Tensor, labels: Tensor, examples: Examples) -> None:
        """Append points to the support; weights, eCDFs and region stay."""
        exemplars, logits = self._encode(hidden_states)
        self.support.add(exemplars, labels, logits.argmax(dim=1))
        self.examples, self.support_changed = self.examples.with_added(examples), True

    def remove(self, positions: Sequence[int]) -> None:
        """Drop points from the support."""
        examples = self.examples.without(set(positions))
        self.support.remove(torch.tensor(positions, dtype=torch.int64))
        self.examples, self.support_changed = examples, True

    def relabel(self, positions: Sequence[int], labels: Tensor) -> None:
        """Give points of the support new labels."""
        self.support.relabel(torch.tensor(positions, dtype=torch.int64), labels)
        self.support_changed = True

    def _encode(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        exemplars, logits = self.adaptor.encode(hidden_states)
        check_finite(exemplars, "exemplars", "the adaptor, made from X,")
        return exemplars, logits

    def _decide_blocks(self, hidden_states: Tensor, k: int = 0) -> Iterator[tuple[Decisions, Match]]:
        scores, regions = self.calibration.scores, self.calibration.regions
        for block in hidden_states.split(_ROWS_AT_ONCE):
            exemplars, logits = self._encode(block)
            match = self.support.match(exemplars, logits.argmax(dim=1), k=k)
            yield decide(logits, Signals.of(match, self.calibration.ecdfs), scores, regions, self.classes), match


def _probabilities(logits: Tensor, similarity: Tensor, distance_quantile: Tensor) -> Tensor:
    return log_activation(logits.double(), similarity, distance_quantile).exp()
