"""Lanes: what may be done with each decision, and why.

- *trusted*: it is in a window of the score that was certified at its level of evidence (``_windows``). Where no window
  was, the paper's region admits it, which promises nothing, and so does the certified rule, if there is one.
- *certified*: only the certified rule admits it. The promise is an average, which holds while the stream looks like the
  certification set.
- *review*: familiar, but not admitted: the nearest training example contradicts it, neighbours disagree, or the score
  is below the threshold of the prediction.
- *unfamiliar*: too far from the training data for how sure it is (``core.Familiarity``), or like the background. Models
  from before that measure asked instead for a vouching neighbour (q > 0) and for d within the predicted class.

Programs read one boolean, ``admitted``. It follows a policy: 'certified' admits the first two lanes, 'trusted' only the
first. After an alarm of the guard, certified decisions go to review; after one of the spot checks, certified ones, or
all of a prediction (``demoted``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from torchsdm.core import Decisions, Familiarity, HighReliabilityRegion, SDMDecisions, log_odds
from torchsdm.settings import LANES
from torchsdm.trust.certificate import Certificate, ScoredSample
from torchsdm.validation import Array
from torchsdm.wording import REASONS, neighbours

_RIDGE = 1.0  # of the weights of evidence in units of its standard deviation


@dataclass(frozen=True)
class Reliability:
    """The probability that a prediction is right, estimated from the evidence for it.

    The certified rule sets thresholds on this score: a logistic regression on the calibration points,

        P(right) = 1 / (1 + exp(-(b + w . x))),    x = (log(1 + q), log(1 + m), log(1 + s), o),    w >= 0,

    where m is the margin of the predicted class over the next one in the logits, s = d ln(2 + q) m the same margin in
    the logits of the SDM activation, and o the log-odds of the prediction by the softmax. No weight is negative: more
    vouching neighbours, a larger margin, a smaller distance or a surer softmax never lower the score. The SDM
    confidence alone, s, orders inputs worse: its factor d is about uniform in distribution, where it says little about
    being right. Whether an input is near enough at all is asked first (``core.Familiarity``).

    It is an estimate; only the certificate makes a promise. Models from before o was part of it have three weights.
    """

    weights: Array
    """w (4,), not negative."""
    intercept: float

    @classmethod
    def fit(cls, evidence: Array, right: Array) -> Reliability:
        """Fit on the evidence (N, 4) of calibration points and whether each is right (N,).

        Targets are Platt's, (n + 1) / (n + 2) for n right points and 1 / (m + 2) for m wrong ones: without them, points
        that are all right would make the intercept infinite.
        """
        n_right, n_wrong = int(right.sum()), int((~right).sum())
        target = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
        scale = np.maximum(evidence.std(axis=0), 1e-9) if len(evidence) else np.ones(evidence.shape[1])
        x = evidence / scale

        def loss(parameters: Array) -> tuple[float, Array]:
            w, z = parameters[1:], parameters[0] + x @ parameters[1:]
            residual = expit(z) - target
            value = np.logaddexp(0, z).sum() - target @ z + _RIDGE / 2 * w @ w
            return float(value), np.concatenate([[residual.sum()], x.T @ residual + _RIDGE * w])

        start = np.zeros(1 + x.shape[1])
        bounds = [(None, None)] + [(0, None)] * x.shape[1]
        found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x
        return cls(found[1:] / scale, float(found[0]))

    def of(self, evidence: Array) -> Array:
        """P(right) of points (N,)."""
        z = np.full(len(evidence), self.intercept)
        for column, weight in zip(evidence.T, self.weights.tolist(), strict=False):  # in a fixed order, row by row
            z = z + weight * column
        return expit(z)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``from_json`` restores them to the bit."""
        return {"weights": self.weights.tolist(), "intercept": self.intercept}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Reliability:
        """The reverse of ``to_json``."""
        return cls(np.array(stored["weights"], dtype=np.float64), float(stored["intercept"]))


def evidence_of(logits: Array, similarity: Array, distance_quantile: Array) -> Array:
    """The evidence (N, 4) for each prediction from logits (N, C), q (N,) and d (N,)."""
    top = np.partition(np.asarray(logits, dtype=np.float64), -2, axis=1)[:, -2:]
    q, margin = np.asarray(similarity, dtype=np.float64), top[:, 1] - top[:, 0]
    sharpened = np.asarray(distance_quantile, dtype=np.float64) * np.log(2 + q) * margin
    return np.column_stack([np.log1p(np.stack([q, margin, sharpened], axis=1)), log_odds(logits)])


TRUSTED, CERTIFIED, REVIEW, UNFAMILIAR = LANES
Row: TypeAlias = "dict[str, Any]"
_Decided = TypeVar("_Decided", bound=Decisions)


@dataclass(frozen=True)
class SignalSample:
    """Labelled points with their signals, as plain arrays: class numbers (N,), logits (N, C), the others (N,)."""

    labels: Array
    logits: Array
    similarity: Array
    distance_quantile: Array
    familiarity: Array

    @property
    def predictions(self) -> Array:
        """Predicted class numbers (N,)."""
        return self.logits.argmax(axis=1)

    @property
    def evidence(self) -> Array:
        """The evidence for each prediction (N, 4)."""
        return evidence_of(self.logits, self.similarity, self.distance_quantile)

    def scored(self, reliability: Reliability, bound: float) -> ScoredSample:
        """The points as a certificate sees them."""
        score, familiar = reliability.of(self.evidence), is_familiar(self.familiarity, bound)
        return ScoredSample(self.labels, self.predictions, score, familiar)


