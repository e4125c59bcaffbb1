"""What an estimator promises: its certificate, the lanes of its decisions, and what a user should know."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Familiarity, Target, largest
from torchsdm.errors import CertificateWarning, Remedy, SDMWarning, warn_user
from torchsdm.estimators._fitted import FittedState
from torchsdm.estimators._fitting import FitData
from torchsdm.labels import check_pools
from torchsdm.model import Certification, Points, SDMModel
from torchsdm.settings import AUTO, POLICIES
from torchsdm.training import Part, certification_split
from torchsdm.trust import (
    AlphaCurve,
    Certificate,
    LaneRule,
    Reliability,
    ScoredSample,
    SignalSample,
    can_certify,
    certify,
    familiarity_of,
    is_familiar,
)
from torchsdm.validation import Array, check_choice
from torchsdm.wording import UNPROMISED


class Trusting(FittedState):
    """Lanes for every decision; for the single classifier, a certificate behind them."""

    certification_size: float | None
    delta: float
    control: str
    pools: Mapping[str, Sequence[Any]] | None
    familiarity: float
    policy: str

    @property
    def lane_rule_(self) -> LaneRule:
        """What puts decisions into lanes. A certificate does not hold for a model that was updated since."""
        self._check_is_fitted("lane_rule_")
        check_choice(self.policy, POLICIES, "policy", type(self).__name__)
        changed = any(model.outdated for model in self.models_)
        return LaneRule(
            None if changed else self.certificate_,
            self.reliability_,
            float(self.familiarity if self.certificate_ is None else self.familiarity_),
            self.policy,
            self.models_[0].calibration.regions[0] if len(self.models_) == 1 else None,
            self._measure(self.models_[0]),
        )

    def _measure(self, model: SDMModel) -> Familiarity | None:
        """The measure of familiarity that a model's rule uses."""
        return model.calibration.familiarity if self.measures_familiarity_ else None

    def warnings(self) -> list[SDMWarning]:
        """What a user should know before relying on the model; also in its card, its report and ``sdm doctor``."""
        self._check_is_fitted("warnings")
        names, certificate = self.classes_.tolist(), self.certificate_
        found = self._region_warnings()
        if certificate is not None and (warning := certificate.warning(names)) is not None:
            found.append(warning)
        if certificate is not None and certificate.found and self.models_[0].outdated:
            found.append(CertificateWarning(UNPROMISED["changed"], remedy=Remedy.CERTIFY_AGAIN))
        return found

    def _region_warnings(self) -> list[SDMWarning]:
        """What a user should know about the regions, once for all rounds of an ensemble."""
        names, certificate = self.classes_.tolist(), self.lane_rule_.certificate
        certified = certificate is not None and certificate.found
        by_round = [model.calibration.warnings(names, certified=certified) for model in self.models_]
        return by_round[0] if len(by_round) == 1 else _told_once(by_round)

    def _warn_of_regions(self) -> None:
        for warning in self._region_warnings():
            warn_user(warning)

    def _hold_out(self, data: FitData, alpha: Target) -> FitData:
        """Hold out a random part of X to certify with, unless there are too few points for any certificate.

        Who gives a calibration set has made the split; nothing is held out of it then.
        """
        self.certification_rows_ = np.array([], dtype=np.int64)
        share = self.certification_size
        if share is None or data.certification is not None or not self._certifies(data):
            return data
        labels = data.points.labels.numpy()
        expected = np.bincount(labels, minlength=len(data.classes)) * share
        if not can_certify(expected, alpha=alpha, delta=self.delta, control=self.control):
            return data
        self.certification_rows_, n_given_back = certification_split(labels, float(share), self.random_seed_)
        rows = torch.from_numpy(self.certification_rows_)
        part = Part(data.points.hidden_states, data.points.labels[rows], rows)
        held_out = Points(part.blocks(), part.labels, data.examples.take(rows.tolist()))
        return replace(data, points=data.points.hold_out(rows), certification=held_out, n_given_back=n_given_back)

    def _certifies(self, data: FitData) -> bool:
        """Whether a fit is to be certified."""
        was_split = data.points.calibration_states is not None
        return data.certification is not None or not (self.certification_size is None or was_split)

    def _certify(self, model: SDMModel, alpha: Target) -> None:
        """Find the certified rule of a model, if it has certification points; warns if there is none."""
        self.familiarity_, self.measures_familiarity_ = float(self.familiarity), True
        points = model.certification
        spent = {} if points is None else self.deltas_spent_.get(points.fingerprint, {})
        if points is None or len(points.labels) == 0 or largest(alpha) == 1:
            self.certificate_ = Certificate.without_test(
                *(alpha, float(self.delta), self.control, len(model.classes)),
                looks=len(spent),
                delta_spent=sum(spent.values()),
            )
        else:
            calibration, certification = self._scored_samples(model, points)
            families = self._families(model.classes)
            certificate = certify(
                *(calibration, certification, len(model.classes)),
                alpha=alpha,
                delta=float(self.delta),
                control=self.control,
                families=families,
                n_errors=points.n_given_back,
                u=points.u,
            )
            terms = {"alpha": alpha, "delta": certificate.delta, "control": certificate.control}
            question = [calibration.digest(), certification.digest(), terms]
            question += [] if families is None else [families.tolist()]
            name = hashlib.sha256(json.dumps(question).encode()).hexdigest()
            earlier = {asked: delta for asked, delta in spent.items() if asked != name}  # the same question is no look
            self.certificate_ = replace(
                certificate,
                looks=len(earlier) + 1,
                delta_spent=sum(earlier.values()) + certificate.delta,
                n_corrected=points.n_corrected,
            )
            asked = {**earlier, name: certificate.delta}
            self.deltas_spent_ = {**self.deltas_spent_, points.fingerprint: asked}
        warning = self.certificate_.warning(model.classes.tolist())
        if warning is not None:
            warn_user(warning)

    def _alpha_curve(self, model: SDMModel, n_certification: int) -> AlphaCurve:
        """What each alpha would admit; of the certification points only their number is used."""
        familiarity = float(self.familiarity)
        calibration, reliability = _with_reliability(model, familiarity)
        scored = calibration.scored(reliability, familiarity)
        control = self.control
        if control == AUTO:  # as it was chosen for the certificate
            control = "all" if self.certificate_ is None else self.certificate_.control
        terms: dict[str, Any] = {"delta": float(self.delta), "control": control}
        families = self._families(model.classes)
        return AlphaCurve.of(scored, len(model.classes), n_certification, **terms, families=families)

    def _families(self, classes: Array) -> Array | None:
        """The number of the pool that each class is to be put into (C,), if it has too few points of its own."""
        return None if self.pools is None else check_pools(self.pools, classes, type(self).__name__)

    def _scored_samples(self, model: SDMModel, points: Certification) -> tuple[ScoredSample, ScoredSample]:
        """Calibration and certification points with their reliability, which is fitted on the first."""
        decisions = model.decide_encoded(points.points)
        calibration, self.reliability_ = _with_reliability(model, self.familiarity_)
        familiarity = familiarity_of(decisions, model.calibration.familiarity)
        signals = (decisions.logits, decisions.similarity, decisions.distance_quantile, familiarity)
        certification = SignalSample(_numpy(points.labels), *signals)
        fitted = (self.reliability_, self.familiarity_)
        return calibration.scored(*fitted), certification.scored(*fitted)


def _told_once(by_round: Sequence[Sequence[SDMWarning]]) -> list[SDMWarning]:
    """The warnings of several rounds: where several say the like, the first of them."""
    alike: dict[tuple[Any, ...], list[tuple[int, SDMWarning]]] = {}
    for number, warnings in enumerate(by_round, start=1):
        seen: Counter[tuple[Any, ...]] = Counter()
        for warning in warnings:
            kind = (type(warning), warning.remedy)
            alike.setdefault((*kind, seen[kind]), []).append((number, warning))
            seen[kind] += 1

    def told(number: int, warning: SDMWarning, n_rounds: int) -> SDMWarning:
        of = f"Round {number}" + (f", and likewise {n_rounds - 1} of the others" if n_rounds > 1 else "")
        return type(warning)(f"{of}: {warning.what}", remedy=warning.remedy)

    return [told(*rounds[0], len(rounds)) for rounds in alike.values()]


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
