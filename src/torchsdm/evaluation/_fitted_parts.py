"""The parts of its data that a classifier was fitted on, so that others can be fitted on the same rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier
from torchsdm.training import stratified_split
from torchsdm.validation import Array

_APART = 0.2  # of the rows of a cross-fitted classifier, for others to calibrate on


@dataclass(frozen=True)
class FittedParts:
    """What each step of a classifier's fit saw."""

    of_rounds: LabelledStates
    """All rows that its rounds could split, or train on; without those held out to certify."""
    learned: LabelledStates
    """The training rows of its best round; of a cross-fitted one, four fifths of its rows."""
    calibrated: LabelledStates
    """The calibration set of its best round; of a cross-fitted one, the other fifth."""
    certified: LabelledStates | None
    """The points that its certificate rests on; None if there are none or their states are not known."""

    @classmethod
    def of(
        cls,
        training: LabelledStates,
        classifier: SDMClassifier,
        calibration: LabelledStates | None,
        certification: LabelledStates | None,
    ) -> FittedParts:
        """The parts, checked against the labels that the classifier knows; parameters as in ``paper_entrants``."""
        if not hasattr(classifier, "training_rows_"):
            raise InvalidInputError(
                "'classifier' of paper_entrants does not know the rows it was trained on: it was saved by an earlier "
                "version. Fit it again."
            )
        rows, calibration_rows = classifier.training_rows_, classifier.calibration_rows_
        held_out = getattr(classifier, "certification_rows_", np.array([], dtype=np.int64))  # older models lack it
        is_crossed = classifier.is_cross_fitted_
        was_split = is_crossed or not np.isin(calibration_rows, [*rows, *held_out]).any()  # own sets have rows from 0
        if was_split != (calibration is None):
            given = (
                "None: the classifier split X" if was_split else "what the classifier was given in fit(calibration=…)"
            )
            got = "None" if calibration is None else f"{len(calibration)} rows"
            raise InvalidInputError(f"'calibration' of paper_entrants must be {given}. Got {got}.")
        used = np.union1d(rows, calibration_rows) if was_split else rows
        points, source = classifier.model_.certification, training if calibration is None else calibration
        was_replaced = points is not None and not len(
            held_out
        )  # rows held out for an earlier certificate are forgotten
        is_whole = len(training) > used.max() if was_replaced else len(training) == len(used) + len(held_out)
        calibrated = source.take(calibration_rows) if calibration_rows.max() < len(source) else None
        known = classifier.calibration_logits()[1]
        if not is_whole or calibrated is None or not _has_labels(calibrated, classifier.classes_[known]):
            raise InvalidInputError(
                "'training' and 'calibration' of paper_entrants must be what the classifier was fitted on, in the same "
                f"order. Got {len(training)} training rows where it had {len(used) + len(held_out)}, or other labels."
            )
        certified = training.take(held_out) if certification is None and len(held_out) else certification
        known = np.array([], dtype=np.int64) if points is None else points.labels.cpu().numpy()
        if certified is not None and not _has_labels(certified, classifier.classes_[known]):
            raise InvalidInputError(
                "'certification' of paper_entrants must be what the classifier was certified with, in the same order. "
                f"Got {len(certified)} rows where it had {len(known)}, or other labels."
            )
        of_rounds = training if len(used) == len(training) else training.take(used)
        if is_crossed:
            labels = np.unique(np.asarray(of_rounds.labels), return_inverse=True)[1]
            rng = np.random.default_rng(classifier.random_seed_)
            learned, apart = stratified_split(labels, _APART, rng)
            return cls(of_rounds, of_rounds.take(learned), of_rounds.take(apart), certified)
        return cls(of_rounds, training.take(rows), calibrated, certified)


def _has_labels(data: LabelledStates, labels: Array) -> bool:
    return np.array_equal(np.asarray(data.labels), labels)