def is_familiar(familiarity: Array, bound: float) -> Array:
    """Which points may be certified at all (N,)."""
    return (familiarity > 0) & (familiarity >= bound)


def familiarity_of(decisions: SDMDecisions, measure: Familiarity | None) -> Array:
    """The familiarity of decided inputs (N,); 0 for those that resemble the background.

    Without a measure, as in earlier models: d within the predicted class, and 0 without a vouching neighbour.
    """
    if measure is None:
        familiarity: Array = np.where(decisions.similarity > 0, decisions.class_distance_quantile, 0.0)
    else:
        familiarity = measure.of(decisions.nearest_distance, decisions.logits)
    return familiarity if decisions.background is None else np.where(decisions.background, 0.0, familiarity)


@dataclass(frozen=True)
class LaneRule:
    """Puts every decision into a lane, with a reason, and admits it or not."""

    certificate: Certificate | None = None
    """None: nothing was certified, as in the paper."""
    reliability: Reliability | None = None
    """The score that the certificate's thresholds are set on."""
    familiarity: float = 0.0
    policy: str = "certified"
    region: HighReliabilityRegion | None = None
    """The paper's region, to say why it does not admit a point; None for an ensemble, which has several."""
    measure: Familiarity | None = None
    """Of familiarity; None for an ensemble and for earlier models (``familiarity_of``)."""

    def apply(self, decisions: SDMDecisions) -> SDMDecisions:
        """The same decisions with score, certificate, lane, reason and admission."""
        y_hat = decisions.logits.argmax(axis=1)
        familiarity = familiarity_of(decisions, self.measure)
        familiar = is_familiar(familiarity, self.familiarity)
        in_region = decisions.admitted_at.any(axis=1)
        certified, trusted, score, identity = np.zeros(len(decisions), dtype=bool), in_region, None, None
        if self.certificate is not None and self.reliability is not None:
            evidence = evidence_of(decisions.logits, decisions.similarity, decisions.distance_quantile)
            score = self.reliability.of(evidence)
            certified = self.certificate.admits(y_hat, score, familiar)
            if self.certificate.windows:
                trusted = self.certificate.trusts(y_hat, score, familiar)
            elif self.certificate.found:
                trusted = in_region & certified
            if self.certificate.is_any:
                identity = self.certificate.identity
        lane = np.select([trusted, certified, familiar], [TRUSTED, CERTIFIED, REVIEW], UNFAMILIAR)
        admitted: Array = np.isin(lane, LANES[: 1 + (self.policy == "certified")])
        judged = replace(
            decisions,
            score=score,
            familiarity=None if self.measure is None else familiarity,
            certified=certified,
            certificate=np.full(len(decisions), identity, dtype=object),
            lane=lane,
            admitted=admitted,
        )
        return replace(judged, reason=np.array(list(self._reasons(judged, y_hat)), dtype=object))

    def _reasons(self, decisions: SDMDecisions, y_hat: Array) -> Iterator[str]:
        """Why each decision is in its lane."""
        quantile = decisions.class_distance_quantile
        columns = (decisions.lane, decisions.similarity, quantile, decisions.predictions, y_hat)
        for row, (lane, q, d, label, c) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):  # type: ignore[union-attr]
            if lane != UNFAMILIAR:
                yield f"{neighbours(q, lane != REVIEW)}; {self._verdict(decisions, row, label, c, lane)}"
            elif decisions.background is not None and decisions.background[row]:
                yield REASONS["background"]
            elif decisions.familiarity is not None:
                familiarity = float(decisions.familiarity[row])
                yield REASONS["uncertain" if familiarity else "beyond"].format(familiarity=familiarity, label=label)
            else:
                yield REASONS["alone" if not q else "far" if d else "beyond"].format(nearer=1 - d, label=label)

    def _verdict(self, decisions: SDMDecisions, row: int, label: object, c: int, lane: str) -> str:
        """How a decision stands to the rule that decided on it."""
        certificate, is_trusted = self.certificate, lane == TRUSTED
        if decisions.score is not None and certificate is not None and certificate.is_any:
            reaches = certificate.reason(c, float(decisions.score[row]), label, is_trusted=is_trusted)
            return REASONS["region too"].format(reaches=reaches) if is_trusted and not certificate.windows else reaches
        confidence, rescaled = float(decisions.confidence[row]), float(decisions.rescaled_similarity[row])
        if lane == TRUSTED:
            return REASONS["region"].format(rescaled=rescaled, confidence=confidence)
        if self.region is None:
            return REASONS["rounds"]
        if not self.region.found:
            return REASONS["no rule"].format(alpha=self.region.alpha)
        least = self.region.min_rescaled_similarity
        if rescaled < least:
            return REASONS["outside"].format(rescaled=rescaled, least=least)
        return REASONS["unsure"].format(confidence=confidence, least=float(self.region.thresholds[c]), label=label)


def demoted(
    decisions: _Decided, is_calm: Array, *, lanes: Sequence[str] = (CERTIFIED,), reason: str | Array = REASONS["drift"]
) -> _Decided:
    """The same decisions after an alarm: where it is not calm (N,), those of some lanes go to review, with a reason.

    Decisions without lanes stay as they are.
    """
    if decisions.lane is None or decisions.certified is None or decisions.reason is None:
        return decisions
    falls = ~is_calm & np.isin(decisions.lane, lanes)
    return replace(
        decisions,
        certified=decisions.certified & is_calm,
        lane=np.where(falls, REVIEW, decisions.lane),
        reason=np.where(falls, reason, decisions.reason).astype(object),
        admitted=decisions.admitted & ~falls,
    )
