"""Why a decision was made: the training examples behind it, and how similar calibration points fared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchsdm.labels import LabelCodes
from torchsdm.model.examples import Examples
from torchsdm.model.model import SDMModel
from torchsdm.trust import LaneRule, Watcher
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


P = TypeVar("P", bound=KnownPoint)


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
    rule: LaneRule | None = None,
    guard: Watcher | None = None,
) -> list[Explanation]:
    """Explain the decisions on hidden states, by input; a rule adds lanes to them, and a guard watches them."""
    decisions, distances, indices = model.decide_with_neighbors(hidden_states, min(k, len(model.support)))
    decisions = decisions if rule is None else rule.apply(decisions)
    decisions = decisions if guard is None else guard.watch(decisions)
    predictions = decisions.logits.argmax(axis=1).tolist()  # the numbers of the predicted classes
    similarity, quantile = decisions.rescaled_similarity.tolist(), decisions.distance_quantile.tolist()
    known, labels, recognised_as = model.calibration, model.support.labels, model.support.predictions
    known_quantile, known_predictions = known.distance_quantile, known.predictions
    explanations = []
    for i, (row, c) in enumerate(zip(decisions.to_dicts(), predictions, strict=True)):
        near = indices[i]
        vouches = (labels[near] == c) & (recognised_as[near] == c)
        exemplars = _points(Exemplar, model.examples, codes, near, labels, recognised_as, distances[i], vouches)
        same = torch.nonzero(known_predictions == c).squeeze(1)
        alike = same[_alike(known.rescaled_similarity[same], known_quantile[same], similarity[i], quantile[i])]
        shown, n_right = alike[:k], int((known.labels[alike] == c).sum())
        columns = known.labels, known_predictions, known.rescaled_similarity[shown], known_quantile[shown]
        calibration_points = _points(CalibrationPoint, known.known.examples, codes, shown, *columns)
        accuracy = n_right / len(alike) if len(alike) else None
        explanations.append(Explanation(row, exemplars, calibration_points, len(alike), accuracy))
    return explanations


def _alike(rescaled_similarity: Tensor, quantile: Tensor, own_similarity: float, own_quantile: float) -> Tensor:
    """Which points of the same prediction are in an input's partition, the most similar first.

    q' counts as a rank among these points, because it spans orders of magnitude: both coordinates are then in [0, 1].
    """
    ordered = rescaled_similarity.sort().values
    values = torch.cat([rescaled_similarity, rescaled_similarity.new_tensor([own_similarity])])
    below, up_to = torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
    ranks = (below + up_to).double() / (2 * len(ordered))
    difference = torch.maximum((ranks[:-1] - ranks[-1]).abs(), (quantile - own_quantile).abs())
    order = torch.argsort(difference, stable=True)
    return order[difference[order] <= PARTITION_WIDTH]


def _points(
    kind: Callable[..., P],
    examples: Examples,
    codes: LabelCodes,
    chosen: Tensor,
    labels: Tensor,
    predictions: Tensor,
    *columns: Tensor,
) -> tuple[P, ...]:
    """The chosen points of a set, with further columns of numbers."""
    names = codes.decode(labels[chosen]), codes.decode(predictions[chosen]), *(one.tolist() for one in columns)
    positions = chosen.tolist()
    rows = zip(positions, examples.rows(positions), *names, strict=True)
    return tuple(kind(position, name, *values, text) for position, (name, text), *values in rows)
