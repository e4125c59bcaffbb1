"""Why a decision was made: the training examples behind it, and how similar calibration points fared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchsdm.core import SDMDecisions
from torchsdm.labels import LabelCodes
from torchsdm.model.examples import Examples
from torchsdm.model.model import SDMModel
from torchsdm.wording import shortened

PARTITION_WIDTH = 0.1  #: how far q' (as a rank) and d of a calibration point may be from the input's


@dataclass(frozen=True)
class KnownPoint:
    """A labelled point of the model."""

    index: int
    id: Any
    label: Any
    prediction: Any

    def to_dict(self, *, texts: bool = True) -> dict[str, Any]:
        """For output: by its id, which updates do not change, and not by its index."""
        left_out = {"index"} if texts else {"index", "text"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}


@dataclass(frozen=True)
class Exemplar(KnownPoint):
    """A point of the support near the input."""

    distance: float
    vouches: bool
    """Whether it vouches for the answer: correctly predicted, with the input's prediction."""
    text: str | None = None


@dataclass(frozen=True)
class CalibrationPoint(KnownPoint):
    """A calibration point of the input's partition."""

    rescaled_similarity: float
    distance_quantile: float
    text: str | None = None


@dataclass(frozen=True)
class Explanation:
    """The evidence behind one decision."""

    decision: dict[str, Any]
    """The row of ``Decisions``, as a dictionary."""
    exemplars: tuple[Exemplar, ...]
    """The k nearest training examples, nearest first."""
    calibration_points: tuple[CalibrationPoint, ...]
    """Up to k calibration points of the same partition, most similar first."""
    partition_size: int
    """How many calibration points share the prediction and have a similar q' and distance quantile."""
    partition_accuracy: float | None
    """Share of those that is predicted correctly; None if there are none. The epoch was chosen on these points."""

    def with_decision(self, decision: dict[str, Any]) -> Explanation:
        """The same evidence for a decision that is also based on other evidence, as an ensemble's is."""
        return replace(self, decision=decision)

    def to_dict(self, *, calibration: bool = True, texts: bool = True) -> dict[str, Any]:
        """The row of ``Decisions.to_dicts`` with the evidence behind it; plain values, ready for strict JSON.

        Parameters
        ----------
        calibration : bool
            Whether to include the calibration points of the input's partition, its size and its accuracy.
        texts : bool
            Whether to include the texts of training examples and calibration points.
        """
        row = {**self.decision, "exemplars": [point.to_dict(texts=texts) for point in self.exemplars]}
        if calibration:
            row["calibration_points"] = [point.to_dict(texts=texts) for point in self.calibration_points]
            row |= {"partition_size": self.partition_size, "partition_accuracy": self.partition_accuracy}
        return row

    def __str__(self) -> str:
        row = self.decision
        lane = f", {row['lane']}: {row['reason']}" if "lane" in row else ""
        lines = [
            f"{row['prediction']!r}: {'admitted' if row['admitted'] else 'rejected'}{lane}",
            f"confidence {row['confidence']:.3f}, similarity q {row['similarity']}, distance quantile "
            f"{row['distance_quantile']:.3f}",
            "nearest training examples:",
        ]
        for point in self.exemplars:
            mark = "+" if point.vouches else "-"
            text = "" if point.text is None else f"  {shortened(point.text, 100)}"
            lines.append(
                f"  {mark} id {point.id!r}: label {point.label!r}, predicted {point.prediction!r}, "
                f"distance {point.distance:.4g}{text}"
            )
        if self.partition_accuracy is None:
            lines.append("no calibration point shares its partition")
        else:
            lines.append(
                f"{self.partition_size} calibration points share its partition, "
                f"{self.partition_accuracy:.1%} of them correct"
            )
        return "\n".join(lines)


