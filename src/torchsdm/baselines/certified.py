"""Scores of other estimators, certified as ``SDMClassifier`` certifies its own rule: the fair comparison."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np

from torchsdm.baselines.base import DecidingClassifier
from torchsdm.core import Decisions, Target, smallest
from torchsdm.errors import InvalidInputError
from torchsdm.labels import LabelCodes
from torchsdm.trust import ScoredSample, certify
from torchsdm.validation import Array, ArrayLike, check_choice, check_label_array, check_same_length

Self = TypeVar("Self", bound="CertifiedScore")

SCORES = ("odds", "energy", "own")  #: that ``CertifiedScore`` can set thresholds on


@dataclass(eq=False, repr=False)
class CertifiedScore(DecidingClassifier):
    """A fitted estimator whose answers are admitted by a certificate on one of its scores.

    1. ``fit`` takes the estimator's decisions on a calibration and a certification sample, finds thresholds on the
       first and certifies them on the second (``torchsdm.trust.certify``);
    2. ``decide`` admits an input whose score reaches the threshold of its predicted class.

    The promise is for this rule alone. Whoever chooses among several by their results on one certification sample has
    the promise of none.

    Parameters
    ----------
    estimator : fitted, with ``decide``
    score : {'odds', 'energy', 'own'}
        What thresholds are set on:

        - 'odds': log(p_ŷ / (1 - p_ŷ)), which orders inputs as the largest probability does but is not rounded to 1;
        - 'energy': log sum_c exp(z_c), the negative free energy (Liu et al., 2020);
        - 'own': the ``score`` of the estimator's decisions, such as minus a distance.
    alpha, delta, control
        As in ``SDMClassifier``.
    families : (C,), optional
        As in ``torchsdm.trust.certify``.

    Attributes
    ----------
    certificate_ : Certificate
        The rule with its promise; where nothing could be certified it admits nothing.
    """

    estimator: Any
    score: str = "odds"
    alpha: Target = 0.95
    _: KW_ONLY
    delta: float = 0.1
    control: str = "groups"
    families: Array | None = None

    def fit(
        self: Self,
        calibration: tuple[Decisions, ArrayLike],
        certification: tuple[Decisions, ArrayLike],
        *,
        n_errors: int = 0,
    ) -> Self:
        """Certify the score with the estimator's decisions on two samples, each with its true labels.

        Nothing that shaped the estimator may have seen the certification sample; ``n_errors`` is as in ``certify``.
        """
        check_choice(self.score, SCORES, "score", "CertifiedScore")
        classes = calibration[0].classes
        self.certificate_ = certify(
            self._sample(*calibration),
            self._sample(*certification),
            len(classes),
            alpha=self.alpha,
            delta=self.delta,
            control=self.control,
            families=self.families,
            n_errors=n_errors,
            advice=False,
        )
        self.fitted_model_, self.classes_ = self.estimator, classes
        return self

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the estimator's label, and whether the certified rule admits it."""
        self._require("certificate_")
        return self.applied(self.estimator.decide(X))

    def applied(self, answers: Decisions) -> Decisions:
        """The same for what the estimator decided on inputs, so that several scores of it need not ask it again."""
        self._require("certificate_")
        score = self._score(answers)
        admitted = self.certificate_.admits(answers.logits.argmax(axis=1), score, np.isfinite(score))
        alphas, logits, probabilities = [smallest(self.alpha)], answers.logits, answers.probabilities
        return Decisions.of_probabilities(
            answers.classes, alphas, logits, probabilities, admitted[:, None], score=score
        )

    def _sample(self, answers: Decisions, y: ArrayLike) -> ScoredSample:
        """Decisions and true labels as a certificate sees them."""
        labels = check_label_array(y, "CertifiedScore.fit")
        check_same_length(len(answers), labels, "y", "CertifiedScore.fit")
        numbers = LabelCodes(answers.classes).encode(labels, "CertifiedScore.fit").numpy()
        score = self._score(answers)
        return ScoredSample(numbers, answers.logits.argmax(axis=1), score, np.isfinite(score))

    def _score(self, answers: Decisions) -> Array:
        if self.score == "odds":
            return log_odds(answers.probabilities, answers.logits.argmax(axis=1))
        if self.score == "energy":
            return negative_energy(answers.logits)
        if answers.score is None:
            kind = type(self.estimator).__name__
            raise InvalidInputError(
                f"'score' of CertifiedScore must be 'odds' or 'energy': {kind} has no score of its own. Got 'own'."
            )
        return answers.score


def log_odds(probabilities: Array, predictions: Array) -> Array:
    """``log(p_yhat / sum_{c != yhat} p_c)`` (N,) of probabilities (N, C) and predicted class numbers (N,).

    Summing the others keeps what 1 - p_yhat would round away. Where all of them are 0, they count as the smallest
    normal float64.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    is_predicted = np.arange(p.shape[1]) == predictions[:, None]  # (N, C)
    tiny = np.finfo(np.float64).tiny
    p_yhat, others = (np.where(chosen, p, 0.0).sum(axis=1) for chosen in (is_predicted, ~is_predicted))
    odds: Array = np.log(np.maximum(p_yhat, tiny)) - np.log(np.maximum(others, tiny))
    return odds


def negative_energy(logits: Array) -> Array:
    """``log sum_c exp(z_c)`` (N,) of logits (N, C), in float64."""
    z = np.ascontiguousarray(logits, dtype=np.float64)
    largest = z.max(axis=1)
    energy: Array = largest + np.log(np.exp(z - largest[:, None]).sum(axis=1))
    return energy
