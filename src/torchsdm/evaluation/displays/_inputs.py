"""Checks that the displays share: decisions and their true labels, estimators, alphas."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchsdm.core import Decisions, SDMDecisions
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.labels import LabelCodes
from torchsdm.validation import Array, check_alpha, check_label_array, check_same_length


class Compared(NamedTuple):
    """Decisions compared with the truth, in class numbers."""

    labels: Array
    """True classes (N,)."""
    predictions: Array
    correct: Array


def compare(decisions: Any, y: Any, caller: str) -> Compared:
    """Compare decisions with true labels, all of which must be classes of the decisions."""
    check_decisions(decisions, caller)
    labels = check_label_array(y, caller)
    check_same_length(len(decisions), labels, "y", caller)
    codes = LabelCodes(decisions.classes)
    truth = codes.encode(labels, caller).numpy()
    predictions = codes.encode(decisions.predictions, caller).numpy()
    return Compared(truth, predictions, predictions == truth)


def some_rows(n: int, most: int) -> Array:
    """Row numbers to draw: all, or as many as a plot can show, drawn at random and always the same."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def check_decisions(decisions: Any, caller: str) -> None:
    """Require decisions on at least one input."""
    if not isinstance(decisions, Decisions):
        raise InvalidTypeError(
            f"'decisions' of {caller} must be Decisions, as returned by decide. Got {type(decisions).__name__}."
        )
    if len(decisions) == 0:
        raise InvalidInputError(f"'decisions' of {caller} must have at least one input. Got none.")


def check_sdm_decisions(decisions: Decisions, caller: str) -> SDMDecisions:
    """Require the decisions of an SDM estimator, which have its signals."""
    if not isinstance(decisions, SDMDecisions):
        raise InvalidInputError(
            f"'decisions' of {caller} must be from an SDM estimator. Got decisions without signals."
        )
    return decisions


def decide(estimator: Any, X: Any, caller: str) -> Decisions:
    """The decisions of an estimator."""
    if not callable(getattr(estimator, "decide", None)):
        raise InvalidTypeError(
            f"'estimator' of {caller} must be a torchsdm estimator, with a method decide. "
            f"Got {type(estimator).__name__}."
        )
    decisions: Decisions = estimator.decide(X)
    return decisions


def sdm_classifier(estimator: Any, caller: str) -> SDMClassifier:
    """The classifier, with one calibration set, that an estimator is based on."""
    inner = getattr(estimator, "classifier_", estimator)
    if isinstance(inner, SDMClassifier):
        return inner
    if isinstance(inner, SDMTextClassifier):
        raise NotFittedError(f"This SDMTextClassifier is not fitted yet: call fit before {caller}.")
    reason = type(inner).__name__
    if isinstance(inner, SDMEnsemble):
        reason += ", which has one calibration set per round; draw a single round with from_predictions"
    raise InvalidTypeError(
        f"'estimator' of {caller} must be a fitted SDMClassifier or SDMTextClassifier. Got {reason}."
    )


def admission(decisions: Decisions, alpha: float | None, caller: str) -> tuple[float, Array]:
    """An alpha of the decisions, by default the smallest, and which inputs are admitted at it (N,)."""
    value = float(decisions.alphas[0]) if alpha is None else check_alpha(alpha, caller)
    columns = np.flatnonzero(np.isclose(decisions.alphas, value, rtol=0, atol=1e-9))
    if len(columns) == 0:
        known = ", ".join(f"{known:g}" for known in decisions.alphas)
        raise InvalidInputError(f"'alpha' of {caller} must be one of the decisions' own, {known}. Got {value:g}.")
    return float(decisions.alphas[columns[0]]), decisions.at(value).admitted