def explain(
    model: SDMModel,
    codes: LabelCodes,
    hidden_states: Tensor,
    k: int,
    judge: Callable[[SDMDecisions], SDMDecisions] = lambda decisions: decisions,
) -> list[Explanation]:
    """Explain the decisions on hidden states, one explanation per input; ``judge`` adds lanes to the decisions."""
    decisions, distances, indices = model.decide_with_neighbors(hidden_states, min(k, len(model.support)))
    decisions = judge(decisions)
    predictions = decisions.logits.argmax(axis=1).tolist()  # the numbers of the predicted classes
    similarity, quantile = decisions.rescaled_similarity, decisions.distance_quantile
    calibration = _Calibration(model, codes)
    return [
        Explanation(
            row,
            _exemplars(model, codes, distances[i], indices[i], predictions[i]),
            *calibration.partition(predictions[i], float(similarity[i]), float(quantile[i]), k),
        )
        for i, row in enumerate(decisions.to_dicts())
    ]


def _exemplars(
    model: SDMModel, codes: LabelCodes, distances: Tensor, indices: Tensor, prediction: int
) -> tuple[Exemplar, ...]:
    labels, predictions = model.support.labels[indices], model.support.predictions[indices]
    vouching = ((labels == prediction) & (predictions == prediction)).tolist()
    known = _known(model.examples, codes, indices, labels, predictions)
    return tuple(
        Exemplar(*point, distance, vouches, text)
        for point, text, distance, vouches in zip(*known, distances.tolist(), vouching, strict=True)
    )


class _Calibration:
    """The calibration set by prediction, with q' as a rank among the points of the same prediction.

    A rank, because q' spans orders of magnitude: with it both coordinates are in [0, 1].
    """

    def __init__(self, model: SDMModel, codes: LabelCodes) -> None:
        self.known, self.examples, self.codes = model.calibration, model.calibration_examples, codes
        self.distance_quantile = self.known.distance_quantile

    def partition(
        self, prediction: int, rescaled_similarity: float, distance_quantile: float, k: int
    ) -> tuple[tuple[CalibrationPoint, ...], int, float | None]:
        """The k most similar points of an input's partition, its size and its accuracy."""
        same = torch.nonzero(self.known.predictions == prediction).squeeze(1)
        if len(same) == 0:
            return (), 0, None
        q_rescaled, d = self.known.rescaled_similarity[same], self.distance_quantile[same]
        ordered = q_rescaled.sort().values

        def rank(values: Tensor) -> Tensor:
            below, up_to = torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
            return (below + up_to).double() / (2 * len(ordered))

        own_rank = rank(torch.tensor([rescaled_similarity], dtype=torch.float64, device=ordered.device))
        difference = torch.maximum((rank(q_rescaled) - own_rank).abs(), (d - distance_quantile).abs())
        order = torch.argsort(difference, stable=True)
        chosen = same[order[difference[order] <= PARTITION_WIDTH]]
        correct = self.known.labels[chosen] == prediction
        accuracy = float(correct.double().mean()) if len(chosen) else None
        return self._points(chosen[:k]), len(chosen), accuracy

    def _points(self, chosen: Tensor) -> tuple[CalibrationPoint, ...]:
        signals = self.known.rescaled_similarity[chosen].tolist(), self.distance_quantile[chosen].tolist()
        labels, predictions = self.known.labels[chosen], self.known.predictions[chosen]
        known = _known(self.examples, self.codes, chosen, labels, predictions)
        return tuple(
            CalibrationPoint(*point, q_rescaled, d, text)
            for point, text, q_rescaled, d in zip(*known, *signals, strict=True)
        )


def _known(
    examples: Examples, codes: LabelCodes, chosen: Tensor, labels: Tensor, predictions: Tensor
) -> tuple[list[tuple[int, Any, Any, Any]], list[str | None]]:
    """Index, id, label and prediction of each chosen point, and the texts."""
    rows = examples.rows(chosen.tolist())
    ids = [name for name, _ in rows]
    points = list(zip(chosen.tolist(), ids, codes.decode(labels), codes.decode(predictions), strict=True))
    return points, [text for _, text in rows]
