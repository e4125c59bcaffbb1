"""The steps of a fit: hold out a part, build models, certify, and see how strong the classifier has become."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import Adaptor, Target, largest, one_of_each, restore_adaptor
from torchsdm.data import LabelledStates
from torchsdm.errors import CertificateWarning, Remedy, warn_user
from torchsdm.estimators._data import FitData
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import Certification, Points, SDMModel
from torchsdm.training import (
    EpochRecord,
    Part,
    Round,
    Training,
    TrainingSettings,
    Use,
    certification_split,
    epoch_summary,
    initial_adaptor,
    random_generator,
    solve_linear,
    tuned_regression,
)
from torchsdm.trust import (
    UNLABELLED,
    AlphaCurve,
    Certificate,
    Floor,
    Look,
    Reliability,
    ScoredSample,
    SignalSample,
    can_certify,
    certify,
    current_ledger,
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
    min_class_count: int

    def of_round(self, one: Round, training: Training) -> tuple[SDMModel, Array, Array]:
        """The model of a round, and the rows that it was trained and calibrated on.

        Background examples that a round was judged by go to its support once it is trained: calibration is about the
        classes alone, as eCDFs, region and certificate speak of inputs that belong.
        """
        settings, data = self.settings, self.data
        train, calibration = training.parts(one.number)
        is_given = data.points.calibration is not None
        trained, calibrated = (
            self._own(train.rows),
            calibration.rows.numpy() if is_given else self._own(calibration.rows),
        )
        beyond = calibration.labels == len(data.classes)
        if bool(beyond.any()):
            labels = torch.cat([train.labels, calibration.labels[beyond]])
            train = Part(train.hidden_states, labels, torch.cat([train.rows, calibration.rows[beyond]]))
            calibration = Part(calibration.hidden_states, calibration.labels[~beyond], calibration.rows[~beyond])
        width = train.hidden_states.shape[-1]
        adaptor = restore_adaptor(settings.adaptor, width, settings.n_classes, settings.n_filters, one.best_weights)
        calibrating = data.calibration_examples.take(calibration.rows.tolist())
        points = Points(calibration.blocks(), calibration.labels, calibrating)
        return self._build(adaptor, train, points), trained, calibrated

    def linear(self) -> tuple[SDMModel, Array, Array, EpochRecord]:
        """The model of the linear solution, the rows that it was trained and calibrated on, and a record, as one epoch.

        All usable points are its support, and they calibrate it unless a calibration set is given.
        """
        start = time.perf_counter()
        data, n_least = self.data, _FILTERS_PER_CLASS * self.settings.n_classes
        settings = replace(self.settings, n_filters=max(self.settings.n_filters, n_least))
        train, given = data.points.usable, data.points.calibration
        adaptor = initial_adaptor(train, settings, self.seed)
        solution = solve_linear(train, adaptor, settings, self.seed, data.points.groups_of(train.rows))
        solution.put_into(adaptor, train)
        calibrating = None if given is None else Points(given.blocks(), given.labels, data.calibration_examples)
        model = self._build(adaptor, train, calibrating, solution.out_of_fold)
        known = model.calibration
        _, summary = epoch_summary(known.logits, known.labels, known.similarity, known.nearest_distance)
        trained = self._own(train.rows)
        record = EpochRecord(
            round=0,
            epoch=1,
            step_loss=solution.loss,
            **{f"{part}_{name}": value for part in ("train", "calibration") for name, value in summary.items()},
            seconds=time.perf_counter() - start,
        )
        return model, trained, trained if given is None else given.rows.numpy(), record

    def _own(self, rows: Tensor) -> Array:
        """Those of X: background examples that are trained on come after them."""
        own: Array = rows.numpy()
        return own[own < self.data.n_rows]

    def _build(
        self, adaptor: Adaptor, train: Part, calibration: Points | None, out_of_fold: Tensor | None = None
    ) -> SDMModel:
        data, settings, background = self.data, self.settings, self.data.background
        blocks, labels, examples = train.blocks(), train.labels, data.examples.take(train.rows.tolist())
        if background is not None and not background.is_trained:
            blocks = itertools.chain(blocks, background.states.split(DEFAULT_BLOCK_SIZE))
            labels = torch.cat([labels, background.labels])
            examples = examples.with_added(background.examples)
        return SDMModel.build(
            adaptor.to(settings.device),
            Points(blocks, labels, examples),
            calibration,
            data.classes,
            data.alphas,
            out_of_fold=out_of_fold,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )


@dataclass(frozen=True)
class Terms:
    """What a certificate is asked for, whatever its alpha."""

    delta: float
    control: str
    familiarity: float
    families: Array | None
    """The number of the pool that each class is put into (C,), if it has too few points of its own."""


def hold_out(classifier: SDMClassifier, data: FitData) -> tuple[FitData, Array]:
    """Hold out a random part of X to certify with, unless there are too few points for any certificate; its rows.

    Who gives a calibration set has made the split; nothing is held out of it then. Of rows that belong together one is
    certified with, and the others are left out: they are neither independent of it nor unseen. Nor is a row drawn that
    an audit of labels has looked at.
    """
    share, delta, control = classifier.certification_size, classifier.delta, classifier.control
    labels, none = data.points.labels[: data.n_rows].numpy(), np.array([], dtype=np.int64)
    if share is None or data.certification is not None or data.points.calibration is not None:
        return data, none
    seed, groups = classifier.random_seed_, data.points.groups_of(torch.arange(data.n_rows))
    alone = np.arange(data.n_rows)
    if groups is not None:
        alone = one_of_each(groups, random_generator(seed, 1, Use.CERTIFICATION))
    inspected = current_ledger().inspected(data.keys)
    held, n_given_back = certification_split(labels, float(share), seed, groups, inspected)
    chosen = np.intersect1d(held, alone)
    n_expected, n_drawn = len(alone) * share, len(chosen) + n_given_back
    if inspected.any() and n_drawn < np.floor(n_expected):
        warn_user(
            f"An audit has looked at {inspected.sum():,} of the {data.n_rows:,} rows, so only {n_drawn:,} can be held "
            f"out to certify with, not {n_expected:,.0f}.",
            CertificateWarning,
            Remedy.CERTIFY_NEW,
        )
        share = n_drawn / len(alone)
    expected = np.bincount(labels[alone], minlength=len(data.classes)) * share
    if not can_certify(expected, alpha=data.alphas[0], delta=delta, control=control):
        return data, none
    rows = torch.from_numpy(chosen)
    part = Part(data.points.hidden_states, data.points.labels[rows], rows)
    examples, keys = data.examples.take(rows.tolist()), data.keys[chosen]
    held_out = Points(part.blocks(), part.labels, examples, keys, len(held) - len(chosen))
    points = data.points.hold_out(torch.from_numpy(held))
    return replace(data, points=points, certification=held_out, n_given_back=n_given_back), chosen


def certified(
    model: SDMModel, alpha: Target, terms: Terms, spent: Mapping[str, float], keys: Array | None = None
) -> tuple[Certificate, Reliability | None, Mapping[str, float]]:
    """Find the certified rule of a model, if it has certification points, and the score that its thresholds are for.

    ``spent`` is what those points are known to have been asked so far, and the delta of every answer; with ``keys`` the
    ledger knows of others. All of them are returned last, with this question.
    """
    points, n_classes = model.certification, len(model.classes)
    if points is None or len(points.labels) == 0 or largest(alpha) == 1:
        nothing = (alpha, terms.delta, terms.control, n_classes)
        return Certificate.without_test(*nothing, looks=len(spent), delta_spent=sum(spent.values())), None, spent
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
    if keys is not None:
        earlier = current_ledger().ask(Look(keys, name, certificate.delta), earlier)
    certificate = replace(
        certificate,
        looks=len(earlier) + 1,
        delta_spent=sum(earlier.values()) + certificate.delta,
        n_corrected=points.n_corrected,
        n_left_out=points.n_left_out,
    )
    return certificate, reliability, {**earlier, name: certificate.delta}


def alpha_curve(model: SDMModel, terms: Terms, n_certification: int) -> AlphaCurve:
    """What each alpha would admit; of the certification points only their number is used."""
    calibration, reliability = _with_reliability(model, terms.familiarity)
    return AlphaCurve.of(
        *(calibration.scored(reliability, terms.familiarity), len(model.classes), n_certification),
        delta=terms.delta,
        control=terms.control,
        families=terms.families,
    )


def label_floor(model: SDMModel, alpha: Target, terms: Terms, n_asked: int, n_pool: int) -> Floor:
    """What a certification point must reach to need a label; from calibration alone."""
    calibration, reliability = _with_reliability(model, terms.familiarity)
    return Floor.planned(
        *(calibration.scored(reliability, terms.familiarity), len(model.classes), n_asked, n_pool),
        alpha=alpha,
        delta=terms.delta,
        control=terms.control,
        families=terms.families,
    )


def reaching(model: SDMModel, floor: Floor, familiarity: float) -> Array:
    """Which certification points of a model need a label (N,)."""
    if model.certification is None:
        return np.array([], dtype=bool)
    return floor.reached_by(scored_samples(model, model.certification, familiarity)[1])


def scored_samples(
    model: SDMModel, points: Certification, familiarity: float
) -> tuple[ScoredSample, ScoredSample, Reliability]:
    """Calibration and certification points with their reliability, which is fitted on the first."""
    decisions = model.decide_encoded(points.points)
    calibration, reliability = _with_reliability(model, familiarity)
    labels = points.labels.cpu().numpy()
    certification = SignalSample(
        np.where(labels < len(model.classes), labels, UNLABELLED),
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
