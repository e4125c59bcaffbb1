"""Decisions: what is said of each input, and the rule by which it is admitted or rejected (Eq. 9 and appendix A.5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core.activation import log_activation, rescaled_similarity
from torchsdm.core.region import HighReliabilityRegion
from torchsdm.core.sample_size import distance_quantile_band, dkw_epsilon, effective_sample_sizes
from torchsdm.core.signals import Signals
from torchsdm.errors import InvalidInputError, InvalidTypeError, MissingExtraError
from torchsdm.validation import Array

_ABSENT: Any = None  # of a field that an estimator does not fill
_OF_ONE_ALPHA = (
    *("set_sizes", "confidence_lower", "confidence_upper", "distance_quantile_lower", "distance_quantile_upper"),
    *("rescaled_similarity_lower", "dkw_epsilon"),
)


@dataclass(frozen=True)
class Decisions:
    """One row per input. All are numpy arrays of length N; per-class ones are (N, C), in the order of ``classes``.

    Every estimator fills the fields up to ``logits``. Those after it are the signals that an SDM decision rests on; of
    an estimator that has no such signal they are None, and absent from ``to_dicts`` and ``to_pandas``.

    Where several alphas are asked for, the values that depend on alpha (``dkw_epsilon`` and everything lower or upper)
    are those of the row's ``admitted_lower_alpha``; where that is NaN, of its ``admitted_alpha``; where that is too, of
    the smallest alpha. In an ensemble they are those that the round named by ``member`` shows.
    """

    classes: Array
    """The labels (C,), in the order of the per-class columns."""
    alphas: Array
    """The alphas asked for (A,), ascending."""
    predictions: Array
    """Predicted label: argmax of the logits, whether admitted or not."""
    admitted: Array
    """Whether the prediction may be acted on."""
    admitted_alpha: Array
    """The alpha nearest 1 at which the point is admitted; NaN where it is at none."""
    admitted_at: Array
    """Whether the point is admitted at each alpha, (N, A)."""
    probabilities: Array
    """What the estimator takes for the probabilities of the classes, (N, C): sdm(z') here, uniform where d = 0."""
    confidence: Array
    """Probability of the predicted label."""
    logits: Array
    """z', (N, C)."""
    score: Array | None = None
    """What the estimator orders inputs by, where that is not ``confidence``: the higher, the more to be relied on."""
    set_sizes: Array | None = None
    """Of conformal estimators: how many labels the prediction set holds."""
    admitted_lower: Array = _ABSENT
    """Whether it is still admitted when the error of the distance eCDFs is allowed for (the lower estimator)."""
    admitted_lower_alpha: Array = _ABSENT
    """The alpha nearest 1 at which the lower estimator admits the point; NaN where none does."""
    admitted_lower_at: Array = _ABSENT
    """Whether the lower estimator of each alpha does, (N, A)."""
    out_of_distribution: Array = _ABSENT
    """q = 0 or d = 0: the nearest support point disagrees, or everything is farther than calibration ever saw."""
    confidence_lower: Array = _ABSENT
    confidence_upper: Array = _ABSENT
    similarity: Array = _ABSENT
    """q: how many of the nearest support points, without a break, are correct and predicted alike."""
    nearest_distance: Array = _ABSENT
    nearest_index: Array = _ABSENT
    """Support index of the nearest support point."""
    distance_quantile: Array = _ABSENT
    """d in [0, 1]; 0 is far."""
    distance_quantile_lower: Array = _ABSENT
    distance_quantile_upper: Array = _ABSENT
    rescaled_similarity: Array = _ABSENT
    """q'."""
    rescaled_similarity_lower: Array = _ABSENT
    effective_sample_sizes: Array = _ABSENT
    """Per class, how many calibration points have a smaller q', (N, C)."""
    dkw_epsilon: Array = _ABSENT
    """Half-width of the band around d."""
    member: Array | None = None
    """Of an ensemble: the round that the row's numbers are from."""

    @classmethod
    def of_probabilities(
        cls,
        classes: Array,
        alphas: Sequence[float],
        logits: Array,
        probabilities: Array,
        admitted_at: Array,
        **others: Array,
    ) -> Decisions:
        """Decisions of an estimator that has probabilities and a rule: (N, C), and (N, A) for ascending alphas."""
        y_hat = logits.argmax(axis=1)
        admitted_alpha = nearest_one(admitted_at, np.asarray(alphas, dtype=float))
        return cls(
            classes=classes,
            alphas=np.asarray(alphas, dtype=float),
            predictions=classes[y_hat],
            admitted=~np.isnan(admitted_alpha),
            admitted_alpha=admitted_alpha,
            admitted_at=admitted_at,
            probabilities=probabilities,
            confidence=np.take_along_axis(probabilities, y_hat[:, None], axis=1)[:, 0],
            logits=logits,
            **others,
        )

    def at(self, alpha: float) -> Decisions:
        """The same rows, admitted or not at one of the alphas asked for.

        Of several alphas, what else depends on alpha (bands, lower values, set sizes) is left out.
        """
        columns = np.flatnonzero(np.isclose(self.alphas, alpha, rtol=0, atol=1e-9))
        if len(columns) == 0:
            known = ", ".join(f"{value:g}" for value in self.alphas)
            raise InvalidInputError(f"'alpha' of Decisions.at must be one of those asked for, {known}. Got {alpha:g}.")
        if len(self.alphas) == 1:
            return self
        changed: dict[str, Any] = {"alphas": self.alphas[columns]}
        changed |= dict.fromkeys(_OF_ONE_ALPHA)  # known for one alpha of each row, which may be another
        for kind in ("admitted", "admitted_lower"):
            admitted_at = getattr(self, f"{kind}_at")
            if admitted_at is not None:
                at_alpha = admitted_at[:, columns]
                changed |= {kind: at_alpha[:, 0], f"{kind}_at": at_alpha}
                changed[f"{kind}_alpha"] = np.where(at_alpha[:, 0], float(alpha), np.nan)
        return replace(self, **changed)

    @property
    def magnitude(self) -> Array:
        """The logit of the predicted label, z'_yhat (N,)."""
        magnitude: Array = self.logits.max(axis=1)
        return magnitude

    @property
    def min_sample_size(self) -> Array:
        """The smallest effective sample size over the classes (N,)."""
        smallest: Array = self.effective_sample_sizes.min(axis=1)
        return smallest

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        return f"Decisions({len(self)} input{'s' * (len(self) != 1)}, {int(self.admitted.sum())} admitted)"

    def __getitem__(self, rows: int | slice | Sequence[int] | Array) -> Decisions:
        """Some of the rows, as decisions; one number gives one row."""
        if isinstance(rows, str):
            raise InvalidTypeError(f"Decisions are indexed by row. For a column write decisions.{rows}.")
        chosen = [rows] if isinstance(rows, (int, np.integer)) else rows
        values = {name: value[chosen] for name, value in self._columns()}
        return replace(self, **values)

    @classmethod
    def concatenate(cls, parts: Sequence[Decisions]) -> Decisions:
        """The rows of several decisions, one after the other."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name, _ in parts[0]._columns()}
        return cls(classes=parts[0].classes, alphas=parts[0].alphas, **columns)

    def with_admission(self, admitted_at: Array, member: Array) -> Decisions:
        """The same rows, admitted at the alphas given (N, A) by the rounds given, in the lower sense and so in any."""
        alpha = nearest_one(admitted_at, self.alphas)
        return replace(
            self,
            admitted=~np.isnan(alpha),
            admitted_lower=~np.isnan(alpha),
            admitted_alpha=alpha,
            admitted_lower_alpha=alpha,
            admitted_at=admitted_at,
            admitted_lower_at=admitted_at,
            member=member,
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values per input, ready for strict JSON: what is NaN or infinite becomes None."""
        names = [name for name, _ in self._columns()]
        columns = [value.tolist() for _, value in self._columns()]
        keys = {name: [str(key) for key in self._keys(name).tolist()] for name in names}
        return [
            {
                name: dict(zip(keys[name], value, strict=True)) if isinstance(value, list) else _plain(value)
                for name, value in zip(names, row, strict=True)
            }
            for row in zip(*columns, strict=True)
        ]

    def to_pandas(self) -> Any:
        """A data frame with one row per input; per-class values get a column per class, as ``probabilities[label]``."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("pandas", "report", "Decisions.to_pandas") from error
        columns: dict[str, Array] = {}
        for name, value in self._columns():
            if value.ndim == 1:
                columns[name] = value
            else:
                columns |= {f"{name}[{key}]": value[:, c] for c, key in enumerate(self._keys(name).tolist())}
        return pd.DataFrame(columns)

    def _keys(self, name: str) -> Array:
        """What the columns of a two-dimensional field stand for."""
        return self.alphas if name.endswith("_at") else self.classes

    def _columns(self) -> Iterator[tuple[str, Array]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("classes", "alphas") and value is not None:
                yield field.name, value


@dataclass(frozen=True)
class CalibrationScores:
    """What decisions need of the calibration set: each point's q' and true class."""

    rescaled_similarity: Tensor
    labels: Tensor


def decide(
    logits: Tensor,
    signals: Signals,
    calibration: CalibrationScores,
    regions: Sequence[HighReliabilityRegion],
    classes: Array,
) -> Decisions:
    """Decide on points from their logits and signals; everything in float64, row by row independent of the batch."""
    z, q, d = logits.double(), signals.similarity, signals.distance_quantile
    y_hat = z.argmax(dim=1)

    def of_prediction(per_class: Tensor) -> Tensor:
        return per_class.gather(1, y_hat.unsqueeze(1)).squeeze(1)

    def confidence_at(quantile: Tensor) -> Tensor:
        return of_prediction(log_activation(z, q, quantile).exp())

    probabilities = log_activation(z, q, d).exp()
    confidence = of_prediction(probabilities)
    q_rescaled = rescaled_similarity(q, confidence)
    sizes = effective_sample_sizes(calibration.rescaled_similarity, calibration.labels, q_rescaled, z.shape[1])

    regions = sorted(regions, key=lambda region: region.alpha)
    bands, admitted_at, admitted_lower_at = [], [], []
    for region in regions:
        epsilon = dkw_epsilon(sizes, region.alpha)
        d_lower, d_upper = distance_quantile_band(d, epsilon)
        confidence_lower = confidence_at(d_lower)
        q_rescaled_lower = rescaled_similarity(q, confidence_lower)
        bands.append(
            {
                "dkw_epsilon": epsilon,
                "distance_quantile_lower": d_lower,
                "distance_quantile_upper": d_upper,
                "confidence_lower": confidence_lower,
                "confidence_upper": confidence_at(d_upper),
                "rescaled_similarity_lower": q_rescaled_lower,
            }
        )
        admitted_at.append(region.admits(q_rescaled, y_hat, confidence))
        admitted_lower_at.append(region.admits(q_rescaled_lower, y_hat, confidence_lower))
    # The band shown: of the largest alpha that admits the lower estimate, else the point, else of the smallest.
    shown = torch.zeros_like(y_hat)
    for admits_at in (admitted_at, admitted_lower_at):
        for position, admits in enumerate(admits_at):
            shown[admits] = position
    band = {name: torch.stack([b[name] for b in bands]).gather(0, shown[None])[0] for name in bands[0]}

    columns = {
        "admitted_at": torch.stack(admitted_at, dim=1),
        "admitted_lower_at": torch.stack(admitted_lower_at, dim=1),
        "out_of_distribution": signals.out_of_distribution,
        "probabilities": probabilities,
        "confidence": confidence,
        "logits": logits,
        "similarity": q,
        "nearest_distance": signals.nearest_distance,
        "nearest_index": signals.nearest_index,
        "distance_quantile": d,
        "rescaled_similarity": q_rescaled,
        "effective_sample_sizes": sizes,
        **band,
    }
    arrays = {name: column.cpu().numpy() for name, column in columns.items()}
    alphas = np.array([region.alpha for region in regions])
    admitted_alpha = nearest_one(arrays["admitted_at"], alphas)
    admitted_lower_alpha = nearest_one(arrays["admitted_lower_at"], alphas)
    return Decisions(
        classes=classes,
        alphas=alphas,
        predictions=classes[y_hat.cpu().numpy()],
        admitted=~np.isnan(admitted_alpha),
        admitted_lower=~np.isnan(admitted_lower_alpha),
        admitted_alpha=admitted_alpha,
        admitted_lower_alpha=admitted_lower_alpha,
        **arrays,
    )


def nearest_one(admitted_at: Array, alphas: Array) -> Array:
    """The largest alpha that admits each row (N,), NaN where none does."""
    return np.where(admitted_at.any(axis=1), np.where(admitted_at, alphas, -np.inf).max(axis=1), np.nan)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
