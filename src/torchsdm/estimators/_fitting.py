"""The steps of a fit: hold out a part, build models, certify, and see how strong the classifier has become."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Adaptor, Target, largest, restore_adaptor
from torchsdm.data import LabelledStates
from torchsdm.estimators._data import Background, FitData
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import Certification, Points, SDMModel
from torchsdm.training import (
    EpochRecord,
    Part,
    Round,
    Training,
    TrainingSettings,
    certification_split,
    epoch_summary,
    initial_adaptor,
    solve_linear,
    tuned_regression,
)
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

if TYPE_CHECKING:
    from torchsdm.estimators.classifier import SDMClassifier

_FILTERS_PER_CLASS = 2  # at least, in linear training: one for its logit, and one beside it


@dataclass(frozen=True)
class ModelBuilder:
    """Data and settings of a fit, of which every model of it is built."""

    data: FitData
    settings: TrainingSettings
    seed: int
    alphas: tuple[Target, ...]
    min_class_count: int

    def of_round(self, one: Round, training: Training) -> SDMModel:
        """The model of a round, with its support and calibration set in batch-invariant arithmetic."""
        settings, data = self.settings, self.data
        train, calibration = _background_to_support(*training.parts(one.number), len(data.classes))
        width = train.hidden_states.shape[-1]
        adaptor = restore_adaptor(settings.adaptor, width, settings.n_classes, settings.n_filters, one.best_weights)
        calibrating = data.calibration_examples.take(calibration.rows.tolist())
        return self._build(adaptor, train, Points(calibration.blocks(), calibration.labels, calibrating))

    def rows_of_round(self, one: Round, training: Training) -> tuple[Array, Array]:
        """The rows of X, or of the given calibration set, that a round was trained and calibrated on."""
        train, calibration = training.parts(one.number)
        is_given = self.data.points.calibration_states is not None
        return self._own(train.rows), calibration.rows.numpy() if is_given else self._own(calibration.rows)

    def linear(self) -> tuple[SDMModel, EpochRecord]:
        """The model of the linear solution, and a record of what it came to, as one epoch.

        All usable points are its support, and they calibrate it unless a calibration set is given.
        """
        start = time.perf_counter()
        data, n_least = self.data, _FILTERS_PER_CLASS * self.settings.n_classes
        settings = replace(self.settings, n_filters=max(self.settings.n_filters, n_least))
        train, given = data.points.usable, data.points.given_calibration
        adaptor = initial_adaptor(train, settings, self.seed)
        solution = solve_linear(train, adaptor, settings, self.seed)
        solution.put_into(adaptor, train)
        calibrating = None if given is None else Points(given.blocks(), given.labels, data.calibration_examples)
        model = self._build(adaptor, train, calibrating, solution.out_of_fold)
        known = model.calibration
        _, summary = epoch_summary(known.logits, known.labels, known.similarity, known.nearest_distance)
        return model, EpochRecord(
            round=0,
            epoch=1,
            step_loss=solution.loss,
            **{f"{part}_{name}": value for part in ("train", "calibration") for name, value in summary.items()},
            seconds=time.perf_counter() - start,
        )

    def rows_of_linear(self) -> tuple[Array, Array]:
        """The rows that the linear solution was trained and calibrated on."""
        points, given = self.data.points, self.data.points.given_calibration
        trained = self._own(points.usable.rows)
        return trained, trained if given is None else given.rows.numpy()

    def _own(self, rows: Tensor) -> Array:
        """Those of X: background examples that are trained on come after them."""
        own: Array = rows.numpy()
        return own[own < self.data.n_rows]

    def _build(
        self, adaptor: Adaptor, train: Part, calibration: Points | None, out_of_fold: Tensor | None = None
    ) -> SDMModel:
        data, settings = self.data, self.settings
        points = Points(train.blocks(), train.labels, data.examples.take(train.rows.tolist()))
        return SDMModel.build(
            adaptor.to(settings.device),
            _with_exemplars(points, data.background, len(data.classes)),
            calibration,
            data.classes,
            self.alphas,
            out_of_fold=out_of_fold,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )


def _background_to_support(train: Part, calibration: Part, n_classes: int) -> tuple[Part, Part]:
    """A round's parts once it is trained: background examples that it was judged by go to the support, too.

    Calibration is about the classes alone: eCDFs, region and certificate speak of inputs that belong.
    """
    is_background = calibration.labels == n_classes
    if not bool(is_background.any()):
        return train, calibration
    kept = Part(calibration.hidden_states, calibration.labels[~is_background], calibration.rows[~is_background])
    labels = torch.cat([train.labels, calibration.labels[is_background]])
    rows = torch.cat([train.rows, calibration.rows[is_background]])
    return Part(train.hidden_states, labels, rows), kept


def _with_exemplars(training: Points, background: Background | None, n_classes: int) -> Points:
    """The training points, with background examples that were not trained on."""
    if background is None or background.is_trained:
        return training
    return Points(
        [*training.state_blocks, *background.states.split(DEFAULT_BLOCK_SIZE)],
        torch.cat([training.labels, background.labels(n_classes)]),
        training.examples.with_added(background.examples),
    )


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
        points.labels.cpu().numpy(),
        *(decisions.logits, decisions.similarity, decisions.distance_quantile),
        familiarity_of(decisions, model.calibration.familiarity),
    )
    return calibration.scored(reliability, familiarity), certification.scored(reliability, familiarity), reliability


def _with_reliability(model: SDMModel, familiarity: float) -> tuple[SignalSample, Reliability]:
    """The calibration points of a model, and the reliability that is fitted on them."""
    calibration = model.calibration.sample()
    familiar = is_familiar(calibration.familiarity, familiarity)
    right = calibration.predictions == calibration.labels
    return calibration, Reliability.fit(calibration.evidence[familiar], right[familiar])


_WORSE = 0.01  # than a logistic regression: worth saying


@dataclass(frozen=True)
class Strength:
    """How right a classifier is on its calibration points, every answer counted."""

    right: float
    n: int
    largest_class: Any
    largest_share: float
    """How right it is always to answer with the largest class."""
    lowest_class: Any
    lowest_right: float
    """Of the class that is recognised least often, how often it is."""
    regression: float | None
    """How right a tuned logistic regression is on the same points; None if the classifier begins with one."""

    @classmethod
    def of(cls, classifier: SDMClassifier, training: LabelledStates) -> Strength | None:
        """From the data that a classifier was fitted on; None if its calibration set is not part of them."""
        known = classifier.model_.calibration
        labels, right = known.labels.cpu().numpy(), (known.predictions == known.labels).cpu().numpy()
        regression = None
        if not classifier.is_cross_fitted_:
            states, names = np.asarray(training.hidden_states), np.asarray(training.labels)
            rows, learned = classifier.calibration_rows_, classifier.training_rows_
            if states.ndim != 2 or np.isin(rows, learned).any() or len(rows) != len(labels):
                return None
            numbers = torch.from_numpy(np.searchsorted(classifier.classes_, names))
            model, _ = tuned_regression(
                torch.from_numpy(states[learned]).float(), numbers[learned], len(classifier.classes_)
            )
            logits = model.encode_exactly(torch.from_numpy(states[rows]))[1]
            regression = float((logits.argmax(dim=1) == numbers[rows]).double().mean())
        counts = np.bincount(labels, minlength=len(classifier.classes_))
        by_class = np.bincount(labels, weights=right, minlength=len(counts)) / np.maximum(counts, 1)
        lowest = int(np.where(counts > 0, by_class, np.inf).argmin())
        names_of_classes = classifier.classes_.tolist()
        return cls(
            right=float(right.mean()),
            n=len(labels),
            largest_class=names_of_classes[counts.argmax()],
            largest_share=float(counts.max() / len(labels)),
            lowest_class=names_of_classes[lowest],
            lowest_right=float(by_class[lowest]),
            regression=regression,
        )

    @property
    def is_idle(self) -> bool:
        """Whether it is no better than always answering with the largest class."""
        return self.right <= self.largest_share

    @property
    def is_below_regression(self) -> bool:
        """Whether a logistic regression is clearly better."""
        return self.regression is not None and self.right < self.regression - _WORSE
