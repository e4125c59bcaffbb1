"""Decisions: the answer to each input, and the rule that admits or rejects it (Eq. 9 and appendix A.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchsdm.core.activation import log_activation, rescaled_similarity
from torchsdm.core.region import HighReliabilityRegion, Target
from torchsdm.core.signals import ClassEcdfs, dkw_epsilon, effective_sample_sizes
from torchsdm.errors import InvalidInputError, InvalidTypeError, MissingSignalError, import_extra
from torchsdm.matching import Match
from torchsdm.validation import Array
from torchsdm.wording import counted

Self = TypeVar("Self", bound="Decisions")

_LANES = ("certified", "certificate", "lane", "reason")  # fields that a certificate and its lanes fill


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Decisions of any estimator, one row per input; SDM estimators return ``SDMDecisions``, which have more fields.

    Fields are numpy arrays of length N; per-class ones are (N, C), in the order of ``classes``. Optional fields that an
    estimator does not fill are None, and absent from ``to_dicts`` and ``to_pandas``.
    """

    classes: Array
    """The labels (C,), in the order of the per-class columns."""
    alphas: Array
    """The requested alphas (A,), ascending; if classes have targets of their own, the smallest."""
    predictions: Array
    """Predicted label: argmax of the logits, whether admitted or not."""
    admitted: Array
    """Whether the prediction may be acted on, by the estimator's rule; for SDM, by the policy stored with the model."""
    admitted_alpha: Array
    """The largest alpha that admits the point; NaN if none does. For SDM, of the paper's regions."""
    admitted_at: Array
    """Whether each alpha admits the point, (N, A). For SDM, the paper's region of each alpha."""
    probabilities: Array
    """The estimator's class probabilities, (N, C); for SDM sdm(z'), uniform where d = 0."""
    confidence: Array
    """Probability of the predicted label."""
    logits: Array
    """z', (N, C)."""
    score: Array | None = None
    """What the estimator ranks inputs by, if that is not ``confidence``; higher is more reliable. For SDM with a
    certificate, the estimated probability that the prediction is right (``torchsdm.trust.Reliability``)."""
    set_sizes: Array | None = None
    """Conformal estimators: the number of labels in the prediction set."""
    member: Array | None = None
    """Ensembles: the round that the row's numbers are from."""
    certified: Array | None = None
    """Whether a certified rule admits the prediction (``torchsdm.trust.Certificate``)."""
    certificate: Array | None = None
    """The identity of the certificate that the row was decided under; None without one."""
    lane: Array | None = None
    """'trusted', 'certified', 'review' or 'unfamiliar' (``torchsdm.trust.lanes``)."""
    reason: Array | None = None
    """Why the row is in its lane, in words."""

    @staticmethod
    def of_probabilities(
        classes: Array,
        alphas: Sequence[float] | Array,
        logits: Array,
        probabilities: Array,
        admitted_at: Array,
        **optional: Any,
    ) -> Decisions:
        """Decisions from probabilities (N, C), what a rule admits, (N, A) for ascending alphas, and optional fields."""
        y_hat = logits.argmax(axis=1)
        return Decisions(
            classes=classes,
            alphas=np.asarray(alphas, dtype=float),
            predictions=classes[y_hat],
            **_admission("admitted", admitted_at, np.asarray(alphas, dtype=float)),
            probabilities=probabilities,
            confidence=np.take_along_axis(probabilities, y_hat[:, None], axis=1)[:, 0],
            logits=logits,
            **optional,
        )

    @staticmethod
    def concatenate(parts: Sequence[Self]) -> Self:
        """The rows of several decisions, one after the other."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name, _ in parts[0]._columns()}
        return replace(parts[0], **columns)

    def without_class_values(self) -> Decisions:
        """The same answers as plain decisions whose per-class fields have no columns, (N, 0).

        What measures of a selection need: the memory for a row does not grow with the number of classes.
        """
        dropped = {name: np.empty((len(self), 0)) for name in ("probabilities", "logits")}
        kept = {field.name: getattr(self, field.name) for field in fields(Decisions) if field.name not in _LANES}
        return Decisions(**{**kept, **dropped})

    def at(self: Self, alpha: float) -> Self:
        """The same rows at one of the requested alphas, as if it were the only one.

        With several alphas, ``set_sizes``, certificate and lanes are left out.
        """
        columns = np.flatnonzero(np.isclose(self.alphas, alpha, rtol=0, atol=1e-9))
        if len(columns) == 0:
            known = ", ".join(f"{value:g}" for value in self.alphas)
            raise InvalidInputError(f"'alpha' of Decisions.at must be one of those requested, {known}. Got {alpha:g}.")
        return self if len(self.alphas) == 1 else replace(self, **self._at(columns[:1]))

    def with_admission(self: Self, admitted_at: Array) -> Self:
        """The same rows, with a new admission at each alpha, (N, A)."""
        return replace(self, **_admission("admitted", admitted_at, self.alphas))

    @property
    def magnitude(self) -> Array:
        """The logit of the predicted label, z'_yhat (N,)."""
        return self.logits.max(axis=1)

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'input')}, {int(self.admitted.sum())} admitted)"

    def __getitem__(self: Self, rows: int | slice | Sequence[int] | Array) -> Self:
        """Some of the rows, as decisions; a single number gives one row."""
        if isinstance(rows, str):
            raise InvalidTypeError(f"Decisions are indexed by row. For a column write decisions.{rows}.")
        chosen = [rows] if isinstance(rows, (int, np.integer)) else rows
        values = {name: value[chosen] for name, value in self._columns()}
        return replace(self, **values)

    if not TYPE_CHECKING:  # to a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            if name in SDMDecisions.__dataclass_fields__:
                raise MissingSignalError(
                    f"These decisions have no '{name}': it is a signal of SDM, which their estimator does not use."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values per input, ready for strict JSON: NaN and infinity become None.

        The keys are the names of the fields, but ``prediction`` for ``predictions``, and ``magnitude``; a per-class
        value is a dictionary by label. The command and the service write the same rows
        (``torchsdm.application.decision_schema``).
        """
        columns: dict[str, list[Any]] = {}
        for name, values, keys in self._written():
            if values.ndim == 2:
                names = [str(key) for key in keys.tolist()]
                columns[name] = [dict(zip(names, row, strict=True)) for row in values.tolist()]
            elif values.dtype.kind == "f":
                columns[name] = np.where(np.isfinite(values), values, np.array(None)).tolist()
            else:
                columns[name] = values.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """A data frame with one row per input; per-class values get a column per class, as ``probabilities[label]``."""
        pd = import_extra("pandas", "report", "Decisions.to_pandas")
        columns: dict[str, Array] = {}
        for name, values, keys in self._written():
            if values.ndim == 1:
                columns[name] = values
            else:
                columns |= {f"{name}[{key}]": values[:, c] for c, key in enumerate(keys.tolist())}
        return pd.DataFrame(columns)

    def _at(self, column: Array) -> dict[str, Any]:
        """The fields that depend on alpha, for the alpha in one column (given as an array)."""
        alphas = self.alphas[column]
        admission = _admission("admitted", self.admitted_at[:, column], alphas)
        return {"alphas": alphas, **dict.fromkeys(("set_sizes", *_LANES)), **admission}

    def _columns(self) -> Iterator[tuple[str, Array]]:
        """The fields with one value per row."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("classes", "alphas") and value is not None:
                yield field.name, value

    def _written(self) -> Iterator[tuple[str, Array, Array]]:
        """The fields of a written row, each with what the columns of a two-dimensional one stand for."""
        for name, values in (*self._columns(), ("magnitude", self.magnitude)):
            keys = self.alphas if name.endswith("_at") else self.classes
            yield "prediction" if name == "predictions" else name, values, keys


@dataclass(frozen=True, kw_only=True, repr=False)
class SDMDecisions(Decisions):
    """Decisions of SDM estimators, with the signals they are based on.

    With several alphas, the values that depend on alpha (``dkw_epsilon`` and everything lower or upper) are those of
    the row's ``admitted_lower_alpha``; if that is NaN, of its ``admitted_alpha``; if that is NaN too, of the smallest
    alpha. In an ensemble they are those of the round named by ``member``.
    """

    admitted_lower: Array
    """Whether it is still admitted with d lowered by ``dkw_epsilon`` (the lower estimator)."""
    admitted_lower_alpha: Array
    """The largest alpha whose lower estimator admits the point; NaN if none does."""
    admitted_lower_at: Array
    """Whether the lower estimator of each alpha admits the point, (N, A)."""
    out_of_distribution: Array
    """The paper's: q = 0 (the nearest support point does not match) or d = 0 (beyond all calibration distances of some
    class). True for some genuine inputs, too; ``lane`` has the word for users, 'unfamiliar'."""
    confidence_lower: Array
    confidence_upper: Array
    similarity: Array
    """q: how many consecutive nearest support points are correct and predicted like the input."""
    nearest_distance: Array
    nearest_index: Array
    """Support index of the nearest support point."""
    distance_quantile: Array
    """d in [0, 1]; 0 is farther than every calibration point with q > 0 of some class."""
    class_distance_quantile: Array
    """The same within the predicted class alone."""
    distance_quantile_lower: Array
    distance_quantile_upper: Array
    rescaled_similarity: Array
    """q'."""
    rescaled_similarity_lower: Array
    effective_sample_sizes: Array
    """Per class, how many calibration points have a smaller q', (N, C)."""
    dkw_epsilon: Array
    """Half-width of the band around d; a heuristic."""
    familiarity: Array | None = None
    """How familiar the input is: spread evenly over [0, 1] for inputs like the calibration points
    (``torchsdm.core.Familiarity``); 0 if it is farther than all of them or resembles the background."""
    background: Array | None = None
    """Whether the input resembles the background, if the model was shown any: its q is 0, and it is never admitted."""

    def of_rounds(self, admitted_at: Array, member: Array) -> SDMDecisions:
        """The same rows as an ensemble's; ``admitted_at`` (N, A) is where the lower estimators of all rounds admit."""
        lower = _admission("admitted_lower", admitted_at, self.alphas)
        return replace(self.with_admission(admitted_at), **lower, member=member)

    @property
    def min_sample_size(self) -> Array:
        """The smallest effective sample size over the classes (N,)."""
        return self.effective_sample_sizes.min(axis=1)

    def _at(self, column: Array) -> dict[str, Any]:
        alphas = self.alphas[column]
        rests_on = (self.logits, self.similarity, self.distance_quantile, self.effective_sample_sizes)
        z, *signals = (torch.tensor(np.ascontiguousarray(values)) for values in rests_on)
        band = _band(float(alphas[0]), z.double(), *signals)
        lower = _admission("admitted_lower", self.admitted_lower_at[:, column], alphas)
        return super()._at(column) | lower | {name: values.numpy() for name, values in band.items()}


def decide(
    logits: Tensor,
    match: Match,
    ecdfs: ClassEcdfs,
    calibration_rescaled_similarity: Tensor,
    calibration_labels: Tensor,
    regions: Sequence[HighReliabilityRegion],
    classes: Array,
) -> SDMDecisions:
    """Decide on points from their logits and what they match; all in float64, each row independent of the batch."""
    z, q, d = logits.double(), match.similarity, ecdfs.distance_quantile(match.nearest_distance)
    y_hat = z.argmax(dim=1)
    probabilities = log_activation(z, q, d).exp()
    confidence = probabilities.gather(1, y_hat[:, None]).squeeze(1)
    q_rescaled = rescaled_similarity(q, confidence)
    sizes = effective_sample_sizes(calibration_rescaled_similarity, calibration_labels, q_rescaled, z.shape[1])

    regions = sorted(regions, key=lambda region: region.alpha)
    bands, admitted_at, admitted_lower_at = [], [], []
    for region in regions:
        band = _band(region.target, z, q, d, sizes)
        bands.append(band)
        admitted_at.append(region.admits(q_rescaled, y_hat, confidence))
        admitted_lower_at.append(region.admits(band["rescaled_similarity_lower"], y_hat, band["confidence_lower"]))
    # Show the band of the largest alpha whose lower estimator admits, else the largest that admits, else the smallest.
    shown = torch.zeros_like(y_hat)
    for admits_at in (admitted_at, admitted_lower_at):
        for position, admits in enumerate(admits_at):
            shown[admits] = position

    columns = {
        "out_of_distribution": (q == 0) | (d == 0),
        "probabilities": probabilities,
        "confidence": confidence,
        "logits": logits,
        "similarity": q,
        "nearest_distance": match.nearest_distance,
        "nearest_index": match.nearest_index,
        "distance_quantile": d,
        "class_distance_quantile": ecdfs.class_distance_quantile(match.nearest_distance, y_hat),
        "rescaled_similarity": q_rescaled,
        "effective_sample_sizes": sizes,
        **{name: torch.stack([band[name] for band in bands]).gather(0, shown[None])[0] for name in bands[0]},
    }
    alphas = np.array([region.alpha for region in regions])
    return SDMDecisions(
        classes=classes,
        alphas=alphas,
        predictions=classes[y_hat.cpu().numpy()],
        **_admission("admitted", torch.stack(admitted_at, dim=1).cpu().numpy(), alphas),
        **_admission("admitted_lower", torch.stack(admitted_lower_at, dim=1).cpu().numpy(), alphas),
        **{name: column.cpu().numpy() for name, column in columns.items()},
    )


def _admission(kind: str, admitted_at: Array, alphas: Array) -> dict[str, Any]:
    """The three fields of one kind, 'admitted' or 'admitted_lower', from what each alpha admits (N, A)."""
    admitted = admitted_at.any(axis=1)
    largest = np.where(admitted, np.where(admitted_at, alphas, -np.inf).max(axis=1), np.nan)
    return {kind: admitted, f"{kind}_alpha": largest, f"{kind}_at": admitted_at}


def _band(target: Target, z: Tensor, q: Tensor, d: Tensor, sizes: Tensor) -> dict[str, Tensor]:
    """The band around d, and what follows from d at its ends (appendix A.5).

    Where classes have targets of their own, each row's is that of its prediction.
    """
    y_hat = z.argmax(dim=1, keepdim=True)
    if isinstance(target, tuple):
        alphas = sorted(set(target))
        of_class = torch.tensor([alphas.index(alpha) for alpha in target], device=z.device)
        epsilons = torch.stack([dkw_epsilon(sizes, alpha) for alpha in alphas])
        epsilon = epsilons.gather(0, of_class[y_hat].T)[0]
    else:
        epsilon = dkw_epsilon(sizes, target)
    d_lower, d_upper = (d - epsilon).clamp(min=0.0), (d + epsilon).clamp(max=1.0)
    confidence_lower, confidence_upper = (
        log_activation(z, q, end).exp().gather(1, y_hat).squeeze(1) for end in (d_lower, d_upper)
    )
    return {
        "dkw_epsilon": epsilon,
        "distance_quantile_lower": d_lower,
        "distance_quantile_upper": d_upper,
        "confidence_lower": confidence_lower,
        "confidence_upper": confidence_upper,
        "rescaled_similarity_lower": rescaled_similarity(q, confidence_lower),
    }
