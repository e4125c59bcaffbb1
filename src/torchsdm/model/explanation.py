"""Why a decision was made: the training examples behind it, and how similar calibration points fared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchsdm.core import SDMDecisions
from torchsdm.labels import LabelCodes
from torchsdm.model.model import SDMModel
from torchsdm.wording import shortened

PARTITION_WIDTH = 0.1  #: how far q' (as a rank) and d of a calibration point may be from the input's


@dataclass(frozen=True)
class Exemplar:
    """A point of the support near the input."""

    index: int
    id: Any
    label: Any
    prediction: Any
    distance: float
    vouches: bool
    """Whether it vouches for the answer: correctly predicted, with the input's prediction."""
    text: str | None = None


@dataclass(frozen=True)
class CalibrationPoint:
    """A calibration point of the input's partition."""

    index: int
    id: Any
    label: Any
    prediction: Any
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
        row = {**self.decision, "exemplars": [_plain(point, texts) for point in self.exemplars]}
        if calibration:
            row["calibration_points"] = [_plain(point, texts) for point in self.calibration_points]
            row |= {"partition_size": self.partition_size, "partition_accuracy": self.partition_accuracy}
        return row

    def __str__(self) -> str:
        row = self.decision
        lane = f", {row['lane']}: {row['reason']}" if "lane" in row else ""
        lines = [
            f"{row['predictions']!r}: {'admitted' if row['admitted'] else 'rejected'}{lane}",
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
    predictions = decisions.logits.argmax(axis=1)  # the numbers of the predicted classes
    partitions = _Partitions(model)
    rows = decisions.to_dicts()
    return [
        Explanation(
            rows[i],
            _exemplars(model, codes, distances[i], indices[i], int(predictions[i])),
            *partitions.of(codes, int(predictions[i]), decisions, i, k),
        )
        for i in range(len(rows))
    ]


def _exemplars(
    model: SDMModel, codes: LabelCodes, distances: Tensor, indices: Tensor, prediction: int
) -> tuple[Exemplar, ...]:
    labels, predictions = model.support.labels[indices], model.support.predictions[indices]
    vouching = ((labels == prediction) & (predictions == prediction)).tolist()
    return tuple(
        Exemplar(index, name, label, predicted, distance, vouches, text)
        for index, (name, text), label, predicted, distance, vouches in zip(
            indices.tolist(),
            model.examples.rows(indices.tolist()),
            codes.decode(labels),
            codes.decode(predictions),
            distances.tolist(),
            vouching,
            strict=True,
        )
    )


class _Partitions:
    """The calibration set by prediction, with q' as a rank among the points of the same prediction.

    A rank, because q' spans orders of magnitude: with it both coordinates are in [0, 1].
    """

    def __init__(self, model: SDMModel) -> None:
        self.model, self.calibration = model, model.calibration
        self.predictions = self.calibration.predictions
        self.distance_quantile = self.calibration.distance_quantile

    def of(
        self, codes: LabelCodes, prediction: int, decisions: SDMDecisions, row: int, k: int
    ) -> tuple[tuple[CalibrationPoint, ...], int, float | None]:
        """The partition's k most similar points, its size and its accuracy."""
        same = torch.nonzero(self.predictions == prediction).squeeze(1)
        q_rescaled, d = self.calibration.rescaled_similarity[same], self.distance_quantile[same]
        if len(same) == 0:
            return (), 0, None
        ordered = q_rescaled.sort().values

        def rank(values: Tensor) -> Tensor:
            below, up_to = torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
            return (below + up_to).double() / (2 * len(ordered))

        own_rank = rank(torch.tensor([decisions.rescaled_similarity[row]], device=ordered.device))
        difference = torch.maximum(
            (rank(q_rescaled) - own_rank).abs(), (d - float(decisions.distance_quantile[row])).abs()
        )
        order = torch.argsort(difference, stable=True)
        order = order[difference[order] <= PARTITION_WIDTH]
        chosen = same[order]
        correct = self.calibration.labels[chosen] == prediction
        accuracy = float(correct.double().mean()) if len(chosen) else None
        return self._points(codes, chosen[:k]), len(chosen), accuracy

    def _points(self, codes: LabelCodes, chosen: Tensor) -> tuple[CalibrationPoint, ...]:
        rows: Sequence[tuple[Any, str | None]] = self.model.calibration_examples.rows(chosen.tolist())
        return tuple(
            CalibrationPoint(index, name, label, predicted, q_rescaled, d, text)
            for index, (name, text), label, predicted, q_rescaled, d in zip(
                chosen.tolist(),
                rows,
                codes.decode(self.calibration.labels[chosen]),
                codes.decode(self.predictions[chosen]),
                self.calibration.rescaled_similarity[chosen].tolist(),
                self.distance_quantile[chosen].tolist(),
                strict=True,
            )
        )


def _plain(point: Exemplar | CalibrationPoint, texts: bool) -> dict[str, Any]:
    """A point for output: by its id, which updates do not change, and not by its index."""
    left_out = {"index"} if texts else {"index", "text"}
    return {field.name: getattr(point, field.name) for field in fields(point) if field.name not in left_out}
