"""The certificate of a classifier: what is held out for it, how it is made, and what each alpha would admit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Target, largest
from torchsdm.estimators._data import FitData
from torchsdm.model import Certification, Points, SDMModel
from torchsdm.training import Part, certification_split
from torchsdm.trust import (
    AlphaCurve,
    Certificate,
    Reliability,
    ScoredSample,
    SignalSample,
    can_certify,
    certify,
    familiarity_of,
    is_familiar,
)
from torchsdm.validation import Array


@dataclass(frozen=True)
class Terms:
    """What a certificate is asked for, whatever its alpha."""

    delta: float
    control: str
    familiarity: float
    families: Array | None
    """The number of the pool that each class is put into (C,), if it has too few points of its own."""


@dataclass(frozen=True)
class Certified:
    """A certificate, and what it was made of."""

    certificate: Certificate
    reliability: Reliability | None = None
    """The score that its thresholds are for; None without a test."""
    asked: Mapping[str, float] | None = None
    """What the sample was asked so far, this included, and the delta of every answer; None without a test."""


def hold_out(
    data: FitData, share: float | None, alpha: Target, *, delta: float, control: str, seed: int
) -> tuple[FitData, Array]:
    """Hold out a random part of X to certify with, unless there are too few points for any certificate; its rows.

    Who gives a calibration set has made the split; nothing is held out of it then.
    """
    labels, none = data.points.labels.numpy(), np.array([], dtype=np.int64)
    if share is None or data.certification is not None or data.points.calibration_states is not None:
        return data, none
    expected = np.bincount(labels, minlength=len(data.classes)) * share
    if not can_certify(expected, alpha=alpha, delta=delta, control=control):
        return data, none
    chosen, n_given_back = certification_split(labels, float(share), seed)
    rows = torch.from_numpy(chosen)
    part = Part(data.points.hidden_states, data.points.labels[rows], rows)
    held_out = Points(part.blocks(), part.labels, data.examples.take(rows.tolist()))
    points = data.points.hold_out(rows)
    return replace(data, points=points, certification=held_out, n_given_back=n_given_back), chosen


def certified(model: SDMModel, alpha: Target, terms: Terms, spent: Mapping[str, float]) -> Certified:
    """Find the certified rule of a model, if it has certification points; ``spent`` is what those were asked so far."""
    points, n_classes = model.certification, len(model.classes)
    if points is None or len(points.labels) == 0 or largest(alpha) == 1:
        nothing = (alpha, terms.delta, terms.control, n_classes)
        return Certified(Certificate.without_test(*nothing, looks=len(spent), delta_spent=sum(spent.values())))
    calibration, certification, reliability = scored_samples(model, points, terms.familiarity)
    certificate = certify(
        *(calibration, certification, n_classes),
        alpha=alpha,
        delta=terms.delta,
        control=terms.control,
        families=terms.families,
        n_errors=points.n_given_back,
        u=points.u,
    )
    question = [
        *(calibration.digest(), certification.digest()),
        {"alpha": alpha, "delta": certificate.delta, "control": certificate.control},
        *([] if terms.families is None else [terms.families.tolist()]),
    ]
    name = hashlib.sha256(json.dumps(question).encode()).hexdigest()
    earlier = {asked: delta for asked, delta in spent.items() if asked != name}  # the same question is no look
    certificate = replace(
        certificate,
        looks=len(earlier) + 1,
        delta_spent=sum(earlier.values()) + certificate.delta,
        n_corrected=points.n_corrected,
    )
    return Certified(certificate, reliability, {**earlier, name: certificate.delta})


def alpha_curve(model: SDMModel, terms: Terms, n_certification: int) -> AlphaCurve:
    """What each alpha would admit; of the certification points only their number is used."""
    calibration, reliability = _with_reliability(model, terms.familiarity)
    return AlphaCurve.of(
        *(calibration.scored(reliability, terms.familiarity), len(model.classes), n_certification),
        delta=terms.delta,
        control=terms.control,
        families=terms.families,
    )


def scored_samples(
    model: SDMModel, points: Certification, familiarity: float
) -> tuple[ScoredSample, ScoredSample, Reliability]:
    """Calibration and certification points with their reliability, which is fitted on the first."""
    decisions = model.decide_encoded(points.points)
    calibration, reliability = _with_reliability(model, familiarity)
    certification = SignalSample(
        _numpy(points.labels),
        *(decisions.logits, decisions.similarity, decisions.distance_quantile),
        familiarity_of(decisions, model.calibration.familiarity),
    )
    return calibration.scored(reliability, familiarity), certification.scored(reliability, familiarity), reliability


def _with_reliability(model: SDMModel, familiarity: float) -> tuple[SignalSample, Reliability]:
    """The calibration points of a model, and the reliability that is fitted on them."""
    known = model.calibration
    calibration = SignalSample(
        labels=_numpy(known.labels),
        logits=_numpy(known.logits),
        similarity=_numpy(known.similarity),
        distance_quantile=_numpy(known.distance_quantile),
        familiarity=known.familiarities(),
    )
    familiar = is_familiar(calibration.familiarity, familiarity)
    right = calibration.predictions == calibration.labels
    return calibration, Reliability.fit(calibration.evidence[familiar], right[familiar])


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.cpu().numpy()
    return array
